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
  alias ExTorch.Checkpoint.{BatchLoad, DeviceLoad, Handle, Options}
  alias ExTorch.{Error, Progress}
  alias ExTorch.Native.Call
  alias ExTorch.Streaming.Gzip

  @typep on_tensor :: (String.t(), ExTorch.Tensor.t() -> any())

  @typedoc false
  @opaque options :: {on_tensor() | nil, Options.t()}

  @typep handle :: Handle.t()
  @typep progress :: Progress.t()

  @typedoc "The state of a loader. The fields are private."
  @type t :: %__MODULE__{
          resource: reference(),
          ckpt: handle(),
          number: non_neg_integer(),
          on_tensor: on_tensor() | nil,
          keep: boolean(),
          expected: non_neg_integer(),
          deferred: boolean(),
          entries: [Checkpoint.Entry.t()] | nil,
          by_index: tuple() | nil,
          progress: progress() | nil,
          ready: [{non_neg_integer(), ExTorch.Tensor.t() | struct() | DeviceLoad.moving()}],
          fed: non_neg_integer()
        }

  # keep: whether tensors are kept for the object that feed/2 returns
  # expected: the minimum number of bytes until the end of the checkpoint
  # deferred: the native loader keeps the tensors and returns them at the end. Otherwise it returns each when it is
  #   complete, because a callback or a device needs it
  # entries: set once the tensors are described, if they are needed
  # by_index: the entries, or the names of the tensors if these are enough
  # ready: complete tensors that were returned and are kept, newest first; the newest may be on its way to a device
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
    deferred: true,
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
    deferred = keep and on_tensor == nil and options.device == :cpu
    reports = options.on_progress != nil
    selects = not deferred or reports or options.only != nil
    {resource, checkpoint} = new(options, {deferred, selects, reports})
    ckpt = %Checkpoint{resource: checkpoint, source: nil, options: options}

    %__MODULE__{
      resource: resource,
      ckpt: ckpt,
      on_tensor: on_tensor,
      keep: keep,
      deferred: deferred
    }
  end

  defp new(options, flags) do
    spool_bytes = options.limits[:spool_bytes]
    Error.unwrap!(Call.loader_new(Options.native(options), spool_bytes, flags))
  end

  # The minimum number of bytes until the end of the checkpoint.
  @doc false
  @spec expected(t()) :: non_neg_integer()
  def expected(%__MODULE__{expected: expected}), do: expected

  # ---- Feeding ----

  @doc false
  @spec feed(t(), iodata() | Gzip.chunk()) ::
          {:more, t()} | {:done, term(), binary()} | {:error, Error.t()}
  def feed(loader, chunk), do: push(check_loader!(loader), chunk, fn _pair -> :ok end)

  defp check_loader!(%__MODULE__{} = loader), do: loader

  defp check_loader!(other) do
    ExTorch.Options.expected!(
      "a loader, as ExTorch.Streaming.loader/1 and feed/2 return it",
      other
    )
  end

  # Calls `each` with {name, tensor} when a tensor is complete. The term is nil for a loader with `keep: false`.
  @doc false
  @spec push(t(), iodata() | Gzip.chunk(), ({String.t(), ExTorch.Tensor.t()} -> any())) ::
          {:more, t()} | {:done, term(), binary()} | {:error, Error.t()}
  def push(loader, chunk, each)

  # What is held for an unpacked stream depends on its bytes before that.
  def push(%__MODULE__{} = loader, {Gzip, stored, chunk}, each) do
    stored(loader, stored)
    push(loader, chunk, each)
  end

  def push(%__MODULE__{} = loader, chunk, each) do
    with {:ok, binaries} <- to_binaries(chunk) do
      loader = %{loader | fed: loader.fed + :erlang.iolist_size(binaries)}
      result = push_all(loader, binaries, loader.number, each)
      unless match?({:more, _}, result), do: collect_chunks(loader.fed)
      result
    end
  end

  defp stored(loader, bytes), do: {:ok, :ok} = Call.loader_stored(loader.resource, bytes)

  # Returns the error of a stream that ends before its checkpoint. Frees what the loader holds.
  @doc false
  @spec ended(t()) :: {:error, Error.t()}
  def ended(loader) do
    loader = check_loader!(loader)
    {:error, error} = Call.loader_ended(loader.resource, loader.number)
    unless error.reason in [:stale, :busy], do: end_now(loader)
    {:error, error}
  end

  # Frees the tensors that nobody else has. They would stay allocated until the next garbage collection.
  defp end_now(loader) do
    release_ready(loader)
    collect_chunks(loader.fed)
  end

  defp release_ready(%{on_tensor: nil, ready: ready}) do
    for {_index, tensor} <- ready do
      case tensor do
        %ExTorch.Tensor{} -> ExTorch.Tensor.release(tensor)
        {:moving, _, _, _} -> DeviceLoad.drop_move(tensor)
        _other -> :ok
      end
    end
  end

  defp release_ready(_loader), do: :ok

  # The chunks of the stream are garbage in the young heap of this process. An idle process would keep them.
  defp collect_chunks(fed) do
    if fed >= @collect_chunks, do: :erlang.garbage_collect(self(), type: :minor)
  end

  defp to_binaries(chunk) when is_binary(chunk), do: {:ok, [chunk]}

  defp to_binaries(chunk) do
    case :erlang.iolist_to_iovec(chunk) do
      [] -> {:ok, [""]}
      binaries -> {:ok, binaries}
    end
  rescue
    ArgumentError ->
      {:error,
       Error.new(
         :bad_argument,
         "expected a chunk to be iodata, got #{inspect(chunk, limit: 3)}"
       )}
  end

  # `number` claims the loader; nil goes on with the claim. After an error, and if a callback raises, the loader has ended.
  defp push_all(loader, [binary | binaries], number, each) do
    case feed(loader.resource, number, binary) do
      {:ok, {:more, number, received, expected, ready}} when is_integer(number) and ready == [] ->
        loader = %{loader | number: number, expected: expected}
        push_rest(report(loader, received), binaries, number, each)

      {:ok, event} ->
        handle(loader, event, [binary | binaries], each)

      {:error, error} ->
        unless error.reason in [:stale, :busy], do: fail(loader)
        {:error, error}
    end
  end

  defp push_rest(loader, [], number, _each) when is_integer(number), do: {:more, loader}
  defp push_rest(loader, [], nil, _each), do: {:more, %{loader | number: release(loader, false)}}
  defp push_rest(loader, binaries, number, each), do: push_all(loader, binaries, number, each)

  # Handles an event of a loader that this process has claimed.
  defp handle(loader, event, [binary | binaries], each) do
    case try_event(loader, event, each) do
      {:again, loader} ->
        push_all(loader, [binary | binaries], nil, each)

      {:more, loader} ->
        push_rest(loader, binaries, nil, each)

      {:done, result, used} ->
        release(loader, true)
        rest = binary_part(binary, used, byte_size(binary) - used)
        with {:ok, term} <- result, do: {:done, term, IO.iodata_to_binary([rest | binaries])}

      {:error, error, loader} ->
        fail(loader)
        {:error, error}
    end
  end

  defp try_event(loader, event, each) do
    handle_event(loader, event, each)
  catch
    kind, reason ->
      fail(loader)
      :erlang.raise(kind, reason, __STACKTRACE__)
  end

  # :described means that the tensors are known and can be selected.
  defp handle_event(loader, :described, _each) do
    case select(loader) do
      {:ok, loader} -> {:again, loader}
      {:error, error} -> {:error, error, loader}
    end
  end

  defp handle_event(loader, {:done, used, ready}, each) do
    with {:ok, loader} <- add_ready(loader, Enum.reverse(ready), each) do
      if loader.progress, do: Progress.finish(loader.progress)
      {:done, finish(loader), used}
    end
  end

  defp handle_event(loader, {:more, nil, received, expected, ready}, each) do
    with {:ok, loader} <- add_all(%{loader | expected: expected}, received, ready, each),
         do: {:more, loader}
  end

  defp handle_event(loader, {:again, received, expected, ready}, each) do
    with {:ok, loader} <- add_all(%{loader | expected: expected}, received, ready, each),
         do: {:again, loader}
  end

  defp add_all(loader, received, ready, each),
    do: loader |> report(received, ready) |> add_ready(Enum.reverse(ready), each)

  # If the callback raises, nobody gets the tensors that have just been created.
  defp report(loader, received, ready \\ []) do
    %{loader | progress: loader.progress && Progress.report(loader.progress, received)}
  catch
    kind, reason ->
      release_ready(%{loader | on_tensor: nil, ready: ready})
      :erlang.raise(kind, reason, __STACKTRACE__)
  end

  # Ends a loader after an error, if the NIF has not ended it.
  defp fail(loader) do
    release(loader, true)
    release_ready(loader)
  end

  # ---- Selecting tensors ----

  defp select(%{ckpt: %{options: options} = ckpt} = loader) do
    with {:ok, entries} <- entries(ckpt),
         {:ok, by_index} <- by_index(loader, entries),
         {:ok, indices} <- selected_indices(ckpt, entries),
         {:ok, bytes} <- Call.loader_select(loader.resource, indices) do
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

  # While the bytes of the next tensor arrive, the one before it is copied to its device.
  defp add_ready(loader, [{index, tensor} | ready], each) do
    with {:ok, loader} <- settle(loader),
         {:ok, name, tensor} <- named(loader, index, tensor) do
      if loader.on_tensor, do: loader.on_tensor.(name, tensor)
      each.({name, tensor})
      kept = if loader.keep, do: [{index, tensor} | loader.ready], else: []
      add_ready(%{loader | ready: kept}, ready, each)
    else
      {:error, error} ->
        release_ready(%{loader | on_tensor: nil, ready: [{index, tensor} | ready]})
        {:error, error, loader}
    end
  end

  defp named(loader, index, tensor) do
    case elem(loader.by_index, index) do
      name when is_binary(name) ->
        {:ok, name, tensor}

      entry ->
        with {:ok, tensor} <- to_device(loader, tensor, entry),
             do: {:ok, entry.name, tensor}
    end
  end

  # Nobody sees a tensor that is kept before the end.
  defp to_device(%{keep: true, on_tensor: nil, ckpt: ckpt}, tensor, entry),
    do: Handle.start_to_device(ckpt, tensor, entry)

  defp to_device(%{ckpt: ckpt}, tensor, entry), do: Handle.to_device(ckpt, tensor, entry)

  # Waits for the newest tensor. The others are on their devices.
  defp settle(%{ready: [{index, {:moving, _, _, _} = moving} | ready], ckpt: ckpt} = loader) do
    with {:ok, tensor} <- Error.put_path(DeviceLoad.end_move(moving), ckpt.source),
         do: {:ok, %{loader | ready: [{index, tensor} | ready]}}
  end

  defp settle(loader), do: {:ok, loader}

  defp finish(%{keep: false}), do: {:ok, nil}

  defp finish(%{deferred: true, ckpt: %{options: %{only: nil} = options}} = loader),
    do: finish(loader.resource, Handle.style(options))

  defp finish(%{ckpt: ckpt, entries: entries} = loader) do
    with {:ok, tensors} <- kept_tensors(loader) do
      if ckpt.options.only do
        selected = Enum.filter(entries, &Options.selected?(ckpt.options, &1))
        BatchLoad.assemble(ckpt, entries, selected, tensors)
      else
        Handle.object(ckpt, tensors)
      end
    end
  end

  defp kept_tensors(%{deferred: true} = loader), do: finish(loader.resource, nil)

  defp kept_tensors(loader) do
    with {:ok, %{ready: ready}} <- settle(loader),
         do: {:ok, ready |> List.keysort(0) |> Enum.map(&elem(&1, 1))}
  end

  # ---- Native calls ----

  defp feed(resource, number, binary), do: Call.loader_feed(resource, number, binary)
  defp finish(resource, style), do: Call.loader_finish(resource, style)

  # Ends the claim, and the loader if it has finished or failed. Returns the next number.
  defp release(loader, ended?) do
    with {:ok, number} <- Call.loader_release(loader.resource, ended?), do: number
  end

  defimpl Collectable do
    alias ExTorch.Streaming.Loader

    # If the enumerable raises, Enum.into/2 passes the first state to the collector. So the number of the newest state is
    # kept beside it.
    def into(loader) do
      newest = :atomics.new(1, signed: false)
      :atomics.put(newest, 1, loader.number)
      {{:more, loader}, &collect(&1, &2, newest)}
    end

    defp collect({:more, loader}, {:cont, chunk}, newest) do
      result = Loader.feed(loader, chunk)
      with {:more, loader} <- result, do: :atomics.put(newest, 1, loader.number)
      result
    end

    defp collect({:done, term, rest}, {:cont, chunk}, _newest), do: {:done, term, [rest, chunk]}
    defp collect({:error, error}, {:cont, _chunk}, _newest), do: {:error, error}
    defp collect({:more, loader}, :done, _newest), do: Loader.ended(loader)

    defp collect({:done, term, rest}, :done, _newest),
      do: {:ok, term, IO.iodata_to_binary(rest)}

    defp collect({:error, error}, :done, _newest), do: {:error, error}

    defp collect({:more, loader}, :halt, newest),
      do: Loader.ended(%{loader | number: :atomics.get(newest, 1)})

    defp collect(_state, :halt, _newest), do: :ok
  end

  defimpl Inspect do
    def inspect(%{expected: expected}, _opts),
      do: "#ExTorch.Streaming.Loader<expects at least #{expected} bytes>"
  end
end
