# How fast does a file of another node load, compared with a plain loop that sends binaries between the same two nodes?
#
# The loop sends the bytes of the file in messages of 8 MiB, two of them under way at a time. The receiver drops them, or
# keeps them, as a load does.
Code.require_file("support/data.exs", __DIR__)
Code.require_file("support/measure.exs", __DIR__)
Code.require_file("../test/support/peers.ex", __DIR__)
alias Bench.{Data, Measure}
alias ExTorch.Test.Peers

unless Peers.available?() do
  IO.puts("epmd was not found")
  System.halt(0)
end

path = Data.write(Path.join(Data.dir(), "remote.pt"), List.duplicate(4_000_000, 40), 4)
size = File.stat!(path).size
peer = Peers.start()
piece = 8 * 1024 * 1024

sender = """
{:ok, file} = :file.open(path, [:raw, :read, :binary])

send_next = fn send_next, at ->
  case :file.pread(file, at, piece) do
    {:ok, bytes} ->
      send(to, {:piece, self(), bytes})
      :erlang.garbage_collect()
      receive do: (:next -> send_next.(send_next, at + piece))

    :eof ->
      send(to, {:end, self()})
  end
end

receive do: (:next -> :ok)
send_next.(send_next, 0)
"""

receive_all = fn receive_all, keep, kept ->
  receive do
    {:piece, from, bytes} ->
      send(from, :next)
      kept = if keep, do: [bytes | kept], else: []
      :erlang.garbage_collect()
      receive_all.(receive_all, keep, kept)

    {:end, _from} ->
      :ok
  end
end

loop = fn keep ->
  pid =
    Node.spawn(peer.node, Code, :eval_string, [sender, [path: path, piece: piece, to: self()]])

  # Two messages are under way.
  send(pid, :next)
  send(pid, :next)
  receive_all.(receive_all, keep, [])
end

load = fn ->
  {:ok, state} = ExTorch.load(ExTorch.Source.Remote.new(peer.node, path))
  40 = map_size(state)
end

# Each run has its own process. What it has received is freed before the next one begins.
measure = fn fun ->
  ms = Task.await(Task.async(fn -> Measure.milliseconds(fun) end), :infinity)
  ExTorch.Memory.collect()
  Process.sleep(500)
  ms
end

functions = [fn -> loop.(false) end, fn -> loop.(true) end, load]
for fun <- functions, do: measure.(fun)
runs = for _ <- 1..5, do: Enum.map(functions, measure)
[dropped, kept, loads] = Enum.zip_with(runs, & &1)
ratio = &Measure.ratio(Measure.median(&1), Measure.median(loads))
Measure.print_runs("plain loop, #{div(size, 1_000_000)} MB", dropped)
Measure.print_runs("plain loop that keeps them", kept)

Measure.print_runs(
  "ExTorch.load of a remote file",
  loads,
  "#{ratio.(dropped)} of the speed of the first loop, #{ratio.(kept)} of the second"
)

Peers.stop(peer)
