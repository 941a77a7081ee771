defmodule ExTorch.Report.Page do
  @moduledoc false
  # The HTML of a report. The parts are read when this module is compiled, so that they are in escripts and releases.

  alias ExTorch.CLI.JSON

  @sources ~w(page.html style.css data.js treemap.js table.js page.js)
  for file <- @sources, do: @external_resource(Path.join(__DIR__, file))

  read = &File.read!(Path.join(__DIR__, &1))
  @page read.("page.html")
  @style read.("style.css")
  @script Enum.join(
            ["(() => {\n\"use strict\";\n"] ++
              Enum.map(~w(data.js treemap.js table.js page.js), read) ++ ["})();\n"]
          )

  # Nothing but the page's own style and script, which are known by their hashes.
  hash = &("'sha256-" <> Base.encode64(:crypto.hash(:sha256, &1)) <> "'")

  @policy "default-src 'none'; script-src #{hash.(@script)}; style-src #{hash.(@style)}; " <>
            "base-uri 'none'; form-action 'none'"

  @spec render(map()) :: binary()
  def render(data) do
    parts = %{
      "policy" => @policy,
      "style" => @style,
      "script" => @script,
      "version" => to_string(Application.spec(:extorch, :vsn)),
      "title" => escape(data.title),
      "heading" => escape(data.title),
      "data" => json(data)
    }

    @page
    |> String.split(~r/\{\{\w+\}\}/, include_captures: true)
    |> Enum.map(fn part -> Map.get(parts, String.replace(part, ["{", "}"], ""), part) end)
    |> IO.iodata_to_binary()
  end

  # Without "<", the text cannot end the element that contains it.
  defp json(data),
    do: data |> JSON.encode() |> IO.iodata_to_binary() |> String.replace("<", "\\u003c")

  # Text in HTML.
  @spec escape(String.t()) :: String.t()
  def escape(text) do
    String.replace(text, ["&", "<", ">", "\"", "'"], fn
      "&" -> "&amp;"
      "<" -> "&lt;"
      ">" -> "&gt;"
      "\"" -> "&quot;"
      "'" -> "&#39;"
    end)
  end
end
