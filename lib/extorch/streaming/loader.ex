defmodule ExTorch.Streaming.Loader do
  @moduledoc """
  A checkpoint that is coming in: the state between two pieces of `ExTorch.Streaming.feed/2`.

  It is `Collectable`, so that `Enum.into/2` feeds it and gives `{:ok, term, rest}` or `{:error, e}`:

      iex> bytes = ExTorch.Streaming.save(%{a: ExTorch.tensor([1, 2])}) |> Enum.to_list() |> IO.iodata_to_binary()
      iex> {:ok, term, rest} = Enum.into([bytes, "next"], ExTorch.Streaming.loader())
      iex> {ExTorch.Tensor.to_list(term["a"]), rest}
      {[1, 2], "next"}
  """

  alias ExTorch.Checkpoint
  alias ExTorch.Checkpoint.{BatchLoad, Handle, Options}
  alias ExTorch.{Error, Memory, Native, Progress}

  @type t :: %__MODULE__{
          resource: reference(),
          ckpt: Checkpoint.t(),
          number: non_neg_integer(),
          on_tensor: (String.t(), ExTorch.Tensor.t() -> any()) | nil,
          keep: boolean(),
          missing: non_neg_integer(),
          entries: [Checkpoint.Entry.t()] | nil,
          by_index: tuple() | nil,
          progress: term(),
          ready: list()
        }

  # `keep`: tensors are collected for the object. `entries` and `by_index` only where names are wanted.
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
    missing: 1,
    ready: []
  ]

  @doc false
  def new(opts, keep \\ true) do
    {on_tensor, opts} = Keyword.pop(opts, :on_tensor)
    refuse!(opts)
    options = Options.check!(opts)

    unless on_tensor == nil or is_function(on_tensor, 2) do
      raise Error.new(:bad_argument, "on_tensor is a function of a name and a tensor")
    end

    native = Options.native(options)

    {resource, checkpoint} =
      Memory.run!(fn -> Native.loader_new(native, options.limits[:spool_bytes]) end)

    ckpt = %Checkpoint{resource: checkpoint, source: :stream, options: options}
    %__MODULE__{resource: resource, ckpt: ckpt, on_tensor: on_tensor, keep: keep}
  end

  defp refuse!(opts) do
    for key <- [:mmap, :offset], Keyword.has_key?(opts, key) do
      raise Error.new(:bad_argument, "#{key} is for files: a stream is read forward only")
    end
  end

  # ---- Feeding ----

  # {:more, loader} | {:done, term, rest} | {:error, e}
  @doc false
  def feed(loader, chunk) do
    case push(loader, chunk, fn _pair -> :ok end) do
      {:done, loader, rest} ->
        with {:ok, term} <- finish(loader), do: {:done, term, rest}

      other ->
        other
    end
  end

  # The same without the object: every {name, tensor} goes to `each` as it completes.
  @doc false
  def push(%__MODULE__{} = loader, chunk, each) do
    with {:ok, pieces} <- pieces(chunk),
         {:ok, :ok} <- claim(loader) do
      holding(loader, fn -> push_all(loader, pieces, each) end)
    end
  end

  # The stream ended too early.
  @doc false
  def ended(loader) do
    with {:ok, :ok} <- claim(loader) do
      holding(loader, fn -> Native.loader_ended(loader.resource) end)
    end
  end

  # A stream whose feeding failed, or was left by an exception of a callback, is over.
  defp holding(loader, fun) do
    result = fun.()
    number = release(loader, not match?({:more, _}, result))

    case result do
      {:more, loader} -> {:more, %{loader | number: number}}
      other -> other
    end
  catch
    kind, reason ->
      release(loader, true)
      :erlang.raise(kind, reason, __STACKTRACE__)
  end

  # One process at a time feeds a loader, and only its newest state.
  defp claim(loader),
    do: Memory.run(fn -> Native.loader_claim(loader.resource, loader.number) end)

  defp release(loader, over?), do: Native.loader_release(loader.resource, over?)

  defp pieces(chunk) when is_binary(chunk), do: {:ok, [chunk]}

  defp pieces(chunk) do
    {:ok, :erlang.iolist_to_iovec(chunk)}
  rescue
    ArgumentError ->
      {:error, Error.new(:bad_argument, "a chunk is iodata, not #{inspect(chunk, limit: 3)}")}
  end

  defp push_all(loader, [piece | rest], each) do
    case push_piece(loader, piece, each) do
      {:more, loader} -> push_all(loader, rest, each)
      {:done, loader, left} -> {:done, loader, IO.iodata_to_binary([left | rest])}
      {:error, error} -> {:error, error}
    end
  end

  defp push_all(loader, [], _each), do: {:more, loader}

  defp push_piece(loader, piece, each) do
    case Memory.run(fn -> Native.loader_feed(loader.resource, piece) end) do
      {:ok, :described} ->
        with {:ok, loader} <- select(loader), do: push_piece(loader, piece, each)

      {:ok, {event, received, missing, ready}} ->
        progress = loader.progress && Progress.report(loader.progress, received)
        loader = %{loader | missing: missing, progress: progress}

        with {:ok, loader} <- take(loader, Enum.reverse(ready), each) do
          if event == :again, do: push_piece(loader, piece, each), else: {:more, loader}
        end

      {:ok, {:done, used, ready}} ->
        with {:ok, loader} <- take(loader, Enum.reverse(ready), each) do
          Progress.finish(loader.progress)
          {:done, loader, binary_part(piece, used, byte_size(piece) - used)}
        end

      {:error, error} ->
        {:error, error}
    end
  end

  # ---- Which tensors ----

  defp select(%{ckpt: %{options: options} = ckpt} = loader) do
    named? = options.only != nil or options.device != :cpu or loader.on_tensor != nil

    with {:ok, entries} <- entries(ckpt, named? or not loader.keep),
         wanted = wanted(options, entries),
         {:ok, {bytes, logical}} <-
           Memory.run(fn -> Native.loader_select(loader.resource, wanted) end),
         :ok <- BatchLoad.check_total(ckpt, max(bytes, logical)) do
      {:ok,
       %{
         loader
         | entries: entries,
           by_index: entries && List.to_tuple(entries),
           progress: Progress.new(options.on_progress, bytes)
       }}
    end
  end

  defp entries(_ckpt, false), do: {:ok, nil}
  defp entries(ckpt, true), do: Handle.entries(ckpt)

  defp wanted(%{only: nil}, _entries), do: :all

  defp wanted(options, entries) do
    for entry <- entries, Options.selected?(options, entry), do: entry.index
  end

  # ---- Tensors as they complete ----

  defp take(loader, [], _each), do: {:ok, loader}

  defp take(%{by_index: nil} = loader, ready, _each),
    do: {:ok, %{loader | ready: [ready | loader.ready]}}

  defp take(loader, [{index, tensor} | ready], each) do
    entry = elem(loader.by_index, index)

    with {:ok, tensor} <- Handle.to_device(loader.ckpt, tensor, entry) do
      if loader.on_tensor, do: loader.on_tensor.(entry.name, tensor)
      each.({entry.name, tensor})
      kept = if loader.keep, do: [[{index, tensor}] | loader.ready], else: []
      take(%{loader | ready: kept}, ready, each)
    end
  end

  defp finish(%{ckpt: ckpt, entries: entries, ready: ready}) do
    made = ready |> Enum.concat() |> List.keysort(0)
    tensors = Enum.map(made, &elem(&1, 1))

    if ckpt.options.only do
      wanted = Enum.filter(entries, &Options.selected?(ckpt.options, &1))
      BatchLoad.assemble(ckpt, entries, wanted, tensors)
    else
      Handle.object(ckpt, tensors)
    end
  end

  defimpl Collectable do
    alias ExTorch.Streaming.Loader

    def into(loader), do: {{:more, loader}, &collect/2}

    defp collect({:more, loader}, {:cont, chunk}), do: Loader.feed(loader, chunk)
    defp collect({:done, term, rest}, {:cont, chunk}), do: {:done, term, [rest, chunk]}
    defp collect({:error, error}, {:cont, _chunk}), do: {:error, error}
    defp collect({:more, loader}, :done), do: Loader.ended(loader)
    defp collect({:done, term, rest}, :done), do: {:ok, term, IO.iodata_to_binary(rest)}
    defp collect({:error, error}, :done), do: {:error, error}
    defp collect(_state, :halt), do: :ok
  end

  defimpl Inspect do
    def inspect(%{missing: missing}, _opts),
      do: "#ExTorch.Streaming.Loader<at least #{missing} bytes to come>"
  end
end
