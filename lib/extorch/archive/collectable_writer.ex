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
  def write(%{collected: collected, fun: fun} = writer, data) do
    {:ok, byte_size(data), %{writer | collected: fun.(collected, {:cont, data})}}
  rescue
    # A map collects pairs, for example.
    error in [FunctionClauseError, ArgumentError, Protocol.UndefinedError] ->
      {:error, refused(error), writer}
  end

  defp refused(error) do
    message = error |> Exception.message() |> String.split("\n") |> hd()
    ExTorch.Error.new(:bad_argument, "the writer does not collect binaries: #{message}")
  end

  @impl true
  def close(writer), do: close(writer, :error)

  def close(%{collected: collected, fun: fun}, :ok), do: {:ok, fun.(collected, :done)}

  def close(%{collected: collected, fun: fun}, :error) do
    fun.(collected, :halt)
    :ok
  end
end
