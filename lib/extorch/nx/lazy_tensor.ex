defmodule ExTorch.Nx.LazyTensor do
  @moduledoc """
  A tensor of a checkpoint that is read when Nx uses it, as returned by `ExTorch.Nx.read!/2`.

  It implements `Nx.LazyContainer`: `Nx.to_tensor/1`, the functions of Nx, `Nx.Defn.jit/2`, `Nx.Batch` and `Nx.Serving` take it
  as it is. Each use reads it again, onto the default backend of Nx; keep the result of `Nx.to_tensor/1` to use it several times.
  """

  alias ExTorch.Checkpoint
  alias ExTorch.Checkpoint.Entry

  @type t :: %__MODULE__{name: String.t(), checkpoint: Checkpoint.t(), entry: Entry.t()}

  @enforce_keys [:name, :checkpoint, :entry]
  defstruct [:name, :checkpoint, :entry]

  @doc false
  @spec new(String.t(), Checkpoint.t(), Entry.t()) :: t()
  def new(name, checkpoint, entry),
    do: %__MODULE__{name: name, checkpoint: checkpoint, entry: entry}
end

defimpl Inspect, for: ExTorch.Nx.LazyTensor do
  alias ExTorch.Text

  def inspect(%{name: name, entry: entry}, _opts),
    do:
      "#ExTorch.Nx.LazyTensor<#{Text.name(name)}: #{entry.dtype}#{Text.shape(entry.shape)}, #{Text.bytes(entry.nbytes)}>"
end

if Code.ensure_loaded?(Nx.LazyContainer) do
  defimpl Nx.LazyContainer, for: ExTorch.Nx.LazyTensor do
    def traverse(%{name: name, checkpoint: ckpt, entry: entry}, acc, fun) do
      read = fn -> ExTorch.Nx.convert!(read(ckpt, entry, name), name) end
      fun.(ExTorch.Nx.template!(entry, name), read, acc)
    end

    defp read(ckpt, entry, name) do
      case ExTorch.Error.unwrap!(ExTorch.Checkpoint.Reader.entry(ckpt, entry)) do
        %ExTorch.Tensor{} = tensor ->
          tensor

        other ->
          raise ExTorch.Error.new(
                  :unsupported,
                  "Nx does not support the tensor #{ExTorch.Error.quoted(name)}, which is a #{inspect(other.__struct__)}"
                )
      end
    end
  end

  defimpl Nx.LazyContainer, for: ExTorch.Tensor do
    def traverse(tensor, acc, fun) do
      fun.(ExTorch.Nx.template!(tensor, nil), fn -> ExTorch.Nx.to_nx(tensor) end, acc)
    end
  end
end
