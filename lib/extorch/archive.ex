defmodule ExTorch.Archive do
  @moduledoc """
  LibTorch's own archives, `torch::save` and `torch::load` of C++, through readers and writers in Elixir.

      iex> {:ok, bytes} = ExTorch.Archive.save(%{"fc.weight" => ExTorch.tensor([[1.0, 2.0]])}, {:binary, ""})
      iex> {:ok, tensors} = ExTorch.Archive.load({:binary, bytes}, as: :map)
      iex> ExTorch.Tensor.to_list(tensors["fc.weight"])
      [[1.0, 2.0]]

  This is for programs in C++ at the other end, and for **trusted** files: what is loaded goes through LibTorch's own
  unpickler. `ExTorch.Checkpoint` and `ExTorch.load/2` read the same archives, safely and faster, and
  `ExTorch.save/3` writes what C++ reads with `torch::pickle_load`.

  ## What is saved

  One tensor, a list of tensors, or a map of names and tensors, as `torch::save` of a `torch::Tensor`, a
  `std::vector<torch::Tensor>`, or a `torch::nn::Module` with such parameters: a dot in a name is a submodule. `load/2` is
  told which it is with `as:`.

  ## Readers and writers

  | given | as a reader | as a writer |
  |---|---|---|
  | a path | reads the file | writes beside it, and renames when all is written |
  | an IO device (`File.open/2`, `StringIO`) | from its position on | at its position |
  | `{:binary, bytes}` | reads them | appends to them; `save/3` gives `{:ok, binary}` |
  | a function | `{fun, size}`: `fun.(position, n)` gives `{:ok, data}` or `:eof` | `fun.(data)` gives `:ok`, `{:ok, written}` or `{:error, e}` |
  | a struct whose module implements `ExTorch.Archive.Reader` or `ExTorch.Archive.Writer` | | |
  | any other `Collectable` | | `save/3` gives `{:ok, collected}` |

  Devices stay open; what is opened for a path is closed, and `close/1` of a struct is called exactly once, whatever
  happens. Callbacks run in the calling process. When one raises, the exception arrives as it was, after LibTorch has
  come to its end; one that takes longer than `:timeout` makes the call an error of `:timeout` as soon as it returns.

  LibTorch runs on a thread of its own, so no scheduler waits for a slow callback; if the process is killed, the thread
  ends. Memory is bounded by `:chunk`.

  ## Options

    * `:chunk` - 1 MiB: the most that is read or written at once.
    * `:timeout` - 60,000: milliseconds for each answer, or `:infinity`.
  """

  alias ExTorch.{Error, Memory, Native, Options, Tensor}
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

  @doc "Saves a tensor, a list of tensors or a map of names and tensors."
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
      named |> run(output, opts, Output) |> Error.located(writer)
    end
  end

  @doc "The same, raising."
  @spec save!(
          Tensor.t() | [Tensor.t()] | %{(String.t() | atom()) => Tensor.t()},
          writer(),
          keyword()
        ) :: :ok | term()
  def save!(tensors, writer, opts \\ []), do: Error.bang!(save(tensors, writer, opts))

  @doc "Loads what `save/3` or C++ saved: `as: :tensor` (the default), `:list` or `:map`."
  @spec load(reader(), keyword()) ::
          {:ok, Tensor.t() | [Tensor.t()] | %{String.t() => Tensor.t()}} | {:error, Error.t()}
  def load(reader, opts \\ []) do
    opts = check!(opts, [as: :tensor] ++ @options)

    unless opts[:as] in [:tensor, :list, :map] do
      raise Error.new(:bad_argument, "as: is :tensor, :list or :map, not #{inspect(opts[:as])}")
    end

    with {:ok, input} <- Input.open(reader),
         {:ok, named} <- run(:load, input, opts, Input) do
      shape(named, opts[:as])
    end
    |> Error.located(reader)
  end

  @doc "The same, raising."
  @spec load!(reader(), keyword()) :: Tensor.t() | [Tensor.t()] | %{String.t() => Tensor.t()}
  def load!(reader, opts \\ []), do: Error.bang!(load(reader, opts))

  # ---- Names ----

  defp named!(%Tensor{} = tensor), do: [{"0", tensor}]
  defp named!(%Tensor.BlobView{tensor: tensor}), do: [{"0", tensor}]

  defp named!(list) when is_list(list) do
    for {item, i} <- Enum.with_index(list), do: {Integer.to_string(i), tensor!(item)}
  end

  defp named!(map) when is_map(map) and not is_struct(map) do
    map
    |> Enum.map(fn {name, item} ->
      unless is_binary(name) or is_atom(name),
        do: raise(Error.new(:bad_argument, "#{inspect(name, limit: 3)} is no name"))

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
            "an archive holds a tensor, a list or a map of tensors, not #{inspect(other, limit: 3)}"
          )
  end

  defp shape(named, :map), do: {:ok, Map.new(named)}

  defp shape(named, :list) do
    by_name = Map.new(named)
    names = Enum.map(0..(map_size(by_name) - 1)//1, &Integer.to_string/1)

    if Enum.all?(names, &Map.has_key?(by_name, &1)),
      do: {:ok, Enum.map(names, &Map.fetch!(by_name, &1))},
      else: {:error, not_as("a list", named)}
  end

  defp shape([{"0", tensor}], :tensor), do: {:ok, tensor}
  defp shape(named, :tensor), do: {:error, not_as("one tensor", named)}

  defp not_as(what, named) do
    names = named |> Enum.map(&elem(&1, 0)) |> Enum.take(5) |> Enum.join(", ")

    Error.new(
      :bad_argument,
      "the archive does not hold #{what}, but #{length(named)} names (#{names}); load it with as: :map"
    )
  end

  # ---- The conversation with LibTorch's thread ----

  # `side` is Input or Output: it answers, closes, and says what the result is. It is closed exactly once.
  defp run(what, state, opts, side) do
    ref = make_ref()
    timeout = if opts[:timeout] == :infinity, do: -1, else: opts[:timeout]

    started =
      try do
        start(what, ref, opts[:chunk], timeout)
      catch
        kind, reason ->
          side.close(state, :error)
          :erlang.raise(kind, reason, __STACKTRACE__)
      end

    case started do
      {:ok, job} ->
        converse(job, ref, state, side, nil)

      {:error, error} ->
        close(side, state, :error)
        {:error, error}
    end
  end

  # `failure` is what a callback did first: {:raised, kind, reason, stacktrace} or {:error, e}.
  defp converse(job, ref, state, side, failure) do
    receive do
      {^ref, :done} ->
        finish(job, state, side, failure)

      {^ref, _question} when failure != nil ->
        answer(job, :error)
        converse(job, ref, state, side, failure)

      {^ref, question} ->
        {answer, state, failure} = answer(side, state, question)
        answer(job, answer)
        converse(job, ref, state, side, failure)
    end
  end

  defp answer(side, state, question) do
    case side.answer(state, question) do
      {:ok, answer, state} -> {answer, state, nil}
      {:error, reason, state} -> {:error, state, {:error, wrap(reason)}}
    end
  catch
    kind, reason -> {:error, state, {:raised, kind, reason, __STACKTRACE__}}
  end

  defp start(what, ref, chunk, timeout),
    do: Memory.run(fn -> Native.archive_start(what, ref, chunk, timeout) end)

  defp answer(job, answer), do: Native.archive_answer(job, answer)
  defp result(job), do: Memory.run(fn -> Native.archive_result(job) end)

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
