defmodule ExTorch.Nx.LazyTensor do
  @moduledoc """
  A tensor of a checkpoint that is read when Nx uses it, as returned by `ExTorch.Nx.read!/2`.

  It implements `Nx.LazyContainer`: `Nx.to_tensor/1`, the functions of Nx, `Nx.Defn.jit/2`, `Nx.Batch`, `Nx.Serving` and inputs
  of Axon take it as it is. Each use reads it again, onto the default backend of Nx; keep the result of `Nx.to_tensor/1` to use it
  several times. Some functions of Nx do not take lazy containers, such as `Nx.shape/1` and `Nx.transpose/2`: call
  `Nx.to_tensor/1` first. `ExTorch.Nx.to_nx/2` converts a whole map of them, to any backend.
  """

  alias ExTorch.{Checkpoint, Error}
  alias ExTorch.Checkpoint.Entry

  @type t :: %__MODULE__{name: String.t(), checkpoint: Checkpoint.t(), entry: Entry.t()}

  @enforce_keys [:name, :checkpoint, :entry]
  defstruct [:name, :checkpoint, :entry]

  @doc false
  @spec new(String.t(), Checkpoint.t(), Entry.t()) :: t()
  def new(name, checkpoint, entry),
    do: %__MODULE__{name: name, checkpoint: checkpoint, entry: entry}

  @doc """
  Reads the tensor.

      ExTorch.Nx.read!("model.pt")["weight"] |> ExTorch.Nx.LazyTensor.read!()
  """
  @spec read!(t()) :: ExTorch.Tensor.t()
  def read!(%__MODULE__{name: name, checkpoint: checkpoint, entry: entry}) do
    case Error.unwrap!(Checkpoint.Reader.entry(checkpoint, entry)) do
      %ExTorch.Tensor{} = tensor ->
        tensor

      other ->
        raise Error.new(
                :unsupported,
                "the tensor #{Error.quoted(name)} is a #{inspect(other.__struct__)}, which is not supported here"
              )
    end
  end

  def read!(other), do: ExTorch.Options.expected!("an %ExTorch.Nx.LazyTensor{}", other)
end

defimpl Inspect, for: ExTorch.Nx.LazyTensor do
  alias ExTorch.Text

  def inspect(%{name: name, entry: entry}, _opts),
    do:
      "#ExTorch.Nx.LazyTensor<#{Text.name(name)}: #{entry.dtype}#{Text.shape(entry.shape)}, #{Text.bytes(entry.nbytes)}>"
end

if Code.ensure_loaded?(Nx.LazyContainer) do
  defimpl Nx.LazyContainer, for: ExTorch.Nx.LazyTensor do
    def traverse(lazy, acc, fun) do
      read = fn -> ExTorch.Nx.to_nx(lazy) end
      fun.(ExTorch.Nx.template!(lazy.entry, lazy.name), read, acc)
    end
  end

  defimpl Nx.LazyContainer, for: ExTorch.Tensor do
    def traverse(tensor, acc, fun) do
      fun.(ExTorch.Nx.template!(tensor, nil), fn -> ExTorch.Nx.to_nx(tensor) end, acc)
    end
  end
end
