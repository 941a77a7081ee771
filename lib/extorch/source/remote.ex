defmodule ExTorch.Source.Remote do
  @moduledoc """
  Reads checkpoints from files of another Erlang node, over OTP's distribution.

      source = ExTorch.Source.Remote.new(:"store@10.0.0.5", "/models/model.pt")
      {:ok, ckpt} = ExTorch.Checkpoint.open(source)
      {:ok, tensor} = ExTorch.Checkpoint.tensor(ckpt, "encoder.weight")

  The other node needs ExTorch in its code path, and nothing else. A process there opens the file and sends the ranges
  that are asked for, in messages of 4 MiB, which the distribution splits into small fragments. At most `:window` bytes are
  under way at a time, so that the connection of the nodes stays usable for other messages and its heartbeats are not held
  up. What arrives is copied into native memory (`ExTorch.Memory`), piece by piece.

  The process monitors the process that reads; if that ends, or the nodes are disconnected, it closes the file and ends. It
  also ends after a minute without a request; the next request starts it again. If the file was replaced or changed
  meanwhile, the error is `:file_changed`.

  A path that ends in a slash is a folder of `torch.distributed.checkpoint` (`ExTorch.DCP`). An index is found by its name,
  as with paths.
  """
  @behaviour ExTorch.Source

  alias ExTorch.{Error, Options, Source}
  alias ExTorch.Source.Remote.Reader

  @defaults [timeout: 30_000, window: 16 * 1024 * 1024]

  @enforce_keys [:id, :node, :path, :options]
  defstruct [:id, :node, :path, :options, :file]

  @typedoc "A file of another node. `file` identifies its contents once it is opened. The fields are private."
  @type t :: %__MODULE__{
          id: reference(),
          node: node(),
          path: Path.t(),
          options: %{timeout: pos_integer(), window: pos_integer()},
          file: tuple() | nil
        }

  @doc """
  Creates a source. Sends no message. Raises if an argument is invalid.

      iex> ExTorch.Source.Remote.new(:"store@10.0.0.5", "/models/model.pt", timeout: 5_000)
      #ExTorch.Source.Remote<store@10.0.0.5:/models/model.pt>

  ## Options

    * `:timeout` - how long the other node may take for the next chunk, in milliseconds. Defaults to 30,000.
    * `:window` - how many bytes may be under way. Defaults to 16 MiB.
  """
  @spec new(node(), Path.t(), keyword()) :: t()
  def new(node, path, opts \\ []) do
    options = opts |> Options.validate!(@defaults) |> Map.new()

    for {key, value} <- options,
        not (is_integer(value) and value > 0 and value < 2 ** 40),
        do: Options.invalid!(key, "a positive integer", value)

    if error = Source.refuse_url(path, "use ExTorch.Source.HTTP.new/2"), do: raise(error)

    unless is_atom(node) and node not in [nil, true, false] and is_binary(path) and
             Options.path?(path) do
      raise Error.new(
              :bad_argument,
              "expected a node and a path, got #{inspect(node, limit: 3)} and #{inspect(path, limit: 3)}"
            )
    end

    %__MODULE__{id: make_ref(), node: node, path: path, options: options}
  end

  # ---- Files and folders ----

  @doc false
  @spec path(t()) :: Path.t()
  def path(source), do: source.path

  @doc false
  @spec sibling(t(), String.t()) :: t()
  def sibling(source, file),
    do: %{source | id: make_ref(), path: Path.join(Path.dirname(source.path), file), file: nil}

  @doc false
  @spec child(t(), String.t()) :: t()
  def child(source, file),
    do: %{source | id: make_ref(), path: Path.join(source.path, file), file: nil}

  @doc false
  @spec label(t()) :: String.t()
  def label(source), do: "#{source.node}:#{source.path}"

  # ---- ExTorch.Source ----

  @impl true
  def open(%__MODULE__{file: nil} = source) do
    with {:ok, file} <- Reader.identify(source), do: {:ok, %{source | file: file}}
  end

  def open(source), do: {:ok, source}

  @impl true
  def size(%__MODULE__{file: nil} = source) do
    with {:ok, source} <- open(source), do: size(source)
  end

  def size(%__MODULE__{file: file}), do: {:ok, elem(file, 0)}

  @impl true
  def read_at(%__MODULE__{file: nil} = source, offset, length) do
    with {:ok, source} <- open(source), do: read_at(source, offset, length)
  end

  def read_at(source, offset, length), do: Reader.read(source, offset, length)

  @impl true
  def prefetch(source, ranges), do: Reader.prefetch(source, ranges)

  @impl true
  def close(source), do: Reader.close(source)

  defimpl Inspect do
    def inspect(source, _opts),
      do: "#ExTorch.Source.Remote<#{ExTorch.Source.Remote.label(source)}>"
  end
end
