defmodule ExTorch.Archive do
  @moduledoc """
  Saves and loads LibTorch's own archives (`torch::save` and `torch::load` in C++) through readers and writers in
  Elixir.

      iex> {:ok, bytes} = ExTorch.Archive.save(%{"fc.weight" => ExTorch.tensor([[1.0, 2.0]])}, {:binary, ""})
      iex> {:ok, tensors} = ExTorch.Archive.load({:binary, bytes}, as: :map)
      iex> ExTorch.Tensor.to_list(tensors["fc.weight"])
      [[1.0, 2.0]]

  Use it to exchange files with C++ programs. Load only **trusted** files: they are read by LibTorch's own unpickler.
  `ExTorch.load/2` and `ExTorch.Checkpoint` read the same archives safely and faster, and C++ programs can read the
  files of `ExTorch.save/3` with `torch::pickle_load`.

  ## Contents

  An archive contains one tensor, a list of tensors, or a map of names and tensors. In C++ these are a `torch::Tensor`,
  a `std::vector<torch::Tensor>` and a `torch::nn::Module` with these parameters, where a dot in a name separates
  submodules. The option `:as` of `load/2` selects one of these.

  ## Readers and writers

  | value | as a reader | as a writer |
  |---|---|---|
  | a path | reads the file | replaces the file atomically |
  | an IO device (`File.open/2`, `StringIO`) | reads from its position on | writes at its position |
  | `{:binary, bytes}` | reads the bytes | appends to the bytes; `save/3` returns `{:ok, binary}` |
  | a function | `{fun, size}`: `fun.(position, n)` returns `{:ok, data}` or `:eof` | `fun.(data)` returns `:ok`, `{:ok, written}` or `{:error, reason}` |
  | a struct whose module implements `ExTorch.Archive.Reader` or `ExTorch.Archive.Writer` | | |
  | another `Collectable` | | `save/3` returns `{:ok, collected}` |

  IO devices stay open. `close/1` of a struct is called exactly once, also after errors. Callbacks run in the calling
  process. If a callback raises, the exception is raised again when LibTorch has finished. If a callback takes longer
  than `:timeout`, the call returns a `:timeout` error after the callback has returned.

  LibTorch runs on a separate thread, so that slow callbacks block no scheduler. The thread ends if the calling process
  is killed. The memory for transferred data is bounded by `:chunk`.

  ## Options

    * `:chunk` - the maximum number of bytes to read or write at once. Defaults to 1 MiB.
    * `:timeout` - the timeout of each callback in milliseconds, or `:infinity`. Defaults to 60,000.
  """

  alias ExTorch.{Error, Native, Options, Tensor}
  alias ExTorch.Native.Call
  alias ExTorch.Archive.{Input, Output}

  @type writer ::
          Path.t()
          | IO.device()
          | {:binary, binary()}
          | (binary() -> :ok | {:ok, non_neg_integer()} | {:error, term()})
          | struct()
          | Collectable.t()
  @type reader ::
          Path.t()
          | IO.device()
          | {:binary, binary()}
          | {(non_neg_integer(), pos_integer() -> {:ok, binary()} | :eof), non_neg_integer()}
          | struct()

  @options [chunk: 1024 * 1024, timeout: 60_000]

  @doc """
  Saves a tensor, a list of tensors or a map of names and tensors.

  Returns `:ok`, or `{:ok, value}` if the writer collects the data in a value.

      iex> path = Path.join(System.tmp_dir!(), "extorch_doc_#{System.unique_integer([:positive])}.pt")
      iex> ExTorch.Archive.save([ExTorch.tensor([1, 2]), ExTorch.tensor(3)], path)
      :ok
      iex> File.rm!(path)
      :ok
  """
  @spec save(
          Tensor.t() | [Tensor.t()] | %{(String.t() | atom()) => Tensor.t()},
          writer(),
          keyword()
        ) ::
          :ok | {:ok, term()} | {:error, Error.t()}
  def save(tensors, writer, opts \\ []) do
    opts = check!(opts, @options)
    named = named!(tensors)

    with {:ok, output} <- Output.open(writer) do
      named |> run(output, opts, Output) |> Error.put_path(writer)
    end
  end

  @doc "Same as `save/3` but raises on error."
  @spec save!(
          Tensor.t() | [Tensor.t()] | %{(String.t() | atom()) => Tensor.t()},
          writer(),
          keyword()
        ) :: :ok | term()
  def save!(tensors, writer, opts \\ []), do: Error.unwrap!(save(tensors, writer, opts))

  @doc """
  Loads an archive that `save/3` or C++ wrote.

  Takes the additional option `:as`: `:tensor` (the default), `:list` or `:map`.

      iex> {:ok, bytes} = ExTorch.Archive.save([ExTorch.tensor([1, 2]), ExTorch.tensor(3)], {:binary, ""})
      iex> {:ok, tensors} = ExTorch.Archive.load({:binary, bytes}, as: :list)
      iex> Enum.map(tensors, &ExTorch.Tensor.to_list/1)
      [[1, 2], 3]
  """
  @spec load(reader(), keyword()) ::
          {:ok, Tensor.t() | [Tensor.t()] | %{String.t() => Tensor.t()}} | {:error, Error.t()}
  def load(reader, opts \\ []) do
    opts = check!(opts, [as: :tensor] ++ @options)

    unless opts[:as] in [:tensor, :list, :map],
      do: Options.invalid!(:as, ":tensor, :list or :map", opts[:as])

    with {:ok, input} <- Input.open(reader),
         {:ok, named} <- run(:load, input, opts, Input) do
      convert(named, opts[:as])
    end
    |> Error.put_path(reader)
  end

  @doc "Same as `load/2` but raises on error."
  @spec load!(reader(), keyword()) :: Tensor.t() | [Tensor.t()] | %{String.t() => Tensor.t()}
  def load!(reader, opts \\ []), do: Error.unwrap!(load(reader, opts))

  # ---- Names ----

  defp named!(%Tensor{} = tensor), do: [{"0", tensor}]
  defp named!(%Tensor.BlobView{tensor: tensor}), do: [{"0", tensor}]

  defp named!(list) when is_list(list) do
    if List.improper?(list),
      do: Options.expected!("a tensor, or a list or map of tensors", list)

    for {item, i} <- Enum.with_index(list), do: {Integer.to_string(i), tensor!(item)}
  end

  defp named!(map) when is_map(map) and not is_struct(map) do
    map
    |> Enum.map(fn {name, item} ->
      unless is_binary(name) or is_atom(name) do
        raise Error.new(
                :bad_argument,
                "expected the name of a tensor to be a string or an atom, got #{inspect(name, limit: 3)}"
              )
      end

      {to_string(name), tensor!(item)}
    end)
    |> Enum.sort_by(&elem(&1, 0))
  end

  defp named!(other), do: tensor!(other)

  defp tensor!(%Tensor{} = tensor), do: tensor
  defp tensor!(%Tensor.BlobView{tensor: tensor}), do: tensor

  defp tensor!(other) do
    raise Error.new(
            :bad_argument,
            "expected a tensor, or a list or map of tensors, got #{inspect(other, limit: 3)}"
          )
  end

  defp convert(named, :map), do: {:ok, Map.new(named)}

  defp convert(named, :list) do
    by_name = Map.new(named)
    names = Enum.map(0..(map_size(by_name) - 1)//1, &Integer.to_string/1)

    if Enum.all?(names, &Map.has_key?(by_name, &1)),
      do: {:ok, Enum.map(names, &Map.fetch!(by_name, &1))},
      else: {:error, not_as("a list", named)}
  end

  defp convert([{"0", tensor}], :tensor), do: {:ok, tensor}
  defp convert(named, :tensor), do: {:error, not_as("one tensor", named)}

  defp not_as(expected, named) do
    names = named |> Enum.map(&elem(&1, 0)) |> Enum.take(5) |> Enum.join(", ")

    Error.new(
      :bad_argument,
      "expected the archive to contain #{expected}, got #{length(named)} names (#{names}); use as: :map"
    )
  end

  # ---- Requests from LibTorch's thread ----

  # `side` is Input or Output, and `state` its state. It handles the requests and is closed exactly once.
  defp run(job, state, opts, side) do
    ref = make_ref()
    timeout = if opts[:timeout] == :infinity, do: -1, else: opts[:timeout]

    started =
      try do
        start(job, ref, opts[:chunk], timeout)
      catch
        kind, reason ->
          side.close(state, :error)
          :erlang.raise(kind, reason, __STACKTRACE__)
      end

    case started do
      {:ok, job} ->
        serve(job, ref, state, side, nil)

      {:error, error} ->
        close(side, state, :error)
        {:error, error}
    end
  end

  # `failure` is the first failure of a callback: {:raised, kind, reason, stacktrace}, {:error, error} or nil. After a
  # failure, all further requests are answered with :error.
  defp serve(job, ref, state, side, failure) do
    receive do
      {^ref, :done} ->
        finish(job, state, side, failure)

      {^ref, _request} when failure != nil ->
        answer(job, :error)
        serve(job, ref, state, side, failure)

      {^ref, request} ->
        {answer, state, failure} = handle(side, state, request)
        answer(job, answer)
        serve(job, ref, state, side, failure)
    end
  end

  defp handle(side, state, request) do
    case side.handle(state, request) do
      {:ok, answer, state} -> {answer, state, nil}
      {:error, reason, state} -> {:error, state, {:error, wrap(reason)}}
    end
  catch
    kind, reason -> {:error, state, {:raised, kind, reason, __STACKTRACE__}}
  end

  defp start(job, ref, chunk, timeout),
    do: Call.archive_start(job, ref, chunk, timeout)

  defp answer(job, answer), do: Native.archive_answer(job, answer)
  defp result(job), do: Call.archive_result(job)

  defp finish(job, state, side, failure) do
    result = result(job)
    outcome = if failure == nil and match?({:ok, _}, result), do: :ok, else: :error
    closed = close(side, state, outcome)

    case {failure, result, closed} do
      {{:raised, kind, reason, stacktrace}, _, _} -> :erlang.raise(kind, reason, stacktrace)
      {{:error, error}, _, _} -> {:error, error}
      {nil, {:error, error}, _} -> {:error, error}
      {nil, {:ok, named}, :ok} -> if side == Input, do: {:ok, named}, else: :ok
      {nil, {:ok, _}, {:ok, value}} -> {:ok, value}
      {nil, {:ok, _}, {:error, reason}} -> {:error, wrap(reason)}
      {nil, {:ok, _}, {:raised, kind, reason, stack}} -> :erlang.raise(kind, reason, stack)
    end
  end

  defp close(side, state, outcome) do
    side.close(state, outcome)
  catch
    kind, reason -> {:raised, kind, reason, __STACKTRACE__}
  end

  defp wrap(%Error{} = error), do: error
  defp wrap(reason), do: Error.new(:io, "the reader or writer failed: #{inspect(reason)}")

  # ---- Options ----

  defp check!(opts, known) do
    opts = Options.validate!(opts, known)
    Options.chunk!(opts[:chunk])
    Options.timeout!(opts[:timeout])
    opts
  end
end
