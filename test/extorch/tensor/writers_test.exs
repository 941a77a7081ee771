defmodule ExTorch.Tensor.WritersTest do
  # A binary never changes, also if it is made while other processes are inside operators that write to its memory.
  use ExTorch.Case
  alias ExTorch.Test.Example

  @elements 1_000_000
  @writers [
    fill_: &__MODULE__.fill/2,
    add_: &__MODULE__.add/2,
    out: &__MODULE__.out/2,
    view: &__MODULE__.view/2
  ]

  def fill(tensor, k), do: ExTorch.op("fill_", [tensor, k * 1.0])
  def add(tensor, _), do: ExTorch.op("add_", [tensor, 1.0])
  def out(tensor, k), do: ExTorch.op("full", [[@elements], k], out: tensor)
  def view(tensor, k), do: ExTorch.op("fill_", [Tensor.slice(tensor, 0, 1000..2000), k])

  # Writes until the memory is frozen, or the test stops it.
  defp write(tensor, writer, stop, k) do
    writer.(tensor, k)
    if :atomics.get(stop, 1) == 0, do: write(tensor, writer, stop, k + 1), else: :stopped
  rescue
    error in ExTorch.Error -> error.reason
  end

  # Calls `fun` while a process for each of the writers is at work. They end because the memory is frozen. If `fun` may
  # make copies, which freeze nothing, `ends` has :stopped too.
  defp during_writes(tensor, writers, fun, ends \\ [:frozen]) do
    test = self()
    stop = :atomics.new(1, [])

    tasks =
      for {_, writer} <- writers do
        Task.async(fn ->
          writer.(tensor, 0)
          send(test, :writing)
          write(tensor, writer, stop, 1)
        end)
      end

    for _ <- tasks, do: assert_receive(:writing, 10_000)
    Process.sleep(:rand.uniform(3))
    binary = fun.()
    before = :erlang.md5(binary)
    Process.sleep(5)
    if :stopped in ends, do: :atomics.put(stop, 1, 1)
    for reason <- Task.await_many(tasks, 30_000), do: assert(reason in ends)
    assert :erlang.md5(binary) == before
    binary
  end

  for {name, _} <- @writers do
    if name in [:add_, :out], do: @tag(:torch)

    test "to_binary/1 during #{name}" do
      for _ <- 1..4 do
        tensor = ExTorch.zeros({@elements})

        during_writes(tensor, Keyword.take(@writers, [unquote(name)]), fn ->
          Tensor.to_binary(tensor)
        end)
      end
    end
  end

  @tag :torch
  test "to_binary/1 during several writers" do
    for _ <- 1..8 do
      tensor = ExTorch.zeros({@elements})
      binary = during_writes(tensor, @writers, fn -> Tensor.to_binary(tensor) end)
      assert byte_size(binary) == 4 * @elements
    end
  end

  test "the binary has the values of a complete write, not a part of it" do
    for _ <- 1..8 do
      tensor = ExTorch.zeros({@elements})
      binary = during_writes(tensor, [fill_: &fill/2], fn -> Tensor.to_binary(tensor) end)
      assert binary == :binary.copy(binary_part(binary, 0, 4), @elements)
    end
  end

  @tag :torch
  test "the binaries of a stream during writers" do
    for _ <- 1..4 do
      tensor = ExTorch.zeros({@elements})

      during_writes(
        tensor,
        @writers,
        fn ->
          Enum.to_list(ExTorch.Streaming.save(%{"a" => tensor}))
        end,
        [:frozen, :stopped]
      )
    end
  end

  test "a binary of memory that is lent to another library is a copy" do
    tensor = ExTorch.full({100}, 1.0)
    {:ok, lent, false} = Example.take(tensor)
    binary = Tensor.to_binary(tensor)
    ExTorch.op("fill_", [tensor, 2.0])
    assert binary == :binary.copy(<<1.0::32-little-float>>, 100)

    # and memory that a binary shares is not lent for writing
    shared = ExTorch.full({100}, 1.0)
    binary = Tensor.to_binary(shared)
    assert {:ok, _, true} = Example.take(shared)
    assert byte_size(binary) == 400
    assert is_reference(lent)
  end

  test "a copy leaves nothing frozen, also if a scheduler is busy" do
    # Destructors of resources run on one of the schedulers, not necessarily before the call returns.
    bytes = :binary.copy(<<0>>, 4_000_000)

    busy =
      for _ <- 1..2,
          do: spawn(fn -> Stream.run(Stream.repeatedly(fn -> :erlang.md5(bytes) end)) end)

    tensor = ExTorch.full({100}, 1.0)
    {:ok, lent, false} = Example.take(tensor)

    for k <- 1..100 do
      assert byte_size(Tensor.to_binary(tensor)) == 400
      ExTorch.op("fill_", [tensor, k])
    end

    for pid <- busy, do: Process.exit(pid, :kill)
    assert is_reference(lent)
  end

  describe "foreign memory" do
    @tag :torch
    test "that cannot be written is frozen" do
      address = Example.pages(:readable)
      tensor = Blob.from_blob(%{ptr: address, shape: {100}, dtype: :float32})
      assert reason(fn -> ExTorch.op("fill_", [tensor, 1.0]) end) == :frozen
      assert {:ok, _, true} = Example.take(tensor)

      for info <- [Blob.to_blob(tensor), %{ptr: address + 4096, shape: {10}, dtype: :uint8}] do
        view = Blob.from_blob(info)
        assert reason(fn -> ExTorch.op("add_", [view, 1]) end) == :frozen
      end

      %{tensor: view} = Blob.from_blob(%{ptr: address, shape: {9}, dtype: :uint8}, owner: :me)
      assert reason(fn -> ExTorch.op("zero_", [view]) end) == :frozen
      assert Tensor.to_list(ExTorch.sum(tensor)) == 0.0

      # a blob whose address is not that of its owner
      blob = %{Blob.to_blob(ExTorch.ones({9})) | ptr: address}
      assert reason(fn -> ExTorch.op("zero_", [Blob.from_blob(blob)]) end) == :frozen
    end

    @tag :torch
    test "with a part that cannot be read is an error" do
      address = Example.pages(:hole)
      info = %{ptr: address, shape: {3 * 4096}, dtype: :uint8}
      error = assert_raise ExTorch.Error, fn -> Blob.from_blob(info) end
      assert {error.reason, error.message =~ "not readable"} == {:bad_argument, true}

      tensor = Blob.from_blob(%{info | shape: {1000}})
      ExTorch.op("fill_", [tensor, 3])
      assert Tensor.to_list(ExTorch.sum(tensor)) == 3000
    end
  end
end
