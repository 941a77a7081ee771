defmodule ExTorch.CLI.Info do
  @moduledoc false
  @behaviour ExTorch.CLI

  alias ExTorch.{Checkpoint, CLI, Filter, Text}
  alias ExTorch.Checkpoint.{StateDict, Summary, Values}

  @max_values 20
  @max_shared 10

  @impl true
  def summary, do: "what a checkpoint contains"

  @impl true
  def usage do
    """
    Usage: extorch info [OPTIONS] PATH

    Prints the tensors of a checkpoint as a tree of modules, with dtypes, shapes, numbers of elements and bytes; then
    what is shared, what is not a tensor, and the metadata. PATH is a file in any format, an index of shards, the
    directory that contains one, or a URL.

      --table          one line for each tensor instead of a tree
      --depth N        print N levels of the tree
      --sort ORDER     file (default), name or size
      --only FILTER    tensors of this name, of a pattern (encoder.*) or of a /regular expression/; may be repeated
      --json           as JSON
      --no-color       without colours

    Examples:

      extorch info model.pt
      extorch info model.safetensors --depth 2 --sort size
      extorch info checkpoint.ckpt --only 'optimizer.*' --table
      extorch info folder --json | jq '.tensors[] | select(.dtype == "float16") | .name'
    """
  end

  @impl true
  def libtorch?, do: false

  @impl true
  def switches do
    [
      table: :boolean,
      depth: :integer,
      sort: :string,
      only: [:string, :keep],
      filter: [:string, :keep]
    ]
  end

  @impl true
  def run([path], options) do
    only = CLI.filter(options[:only] || options[:filter])

    sort =
      Map.fetch(%{"file" => :file, "name" => :name, "size" => :size}, options[:sort] || "file")

    depth = options[:depth]

    if sort == :error or (depth != nil and depth < 1),
      do: :usage,
      else: StateDict.with_parts(path, [], &info(&1, path, only, elem(sort, 1), options))
  end

  def run(_args, _options), do: :usage

  defp info(parts, path, only, sort, options) do
    entries = Summary.entries(parts)
    only = Filter.prepare(only)

    selected =
      Enum.filter(entries, &(only == nil or Filter.matches?(only, &1.name, fn -> &1 end)))

    names = fn -> Enum.map(entries, & &1.name) end

    with :ok <- Filter.check_selected(selected, only, names),
         {:ok, values} <- values(parts) do
      metadata = parts |> hd() |> elem(0) |> Checkpoint.metadata()

      if options.json,
        do: {0, CLI.json(to_json(path, parts, metadata, selected, values))},
        else: {0, text(path, parts, metadata, selected, values, sort, options)}
    end
  end

  defp values([{ckpt, _entries}]) do
    with {:ok, object} <- StateDict.object(ckpt), do: {:ok, Values.list(object, nil)}
  end

  defp values(_parts), do: {:ok, []}

  # ---- Text ----

  defp text(path, parts, metadata, entries, values, sort, options) do
    lines =
      entries
      |> Summary.lines(%{depth: options[:depth], sort: sort, table: options[:table] == true})
      |> Summary.format()

    [
      head(path, parts, metadata, options),
      Enum.map(lines, &[&1, "\n"]),
      total(entries, options),
      shared(entries),
      other(values),
      own_metadata(metadata)
    ]
  end

  defp head(path, parts, metadata, options) do
    shards = if match?([_], parts), do: [], else: [", ", Text.plural(length(parts), "shard")]
    compression = if metadata.compression, do: ", #{metadata.compression}", else: ""

    producer =
      if metadata.producer == to_string(metadata.format), do: "", else: ", #{metadata.producer}"

    [
      CLI.color(Text.name(path), :bright, options),
      ": #{metadata.format}#{compression}#{producer}",
      shards,
      "\n"
    ]
  end

  defp total(entries, options) do
    {elements, bytes} = Text.total(entries)

    text =
      "#{Text.plural(length(entries), "tensor")}, #{Text.count(elements)} parameters, #{Text.bytes(bytes)}" <>
        if(entries == [], do: "", else: ", #{Text.dtypes(entries)}")

    [CLI.color(text, :bright, options), "\n"]
  end

  defp shared(entries) do
    groups = Summary.shared(entries)
    lines = for names <- Enum.take(groups, @max_shared), do: ["  ", joined(names), "\n"]
    section("share storage", lines, length(groups) - @max_shared)
  end

  defp joined(names) do
    more = if length(names) > 5, do: " and #{length(names) - 5} more", else: ""
    [names |> Enum.take(5) |> Enum.map_join(", ", &Text.name/1), more]
  end

  defp other(values) do
    lines =
      for {name, value} <- Enum.take(values, @max_values),
          do: "  #{Text.name(name)}: #{Text.value(value)}\n"

    section("not tensors", lines, length(values) - @max_values)
  end

  defp own_metadata(metadata) do
    lines =
      for {key, value} <- Enum.sort(metadata[:metadata] || %{}),
          do: "  #{Text.name(key)}: #{Text.value(value)}\n"

    section("metadata", lines, 0)
  end

  defp section(_title, [], _more), do: []
  defp section(title, lines, more) when more > 0, do: [title, ":\n", lines, "  … #{more} more\n"]
  defp section(title, lines, _more), do: [title, ":\n", lines]

  # ---- JSON ----

  defp to_json(path, parts, metadata, entries, values) do
    {elements, bytes} = Text.total(entries)

    %{
      path: path,
      format: metadata.format,
      compression: metadata.compression,
      producer: metadata[:producer],
      byteorder: metadata[:byteorder],
      metadata: metadata[:metadata] || %{},
      shards: length(parts),
      parameters: elements,
      bytes: bytes,
      tensors: Enum.map(entries, &entry/1),
      shared: Summary.shared(entries),
      values: Enum.map(values, fn {name, value} -> %{name: name, value: json_value(value)} end)
    }
  end

  defp entry(entry), do: Map.put(CLI.entry(entry), :elements, Text.elements(entry))

  defp json_value(value)
       when is_number(value) or is_binary(value) or is_boolean(value) or is_nil(value),
       do: value

  defp json_value(value), do: Text.value(value)
end
