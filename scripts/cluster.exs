# Starts three nodes, loads one checkpoint across them, kills one halfway, and prints who loaded what.
Code.require_file("../test/support/peers.ex", __DIR__)
alias ExTorch.{Cluster, Tensor}
alias ExTorch.Test.Peers

Process.flag(:trap_exit, true)

unless Peers.available?() do
  IO.puts(:stderr, "epmd was not found: nodes cannot be started")
  System.halt(1)
end

dir = Path.join(System.tmp_dir!(), "extorch_cluster_#{System.pid()}")
File.mkdir_p!(dir)
path = Path.join(dir, "model.pt")
state = for i <- 0..119, into: %{}, do: {"layers.#{i}.weight", ExTorch.full({1024, 512}, i * 1.0)}
ExTorch.save!(state, path)
size = File.stat!(path).size
IO.puts("one checkpoint: #{map_size(state)} tensors, #{div(size, 1_000_000)} MB")

peers = for _ <- 1..3, do: Peers.start()
[first | _] = nodes = Enum.map(peers, & &1.node)
IO.puts("three nodes: #{Enum.join(nodes, ", ")}")

this = self()

# The node has loaded something when it is killed: that is lost with it.
progress = fn done, total ->
  IO.puts("loaded #{div(done * 100, total)} %")

  if done * 2 >= total and Process.put(:killed, true) == nil do
    IO.puts("killing #{first}")
    Peers.signal(hd(peers), "KILL")
    send(this, :killed)
  end
end

{time, cluster} =
  :timer.tc(fn ->
    Cluster.load!(path, nodes, unit_bytes: 4 * 1024 * 1024, on_progress: progress)
  end)

# The last units may have been loaded before the node was missed.
unless Process.get(:killed), do: Peers.signal(hd(peers), "KILL")
{:ok, tensors} = Cluster.gather(cluster)
IO.puts("all tensors loaded in #{div(time, 1000)} ms\n")

for {node, %{tensors: count, bytes: bytes}} <- Enum.sort(Cluster.summary(cluster)),
    do:
      IO.puts(
        "#{String.pad_trailing(to_string(node), 34)} #{count} tensors, #{div(bytes, 1_000_000)} MB"
      )

for node <- nodes -- Map.keys(Cluster.summary(cluster)),
    do:
      IO.puts("#{String.pad_trailing(to_string(node), 34)} killed; the others loaded what it had")

complete? =
  map_size(tensors) == map_size(state) and
    Enum.all?(state, fn {name, tensor} -> Tensor.equal?(tensors[name], tensor) end)

Cluster.close(cluster)
File.rm_rf!(dir)
IO.puts(if complete?, do: "\nevery tensor arrived", else: "\ntensors are missing or wrong")
unless complete?, do: System.halt(1)
