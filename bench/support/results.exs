defmodule Bench.Results do
  @moduledoc false
  # The answers of a benchmark as data: JSON to keep and compare, and a chart (Bench.Chart).
  #
  # A result is %{title:, notes: [text], machine: map, questions: [question]}, a question %{group:, question:, answers:
  # [%{name:, runs: [milliseconds], median:, peak_kib:}]}.

  alias Bench.{Chart, Measure}

  @doc """
  A question with its answers, `[{name, milliseconds of the runs, KiB that they took}]`. Answers without runs are left
  out.
  """
  def question(group, question, answers) do
    answers =
      for {name, [_ | _] = runs, kib} <- answers,
          do: %{
            name: name,
            runs: runs,
            median: Measure.median(runs),
            peak_kib: Measure.median(kib)
          }

    %{group: group, question: question, answers: answers}
  end

  @doc """
  The answers of a question's rounds, each `[{name, {milliseconds, KiB} or nil}]`, as question/3 expects them.
  """
  def answers([first | _] = rounds) do
    for {name, _} <- first do
      found = for round <- rounds, {^name, {ms, kib}} <- round, do: {ms, kib}
      {name, Enum.map(found, &elem(&1, 0)), Enum.map(found, &elem(&1, 1))}
    end
  end

  @doc "Prints a question."
  def print(%{group: group, question: question, answers: [first | _] = answers}) do
    IO.puts("#{group}: #{question}")

    for answer <- answers do
      {least, most} = Enum.min_max(answer.runs)

      ratio =
        if answer == first, do: "", else: "#{Measure.ratio(answer.median, first.median)} times; "

      spread = "#{Float.round(least * 1.0, 1)} to #{Float.round(most * 1.0, 1)} ms"
      memory = "#{Float.round(answer.peak_kib / 1024, 1)} MiB"
      Measure.print("  " <> answer.name, answer.median, "#{ratio}#{spread}; #{memory}")
    end
  end

  @doc """
  Writes NAME.json and NAME.svg to the directory of results, which is `build/bench` unless `BENCH_RESULTS` names another.
  """
  def write(name, title, notes, questions) do
    dir = System.get_env("BENCH_RESULTS", "build/bench")
    File.mkdir_p!(dir)
    result = %{title: title, notes: notes, machine: machine(), questions: questions}
    path = Path.join(dir, name <> ".json")
    File.write!(path, [ExTorch.CLI.JSON.encode(result), "\n"])
    File.write!(Path.join(dir, name <> ".svg"), path |> read!() |> Chart.svg())
    IO.puts("#{path} has the figures, #{name}.svg beside it the chart")
  end

  @doc "Reads a JSON file of write/4."
  def read!(path) do
    {:ok, result} = path |> File.read!() |> ExTorch.JSON.parse()
    result
  end

  defp machine do
    %{
      cpu: value("/proc/cpuinfo", ~r/^model name\s*: (.*)$/m),
      cores: System.schedulers_online(),
      memory: value("/proc/meminfo", ~r/^MemTotal:\s*(.*)$/m),
      elixir: System.version(),
      otp: System.otp_release(),
      libtorch: ExTorch.info().version,
      date: Date.to_iso8601(Date.utc_today())
    }
  end

  defp value(path, regex) do
    with {:ok, text} <- File.read(path), [_, value] <- Regex.run(regex, text) do
      value
    else
      _ -> nil
    end
  end
end
