defmodule ExTorch.TensorTest do
  use ExTorch.Case
  alias ExTorch.Python.Complex

  describe "allclose?" do
    test "dtypes, tolerances, NaN and infinities" do
      t = &ExTorch.tensor/2
      close? = &Tensor.allclose?/3
      assert close?.(t.([1, 2], []), t.([1, 2], dtype: :int8), [])
      refute close?.(t.([1, 2], []), t.([1, 3], []), [])
      assert close?.(t.([10, 20], []), t.([11, 21], []), atol: 1)
      refute close?.(t.([2 ** 62], []), t.([2 ** 62 + 1], []), rtol: 0, atol: 0)
      assert close?.(t.([2 ** 62], []), t.([2 ** 62 + 1], []), [])
      assert close?.(t.([true, false], []), t.([1, 0], []), [])
      refute close?.(t.([true, false], []), t.([true, true], []), [])
      assert close?.(t.([1.0], dtype: :float16), t.([1.0], dtype: :bfloat16), [])
      refute close?.(t.([1.0], dtype: :float16), t.([1.01], dtype: :float16), [])
      i = %ExTorch.Python.Complex{re: 0.0, im: 1.0}
      assert close?.(t.([i], []), t.([i], dtype: :complex128), [])
      refute close?.(t.([i], []), t.([0.0], []), [])
      assert close?.(t.([i], []), t.([0.0], []), atol: 1.0)
      refute close?.(t.([:nan], []), t.([:nan], []), [])
      assert close?.(t.([:nan], []), t.([:nan], []), equal_nan: true)
      refute close?.(t.([:nan], []), t.([1.0], []), equal_nan: true, atol: 1.0e9)
      assert close?.(t.([:infinity], []), t.([:infinity], []), [])
      refute close?.(t.([:infinity], []), t.([:neg_infinity], []), rtol: 1.0)
      refute close?.(t.([:infinity], []), t.([1.0], []), rtol: 1.0)
      refute close?.(t.([1.0], []), t.([:infinity], []), rtol: 1.0)
      refute close?.(t.([1.0, 1.0], []), t.([[1.0, 1.0]], []), [])
      assert close?.(ExTorch.zeros({0, 3}), ExTorch.zeros({0, 3}, dtype: :int8), [])
      assert close?.(t.(1, []), t.(1.0, []), [])
      sparse = ExTorch.op("to_sparse", [t.([0.0, 1.0], [])])
      assert close?.(sparse, t.([0.0, 1.0], []), [])

      for opts <- [[rtol: -1], [atol: "1"], [equal_nan: 1], [x: 1]] do
        assert reason(fn -> close?.(sparse, sparse, opts) end) == :bad_argument
      end
    end
  end

  describe "tensor/2" do
    test "takes numbers and nested lists" do
      assert %Tensor{shape: {}, dtype: :int64} = ExTorch.tensor(5)
      assert %Tensor{shape: {}, dtype: :float32} = ExTorch.tensor(:nan)
      assert %Tensor{shape: {2}, dtype: :bool} = ExTorch.tensor([true, false])
      assert %Tensor{shape: {1, 2, 2}, dtype: :float32} = ExTorch.tensor([[[1, 2], [3, 4.5]]])
      assert %Tensor{shape: {2}, dtype: :int64} = ExTorch.tensor([true, 7])
      assert %Tensor{shape: {2}, dtype: :complex64} = ExTorch.tensor([1, %Complex{re: 1, im: 2}])
      assert %Tensor{shape: {0}, dtype: :float32} = ExTorch.tensor([])
      assert %Tensor{shape: {2, 0}} = ExTorch.tensor([[], []])
      assert Tensor.to_list(ExTorch.tensor([[], []])) == [[], []]
    end

    test "to_list returns the same values in every dtype that can represent them" do
      for dtype <- ~w(float64 float32 float16 bfloat16)a do
        assert Tensor.to_list(ExTorch.tensor([[0.5, -2], [:infinity, :nan]], dtype: dtype)) ==
                 [[0.5, -2.0], [:infinity, :nan]]
      end

      for dtype <- ~w(int64 int32 int16 int8 uint8)a do
        assert Tensor.to_list(ExTorch.tensor([0, 1, 100], dtype: dtype)) == [0, 1, 100]
      end

      big = 0xFFFFFFFFFFFFFFFF

      if ExTorch.DType.supported?(:uint64) do
        assert Tensor.to_list(ExTorch.tensor([big], dtype: :uint64)) == [big]
      end

      assert Tensor.to_list(ExTorch.tensor([2, 0], dtype: :bool)) == [true, false]
      numbers = for i <- 1..3000, do: i * 1.0
      assert Tensor.to_list(ExTorch.tensor(numbers)) == numbers
    end

    test "reports the position of an invalid element or a ragged list" do
      for {list, message} <- [
            {[[1, 2], [3]], "element [1] has length 1, but its siblings have length 2"},
            {[[[1]], [[1, 2]]], "element [1][0] has length 2, but its siblings have length 1"},
            {[1, [2]], "element [1] is a list, but its siblings are numbers"},
            {[[1], 2], "element [1] is not a list, but its siblings are lists of length 1"},
            {[1, "2"], "element [1] is not a number"},
            {[[1, :two]], "element [0][1] is not a number"},
            {[1 | 2], "the list is improper"},
            {"abc", "the value is not a number"}
          ] do
        error = assert_raise Error, fn -> ExTorch.tensor(list) end
        assert error.reason == :bad_argument
        assert error.message =~ message
      end
    end

    test "refuses values that the dtype cannot represent" do
      for {list, dtype} <-
            [
              {[256], :uint8},
              {[-1], :uint8},
              {[128], :int8},
              {[1.5], :int32},
              {[2 ** 70], :int64}
            ] ++
              [{[%Complex{re: 1, im: 1}], :float32}] do
        assert reason(fn -> ExTorch.tensor(list, dtype: dtype) end) == :bad_argument
      end

      assert reason(fn -> ExTorch.tensor([1], dtype: :quint8) end) == :unsupported

      assert_raise Error, ~r/unknown option :dtpye; known options are :device, :dtype/, fn ->
        ExTorch.tensor(1, dtpye: :int8)
      end
    end

    test "a very long list does not block the scheduler" do
      numbers = Enum.to_list(1..300_000)
      assert ExTorch.tensor([numbers]).shape == {1, 300_000}
      assert reason(fn -> ExTorch.tensor([1 | numbers] ++ [:x]) end) == :bad_argument
    end

    test "to_list of an empty tensor with a huge dimension is refused" do
      assert reason(fn -> Tensor.to_list(ExTorch.zeros({2 ** 40, 0})) end) == :limit
      assert inspect(ExTorch.zeros({2 ** 40, 0})) =~ "float32"
    end

    test "a deeply nested list is an error and does not overflow the stack" do
      deep = Enum.reduce(1..100_000, 1, fn _, inner -> [inner] end)
      assert reason(fn -> ExTorch.tensor(deep) end) == :bad_argument
    end
  end

  test "functions that create tensors" do
    assert Tensor.to_list(ExTorch.ones({2})) == [1.0, 1.0]
    assert Tensor.to_list(ExTorch.arange(3)) == [0, 1, 2]
    assert Tensor.to_list(ExTorch.arange(3, dtype: :float64)) == [0.0, 1.0, 2.0]
    assert Tensor.to_list(ExTorch.full({}, true)) == true
    ExTorch.manual_seed(7)
    a = ExTorch.rand({5})
    ExTorch.manual_seed(7)
    assert Tensor.equal?(a, ExTorch.rand({5}))
    assert ExTorch.randn([2, 2], dtype: :double).dtype == :float64
  end

  test "to/2" do
    t = ExTorch.tensor([1, 2])
    assert Tensor.to(t, :double).dtype == :float64
    assert Tensor.to(t, {:f, 16}).dtype == :float16
    assert Tensor.to(t, :meta).device == :meta
    assert Blob.to_blob(Tensor.to(t, :int64)).ptr == Blob.to_blob(t).ptr
    assert Blob.to_blob(Tensor.to(t, dtype: :int64, copy: true)).ptr != Blob.to_blob(t).ptr
    assert reason(fn -> Tensor.to(t, speed: :high) end) == :bad_argument
    assert reason(fn -> Tensor.to(t, :nope) end) == :bad_argument
  end

  test "reshape, transpose and slice are views" do
    t = Tensor.reshape(ExTorch.arange(24), {2, 3, 4})
    ptr = Blob.to_blob(t).ptr
    assert Blob.to_blob(Tensor.transpose(t, 0, 2)).ptr == ptr
    assert Tensor.strides(Tensor.transpose(t, 0, 2)) == {1, 4, 12}
    assert Blob.to_blob(Tensor.slice(t, 1, 1..2)).ptr == ptr + 4 * 8
    assert Tensor.to_list(Tensor.slice(t, [1, :all, 1..-1//2])) == [[13, 15], [17, 19], [21, 23]]
    assert Tensor.slice(t, 2, 3..2//1).shape == {2, 3, 0}
    assert reason(fn -> Tensor.slice(t, 3, 0..1) end) == :bad_argument
    assert reason(fn -> Tensor.slice(t, 0, 2..0//-1) end) == :bad_argument
    assert reason(fn -> Tensor.reshape(t, {5, 5}) end) in [:torch, :bad_argument]
    assert reason(fn -> Tensor.reshape(t, {:a}) end) == :bad_argument
  end

  test "equal?" do
    nan = ExTorch.tensor([:nan])
    refute Tensor.equal?(nan, nan)
    assert Tensor.equal?(ExTorch.tensor([[1, 2]]), Tensor.transpose(ExTorch.tensor([[1], [2]])))
    refute Tensor.equal?(ExTorch.tensor([1]), ExTorch.tensor([[1]]))
    sparse = ExTorch.op("to_sparse", [ExTorch.tensor([0.0, 1.0])])
    assert Tensor.equal?(sparse, ExTorch.tensor([0.0, 1.0]))

    for dtype <- ExTorch.DType.names(),
        ExTorch.DType.kind(dtype) in [:float, :uint, :complex],
        ExTorch.DType.supported?(dtype) do
      a = Tensor.from_binary(:binary.copy(<<64>>, 2 * ExTorch.DType.size(dtype)), {2}, dtype)
      assert Tensor.equal?(a, Tensor.clone(a)), "#{dtype}"
    end
  end

  test "a sparse or nested tensor has values but no strides" do
    sparse = ExTorch.op("to_sparse", [ExTorch.tensor([[0.0, 3.0]])])
    assert Tensor.strides(sparse) == nil
    assert Tensor.to_list(sparse) == [[0.0, 3.0]]
    assert reason(fn -> Tensor.to_binary(sparse) end) == :unsupported
    assert reason(fn -> Blob.to_blob(sparse) end) == :unsupported
  end

  test "every function refuses a released tensor, except release" do
    t = ExTorch.tensor([1, 2])
    view = Tensor.slice(t, 0, 0..0)
    binary = Tensor.to_binary(t)
    blob = Blob.to_blob(t)
    assert Tensor.release(t) == :ok
    assert Tensor.release(t) == :ok

    for fun <- [
          fn -> Tensor.to_list(t) end,
          fn -> Tensor.to_binary(t) end,
          fn -> Tensor.strides(t) end,
          fn -> Tensor.equal?(t, t) end,
          fn -> Tensor.equal?(view, t) end,
          fn -> Tensor.requires_grad(t) end,
          fn -> Tensor.requires_grad(t, true) end,
          fn -> ExTorch.add(view, t) end,
          fn -> ExTorch.cat([view, t]) end,
          fn -> Blob.to_blob(t) end,
          fn -> Blob.from_blob(%{blob | owner: t}) end
        ] do
      assert reason(fun) == :released
    end

    assert Tensor.to_list(view) == [1]
    assert binary == <<1::64-native, 2::64-native>>
    assert Tensor.to_list(Blob.from_blob(blob)) == [1, 2]
    assert inspect(t) == "#ExTorch.Tensor<int64[2] cpu (released)>"
  end

  test "the fields of the struct are not trusted" do
    t = %{ExTorch.tensor([1, 2]) | shape: {1_000_000}, dtype: :float64}
    assert Tensor.to_list(t) == [1, 2]
    assert Tensor.to_binary(t) == <<1::64-native, 2::64-native>>
  end

  describe "inspect" do
    test "shows values, shape, dtype and device" do
      assert inspect(ExTorch.tensor([[1, 2]], dtype: :int8)) ==
               "#ExTorch.Tensor<\n  int8[1][2] cpu\n  [\n    [1, 2]\n  ]\n>"

      assert inspect(ExTorch.tensor(2.5)) == "#ExTorch.Tensor<\n  float32 cpu\n  2.5\n>"

      assert inspect(ExTorch.zeros({2}, device: :meta)) ==
               "#ExTorch.Tensor<float32[2] meta (no values)>"

      assert inspect(ExTorch.op("to_sparse", [ExTorch.zeros({2, 2})])) ==
               "#ExTorch.Tensor<float32[2][2] cpu (sparse)>"
    end

    test "prints a few lines for any size and respects the limit" do
      large = ExTorch.zeros({1000, 1000, 10})
      before = Memory.live().bytes
      assert length(String.split(inspect(large), "\n")) < 30
      assert Memory.live().bytes - before < 100_000
      assert inspect(ExTorch.arange(1000), limit: 3) =~ "[0, 1, 2, ...]"
      assert inspect(ExTorch.arange(100), limit: :infinity) =~ "99]"
      refute inspect(ExTorch.arange(100), limit: :infinity) =~ "..."
      assert inspect(ExTorch.zeros({0, 3})) =~ "float32[0][3]"
    end
  end
end
