# Kills nodes and processes that save a sharded checkpoint, at random instants, while others save the same one.
#
# usage: mix run --no-deps-check test/fire/saves.exs [seconds] [seed]
#
# After every kill the directory must load as one checkpoint. After the next save it must contain only that checkpoint.
# Prints one line and exits with status 1 if anything was wrong.
defmodule Saves do
  alias ExTorch.Store
  alias ExTorch.Store.Sharded

  @index "model.safetensors.index.json"

  # Each save writes its own number into all tensors. The number also gives the number of tensors.
  @child """
  [path, warm, base] = System.argv()

  save = fn path, i ->
    store = ExTorch.Store.Sharded.new(path, overwrite: true, max_shard_size: 40_000)
    module = Map.new(1..(2 + rem(i, 3)), &{"w\#{&1}", ExTorch.full({10_000}, i * 1.0)})
    :ok = ExTorch.Store.collect_from(store, module)
  end

  # all code is loaded before the first kill can happen
  save.(warm, 1)
  IO.puts("ready")

  for i <- Stream.iterate(String.to_integer(base), &(&1 + 1)) do
    save.(path, i)
    IO.puts("saved")
  end
  """

  def run(seconds, seed) do
    :rand.seed(:exsss, {seed, seed, seed})
    dir = Path.join(System.tmp_dir!(), "extorch_saves_#{System.pid()}_#{seed}")
    deadline = System.monotonic_time(:millisecond) + seconds * 1000
    File.mkdir_p!(dir <> "-warm")
    totals = %{saves: 0, kills: 0, mixtures: 0, left: 0, errors: 0}
    totals = rounds(dir, deadline, totals, 0)
    for path <- [dir, dir <> "-warm"], do: File.rm_rf!(path)

    IO.puts(
      "fire: saves | #{totals.saves} sharded saves | #{totals.kills} kills survived | #{totals.mixtures} mixtures | " <>
        "#{totals.left} temporary files left | #{totals.errors} other errors | seed #{seed}"
    )

    if totals.mixtures + totals.left + totals.errors > 0, do: System.halt(1)
  end

  # A few kills in one directory, then a save that must clean it up. Every other directory begins without a checkpoint.
  defp rounds(dir, deadline, totals, round) do
    if System.monotonic_time(:millisecond) > deadline do
      totals
    else
      File.rm_rf!(dir)
      File.mkdir_p!(dir)
      if rem(round, 2) == 0, do: :ok = save(dir, 0)

      totals =
        Enum.reduce(1..2, totals, fn i, totals -> kill_nodes(dir, round * 10 + i, totals) end)

      totals =
        Enum.reduce(1..10, totals, fn i, totals -> kill_processes(dir, round * 10 + i, totals) end)

      totals = totals |> cleaned(dir) |> Map.update!(:saves, &(&1 + 1))
      rounds(dir, deadline, totals, round + 1)
    end
  end

  # Starts one or two nodes, kills them and checks the directory.
  defp kill_nodes(dir, number, totals) do
    before = check(dir)
    ports = for i <- 1..:rand.uniform(2), do: start(dir, number * 1000 + i * 1_000_000)
    for port <- ports, do: await(port)
    Process.sleep(:rand.uniform(120))
    saves = Enum.sum(Enum.map(ports, &stop/1))
    count(totals, length(ports), saves, before, check(dir))
  end

  # The same with processes of this node.
  defp kill_processes(dir, number, totals) do
    before = check(dir)

    savers =
      for i <- 1..:rand.uniform(2),
          do: spawn_monitor(fn -> :ok = save(dir, number * 1000 + i) end)

    Process.sleep(:rand.uniform(30))
    for {pid, _} <- savers, do: Process.exit(pid, :kill)
    reasons = for {_, ref} <- savers, do: receive(do: ({:DOWN, ^ref, _, _, reason} -> reason))
    saves = Enum.count(reasons, &(&1 == :normal))
    count(totals, length(savers) - saves, saves, before, check(dir))
  end

  # There is a checkpoint, unless there was none before and no save was finished.
  defp count(totals, kills, saves, before, found) do
    totals = %{totals | kills: totals.kills + kills, saves: totals.saves + saves}

    case found do
      :ok -> totals
      :mixture -> Map.update!(totals, :mixtures, &(&1 + 1))
      :none when saves == 0 and before == :none -> totals
      _ -> Map.update!(totals, :errors, &(&1 + 1))
    end
  end

  defp start(dir, base) do
    paths =
      for path <- :code.get_path(), to_string(path) =~ "extorch", do: ["-pa", to_string(path)]

    args =
      List.flatten(paths) ++
        ["-e", @child] ++
        for(d <- [dir, dir <> "-warm"], do: Path.join(d, @index)) ++ [to_string(base)]

    Port.open({:spawn_executable, System.find_executable("elixir")}, [
      :binary,
      :exit_status,
      {:line, 1000},
      args: args
    ])
  end

  defp await(port) do
    receive do
      {^port, {:data, {:eol, "ready"}}} -> :ok
      {^port, {:exit_status, status}} -> raise "the child exited with status #{status}"
    after
      120_000 -> raise "the child does not start"
    end
  end

  # Returns the number of saves that the child has finished.
  defp stop(port) do
    {:os_pid, pid} = Port.info(port, :os_pid)
    System.cmd("kill", ["-9", to_string(pid)])
    finished(port, 0)
  end

  defp finished(port, saves) do
    receive do
      {^port, {:data, {:eol, "saved"}}} -> finished(port, saves + 1)
      {^port, {:data, _}} -> finished(port, saves)
      {^port, {:exit_status, _}} -> saves
    end
  end

  defp save(dir, value) do
    store = Sharded.new(Path.join(dir, @index), overwrite: true, max_shard_size: 40_000)

    Store.collect_from(
      store,
      Map.new(1..(2 + rem(value, 3)), &{"w#{&1}", ExTorch.full({10_000}, value * 1.0)})
    )
  end

  # One save wrote all tensors, and the number of tensors fits its value.
  defp check(dir) do
    index = Path.join(dir, @index)

    case File.exists?(index) && ExTorch.load(index) do
      false -> :none
      {:ok, tensors} -> same(for {_, tensor} <- tensors, do: ends(tensor))
      {:error, error} -> IO.puts(Exception.message(error))
    end
  end

  defp ends(tensor) do
    [first | rest] = ExTorch.Tensor.to_list(tensor)
    {first, Enum.all?(rest, &(&1 == first))}
  end

  defp same([{value, _} | _] = ends) do
    expected = 2 + rem(trunc(value), 3)

    if Enum.uniq(ends) == [{value, true}] and length(ends) == expected, do: :ok, else: :mixture
  end

  # The next save leaves its own files only. A native call of a killed process may run for a moment longer.
  defp cleaned(totals, dir, tries \\ 20) do
    :ok = save(dir, 1)
    shards = for {_, file} <- weight_map(dir), uniq: true, do: file
    left = File.ls!(dir) -- [@index | shards]

    cond do
      left != [] and tries > 0 ->
        Process.sleep(100)
        cleaned(totals, dir, tries - 1)

      check(dir) == :ok ->
        if left != [], do: IO.puts("left behind: #{Enum.join(left, ", ")}")
        Map.update!(totals, :left, &(&1 + length(left)))

      true ->
        Map.update!(totals, :mixtures, &(&1 + 1))
    end
  end

  defp weight_map(dir) do
    {:ok, map} = ExTorch.Store.ShardIndex.read(Path.join(dir, @index))
    map
  end
end

{seconds, seed} =
  case Enum.map(System.argv(), &String.to_integer/1) do
    [] -> {60, System.unique_integer([:positive])}
    [seconds] -> {seconds, System.unique_integer([:positive])}
    [seconds, seed] -> {seconds, seed}
  end

Saves.run(seconds, seed)
