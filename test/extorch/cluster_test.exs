defmodule ExTorch.ClusterTest do
  use ExTorch.Case, async: false

  alias ExTorch.{Checkpoint, Cluster, Source.Remote}
  alias ExTorch.Test.Peers

  @moduletag :tmp_dir

  defp state(count \\ 30) do
    for i <- 0..(count - 1),
        into: %{},
        do: {"layers.#{i}.weight", ExTorch.full({300, 300}, i * 1.0)}
  end

  defp same?(a, b) do
    map_size(a) == map_size(b) and
      Enum.all?(b, fn {name, tensor} -> Tensor.equal?(a[name], tensor) end)
  end

  defp save(dir) do
    path = Path.join(dir, "model.pt")
    ExTorch.save!(state(), path)
    path
  end

  describe "partition" do
    setup %{tmp_dir: dir} do
      path = Path.join(dir, "model.pt")
      big = ExTorch.zeros({1000})

      layers =
        for i <- 0..7,
            name <- ["weight", "bias"],
            do:
              {"layers.#{i}.#{name}",
               ExTorch.zeros({if(name == "bias", do: 10, else: 100 * (i + 1))})}

      pairs = [{"embed", big}] ++ layers ++ [{"head", big}]
      ExTorch.save!(%ExTorch.Python.Dict{pairs: pairs}, path)
      %{path: path}
    end

    test "by bytes, by layer and by a function", %{path: path} do
      ckpt = Checkpoint.open!(path)
      names = Checkpoint.keys(ckpt)
      bytes = ckpt |> Checkpoint.entries() |> Map.new(&{&1.name, &1.nbytes}) |> Map.put("head", 0)
      size = fn part -> part |> Enum.map(&bytes[&1]) |> Enum.sum() end

      for n <- [1, 2, 3, 5, 40], by <- [:bytes, :layer, & &1.dtype] do
        parts = Checkpoint.partition(ckpt, n, by: by)
        assert length(parts) == n
        assert parts |> Enum.concat() |> Enum.sort() == Enum.sort(names)
      end

      # Tied tensors stay together.
      for part <- Checkpoint.partition(ckpt, 3), do: assert("embed" in part == "head" in part)
      sizes = ckpt |> Checkpoint.partition(3) |> Enum.map(size)
      assert Enum.max(sizes) - Enum.min(sizes) < 2000

      by_layer = Checkpoint.partition(ckpt, 4, by: :layer)
      assert Enum.concat(by_layer) == names

      for i <- 0..7,
          part <- by_layer,
          do: assert("layers.#{i}.bias" in part == "layers.#{i}.weight" in part)

      assert [all, [], []] =
               Checkpoint.partition(ckpt, 3, by: fn _ -> 1 end) |> Enum.sort_by(&(-length(&1)))

      assert all == names
      assert reason(fn -> Checkpoint.partition(ckpt, 3, by: :name) end) == :bad_argument
    end
  end

  describe "nodes" do
    @describetag :peers

    setup do
      Process.flag(:trap_exit, true)
      %{peers: for(_ <- 1..2, do: Peers.start())}
    end

    defp nodes(peers), do: Enum.map(peers, & &1.node)
    defp tasks(peer), do: :erpc.call(peer.node, Task.Supervisor, :children, [ExTorch.Tasks])

    test "each tensor is on one node", %{peers: peers, tmp_dir: dir} do
      path = save(dir)
      test = self()
      opts = [unit_bytes: 1_000_000, on_progress: &send(test, {:progress, &1, &2})]
      assert {:ok, cluster} = Cluster.load(path, nodes(peers), opts)
      assert_received {:progress, total, total}
      refs = Cluster.refs(cluster)
      assert map_size(refs) == 30
      summary = Cluster.summary(cluster)
      assert Enum.sum(for {_, %{tensors: n}} <- summary, do: n) == 30
      assert Enum.all?(Map.keys(summary), &(&1 in nodes(peers)))

      tensor = Cluster.read!(refs["layers.7.weight"])
      assert Tensor.equal?(tensor, state()["layers.7.weight"])
      # A reference can be sent on: a process of another node reads it.
      [first, second] = nodes(peers)

      ref =
        Enum.find_value(refs, fn {_, ref} -> ref.node == first && ref end) || hd(Map.values(refs))

      assert {:ok, %{shape: {300, 300}}} = :erpc.call(second, Cluster, :read, [ref])

      assert {:ok, all} = Cluster.gather(cluster)
      assert same?(all, state())
      assert Cluster.close(cluster) == :ok
      assert wait_until(fn -> Enum.all?(peers, &(tasks(&1) == [])) end)
      assert reason(fn -> Cluster.refs(cluster) end) == :released
    end

    test "only one node has the file", %{peers: [first | _] = peers, tmp_dir: dir} do
      path = save(dir)
      source = Remote.new(first.node, path)

      assert {:ok, cluster} =
               Cluster.load(source, nodes(peers), unit_bytes: 500_000, only: ~r/[0-4]\./)

      assert {:ok, all} = Cluster.gather(cluster)
      assert same?(all, Map.filter(state(), fn {name, _} -> name =~ ~r/[0-4]\./ end))
      Cluster.close(cluster)
    end

    test "a node that is killed is replaced", %{peers: [first | _] = peers, tmp_dir: dir} do
      path = save(dir)

      progress = fn done, total ->
        if done * 3 > total and Process.put(:killed, true) == nil, do: Peers.signal(first, "KILL")
      end

      opts = [unit_bytes: 100_000, on_progress: progress]
      assert {:ok, cluster} = Cluster.load(path, nodes(peers), opts)
      unless Process.get(:killed), do: Peers.signal(first, "KILL")
      assert {:ok, all} = Cluster.gather(cluster)
      assert same?(all, state())
      assert Map.keys(Cluster.summary(cluster)) == [List.last(nodes(peers))]
      Cluster.close(cluster)
    end

    test "a node that is suspended is replaced", %{peers: [first | _] = peers, tmp_dir: dir} do
      path = save(dir)
      # It takes a unit and does not finish it.
      :erpc.call(first.node, ExTorch, :info, [])

      spawn(fn ->
        Process.sleep(30)
        Peers.signal(first, "STOP")
      end)

      opts = [unit_bytes: 100_000, unit_timeout: 500]
      result = Cluster.load(path, nodes(peers), opts)
      Process.sleep(50)
      Peers.signal(first, "CONT")

      # If it was suspended before it had started, nothing was given to it.
      assert {:ok, cluster} = result
      assert {:ok, all} = Cluster.gather(cluster)
      assert same?(all, state())
      Cluster.close(cluster)
    end

    test "the tensors are gone with the caller", %{peers: peers, tmp_dir: dir} do
      path = save(dir)
      test = self()

      caller =
        spawn(fn ->
          {:ok, _} = Cluster.load(path, nodes(peers))
          send(test, :loaded)
          Process.sleep(:infinity)
        end)

      assert_receive :loaded, 30_000
      assert Enum.any?(peers, &(tasks(&1) != []))
      Process.exit(caller, :kill)
      assert wait_until(fn -> Enum.all?(peers, &(tasks(&1) == [])) end)
    end

    test "errors", %{peers: peers, tmp_dir: dir} do
      path = save(dir)
      assert {:error, %Error{reason: :not_found}} = Cluster.load(path <> ".none", nodes(peers))
      assert {:error, %Error{reason: :io}} = Cluster.load(path, [:"none@127.0.0.1"])
      assert {:error, %Error{reason: :not_found}} = Cluster.load(path, nodes(peers), only: "none")
      assert reason(fn -> Cluster.load(path, []) end) == :bad_argument
      assert reason(fn -> Cluster.load(path, nodes(peers), unit_bytes: 0) end) == :bad_argument
      # One of several nodes cannot be reached.
      assert {:ok, cluster} = Cluster.load(path, [:"none@127.0.0.1" | nodes(peers)])
      assert map_size(Cluster.refs(cluster)) == 30
      Cluster.close(cluster)
    end
  end
end
