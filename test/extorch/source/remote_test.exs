defmodule ExTorch.Source.RemoteTest do
  use ExTorch.Case, async: false

  alias ExTorch.{Checkpoint, Source.Remote, Store, Streaming}
  alias ExTorch.Test.Peers

  @moduletag :tmp_dir
  @moduletag :peers

  setup %{tmp_dir: dir} do
    path = Path.join(dir, "model.pt")

    ExTorch.save!(state(), path)
    %{peer: Peers.start(), path: path}
  end

  # Not in the context of the tests, which would keep the tensors.
  defp state do
    %{"big" => ExTorch.arange(0, 6_000_000, dtype: :float32), "small" => ExTorch.tensor([1, 2])}
  end

  defp same?(a, b), do: Enum.all?(b, fn {name, tensor} -> Tensor.equal?(a[name], tensor) end)

  # The readers of a node.
  defp readers(peer) do
    :erpc.call(peer.node, Task.Supervisor, :children, [ExTorch.Tasks])
  end

  test "a file of another node is a checkpoint", %{
    peer: peer,
    path: path,
    tmp_dir: dir
  } do
    state = state()
    source = Remote.new(peer.node, path)
    assert {:ok, loaded} = ExTorch.load(source)
    assert same?(loaded, state)
    assert wait_until(fn -> readers(peer) == [] end)

    {:ok, ckpt} = Checkpoint.open(source)
    assert inspect(ckpt) =~ "#{peer.node}:#{path}"
    assert Tensor.equal?(Checkpoint.tensor!(ckpt, "big"), state["big"])
    assert Tensor.equal?(Checkpoint.tensor!(ckpt, "small"), state["small"])
    assert length(readers(peer)) == 1
    Checkpoint.close(ckpt)
    assert wait_until(fn -> readers(peer) == [] end)
    assert Process.info(self(), :messages) == {:messages, []}

    assert {:ok, result} = Store.apply_to(Store.PyTorch.new(source), state)
    assert length(result.applied) == 2

    index = Path.join(dir, "model.safetensors.index.json")
    :ok = Store.collect_from(Store.Sharded.new(index), state)
    assert {:ok, loaded} = ExTorch.load(Remote.new(peer.node, index))
    assert same?(loaded, state)

    assert {:ok, loaded} =
             ExTorch.load(Remote.new(peer.node, Path.expand("test/fixtures/dcp/ranks-4/") <> "/"))

    assert Tensor.nbytes(loaded["model"]["rows"]) == 132
  end

  test "errors", %{peer: peer, path: path, tmp_dir: dir} do
    reason = fn node, path ->
      {:error, %Error{reason: reason}} = ExTorch.load(Remote.new(node, path, timeout: 5000))
      reason
    end

    assert reason.(peer.node, path <> ".none") == :not_found
    assert reason.(peer.node, dir) == :not_found
    assert reason.(:"none@127.0.0.1", path) == :io
    fifo = Path.join(dir, "fifo")
    {_, 0} = System.cmd("mkfifo", [fifo])
    assert reason.(peer.node, fifo) == :not_found
    File.write!(fifo <> ".pt", "no checkpoint")
    assert reason.(peer.node, fifo <> ".pt") in [:corrupt, :truncated, :unsupported]
    assert reason(fn -> Remote.new("node", path) end) == :bad_argument
    assert reason(fn -> Remote.new(peer.node, "") end) == :bad_argument
    assert reason(fn -> Remote.new(peer.node, path, window: 0) end) == :bad_argument
  end

  test "a file that changes is noticed", %{peer: peer, path: path} do
    {:ok, ckpt} = Checkpoint.open(Remote.new(peer.node, path))
    File.write!(path <> ".new", [File.read!(path), "more"])
    File.rename!(path <> ".new", path)
    assert {:error, %Error{reason: :file_changed}} = Checkpoint.tensor(ckpt, "big")
  end

  test "the reader is gone with its caller", %{peer: peer, path: path} do
    test = self()

    pid =
      spawn(fn ->
        {:ok, ckpt} = Checkpoint.open(Remote.new(peer.node, path))
        {:ok, _} = Checkpoint.tensor(ckpt, "small")
        send(test, :open)
        Process.sleep(:infinity)
      end)

    assert_receive :open, 10_000
    assert length(readers(peer)) == 1
    Process.exit(pid, :kill)
    assert wait_until(fn -> readers(peer) == [] end)
  end

  test "nodes that are disconnected and come back", %{peer: peer, path: path} do
    state = state()
    {:ok, ckpt} = Checkpoint.open(Remote.new(peer.node, path))
    assert {:ok, _} = Checkpoint.tensor(ckpt, "small")
    true = Node.disconnect(peer.node)
    # The next read connects again and starts another reader.
    assert {:ok, tensor} = Checkpoint.tensor(ckpt, "big")
    assert Tensor.equal?(tensor, state["big"])
    assert wait_until(fn -> length(readers(peer)) == 1 end)
  end

  test "a node that is suspended, and one that is killed", %{peer: peer, path: path} do
    Process.flag(:trap_exit, true)
    {:ok, ckpt} = Checkpoint.open(Remote.new(peer.node, path, timeout: 700))
    assert {:ok, _} = Checkpoint.tensor(ckpt, "small")
    Peers.signal(peer, "STOP")
    assert {:error, %Error{reason: :timeout}} = Checkpoint.tensor(ckpt, "big")
    Peers.signal(peer, "CONT")
    assert wait_until(fn -> match?({:ok, _}, Checkpoint.tensor(ckpt, "big")) end)
    Peers.signal(peer, "KILL")
    assert {:error, %Error{reason: :io}} = Checkpoint.tensor(ckpt, "big")
  end

  describe "streams between processes" do
    test "a term is sent to another node", %{peer: peer} do
      state = state()
      receiver = Node.spawn(peer.node, ExTorch.Streaming, :recv, [self()])
      assert Streaming.send(state, receiver) == :ok
      # And back.
      test = self()

      receiver =
        spawn_link(fn ->
          receive do: ({:sender, sender} -> send(test, {:received, Streaming.recv(sender)}))
        end)

      binary = saved(%{"a" => ExTorch.tensor([1, 2, 3])})

      sender =
        Node.spawn(peer.node, Code, :eval_string, [forward(), [bytes: binary, to: receiver]])

      send(receiver, {:sender, sender})
      assert_receive {:received, {:ok, %{"a" => tensor}, ""}}, 10_000
      assert Tensor.to_list(tensor) == [1, 2, 3]
    end

    defp forward do
      "{:ok, term, _} = ExTorch.Streaming.load([bytes]); :ok = ExTorch.Streaming.send(term, to)"
    end

    test "within a node, with errors", _context do
      state = state()
      test = self()

      receiver = fn opts ->
        spawn(fn ->
          result = Streaming.recv(test, opts)
          send(test, {:received, elem(result, 0), Process.info(self(), :messages)})
        end)
      end

      assert Streaming.send(state, receiver.([])) == :ok
      assert_receive {:received, :ok, {:messages, []}}, 5000

      # The receiver refuses the size: nothing stays in its mailbox.
      pid = receiver.(limits: [total_bytes: 1000])
      assert {:error, %Error{reason: :closed}} = Streaming.send(state, pid)
      assert_receive {:received, :error, {:messages, []}}, 5000

      # The sender fails.
      pid = receiver.([])
      assert {:error, %Error{reason: :bad_argument}} = Streaming.send(%{"a" => self()}, pid)
      assert_receive {:received, :error, {:messages, []}}, 5000

      dead = spawn(fn -> :ok end)
      assert {:error, %Error{reason: :closed}} = Streaming.send(state, dead)
      assert {:error, %Error{reason: :truncated}} = Streaming.recv(dead)
      deaf = spawn(fn -> Process.sleep(:infinity) end)
      assert {:error, %Error{reason: :timeout}} = Streaming.send(state, deaf, timeout: 100)
      assert {:error, %Error{reason: :timeout}} = Streaming.recv(deaf, timeout: 100)
      Process.exit(deaf, :kill)
    end
  end
end
