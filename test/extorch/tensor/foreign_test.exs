defmodule ExTorch.Tensor.ForeignTest do
  use ExTorch.Case, async: false

  # LibTorch's tensor over the memory of another is made by the first operator that needs it.

  @tag :torch
  test "many processes need a tensor for the first time at once" do
    for round <- 1..20 do
      bytes = for i <- 1..256, into: <<>>, do: <<i + round::float-32-little>>
      tensor = Tensor.from_binary(bytes, {16, 16}, :float32)
      parent = self()

      pids =
        for _ <- 1..16 do
          spawn_link(fn ->
            receive do: (:go -> send(parent, Tensor.to_list(ExTorch.op("sum", [tensor]))))
          end)
        end

      Enum.each(pids, &send(&1, :go))
      expected = 256.0 * round + 256 * 257 / 2
      for _ <- pids, do: assert_receive(^expected, 60_000)
      assert Tensor.to_binary(tensor) == bytes
    end
  end

  @tag :torch
  test "is released once, whether its tensor was made or not" do
    before = live()

    for use <- [fn _ -> :ok end, &ExTorch.op("neg", [&1]), &ExTorch.op("view", [&1, [8]])] do
      tensor = Tensor.from_binary(:binary.copy(<<1, 2, 3, 4>>, 8), {2, 4}, :int32)
      used = use.(tensor)
      Tensor.release(tensor)
      if is_struct(used, Tensor), do: Tensor.to_list(used)
    end

    ExTorch.Memory.collect()
    assert live().tensors == before.tensors
  end

  test "has the description that LibTorch gives it" do
    data = :binary.copy(<<0, 1>>, 64)

    for {shape, dtype} <- [
          {{}, :int16},
          {{0}, :int64},
          {{3, 0, 2}, :float32},
          {{1, 4, 1, 2}, :int8}
        ] do
      size = shape |> Tuple.product() |> Kernel.*(ExTorch.DType.size(dtype))
      tensor = Tensor.from_binary(binary_part(data, 0, size), shape, dtype)
      made = ExTorch.op("alias", [tensor])
      assert {made.shape, made.dtype, made.device} == {tensor.shape, tensor.dtype, tensor.device}
      assert Tensor.strides(made) == Tensor.strides(tensor)
      assert Tensor.nbytes(made) == Tensor.nbytes(tensor)
      assert Tensor.equal?(made, tensor)
      assert Tensor.to_binary(made) == Tensor.to_binary(tensor)
    end
  end

  @tag :torch
  test "an operator that would write to it sees that it is frozen" do
    tensor = Tensor.from_binary(<<1.0::float-32-little>>, {1}, :float32)
    assert reason(fn -> ExTorch.op("add_", [tensor, 1]) end) == :frozen
  end

  defp live do
    ExTorch.Memory.collect()
    ExTorch.Memory.live()
  end
end
