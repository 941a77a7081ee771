defmodule ExTorch.Device.SimulatedTest do
  # On a device whose memory the CPU cannot read: a stray access is a crash (test/support/simulated_device.cpp).
  use ExTorch.Case
  alias ExTorch.Device
  alias ExTorch.Test.SimulatedDevice

  @moduletag :simulated_device

  setup do
    name = SimulatedDevice.load!()
    %{name: name, device: {name, 0}, other: {name, 1}}
  end

  defp refused(fun) do
    fun.()
    nil
  rescue
    error in Error -> {error.reason, error.message}
  end

  test "the backend is known by its name", %{name: name, device: device, other: other} do
    assert Device.count(name) == 2
    assert Device.count(:privateuseone) == 2
    assert Device.count(Atom.to_string(name)) == 2
    assert {name, 2} in Device.types()
    assert Device.available() == [:cpu, device, other]

    for input <- [name, device, "#{name}", "#{name}:0", :privateuseone, {:privateuseone, 0}] do
      assert ExTorch.zeros({2}, device: input).device == device
      assert ExTorch.tensor([1], device: input).device == device
    end

    assert ExTorch.zeros({2}, device: "#{name}:1").device == other
    assert ExTorch.op("zeros", [[2]], device: "#{name}:1").device == other

    assert {:unsupported, message} = refused(fn -> ExTorch.zeros({2}, device: {name, 2}) end)
    assert message =~ "#{name}:2 is not available: found 2"

    assert {:unsupported, message} = refused(fn -> ExTorch.zeros({2}, device: :xpu) end)
    assert message =~ "xpu"

    for bad <- ["#{name}:", "#{name}:x", "#{name}:128", {name, -1}, :simulate, {:cpu, 0}],
        do: assert({:bad_argument, _} = refused(fn -> ExTorch.zeros({2}, device: bad) end))

    assert Device.synchronize(device) == :ok
    assert {:error, %{reason: :unsupported}} = Device.synchronize({name, 2})
  end

  test "memory figures", %{device: device} do
    case Device.memory(device) do
      {:ok, before} ->
        _tensor = ExTorch.zeros({1024}, device: device)
        assert Device.memory!(device) == %{before | free: before.free - 4096}

      # LibTorch before 2.10 does not ask backends
      {:error, error} ->
        assert error.reason == :unsupported
        assert error.message =~ "ExTorch.Memory.live/0"
    end
  end

  test "the default device", %{name: name, device: device} do
    Device.set_default(name)
    assert ExTorch.tensor([1]).device == device
    assert ExTorch.zeros({1}).device == device
    assert ExTorch.zeros({1}, device: :cpu).device == :cpu
    assert ExTorch.arange(3).device == device
  after
    Device.set_default(:cpu)
  end

  test "a library that is none is an error" do
    path = Path.expand("mix.exs")
    assert {:error, %{reason: :io, path: ^path}} = Device.load_library(path)
    assert {:bad_argument, _} = refused(fn -> Device.load_library(:x) end)
  end

  test "values come back", %{device: device, other: other} do
    list = [[1.5, -2.0, 3.0], [4.0, :nan, :infinity]]
    tensor = ExTorch.tensor(list, device: device)
    cpu = Tensor.to(tensor, :cpu)
    assert Tensor.to_list(tensor) == list
    assert Tensor.to_list(cpu) == list
    assert Tensor.to_binary(tensor) == Tensor.to_binary(cpu)
    assert Tensor.to_list(Tensor.transpose(tensor)) == Tensor.to_list(Tensor.transpose(cpu))
    assert Tensor.to_list(Tensor.slice(tensor, 1, 1..1)) == [[-2.0], [:nan]]
    assert Tensor.to_list(Tensor.to(tensor, other)) == list
    assert Tensor.to(tensor, other).device == other
    assert Tensor.to_list(Tensor.to(tensor, dtype: :float64, device: :cpu)) == list

    assert inspect(tensor) ==
             String.replace(inspect(cpu), " cpu", " #{elem(device, 0)}:0")

    ints = ExTorch.tensor([1, 2, 3], device: device)
    assert Tensor.equal?(ints, Tensor.clone(ints))
    assert Tensor.equal?(ints, ExTorch.tensor([1, 2, 3]))
    assert Tensor.equal?(ints, Tensor.to(ints, other))
    refute Tensor.equal?(ints, ExTorch.tensor([1, 2, 4], device: device))
    assert Tensor.allclose?(ints, ExTorch.tensor([1.0, 2.0, 3.0]))
    assert Tensor.stats(ints).max == 3.0
    assert Tensor.nbytes(ints) == 24
  end

  test "every dtype moves there and back", %{device: device} do
    for dtype <- ExTorch.DType.names(),
        ExTorch.DType.supported?(dtype),
        not String.starts_with?(to_string(dtype), ["q", "bits"]) do
      size = ExTorch.DType.size(dtype)
      bytes = for(i <- 1..(3 * size), into: "", do: <<rem(i, 2)>>)
      cpu = Tensor.from_binary(bytes, {3}, dtype)
      there = Tensor.to(cpu, device)
      assert {dtype, there.device, Tensor.to_binary(there)} == {dtype, device, bytes}
    end
  end

  test "in-place operators write on the device", %{device: device} do
    tensor = ExTorch.tensor([[1.0, 2.0], [3.0, 4.0]], device: device)
    assert ExTorch.op("add_", [tensor, 1]).device == device
    assert Tensor.to_list(tensor) == [[2.0, 3.0], [4.0, 5.0]]
    ExTorch.op("mul_", [Tensor.transpose(tensor), ExTorch.tensor([1.0, 10.0], device: device)])
    assert Tensor.to_list(tensor) == [[2.0, 3.0], [40.0, 50.0]]
    ExTorch.op("fill_", [Tensor.slice(tensor, 0, 0..0), 7])
    assert Tensor.to_list(tensor) == [[7.0, 7.0], [40.0, 50.0]]
    ExTorch.op("copy_", [tensor, ExTorch.tensor([[0.5], [1.5]])])
    assert Tensor.to_list(tensor) == [[0.5, 0.5], [1.5, 1.5]]
  end

  test "operators run", %{device: device} do
    a = ExTorch.tensor([[1.0, 2.0], [3.0, 4.0]], device: device)
    assert ExTorch.matmul(a, a).device == device
    assert Tensor.to_list(ExTorch.matmul(a, a)) == [[7.0, 10.0], [15.0, 22.0]]
    assert ExTorch.op("sum", [a]) |> Tensor.to_list() == 10.0
    assert Tensor.to_list(ExTorch.op("cat", [[a, a], 1])) == [[1, 2, 1, 2], [3, 4, 3, 4]]

    # operators of the library itself
    assert is_integer(ExTorch.op("simulated::get", ["frees"]))
    assert {:torch, message} = refused(fn -> SimulatedDevice.get(:nonsense) end)
    assert message =~ "no setting"
  end

  describe "blobs" do
    test "have the device and its address", %{device: device} do
      tensor = ExTorch.tensor([[1, 2], [3, 4]], device: device)
      blob = Blob.to_blob(tensor)
      assert blob.device == device
      assert blob.ptr > 0

      view = Blob.from_blob(blob)
      assert view.device == device
      assert Tensor.to_list(view) == [[1, 2], [3, 4]]
      ExTorch.op("add_", [view, 1])
      assert Tensor.to_list(tensor) == [[2, 3], [4, 5]]

      %BlobView{tensor: part} =
        Blob.from_blob(%{ptr: blob.ptr + 8, shape: {2}, dtype: :int64, device: device},
          owner: tensor
        )

      Tensor.release(tensor)
      assert Tensor.to_list(part) == [3, 4]
    end

    test "cannot be read by the CPU", %{device: device, other: other} do
      tensor = ExTorch.zeros({1024, 1024}, device: device)
      blob = Blob.to_blob(tensor)

      assert {:bad_argument, message} = refused(fn -> Blob.from_blob(%{blob | device: :cpu}) end)
      assert message =~ "is on the device #{elem(device, 0)}:0"
      assert {:bad_argument, _} = refused(fn -> Blob.from_blob(%{blob | device: other}) end)

      stranger = %{ptr: blob.ptr, shape: {1024}, dtype: :float32}
      assert {:bad_argument, message} = refused(fn -> Blob.from_blob(stranger) end)
      assert message =~ "not readable memory"

      cpu = Blob.to_blob(ExTorch.zeros({4}))
      assert {:bad_argument, _} = refused(fn -> Blob.from_blob(%{cpu | device: device}) end)
    end

    test "are not counted twice", %{device: device} do
      tensor = ExTorch.zeros({1024}, device: device)
      before = Memory.live(device)
      view = Blob.from_blob(Blob.to_blob(tensor))
      assert Memory.live(device) == before
      part = Tensor.slice(view, 0, 0..3)
      assert Memory.live(device) == before
      Enum.each([tensor, view], &Tensor.release/1)
      assert Tensor.to_list(part) == [0.0, 0.0, 0.0, 0.0]
    end

    test "binaries are copies and freeze nothing", %{device: device} do
      tensor = ExTorch.tensor([1, 2], device: device)
      binary = Tensor.to_binary(tensor)
      ExTorch.op("add_", [tensor, 1])
      assert binary == <<1::64-native, 2::64-native>>
    end
  end

  describe "memory" do
    test "is counted once for each storage, and freed on no scheduler", %{device: device} do
      before = Memory.live(device)
      freed = SimulatedDevice.get(:frees)

      in_task(fn ->
        tensor = ExTorch.zeros({1024}, device: device)
        view = Tensor.slice(tensor, 0, 0..9)
        assert Memory.live(device) == before + 4096
        assert Memory.live().device >= 4096
        assert SimulatedDevice.get("allocated:0") >= 4096
        assert {tensor.shape, view.shape} == {{1024}, {10}}
      end)

      assert wait_until(fn -> Memory.live(device) == before end)
      assert SimulatedDevice.get(:frees) > freed

      tensor = ExTorch.zeros({1024}, device: device)
      Tensor.release(tensor)
      assert wait_until(fn -> Memory.live(device) == before end)
      assert SimulatedDevice.get(:normal_frees) == 0
      assert SimulatedDevice.get(:normal_waits) == 0
    end

    test "has a budget for each device", %{device: device, other: other} do
      used = Memory.live(device)
      assert Memory.budget(device) == :infinity
      Memory.set_budget(device, used + 10_000)
      kept = ExTorch.zeros({2000}, device: device)
      assert refused(fn -> ExTorch.zeros({2000}, device: device) end) |> elem(0) == :limit
      assert ExTorch.zeros({2000}, device: other).device == other

      # garbage makes room
      in_place = fn -> for _ <- 1..100, do: ExTorch.zeros({400}, device: device).shape end
      assert length(in_place.()) == 100
      assert Tensor.to_list(Tensor.slice(kept, 0, 0..0)) == [0.0]
    after
      Memory.set_budget(device, :infinity)
    end

    test "of the device that is used up is an error, after a collection", %{device: device} do
      capacity = SimulatedDevice.get(:capacity)
      SimulatedDevice.set(:capacity, SimulatedDevice.get("allocated:0") + 10_000)
      assert length(for(_ <- 1..100, do: ExTorch.zeros({1000}, device: device).shape)) == 100

      kept = ExTorch.zeros({2000}, device: device)
      assert {:no_memory, message} = refused(fn -> ExTorch.zeros({2000}, device: device) end)
      assert message =~ "out of memory"
      SimulatedDevice.set(:capacity, capacity)
      assert kept.shape == {2000}
    end
  end
end
