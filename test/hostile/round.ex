defmodule ExTorch.HostileFiles.Round do
  @moduledoc false
  # Rounds over the catalogue: which file, which size, which calls; and the totals.
  alias ExTorch.HostileFiles.{Calls, Catalogue, Gate}

  @totals %{files: 0, calls: 0, refused: 0, dead: 0, memory: 0, time: 0, failures: []}

  @doc "Runs until the time is over. Prints each failure."
  def fire(seconds, seed, opts) do
    :rand.seed(:exsss, {seed, seed, seed})
    deadline = System.monotonic_time(:second) + seconds

    with_directory(fn dir ->
      {totals, gate} = rounds(0, deadline, dir, opts, {@totals, %Gate{}})
      Gate.stop(gate)
      totals
    end)
  end

  @doc """
  Gives every file of the catalogue in its usual size, and every fixture, to every call that differs, with one VM for
  each core. Prints each failure. `turn` chooses the second container of the pickles; a turn above 0 has only these.
  """
  def complete(turn, opts) do
    workers = max(1, System.schedulers_online())
    files = for file <- Catalogue.turn(turn), String.contains?(file.name, opts[:name]), do: file

    files
    |> Enum.with_index()
    |> Enum.group_by(fn {_, i} -> rem(i, workers) end, &elem(&1, 0))
    |> Enum.map(fn {i, files} -> Task.async(fn -> worker(i, files, opts) end) end)
    |> Task.await_many(:infinity)
    |> Enum.reduce(
      @totals,
      &Map.merge(&1, &2, fn _, a, b -> if is_list(a), do: a ++ b, else: a + b end)
    )
  end

  defp worker(i, files, opts) do
    with_directory("-#{i}", fn dir ->
      {totals, gate} =
        Enum.reduce(files, {@totals, %Gate{}}, fn file, acc ->
          one(file, file.n, dir, opts, acc)
        end)

      Gate.stop(gate)
      totals
    end)
  end

  defp rounds(round, deadline, dir, opts, acc) do
    files =
      for file <- Catalogue.all(round + :rand.uniform(5)),
          String.contains?(file.name, opts[:name]),
          do: {:rand.uniform(), file}

    acc =
      files
      |> Enum.sort_by(&elem(&1, 0))
      |> Enum.reduce_while(acc, fn {_, file}, acc ->
        n = if round == 0, do: file.n, else: size(file.range)
        acc = one(file, n, dir, opts, acc)
        if System.monotonic_time(:second) < deadline, do: {:cont, acc}, else: {:halt, acc}
      end)

    if files != [] and System.monotonic_time(:second) < deadline,
      do: rounds(round + 1, deadline, dir, opts, acc),
      else: acc
  end

  # Each order of magnitude is as likely as another.
  defp size(low..high//_) do
    span = :math.log(high + 1) - :math.log(low)
    min(high, max(low, round(:math.exp(:math.log(low) + :rand.uniform() * span))))
  end

  @doc "Runs one file of the catalogue through its calls."
  def one(file, n, dir, opts, {totals, gate}) do
    file = write(file, n, dir, opts)
    started = System.monotonic_time(:millisecond)
    {results, gate} = Gate.run(gate, file, calls(file, opts))
    lines = Gate.describe(results, file)

    if System.get_env("TRACE"),
      do: IO.puts(:stderr, "#{System.monotonic_time(:millisecond) - started} ms #{file.name}")

    Enum.each(lines, &IO.puts/1)
    totals = %{totals | files: totals.files + 1, failures: lines ++ totals.failures}
    {Enum.reduce(results, totals, &count/2), gate}
  end

  defp calls(file, opts) do
    for call <- Calls.all(file.kind, opts[:form]), inspect(call) =~ (opts[:call] || ""), do: call
  end

  defp count({_, measured, failures}, totals) do
    totals
    |> add(:calls, true)
    |> add(:refused, match?({:error, _, _, _}, measured.answer))
    |> add(:dead, :dead in failures)
    |> add(:memory, :memory in failures)
    |> add(:time, :time in failures)
  end

  defp add(totals, key, true), do: Map.update!(totals, key, &(&1 + 1))
  defp add(totals, _key, false), do: totals

  @doc "The last line of a run."
  def line(t) do
    "fire: hostile | files #{t.files} | calls #{t.calls} | refused #{t.refused} | dead nodes #{t.dead} | " <>
      "over memory #{t.memory} | over time #{t.time}"
  end

  def failed?(t), do: t.failures != []
  def totals, do: @totals

  # ---- Files ----

  defp write(file, n, dir, opts) do
    for old <- File.ls!(dir), do: File.rm_rf!(Path.join(dir, old))

    files =
      case Catalogue.bytes(file, n) do
        [{_, _} | _] = files when file.kind in [:index, :folder] -> files
        bytes -> [{"file", bytes}]
      end

    for {name, bytes} <- files, do: write(Path.join(dir, name), bytes)
    bytes = for {name, _} <- files, reduce: 0, do: (sum -> sum + size_of(Path.join(dir, name)))
    name = if file.kind == :folder, do: "", else: files |> hd() |> elem(0)
    # The bytes of the file are garbage now, and may be many.
    :erlang.garbage_collect()
    slack = opts[:slack] || 1
    Map.merge(file, %{n: n, bytes: bytes, path: Path.join(dir, name), slack: slack})
  end

  defp write(path, {:link, target}), do: File.ln_s!(target, path)
  defp write(path, :fifo), do: {_, 0} = System.cmd("mkfifo", [path])
  defp write(path, bytes), do: File.write!(path, bytes)

  defp size_of(path) do
    case File.lstat!(path) do
      %{type: :regular, size: size} -> size
      _ -> 0
    end
  end

  def with_directory(suffix \\ "", fun) do
    dir = Path.join(System.tmp_dir!(), "extorch-hostile-#{System.pid()}#{suffix}")
    File.mkdir_p!(dir)

    try do
      fun.(dir)
    after
      File.rm_rf!(dir)
    end
  end
end
