# A stress of lifetimes. Thousands of processes open, read, stream, save and release, send handles, tensors and loaders
# to each other, and are killed at random points inside calls. Afterwards memory counters, descriptors, mappings,
# threads and files must be what they were before.
#
#   MIX_ENV=test mix run test/fire/lifetimes.exs SECONDS [SEED]
#   MIX_ENV=test mix run test/fire/lifetimes.exs --tensors COUNT   resident memory must not grow with tensors created
#   MIX_ENV=test mix run test/fire/lifetimes.exs --kills COUNT     kills inside calls; all is freed within 5 seconds
#
# Prints one line of results. The exit status is 1 if something was left over or a call did something unexpected.

Code.require_file("lifetimes/worker.exs", __DIR__)

defmodule Lifetimes do
  alias Lifetimes.{State, Worker}

  @width 48

  def main([option, count]) when option in ["--tensors", "--kills"] do
    count = String.to_integer(count)
    if option == "--tensors", do: tensors(count), else: kills(count)
  end

  def main([seconds]), do: main([seconds, "1"])
  def main([seconds, seed]), do: stress(String.to_integer(seconds), String.to_integer(seed))

  def main(_) do
    IO.puts(:stderr, "usage: lifetimes.exs SECONDS [SEED] | --tensors COUNT | --kills COUNT")
    System.halt(2)
  end

  # ---- The stress ----

  defp stress(seconds, seed) do
    dir = make_dir()
    :rand.seed(:exsss, seed)

    context = %{
      dir: dir,
      files: make_files(dir),
      width: @width,
      peers: :ets.new(:peers, [:public]),
      counters: :counters.new(2, [:atomics])
    }

    warm_up(context)
    before = State.now(dir)
    stop_at = now() + seconds * 1000
    result = loop(context, %{}, %{processes: 0, kills: 0, unexpected: []}, stop_at)
    left = State.wait(before, dir, 20_000)
    File.rm_rf!(dir)
    [actions, refused] = for i <- 1..2, do: :counters.get(context.counters, i)

    report("lifetimes", left, result.unexpected,
      seconds: seconds,
      seed: seed,
      processes: result.processes,
      kills: result.kills,
      actions: actions,
      refused: refused
    )
  end

  # Every action in many processes at once, so that pools of threads and caches exist. The files exist afterwards.
  defp warm_up(context) do
    for i <- 1..5,
        suffix <- ["pt", "archive"],
        do:
          ExTorch.Archive.save!(
            [ExTorch.zeros({1})],
            Path.join(context.dir, "saved#{i}.#{suffix}")
          )

    for _ <- 1..3 do
      1..@width
      |> Enum.map(fn seed ->
        spawn_monitor(fn ->
          Enum.reduce(Enum.shuffle(Worker.actions()), [], &Worker.act(context, &2, &1))
          Worker.run(context, seed, 20)
        end)
      end)
      |> Enum.each(fn {_pid, monitor} -> receive do: ({:DOWN, ^monitor, _, _, _} -> :ok) end)
    end

    ExTorch.Memory.collect()
    Process.sleep(2000)
    ExTorch.Memory.collect()
  end

  # Keeps @width workers alive. Kills one of them at random times.
  defp loop(context, workers, result, stop_at) do
    missing = Enum.to_list(1..@width) -- Map.values(workers)
    {workers, result} = Enum.reduce(missing, {workers, result}, &start(context, &1, &2))

    wait = Enum.random([0, 0, 1, 1, 2, 5, 20])

    receive do
      {:DOWN, _, :process, pid, reason} ->
        loop(context, Map.delete(workers, pid), ended(result, reason), stop_at)
    after
      wait ->
        if now() < stop_at do
          workers |> Map.keys() |> Enum.random() |> Process.exit(:kill)
          loop(context, workers, %{result | kills: result.kills + 1}, stop_at)
        else
          for {pid, _} <- workers, do: Process.exit(pid, :kill)
          for {pid, _} <- workers, do: receive(do: ({:DOWN, _, :process, ^pid, _} -> :ok))
          :ets.delete_all_objects(context.peers)
          result
        end
    end
  end

  defp start(context, slot, {workers, result}) do
    seed = :rand.uniform(1_000_000_000)
    {pid, _} = spawn_monitor(fn -> Worker.run(context, seed, 40) end)
    :ets.insert(context.peers, {slot, pid})
    {Map.put(workers, pid, slot), %{result | processes: result.processes + 1}}
  end

  defp ended(result, reason) when reason in [:normal, :killed], do: result

  defp ended(result, reason) do
    IO.puts(:stderr, "unexpected: #{inspect(reason, limit: 20)}")
    %{result | unexpected: [reason | result.unexpected]}
  end

  # ---- Tensors ----

  defp tensors(count) do
    dir = make_dir()
    steps = 10
    each = div(count, steps)
    create(each)
    ExTorch.Memory.collect()
    before = State.now(dir)
    first = State.rss()
    for _ <- 1..steps, do: create(each)
    left = State.wait(Map.drop(before, []), dir, 5000)
    grown = State.rss() - first
    File.rm_rf!(dir)
    per_million = grown / 1_048_576 / (count / 1_000_000)

    # The allocators take and return some hundred KiB at any time: of fewer than a million tensors, 1 MiB is allowed.
    allowed = 1_048_576 * max(count / 1_000_000, 1)
    bad = if grown < allowed, do: [], else: [{:rss_mib_per_million, per_million}]

    report("tensors", left, bad, created: count, rss_mib_per_million: Float.round(per_million, 3))
  end

  # In processes of their own, and by the garbage collector as well as by release/1.
  defp create(count) do
    1..4
    |> Enum.map(fn _ ->
      Task.async(fn ->
        for i <- 1..div(count, 4) do
          t = ExTorch.zeros({i |> rem(8)})
          if rem(i, 2) == 0, do: ExTorch.Tensor.release(t)
        end

        :ok
      end)
    end)
    |> Task.await_many(:infinity)
  end

  # ---- Kills ----

  defp kills(count) do
    dir = make_dir()
    [path | _] = files = make_files(dir)
    bytes = File.read!(path)

    calls = [
      fn -> ExTorch.load!(Enum.random(files)) end,
      fn -> ExTorch.load!({:binary, bytes}, verify: true) end,
      fn -> ExTorch.Streaming.load([bytes]) end,
      fn -> ExTorch.op("full", [[3_000_000], 1.0]) end,
      fn ->
        ExTorch.save!(%{t: ExTorch.zeros({2_000_000})}, Path.join(dir, "saved.pt"), fsync: false)
      end
    ]

    for call <- calls, do: Task.await(Task.async(call), :infinity)
    ExTorch.Memory.collect()
    before = State.now(dir)

    spawned = kill_inside(calls, count, 0)
    killed = now()
    left = State.wait(before, dir, 5000)
    elapsed = now() - killed
    File.rm_rf!(dir)
    report("kills", left, [], killed_inside: count, processes: spawned, freed_after_ms: elapsed)
  end

  # Kills processes until `count` of them were inside a NIF. Returns the number of processes.
  defp kill_inside(_calls, 0, spawned), do: spawned

  defp kill_inside(calls, count, spawned) do
    {pid, monitor} =
      spawn_monitor(fn -> Enum.each(Stream.cycle([Enum.random(calls)]), & &1.()) end)

    Process.sleep(Enum.random(0..2))
    inside = match?({_, {ExTorch.Native, _, _}}, Process.info(pid, :current_function))
    Process.exit(pid, :kill)
    receive do: ({:DOWN, ^monitor, _, _, _} -> :ok)
    kill_inside(calls, if(inside, do: count - 1, else: count), spawned + 1)
  end

  # ---- Common ----

  defp now, do: System.monotonic_time(:millisecond)

  defp make_dir do
    dir = Path.join(System.tmp_dir!(), "extorch_lifetimes_#{System.pid()}")
    File.rm_rf!(dir)
    File.mkdir_p!(dir)
    dir
  end

  # Files of every format, some of them of megabytes, with tensors t1 to t8.
  defp make_files(dir) do
    for {format, n} <- [
          zip: 300_000,
          zip: 100,
          legacy: 100_000,
          streaming: 200_000,
          safetensors: 100_000
        ] do
      state = for i <- 1..8, into: %{}, do: {"t#{i}", ExTorch.op("full", [[n], i * 1.0])}
      path = Path.join(dir, "#{format}#{n}.pt")
      ExTorch.save!(state, path, format: format)
      path
    end
  end

  defp report(mode, left, unexpected, figures) do
    text = for {name, value} <- figures, do: " | #{name} #{value}"
    IO.puts("fire: #{mode}#{text} | unexpected #{length(unexpected)} | leaks #{length(left)}")

    for {key, before, later} <- left,
        do: IO.puts(:stderr, "left: #{key} #{inspect(later)}, before #{inspect(before)}")

    for other <- unexpected, do: IO.puts(:stderr, "unexpected: #{inspect(other, limit: 20)}")
    if left != [] or unexpected != [], do: System.halt(1)
  end
end

Lifetimes.main(System.argv())
