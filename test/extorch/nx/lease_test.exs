defmodule ExTorch.Nx.LeaseTest do
  # Leases need no backend: these tests run without Nx.
  use ExTorch.Case
  alias ExTorch.Nx.Lease

  test "a lease keeps memory alive, frozen and listed until it is released" do
    before = Memory.live().leased
    t = ExTorch.ones({100})
    address = Lease.keep(t)
    assert address == Blob.to_blob(t).ptr
    assert Memory.live().leased == before + 400

    assert %{bytes: 400, dtype: :float32, ptr: ^address, shape: {100}} =
             List.last(Memory.leases())

    assert reason(fn -> ExTorch.op("zero_", [t]) end) == :frozen
    Tensor.release(t)
    Memory.collect()

    view =
      Blob.from_blob(%{ptr: address + 40, shape: {2}, dtype: :float32},
        owner: Lease.owner(address + 40)
      )

    assert Lease.release(address + 399, nil) == {:ok, nil}
    assert Tensor.to_list(view.tensor) == [1.0, 1.0]
    assert Lease.release(address, nil) == false
    assert Memory.live().leased == before
  end

  test "a lease is found by its holder, of several of the same memory the right one" do
    t = ExTorch.ones({10})
    [a, b] = for _ <- 1..2, do: make_ref()

    for holder <- [a, b] do
      address = Lease.keep(t)
      assert Lease.hold(address, {:holder, holder})
    end

    address = Blob.to_blob(t).ptr
    refute Lease.hold(address, :nothing_left)
    assert Lease.release(nil, {:holder, a}) == {:ok, {:holder, a}}
    assert Lease.release(nil, {:holder, a}) == false
    assert Lease.release(address, :unknown) == {:ok, {:holder, b}}
    assert Lease.owner(address) == nil
    ExTorch.op("zero_", [t])
  end

  test "leases are kept and released by many processes at once" do
    before = Memory.live()

    1..8
    |> Task.async_stream(fn i ->
      for j <- 1..200 do
        t = ExTorch.full({64}, i)
        address = Lease.keep(t)
        true = Lease.hold(address, {i, j})
        {:ok, {^i, ^j}} = Lease.release(if(rem(j, 2) == 0, do: address), {i, j})
      end
    end)
    |> Stream.run()

    assert Memory.live().leased == before.leased
  end

  test "what cannot be leased is refused" do
    assert reason(fn -> Lease.keep(ExTorch.op("conj", [ExTorch.ones({2}, dtype: :complex64)])) end) ==
             :unsupported

    t = ExTorch.ones({2})
    Tensor.release(t)
    assert reason(fn -> Lease.keep(t) end) == :released
  end

  unless Code.ensure_loaded?(Nx) do
    @tag :tmp_dir
    test "without Nx, functions that return Nx tensors say what to add", %{tmp_dir: dir} do
      path = Path.join(dir, "t.pt")
      ExTorch.save!(%{"w" => ExTorch.ones({2})}, path)
      ckpt = ExTorch.Checkpoint.open!(path)

      for fun <- [
            fn -> ExTorch.Nx.read!(path) end,
            fn -> ExTorch.load!(path, as: :nx) end,
            fn -> ExTorch.Checkpoint.tensor!(ckpt, "w", as: :nx) end
          ] do
        assert %ExTorch.Error{reason: :unsupported, message: message} = catch_error(fun.())
        assert message =~ "compiled without Nx"
      end
    end
  end

  @tag :tmp_dir
  test "the options that select Nx are checked", %{tmp_dir: dir} do
    path = Path.join(dir, "t.pt")
    ExTorch.save!(%{"w" => ExTorch.ones({2})}, path)
    ckpt = ExTorch.Checkpoint.open!(path)
    assert %Tensor{} = ExTorch.load!(path, as: :tensor)["w"]
    assert %Tensor{} = ExTorch.Checkpoint.tensor!(ckpt, "w", as: :tensor)

    for opts <- [[as: :list], [backend: Nx.BinaryBackend], [as: :tensor, backend: 1]] do
      assert reason(fn -> ExTorch.load(path, opts) end) == :bad_argument
      assert reason(fn -> ExTorch.Checkpoint.tensor(ckpt, "w", opts) end) == :bad_argument
    end

    assert reason(fn -> ExTorch.Checkpoint.tensor(ckpt, "w", mmap: true) end) == :bad_argument
    assert reason(fn -> ExTorch.load(path, 5) end) == :bad_argument
  end
end
