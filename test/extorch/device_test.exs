defmodule ExTorch.DeviceTest do
  use ExTorch.Case
  alias ExTorch.Device

  test "an unknown device is an error" do
    assert_raise Error, ~r/unknown device :gpu/, fn -> ExTorch.zeros({1}, device: :gpu) end

    assert_raise Error, ~r/unknown device \{:cuda, -1\}/, fn ->
      Tensor.to(ExTorch.zeros({1}), device: {:cuda, -1})
    end
  end

  if Device.cuda_count() == 0 do
    test "CUDA without a CUDA device is a clear error" do
      for fun <- [
            fn -> ExTorch.tensor([1], device: :cuda) end,
            fn -> ExTorch.zeros({1}, device: {:cuda, 0}) end,
            fn -> Tensor.to(ExTorch.zeros({1}), :cuda) end,
            fn -> ExTorch.op("zeros", [[1]], device: "cuda:1") end,
            fn -> Device.memory!({:cuda, 0}) end
          ] do
        assert reason(fun) == :unsupported
      end

      # unless another test has loaded the simulated device
      if Device.available() == [:cpu],
        do: assert(reason(fn -> Tensor.pin(ExTorch.zeros({1})) end) == :unsupported)
    end

    @tag :torch
    test "a LibTorch with CUDA says that there is no device, one without says so" do
      error = assert_raise Error, fn -> ExTorch.zeros({1}, device: :cuda) end

      if List.keymember?(Device.types(), :cuda, 0),
        do: assert(error.message =~ "no CUDA device was found"),
        else: assert(error.message =~ "is built without CUDA")
    end
  else
    test "tensors move to CUDA and back" do
      tensor = ExTorch.rand({100, 100})
      there = Tensor.to(Tensor.pin(tensor), device: :cuda, non_blocking: true)
      assert there.device == {:cuda, 0}
      assert Tensor.equal?(Tensor.to(there, :cpu), tensor)
      assert %{free: _, total: _} = Device.memory!(:cuda)
    end
  end
end
