defmodule ExTorch.Archive.CollectableWriter do
  @moduledoc false
  # A writer that collects the data into a Collectable, for example a binary.

  @behaviour ExTorch.Archive.Writer

  defstruct [:collected, :fun]

  def new(into) do
    {collected, fun} = Collectable.into(into)
    %__MODULE__{collected: collected, fun: fun}
  end

  @impl true
  def write(%{collected: collected, fun: fun} = writer, data),
    do: {:ok, byte_size(data), %{writer | collected: fun.(collected, {:cont, data})}}

  @impl true
  def close(writer), do: close(writer, :error)

  def close(%{collected: collected, fun: fun}, :ok), do: {:ok, fun.(collected, :done)}

  def close(%{collected: collected, fun: fun}, :error) do
    fun.(collected, :halt)
    :ok
  end
end
