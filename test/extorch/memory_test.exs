defmodule ExTorch.MemoryTest do
  use ExTorch.Case

  @mib 1024 * 1024

  test "counters include tensors, views and temporaries" do
    before = Memory.live()
    t = ExTorch.zeros({256, 1024})
    assert Memory.live().bytes - before.bytes == @mib
    view = Tensor.transpose(t)
    assert Memory.live().tensors - before.tensors == 2
    assert Memory.live().bytes - before.bytes == @mib
    Tensor.release(t)
    Memory.collect()
    assert Memory.live().bytes - before.bytes == @mib
    Tensor.release(view)
    assert_live(before)
  end

  test "garbage-collected tensors are freed" do
    before = Memory.live()
    assert in_task(fn -> length(for _ <- 1..100, do: ExTorch.zeros({1000})) end) == 100
    assert_live(before)
  end

  # Destructors run after the collection, on any scheduler, and may release further owners.
  for {name, heap} <- [{"small", 1}, {"large", 100_000}] do
    test "garbage on a #{name} heap is freed when collect/0 returns" do
      in_task(fn ->
        heap = Enum.to_list(1..unquote(heap))
        Memory.collect()
        before = Memory.live()

        for _ <- 1..300 do
          drop(&Blob.from_blob(Blob.to_blob(&1)))
          drop(&Blob.from_blob(Blob.to_blob(&1), owner: {&1, "kept with it"}).tensor)
          Memory.collect()
          assert Memory.live() == before
        end

        assert length(heap) == unquote(heap)
      end)
    end
  end

  defp drop(wrap) do
    tensor = Enum.reduce(1..3, ExTorch.zeros({20_000}), fn _, tensor -> wrap.(tensor) end)
    assert tensor.shape == {20_000}
  end

  @tag :no_asan
  @tag timeout: 300_000
  test "a process that creates and drops 1,000 tensors of 64 MiB uses little memory" do
    peak =
      in_task(fn ->
        Enum.reduce(1..1000, 0, fn _, peak ->
          ExTorch.ones({16 * @mib}, dtype: :float32)
          max(peak, rss())
        end)
      end)

    assert peak < 2 * 1024 * @mib
  end

  test "a call that exceeds the budget collects garbage, then fails" do
    budget = Memory.budget()
    live = Memory.live().bytes
    Memory.set_budget(live + 16 * @mib)

    try do
      # dropped tensors are collected
      for _ <- 1..20, do: ExTorch.zeros({6 * @mib}, dtype: :uint8)
      kept = for _ <- 1..2, do: ExTorch.zeros({6 * @mib}, dtype: :uint8)
      assert reason(fn -> ExTorch.zeros({6 * @mib}, dtype: :uint8) end) == :limit
      # what an operator allocates is counted
      assert reason(fn -> ExTorch.op("flip", [hd(kept), [0]]) end) == :limit
      # an in-place operator needs no memory
      ExTorch.op("fill_", [hd(kept), 1])
      # a binary that must be copied for its alignment
      <<_, odd::binary>> = :binary.copy(<<1>>, 8 * @mib + 1)
      assert reason(fn -> Tensor.from_binary(odd, {@mib}, :float64) end) == :limit
      assert length(kept) == 2
    after
      Memory.set_budget(budget)
    end
  end

  test "a tensor larger than any memory is an error" do
    budget = Memory.budget()
    Memory.set_budget(:infinity)

    try do
      assert reason(fn -> ExTorch.empty({2 ** 50}) end) == :no_memory
      assert reason(fn -> ExTorch.empty({2 ** 62, 4}) end) in [:no_memory, :torch, :bad_argument]
    after
      Memory.set_budget(budget)
    end
  end

  @tag :torch
  test "a process killed inside a NIF leaks nothing" do
    before = Memory.live()

    for _ <- 1..20 do
      pid =
        spawn(fn ->
          a = ExTorch.rand({400, 400})
          Enum.reduce(1..10_000, a, fn _, x -> ExTorch.matmul(x, a) end)
        end)

      Process.sleep(Enum.random(1..10))
      Process.exit(pid, :kill)
    end

    assert_live(before)
  end

  @tag :torch
  test "2,000 concurrent processes" do
    before = Memory.live()
    shared = ExTorch.arange(100)

    results =
      1..2000
      |> Enum.map(fn i ->
        Task.async(fn ->
          t = ExTorch.full({100}, i)
          ExTorch.op("item", [ExTorch.sum(ExTorch.add(t, shared))])
        end)
      end)
      |> Task.await_many(60_000)

    assert results == for(i <- 1..2000, do: 100 * i + 4950)
    Tensor.release(shared)
    assert_live(before)
  end

  test "release is safe during concurrent calls" do
    for _ <- 1..200 do
      t = ExTorch.ones({1000})

      users =
        for _ <- 1..4 do
          Task.async(fn ->
            for _ <- 1..10, do: reason(fn -> ExTorch.sum(t) end)
          end)
        end

      Tensor.release(t)

      assert users
             |> Task.await_many()
             |> List.flatten()
             |> Enum.all?(&(&1 in [:none, :released]))
    end
  end

  test "the memory of processes that have exited is freed" do
    before = Memory.live()
    pids = for _ <- 1..8, do: spawn(fn -> for _ <- 1..500, do: ExTorch.zeros({64}) end)
    refs = Enum.map(pids, &Process.monitor/1)
    for ref <- refs, do: assert_receive({:DOWN, ^ref, _, _, _}, 10_000)
    assert_live(before)
  end

  test "set_background/1 takes a boolean or a list of uses" do
    on_exit(fn -> ExTorch.Memory.set_background(true) end)

    for uses <- [false, [], [:prefault], [:checksum, :block_cache], true] do
      assert ExTorch.Memory.set_background(uses) == :ok
      tensor = ExTorch.ones({3 * 1024 * 1024}, dtype: :uint8)
      path = Path.join(System.tmp_dir!(), "background_#{System.unique_integer([:positive])}.pt")
      ExTorch.save!(%{t: tensor}, path, fsync: false)
      assert ExTorch.Tensor.equal?(ExTorch.load!(path, verify: true)["t"], tensor)
      File.rm!(path)
    end

    for uses <- [:prefault, [:unknown], nil, "checksum"] do
      assert_raise ArgumentError, ~r/expected :background to be/, fn ->
        ExTorch.Memory.set_background(uses)
      end
    end
  end
end
