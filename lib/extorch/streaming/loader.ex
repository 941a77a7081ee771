defmodule ExTorch.Streaming.Loader do
  @moduledoc """
  The state of loading a checkpoint from a stream. See `ExTorch.Streaming.feed/2`.

  A loader is `Collectable`. `Enum.into/2` feeds it and returns `{:ok, term, rest}` or `{:error, error}`:

      iex> bytes = ExTorch.Streaming.save(%{a: ExTorch.tensor([1, 2])}) |> Enum.to_list() |> IO.iodata_to_binary()
      iex> {:ok, term, rest} = Enum.into([bytes, "next"], ExTorch.Streaming.loader())
      iex> {ExTorch.Tensor.to_list(term["a"]), rest}
      {[1, 2], "next"}
  """

  alias ExTorch.Checkpoint
  alias ExTorch.Checkpoint.{BatchLoad, Handle, Options}
  alias ExTorch.{Error, Memory, Native, Progress}

  @typep on_tensor :: (String.t(), ExTorch.Tensor.t() -> any())

  @typedoc false
  @opaque options :: {on_tensor() | nil, Options.t()}

  @typedoc "The state of a loader."
  @opaque t :: %__MODULE__{
            resource: reference(),
            ckpt: Handle.t(),
            number: non_neg_integer(),
            on_tensor: on_tensor() | nil,
            keep: boolean(),
            expected: non_neg_integer(),
            entries: [Checkpoint.Entry.t()] | nil,
            by_index: tuple() | nil,
            progress: Progress.t() | nil,
            ready: [[{non_neg_integer(), ExTorch.Tensor.t() | struct()}]],
            fed: non_neg_integer()
          }

  # keep: whether tensors are kept for the object that feed/2 returns
  # expected: the minimum number of bytes until the end of the checkpoint
  # entries: set once the tensors are described, if they are needed
  # by_index: the entries, or the names of the tensors if these are enough
  # ready: complete tensors as lists of {index, tensor}, newest list first
  # number: the number of this state; the NIFs use it to detect old loaders
  # fed: the number of bytes fed so far
  @enforce_keys [:resource, :ckpt]
  defstruct [
    :resource,
    :ckpt,
    :on_tensor,
    :entries,
    :by_index,
    :progress,
    number: 0,
    keep: true,
    expected: 1,
    ready: [],
    fed: 0
  ]

  # After a stream of this many bytes, its chunks are collected.
  @collect_chunks 1024 * 1024

  # The options of loaders with their defaults.
  @doc false
  @spec known_options() :: keyword()
  def known_options, do: [on_tensor: nil] ++ Options.stream_options()

  # Validates options. Returns the function on_tensor and the options of the checkpoint.
  @doc false
  @spec check!(keyword()) :: options()
  def check!(opts) do
    {on_tensor, opts} =
      opts |> ExTorch.Options.validate!(known_options()) |> Keyword.pop!(:on_tensor)

    unless on_tensor == nil or is_function(on_tensor, 2),
      do: ExTorch.Options.invalid!(:on_tensor, "a function of a name and a tensor", on_tensor)

    {on_tensor, Options.check!(opts)}
  end

  @doc false
  @spec new(keyword()) :: t()
  def new(opts), do: opts |> check!() |> start(true)

  # Creates a loader. With `keep: false` it does not build the object: see push/3.
  @doc false
  @spec start(options(), boolean()) :: t()
  def start({on_tensor, options}, keep) do
    {resource, checkpoint} = new_native(options)
    ckpt = %Checkpoint{resource: checkpoint, source: nil, options: options}
    %__MODULE__{resource: resource, ckpt: ckpt, on_tensor: on_tensor, keep: keep}
  end

  defp new_native(options) do
    native = Options.native(options)
    Memory.run!(fn -> Native.loader_new(native, options.limits[:spool_bytes]) end)
  end

  # The minimum number of bytes until the end of the checkpoint.
  @doc false
  @spec expected(t()) :: non_neg_integer()
  def expected(%__MODULE__{expected: expected}), do: expected

  # ---- Feeding ----

  @doc false
  @spec feed(t(), iodata()) :: {:more, t()} | {:done, term(), binary()} | {:error, Error.t()}
  def feed(%__MODULE__{} = loader, chunk), do: push(loader, chunk, fn _pair -> :ok end)

  # Calls `each` with {name, tensor} when a tensor is complete. The term is nil for a loader with `keep: false`.
  @doc false
  @spec push(t(), iodata(), ({String.t(), ExTorch.Tensor.t()} -> any())) ::
          {:more, t()} | {:done, term(), binary()} | {:error, Error.t()}
  def push(%__MODULE__{} = loader, chunk, each) do
    with {:ok, binaries} <- to_binaries(chunk),
         :ok <- claim(loader) do
      fed = loader.fed + :erlang.iolist_size(binaries)
      result = push_claimed(%{loader | fed: fed}, binaries, each)
      unless match?({:more, _}, result), do: collect_chunks(fed)
      result
    end
  end

  # Returns the error of a stream that ends before its checkpoint. Frees what the loader holds.
  @doc false
  @spec ended(t()) :: {:error, Error.t()}
  def ended(%__MODULE__{} = loader) do
    with :ok <- claim(loader) do
      error = Native.loader_ended(loader.resource)
      release(loader, true)
      release_ready(loader)
      collect_chunks(loader.fed)
      error
    end
  end

  # The loader has ended after an error, and if a callback raises.
  defp push_claimed(loader, binaries, each) do
    case push_all(loader, binaries, each) do
      {:more, loader} ->
        {:more, %{loader | number: release(loader, false)}}

      {:done, loader, rest} ->
        result = finish(loader)
        release(loader, true)
        with {:ok, term} <- result, do: {:done, term, rest}

      {:error, error, loader} ->
        release(loader, true)
        release_ready(loader)
        {:error, error}
    end
  catch
    kind, reason ->
      release(loader, true)
      release_ready(loader)
      :erlang.raise(kind, reason, __STACKTRACE__)
  end

  # Tensors that nobody else has would stay allocated until the next garbage collection.
  defp release_ready(%{on_tensor: nil, ready: ready}) do
    for list <- ready, {_index, %ExTorch.Tensor{} = tensor} <- list do
      ExTorch.Tensor.release(tensor)
    end
  end

  defp release_ready(_loader), do: :ok

  # The chunks of the stream are garbage in the young heap of this process. An idle process would keep them.
  defp collect_chunks(fed) do
    if fed >= @collect_chunks, do: :erlang.garbage_collect(self(), type: :minor)
  end

  # Only one process at a time may feed a loader, and only its newest state.
  defp claim(loader) do
    with {:ok, _} <- Memory.run(fn -> Native.loader_claim(loader.resource, loader.number) end),
         do: :ok
  end

  defp release(loader, finished?), do: Native.loader_release(loader.resource, finished?)

  defp to_binaries(chunk) when is_binary(chunk), do: {:ok, [chunk]}

  defp to_binaries(chunk) do
    {:ok, :erlang.iolist_to_iovec(chunk)}
  rescue
    ArgumentError ->
      {:error,
       Error.new(
         :bad_argument,
         "expected a chunk to be iodata, got #{inspect(chunk, limit: 3)}"
       )}
  end

  defp push_all(loader, [binary | binaries], each) do
    case push_binary(loader, binary, each) do
      {:more, loader} -> push_all(loader, binaries, each)
      {:done, loader, rest} -> {:done, loader, IO.iodata_to_binary([rest | binaries])}
      {:error, error, loader} -> {:error, error, loader}
    end
  end

  defp push_all(loader, [], _each), do: {:more, loader}

  # The same binary is passed until the NIF returns :more or :done; it remembers its position. :described means that the
  # tensors are known and can be selected.
  defp push_binary(loader, binary, each) do
    case Memory.run(fn -> Native.loader_feed(loader.resource, binary) end) do
      {:ok, :described} ->
        case select(loader) do
          {:ok, loader} -> push_binary(loader, binary, each)
          {:error, error} -> {:error, error, loader}
        end

      {:ok, {event, received, expected, ready}} ->
        loader = report(%{loader | expected: expected}, received, ready)

        with {:ok, loader} <- add_ready(loader, Enum.reverse(ready), each) do
          if event == :again, do: push_binary(loader, binary, each), else: {:more, loader}
        end

      {:ok, {:done, used, ready}} ->
        with {:ok, loader} <- add_ready(loader, Enum.reverse(ready), each) do
          Progress.finish(loader.progress)
          {:done, loader, binary_part(binary, used, byte_size(binary) - used)}
        end

      {:error, error} ->
        {:error, error, loader}
    end
  end

  # If the callback raises, nobody gets the tensors that have just been created.
  defp report(loader, received, ready) do
    %{loader | progress: loader.progress && Progress.report(loader.progress, received)}
  catch
    kind, reason ->
      release_ready(%{loader | on_tensor: nil, ready: [ready]})
      :erlang.raise(kind, reason, __STACKTRACE__)
  end

  # ---- Selecting tensors ----

  defp select(%{ckpt: %{options: options} = ckpt} = loader) do
    with {:ok, entries} <- entries(ckpt),
         {:ok, by_index} <- by_index(loader, entries),
         {:ok, indices} <- selected_indices(ckpt, entries),
         {:ok, {bytes, logical}} <-
           Memory.run(fn -> Native.loader_select(loader.resource, indices) end),
         :ok <- BatchLoad.check_total(ckpt, max(bytes, logical)) do
      {:ok,
       %{
         loader
         | entries: entries,
           by_index: by_index,
           progress: Progress.new(options.on_progress, bytes)
       }}
    end
  end

  # Entries are much larger than names, so they are only made if they are needed.
  defp entries(%{options: %{only: nil, device: :cpu}}), do: {:ok, nil}
  defp entries(ckpt), do: Handle.entries(ckpt)

  defp by_index(%{keep: true, on_tensor: nil}, nil), do: {:ok, nil}

  defp by_index(%{ckpt: ckpt}, nil) do
    with {:ok, names} <- Handle.keys(ckpt), do: {:ok, List.to_tuple(names)}
  end

  defp by_index(_loader, entries), do: {:ok, List.to_tuple(entries)}

  defp selected_indices(%{options: %{only: nil}}, _entries), do: {:ok, :all}

  defp selected_indices(ckpt, entries) do
    with {:ok, selected} <- Options.select(ckpt, entries),
         do: {:ok, Enum.map(selected, & &1.index)}
  end

  # ---- Complete tensors ----

  defp add_ready(loader, [], _each), do: {:ok, loader}

  defp add_ready(%{by_index: nil} = loader, ready, _each),
    do: {:ok, %{loader | ready: [ready | loader.ready]}}

  defp add_ready(loader, [{index, tensor} | ready], each) do
    case named(loader, index, tensor) do
      {:ok, name, tensor} ->
        if loader.on_tensor, do: loader.on_tensor.(name, tensor)
        each.({name, tensor})
        kept = if loader.keep, do: [[{index, tensor}] | loader.ready], else: []
        add_ready(%{loader | ready: kept}, ready, each)

      {:error, error} ->
        release_ready(%{loader | on_tensor: nil, ready: [[{index, tensor} | ready]]})
        {:error, error, loader}
    end
  end

  defp named(loader, index, tensor) do
    case elem(loader.by_index, index) do
      name when is_binary(name) ->
        {:ok, name, tensor}

      entry ->
        with {:ok, tensor} <- Handle.to_device(loader.ckpt, tensor, entry),
             do: {:ok, entry.name, tensor}
    end
  end

  defp finish(%{keep: false}), do: {:ok, nil}

  defp finish(%{ckpt: ckpt, entries: entries, ready: ready}) do
    tensors = ready |> Enum.concat() |> List.keysort(0) |> Enum.map(&elem(&1, 1))

    if ckpt.options.only do
      selected = Enum.filter(entries, &Options.selected?(ckpt.options, &1))
      BatchLoad.assemble(ckpt, entries, selected, tensors)
    else
      Handle.object(ckpt, tensors)
    end
  end

  defimpl Collectable do
    alias ExTorch.Streaming.Loader

    # If the enumerable raises, Enum.into/2 passes the first state to the collector. So the newest loader is also kept
    # in the process dictionary, where :halt finds it.
    def into(loader) do
      key = {Loader, loader.resource}
      Process.put(key, loader)
      {{:more, loader}, &collect(&1, &2, key)}
    end

    defp collect({:more, loader}, {:cont, chunk}, key) do
      Process.delete(key)
      result = Loader.feed(loader, chunk)
      with {:more, loader} <- result, do: Process.put(key, loader)
      result
    end

    defp collect({:done, term, rest}, {:cont, chunk}, _key), do: {:done, term, [rest, chunk]}
    defp collect({:error, error}, {:cont, _chunk}, _key), do: {:error, error}

    defp collect(state, command, key) do
      newest = Process.delete(key)

      case {command, state} do
        {:done, {:more, loader}} -> Loader.ended(loader)
        {:done, {:done, term, rest}} -> {:ok, term, IO.iodata_to_binary(rest)}
        {:done, {:error, error}} -> {:error, error}
        {:halt, _} -> newest && Loader.ended(newest)
      end
    end
  end

  defimpl Inspect do
    def inspect(%{expected: expected}, _opts),
      do: "#ExTorch.Streaming.Loader<expects at least #{expected} bytes>"
  end
end
