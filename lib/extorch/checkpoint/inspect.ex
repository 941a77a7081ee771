defimpl Inspect, for: ExTorch.Checkpoint do
  alias ExTorch.Checkpoint.Handle
  alias ExTorch.Text

  @names 3

  def inspect(ckpt, _opts) do
    with {:ok, entries} <- Handle.entries(ckpt),
         {:ok, metadata} <- Handle.metadata(ckpt) do
      {elements, bytes} = Text.total(entries)

      sizes =
        if entries == [],
          do: [],
          else: ["#{Text.count(elements)} parameters", Text.bytes(bytes), Text.dtypes(entries)]

      parts = [
        "#{source(ckpt.source)} (#{metadata.format})",
        Text.plural(length(entries), "tensor")
      ]

      "#ExTorch.Checkpoint<#{Enum.join(parts ++ sizes, ", ")}#{names(entries)}>"
    else
      {:error, _} -> "#ExTorch.Checkpoint<closed>"
    end
  end

  defp source(path) when is_binary(path), do: Text.name(Path.basename(path))
  defp source({:binary, binary}), do: Text.plural(byte_size(binary), "byte")
  defp source(%_{} = source), do: ExTorch.Source.label(source)
  defp source(nil), do: "in memory"

  defp names([]), do: ""

  defp names(entries) do
    more = if length(entries) > @names, do: ", …", else: ""
    ": " <> (entries |> Enum.take(@names) |> Enum.map_join(", ", &Text.name(&1.name))) <> more
  end
end
