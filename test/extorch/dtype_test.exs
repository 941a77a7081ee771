defmodule ExTorch.DTypeTest do
  use ExTorch.Case
  alias ExTorch.DType

  test "every name, alias and Nx type is accepted, by Elixir and by C" do
    for dtype <- DType.names(), kind = DType.kind(dtype), kind not in [:quant, :bits] do
      assert {:ok, ^dtype} = DType.normalize(dtype)

      if DType.supported?(dtype) do
        tensor = ExTorch.empty({2, 3}, dtype: dtype)
        assert tensor.dtype == dtype
        assert Tensor.nbytes(tensor) == 6 * DType.size(dtype)
      else
        assert reason(fn -> ExTorch.empty({2, 3}, dtype: dtype) end) == :unsupported
      end
    end

    for {short, long} <-
          [float: :float32, double: :float64, half: :float16, long: :int64, int: :int32] ++
            [short: :int16, char: :int8, byte: :uint8, cfloat: :complex64] do
      assert ExTorch.zeros({1}, dtype: short).dtype == long
      assert ExTorch.op("zeros", [[1]], dtype: short).dtype == long
    end

    for {nx, dtype} <- [
          {{:f, 32}, :float32},
          {{:bf, 16}, :bfloat16},
          {{:s, 64}, :int64},
          {{:u, 8}, :uint8},
          {{:c, 64}, :complex64}
        ] do
      assert DType.to_nx(dtype) == nx
      assert ExTorch.op("zeros", [[1]], dtype: nx).dtype == dtype
    end
  end

  test "the error for an unknown dtype suggests a similar one" do
    assert_raise Error, ~r/unknown dtype :flaot32; did you mean :float32\?/, fn ->
      ExTorch.zeros({1}, dtype: :flaot32)
    end

    assert_raise Error, ~r/unknown dtype "x"/, fn -> ExTorch.tensor([1], dtype: "x") end
  end

  @tag :python
  test "small floats are decoded as LibTorch converts them" do
    bytes = for byte <- 0..255, into: <<>>, do: <<byte>>

    for dtype <- DType.names(),
        DType.kind(dtype) == :float,
        DType.size(dtype) == 1,
        DType.supported?(dtype) do
      raw = Tensor.from_binary(bytes, {256}, dtype)
      assert {dtype, Tensor.to_list(raw)} == {dtype, Tensor.to_list(Tensor.to(raw, :float32))}
    end

    words = for word <- 0..65535, into: <<>>, do: <<word::16-native>>

    for dtype <- [:float16, :bfloat16] do
      raw = Tensor.from_binary(words, {65536}, dtype)
      assert Tensor.to_list(raw) == Tensor.to_list(Tensor.to(raw, :float32))
    end
  end
end
