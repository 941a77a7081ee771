defmodule Bench.Chart do
  @moduledoc false
  # A result (Bench.Results, as read from JSON) as an SVG with a bar for each answer: one column of panels for each group of
  # questions. The bars of a question have a common scale. Colours follow the reader's light or dark setting.

  @column 410
  @gap 20
  @margin 20
  @label 116
  @bar 14
  @row 22
  # to the right of the longest bar: its value
  @value 62

  def svg(%{"title" => title, "notes" => notes, "questions" => questions} = result) do
    groups = questions |> Enum.map(& &1["group"]) |> Enum.uniq()
    columns = for group <- groups, do: Enum.filter(questions, &(&1["group"] == group))
    top = 70
    {panels, bottoms} = columns |> Enum.with_index() |> Enum.map(&column(&1, top)) |> Enum.unzip()
    bottom = Enum.max(bottoms)
    lines = Enum.flat_map(notes ++ [machine(result["machine"])], &wrap(&1, 120))
    width = 2 * @margin + length(groups) * @column + (length(groups) - 1) * @gap
    height = bottom + 16 * length(lines) + 18

    IO.iodata_to_binary([
      """
      <svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 #{width} #{height}" width="#{width}" height="#{height}" role="img" aria-labelledby="title desc">
      <title id="title">#{escape(title)}</title>
      <desc id="desc">#{escape(description(questions))}</desc>
      #{style()}
      <rect class="back" width="#{width}" height="#{height}" rx="10"/>
      <text class="title" x="#{@margin}" y="34">#{escape(title)}</text>
      """,
      panels,
      for {line, i} <- Enum.with_index(lines) do
        ~s(<text class="note" x="#{@margin}" y="#{bottom + 16 * i + 8}">#{escape(line)}</text>\n)
      end,
      "</svg>\n"
    ])
  end

  defp style do
    """
    <style>
      text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Liberation Sans", Arial, sans-serif; fill: #1c2430; }
      .title { font-size: 17px; font-weight: 600; }
      .group { font-size: 14px; font-weight: 600; }
      .question { fill: #1c2430; }
      .name, .note { fill: #576373; }
      .note { font-size: 12px; }
      .back { fill: #f6f7f9; stroke: #dfe3e8; }
      .bar { fill: #aab4c2; }
      .first { fill: #5b52d6; }
      .strong { font-weight: 600; fill: #1c2430; }
      @media (prefers-color-scheme: dark) {
        text, .question, .strong { fill: #e4e9f0; }
        .name, .note { fill: #9ba8b8; }
        .back { fill: #10141a; stroke: #2b333f; }
        .bar { fill: #55606f; }
        .first { fill: #8b84f5; }
      }
    </style>
    """
  end

  # The panels of a group, and where they end.
  defp column({[%{"group" => group} | _] = questions, i}, top) do
    x = @margin + i * (@column + @gap)
    heading = ~s(<text class="group" x="#{x}" y="#{top}">#{escape(group)}</text>\n)

    {panels, bottom} =
      Enum.map_reduce(questions, top + 30, fn question, y ->
        {panel(question, x, y), y + 34 + @row * length(question["answers"])}
      end)

    {[heading | panels], bottom}
  end

  defp panel(%{"question" => question, "answers" => answers}, x, y) do
    scale = (@column - @label - @value) / (answers |> Enum.map(& &1["median"]) |> Enum.max())

    [
      ~s(<text class="question" x="#{x}" y="#{y}">#{escape(question)}</text>\n)
      | for {answer, i} <- Enum.with_index(answers) do
          at = y + 10 + @row * i
          length = Float.round(max(answer["median"] * scale, 1.5) * 1.0, 1)
          {bar, text} = if i == 0, do: {"bar first", "strong"}, else: {"bar", "name"}

          """
          <text class="#{text}" x="#{x}" y="#{at + 12}">#{escape(answer["name"])}</text>
          <rect class="#{bar}" x="#{x + @label}" y="#{at}" width="#{length}" height="#{@bar}" rx="2"/>
          <text class="#{text}" x="#{x + @label + length + 6}" y="#{at + 12}">#{time(answer["median"])}</text>
          """
        end
    ]
  end

  defp machine(machine) do
    [
      machine["cpu"],
      "#{machine["cores"]} cores",
      "Elixir #{machine["elixir"]}, OTP #{machine["otp"]}, LibTorch #{machine["libtorch"]}",
      machine["date"]
    ]
    |> Enum.reject(&is_nil/1)
    |> Enum.join("; ")
  end

  # What the chart shows, in words.
  defp description(questions) do
    Enum.map_join(questions, " ", fn question ->
      answers = Enum.map_join(question["answers"], ", ", &"#{&1["name"]} #{time(&1["median"])}")
      "#{question["group"]}, #{question["question"]}: #{answers}."
    end)
  end

  @doc "A time with two or three digits."
  def time(ms) when ms >= 9_950, do: "#{round(ms / 1000)} s"
  def time(ms) when ms >= 995, do: "#{:erlang.float_to_binary(ms / 1000, decimals: 2)} s"
  def time(ms) when ms >= 9.95, do: "#{round(ms)} ms"
  def time(ms), do: "#{:erlang.float_to_binary(ms * 1.0, decimals: 1)} ms"

  defp wrap(text, width) do
    text
    |> String.split(" ")
    |> Enum.reduce([], fn
      word, [line | lines] when byte_size(line) + byte_size(word) < width ->
        [line <> " " <> word | lines]

      word, lines ->
        [word | lines]
    end)
    |> Enum.reverse()
  end

  defp escape(text) do
    for <<char::utf8 <- text>>, into: "" do
      case char do
        ?& -> "&amp;"
        ?< -> "&lt;"
        ?> -> "&gt;"
        ?" -> "&quot;"
        char -> <<char::utf8>>
      end
    end
  end
end
