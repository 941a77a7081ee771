defmodule ExTorch.OpTest do
  use ExTorch.Case
  @moduletag :torch

  # The same inputs in Python and in Elixir.
  @python """
  a = torch.arange(12, dtype=torch.float32).reshape(3, 4) / 7 - 0.5
  b = torch.arange(12, dtype=torch.float32).reshape(4, 3) / 5 - 1
  c = torch.tensor([[3, 1, 2], [9, 7, 8]])
  z = torch.tensor([1 + 2j, -3.5j])
  img = torch.arange(72, dtype=torch.float32).reshape(1, 2, 6, 6) / 10
  ker = torch.arange(36, dtype=torch.float32).reshape(2, 2, 3, 3) / 10
  """

  defp inputs do
    %{
      a:
        ExTorch.arange(12, dtype: :float32)
        |> Tensor.reshape({3, 4})
        |> ExTorch.div(7)
        |> ExTorch.sub(0.5),
      b:
        ExTorch.arange(12, dtype: :float32)
        |> Tensor.reshape({4, 3})
        |> ExTorch.div(5)
        |> ExTorch.sub(1),
      c: ExTorch.tensor([[3, 1, 2], [9, 7, 8]]),
      z:
        ExTorch.tensor([
          %ExTorch.Python.Complex{re: 1, im: 2},
          %ExTorch.Python.Complex{re: 0, im: -3.5}
        ]),
      img: ExTorch.arange(72, dtype: :float32) |> Tensor.reshape({1, 2, 6, 6}) |> ExTorch.div(10),
      ker: ExTorch.arange(36, dtype: :float32) |> Tensor.reshape({2, 2, 3, 3}) |> ExTorch.div(10)
    }
  end

  defp cases do
    %{a: a, b: b, c: c, z: z, img: img, ker: ker} = inputs()
    op = &ExTorch.op/2

    [
      {"torch.addmm(torch.ones(3, 3), a, b, alpha=0.5)",
       fn -> ExTorch.op("aten::addmm", [ExTorch.ones({3, 3}), a, b], alpha: 0.5) end},
      {"tuple(torch.topk(a, 2))", fn -> op.("topk", [a, 2]) end},
      {"torch.einsum('ij,jk->ik', a, b)", fn -> op.("einsum", ["ij,jk->ik", [a, b]]) end},
      {"a + 2", fn -> ExTorch.add(a, 2) end},
      {"torch.add(a, a, alpha=3)", fn -> ExTorch.op("add", [a, a], alpha: 3) end},
      {"a.add(2.5)", fn -> op.("add", [a, 2.5]) end},
      {"c / 2", fn -> ExTorch.div(c, 2) end},
      {"torch.div(c, 2, rounding_mode='floor')",
       fn -> ExTorch.op("div", [c, 2], rounding_mode: "floor") end},
      {"2 ** a", fn -> ExTorch.pow(2, a) end},
      {"a ** 2", fn -> ExTorch.pow(a, 2) end},
      {"a @ b", fn -> ExTorch.matmul(a, b) end},
      {"a.sum()", fn -> ExTorch.sum(a) end},
      {"a.sum(1)", fn -> op.("sum", [a, 1]) end},
      {"a.sum((0, 1), keepdim=True)", fn -> ExTorch.sum(a, dim: [0, 1], keepdim: true) end},
      {"c.sum(dtype=torch.float64)", fn -> ExTorch.sum(c, dtype: :float64) end},
      {"a.mean(0)", fn -> ExTorch.mean(a, dim: 0) end},
      {"c.prod()", fn -> ExTorch.prod(c) end},
      {"tuple(c.max(1))", fn -> op.("max", [c, 1]) end},
      {"torch.max(c, c * 0 + 5)", fn -> op.("max", [c, ExTorch.full({2, 3}, 5)]) end},
      {"c.amin()", fn -> ExTorch.min(c) end},
      {"c.argmax(1)", fn -> ExTorch.argmax(c, dim: 1) end},
      {"a.std()", fn -> op.("std", [a]) end},
      {"a.var(0)", fn -> op.("var", [a, [0]]) end},
      {"tuple(torch.sort(c, descending=True))",
       fn -> ExTorch.op("sort", [c], descending: true) end},
      {"torch.where(a > 0, a, 0)", fn -> op.("where", [ExTorch.gt(a, 0), a, 0]) end},
      {"a.clamp(-0.2, 0.3)", fn -> op.("clamp", [a, -0.2, 0.3]) end},
      {"a.clamp(max=0.1)", fn -> ExTorch.op("clamp", [a], max: 0.1) end},
      {"torch.softmax(a, 1)", fn -> ExTorch.softmax(a, 1) end},
      {"torch.nn.functional.gelu(a)", fn -> op.("gelu", [a]) end},
      {"torch.nn.functional.layer_norm(a, (4,))", fn -> op.("layer_norm", [a, {4}]) end},
      {"torch.conv2d(img, ker, padding=1)",
       fn -> ExTorch.op("conv2d", [img, ker], padding: 1) end},
      {"torch.conv2d(img, ker, stride=(2, 1))",
       fn -> ExTorch.op("conv2d", [img, ker], stride: [2, 1]) end},
      {"torch.max_pool2d(img, 2)", fn -> op.("max_pool2d", [img, 2]) end},
      {"torch.cat([a, a], 1)", fn -> ExTorch.cat([a, a], 1) end},
      {"torch.stack([a, a])", fn -> ExTorch.stack([a, a]) end},
      {"list(torch.split(a, 2))", fn -> op.("split", [a, 2]) end},
      {"a[torch.tensor([2, 0])]", fn -> op.("index", [a, [ExTorch.tensor([2, 0])]]) end},
      {"a[:, torch.tensor([1])]", fn -> op.("index", [a, [nil, ExTorch.tensor([1])]]) end},
      {"torch.gather(c, 1, torch.tensor([[0], [2]]))",
       fn -> op.("gather", [c, 1, ExTorch.tensor([[0], [2]])]) end},
      {"torch.cumsum(c, 1)", fn -> op.("cumsum", [c, 1]) end},
      {"torch.linalg.inv(a @ a.T + torch.eye(3))",
       fn ->
         op.("linalg_inv", [ExTorch.add(ExTorch.matmul(a, Tensor.transpose(a)), op.("eye", [3]))])
       end},
      {"tuple(torch.linalg.qr(b))", fn -> op.("linalg_qr", [b]) end},
      {"z * 2j", fn -> ExTorch.mul(z, %ExTorch.Python.Complex{re: 0, im: 2}) end},
      {"z.abs()", fn -> ExTorch.abs(z) end},
      {"z.conj()", fn -> op.("conj", [z]) end},
      {"torch.view_as_real(z)", fn -> op.("view_as_real", [z]) end},
      {"torch.full((2,), float('inf'))", fn -> op.("full", [[2], :infinity]) end},
      {"a.norm()", fn -> op.("norm", [a]) end},
      {"torch.bitwise_and(c, 6)", fn -> op.("bitwise_and", [c, 6]) end},
      {"a.flip(0)", fn -> op.("flip", [a, [0]]) end},
      {"torch.tril(b)", fn -> op.("tril", [b]) end},
      {"torch.embedding(b, c % 4)", fn -> op.("embedding", [b, ExTorch.remainder(c, 4)]) end},
      {"torch.quantize_per_tensor(a, 0.1, 3, torch.quint8).dequantize()",
       fn -> op.("dequantize", [op.("quantize_per_tensor", [a, 0.1, 3, :quint8])]) end},
      {"c.to(torch.int8)", fn -> Tensor.to(c, :int8) end},
      {"a.stride(0)", fn -> op.("stride", [a, 0]) end},
      {"bool(torch.is_floating_point(a))", fn -> op.("is_floating_point", [a]) end},
      {"a[0, 1].item()", fn -> op.("item", [Tensor.slice(a, [0, 1])]) end},
      {"torch.allclose(a, a + 1e-9)", fn -> op.("allclose", [a, ExTorch.add(a, 1.0e-9)]) end}
    ]
  end

  defp values(%Tensor{} = tensor), do: Tensor.to_list(tensor)

  defp values(results) when is_tuple(results),
    do: results |> Tuple.to_list() |> Enum.map(&values/1) |> List.to_tuple()

  defp values(results) when is_list(results), do: Enum.map(results, &values/1)
  defp values(other), do: other

  @tag :python
  test "operators return the same values as Python's torch" do
    {expressions, funs} = Enum.unzip(cases())

    for {expression, fun, expected} <-
          Enum.zip([expressions, funs, ExTorch.Test.Python.eval!(@python, expressions)]) do
      got = values(fun.())

      assert close?(got, expected),
             "#{expression}: #{inspect(got)}, Python has #{inspect(expected)}"
    end
  end

  test "an operator with several out= arguments returns them" do
    t = ExTorch.tensor([1.0, 3.0, 2.0])
    {min, max} = {ExTorch.zeros({}), ExTorch.zeros({})}

    for _ <- 1..100 do
      assert {a, b} = ExTorch.op("aten::aminmax.out", [t], dim: 0, min: min, max: max)
      assert {Tensor.to_list(a), Tensor.to_list(b)} == {1.0, 3.0}
    end

    assert {Tensor.to_list(min), Tensor.to_list(max)} == {1.0, 3.0}
  end

  # Each of these ended the VM, or wrote to other memory.
  describe "what LibTorch does not check" do
    defp refused(name, args, kwargs \\ []) do
      error = assert_raise ExTorch.Error, fn -> ExTorch.op(name, args, kwargs) end
      error.reason
    end

    test "windows and groups" do
      image = ExTorch.ones({1, 4, 4, 4})
      assert refused("native_channel_shuffle", [image, 0]) == :forbidden
      scalar = ExTorch.op("to_sparse", [ExTorch.tensor(3.0)])
      assert refused("permute", [scalar, []]) == :bad_argument
      assert refused("pixel_shuffle", [image, 0]) == :bad_argument
      assert refused("im2col", [image, [1, 0], [1, 1], [0, 0], [1, 1]]) == :bad_argument
      assert refused("channel_shuffle", [image, 0]) == :bad_argument
      assert ExTorch.op("channel_shuffle", [image, 2]).shape == {1, 4, 4, 4}
    end

    test "the length of lists" do
      volume = ExTorch.ones({1, 2, 2, 2, 2})
      indices = ExTorch.zeros({1, 2, 2, 2, 2}, dtype: :int64)
      assert refused("max_unpool3d", [volume, indices, [], [1, 1, 1], [0, 0, 0]]) == :bad_argument
      assert refused("max_pool2d", [ExTorch.ones({1, 4, 4}), [2, 2, 2]]) == :bad_argument
      # one number stands for all of them, and an empty stride for the size of the window
      for size <- [2, [2], [2, 2]], stride <- [[], [2], 2] do
        assert ExTorch.op("max_pool2d", [ExTorch.ones({1, 4, 4}), size, stride]).shape ==
                 {1, 2, 2}
      end
    end

    test "indices of pooling" do
      image = ExTorch.tensor([[[1.0, 2.0], [3.0, 4.0]]])
      {pooled, indices} = ExTorch.op("max_pool2d_with_indices", [image, 2])
      args = [[2, 2], [2, 2], [0, 0], [1, 1], false]
      back = ExTorch.op("max_pool2d_with_indices_backward", [pooled, image | args] ++ [indices])
      assert Tensor.to_list(back) == [[[0.0, 0.0], [0.0, 4.0]]]

      assert Tensor.to_list(ExTorch.op("max_unpool2d", [pooled, indices, [2, 2]])) ==
               Tensor.to_list(back)

      for bad <- [-1, 4, 1_000_000_000] do
        bad = ExTorch.full({1, 1, 1}, bad)

        assert refused("max_pool2d_with_indices_backward", [pooled, image | args] ++ [bad]) ==
                 :bad_argument

        assert refused("max_unpool2d", [pooled, bad, [2, 2]]) == :bad_argument
      end

      samples = ExTorch.full({1, 1, 2}, 7.0)
      assert refused("fractional_max_pool2d", [image, [1, 1], [2, 2], samples]) == :bad_argument
      samples = ExTorch.full({1, 1, 2}, 0.5)
      {_, indices} = ExTorch.op("fractional_max_pool2d", [image, [1, 1], [2, 2], samples])
      assert indices.shape == {1, 2, 2}
    end

    test "bins of a histogram" do
      points = ExTorch.tensor([[0.0, 1.0], [1.0, 0.0]])
      assert refused("histogramdd", [points, []]) == :bad_argument
      assert {counts, _} = ExTorch.op("histogramdd", [points, [2, 2]])
      assert Tensor.to_list(counts) == [[0.0, 1.0], [1.0, 0.0]]
    end

    test "statistics of batch normalization" do
      input = ExTorch.ones({2, 3, 2})
      stats = ExTorch.zeros({3})
      short = ExTorch.zeros({1})
      args = fn mean -> [input, nil, nil, mean, ExTorch.ones({3}), true, 0.1, 1.0e-5] end
      assert refused("native_batch_norm", args.(short)) == :bad_argument
      assert {output, _, _} = ExTorch.op("native_batch_norm", args.(stats))
      assert output.shape == {2, 3, 2}
      assert refused("batch_norm_update_stats", [input, short, stats, 0.1]) == :bad_argument
      empty = ExTorch.zeros({2, 0, 1})
      assert refused("batch_norm_update_stats", [empty, nil, nil, 0.1]) == :bad_argument
    end

    # LibTorch would take them for addresses.
    test "sizes below -2^62" do
      t = ExTorch.ones({2, 3})

      for size <- [-(2 ** 62) - 1, -(2 ** 63)] do
        assert refused("sum_to_size", [t, [size, 1]]) == :bad_argument
        assert refused("expand", [t, [size, 1]]) == :bad_argument
        assert refused("view", [t, [size]]) == :bad_argument
      end

      assert refused("sum_to_size", [t, [-(2 ** 62), 1]]) == :torch
    end

    test "operators that are not available" do
      t = ExTorch.ones({2, 2})

      for {name, args, hint} <- [
            {"align_tensors", [[]], "permute"},
            {"matrix_exp_backward", [t, t], "autograd"},
            {"choose_qparams_optimized", [t, 4, 200, 0.16, 8], "aminmax"},
            {"slow_conv3d", [t, t, [1, 1, 1]], "conv3d"},
            {"thnn_conv2d", [t, t, [1, 1]], "conv2d"}
          ] do
        error = assert_raise ExTorch.Error, fn -> ExTorch.op(name, args) end
        assert {error.reason, error.message =~ hint} == {:forbidden, true}
      end

      batch_sizes = ExTorch.tensor([1_000_000])
      args = [t, batch_sizes, [t, t], [t, t], false, 1, 0.0, false, false]
      assert refused("lstm", args) == :forbidden
    end
  end

  describe "the error for an invalid call" do
    test "contains the operator, the parameter and its type" do
      t = ExTorch.ones({2, 2})

      for {name, args, kwargs, message} <- [
            {"topk", [t, "2"], [],
             ~r/aten::topk: argument `k` expects (int|SymInt), got the string "2"/},
            {"relu", [5], [], ~r/aten::relu: argument `self` expects Tensor, got the integer 5/},
            {"sum", [t], [dmi: 1], ~r/aten::sum.*: has no argument `dmi`/},
            {"matmul", [t], [], ~r/argument `other` \(Tensor\) is missing/},
            {"relu", [t, t], [], ~r/takes at most 1 positional arguments, got 2/},
            {"relu", [t], [self: t], ~r/argument `self` is given twice/},
            {"aten::add.Tensor", [t, :foo], [], ~r/argument `other` expects Tensor, got :foo/},
            {"zeros", [[2]], [dtype: :foo], ~r/argument `dtype` expects/},
            {"zeros", [[2, 1.5]], [], ~r/argument `size` expects/},
            {"add", [t, make_ref()], [], ~r/an argument is not a tensor/},
            {"add", [t, :日本], [], ~r/an atom with characters outside Latin-1/},
            {"add", [t, {:日本, 1}], [], ~r/an atom with characters outside Latin-1/},
            {"add", [t, 2 ** 70], [], ~r/does not fit in 64 bits/}
          ] do
        error = assert_raise Error, message, fn -> ExTorch.op(name, args, kwargs) end
        assert error.reason == :bad_argument
      end
    end

    test "suggests names similar to an unknown operator or overload" do
      error = assert_raise Error, fn -> ExTorch.op("sofmax", []) end
      assert error.reason == :not_found
      assert error.message =~ ~s("softmax")

      assert_raise Error, ~r/has no overload "Foo"; its overloads are aten::add.Scalar/, fn ->
        ExTorch.op("aten::add.Foo", [])
      end

      assert reason(fn -> ExTorch.op("", []) end) == :not_found
      assert reason(fn -> ExTorch.op(String.duplicate("x", 1000), []) end) == :not_found
    end

    test "contains the message of LibTorch without a backtrace" do
      error =
        assert_raise Error, fn -> ExTorch.matmul(ExTorch.ones({2, 3}), ExTorch.ones({2, 3})) end

      assert error.reason == :torch
      assert error.message =~ "mat1 and mat2 shapes cannot be multiplied"
      refute error.message =~ "Exception raised"
    end
  end

  test "unsafe operators are refused or require their full name" do
    t = ExTorch.ones({2, 2})
    assert reason(fn -> ExTorch.op("from_file", ["/etc/hostname"]) end) == :forbidden
    assert reason(fn -> ExTorch.op("aten::from_file", ["/etc/hostname"]) end) == :forbidden
    assert reason(fn -> ExTorch.op("set_", [t, t]) end) == :forbidden
    assert reason(fn -> ExTorch.op("requires_grad_", [t]) end) == :forbidden
    assert reason(fn -> ExTorch.op("_softmax", [t, 0, false]) end) == :forbidden
    assert ExTorch.op("aten::_softmax", [t, 0, false]).shape == {2, 2}
  end

  test "operators that change a shape in place do not change the tensor" do
    t = ExTorch.arange(6) |> Tensor.reshape({1, 6})
    assert ExTorch.op("t_", [t]).shape == {6, 1}
    assert ExTorch.op("squeeze_", [t]).shape == {6}
    assert ExTorch.op("resize_", [t, [2]]).shape == {2}
    assert {t.shape, Tensor.strides(t)} == {{1, 6}, {6, 1}}
    assert reason(fn -> ExTorch.op("resize_", [t, [100]]) end) == :forbidden
    assert reason(fn -> ExTorch.op("resize_as_", [t, ExTorch.zeros({100})]) end) == :forbidden
  end

  test "in-place operators change every view" do
    t = ExTorch.zeros({2, 2})
    row = Tensor.slice(t, [0])
    ExTorch.op("add_", [row, 3])
    ExTorch.op("aten::add.out", [t, t], out: t)
    assert Tensor.to_list(t) == [[6.0, 6.0], [0.0, 0.0]]
  end

  test "gradients are not recorded" do
    t = Tensor.requires_grad(ExTorch.ones({2}), true)
    assert ExTorch.op("is_inference", [ExTorch.mul(t, 2)])
    refute Tensor.requires_grad(ExTorch.mul(t, 2))
  end

  test "names may be atoms, keyword arguments may be maps, shapes may be tuples" do
    t = ExTorch.ones({2, 3})
    assert Tensor.to_list(ExTorch.op(:sum, [t], %{"dim" => 0})) == [2.0, 2.0, 2.0]
    assert ExTorch.op("reshape", [t, {3, 2}]).shape == {3, 2}
    assert ExTorch.op("result_type", [t, ExTorch.tensor(1)]) == :float32
  end

  test "argument lists of any length" do
    many = List.duplicate(ExTorch.ones({1}), 1000)
    assert ExTorch.cat(many).shape == {1000}

    assert ExTorch.op("zeros", [List.duplicate(1, 60)]).shape ==
             List.to_tuple(List.duplicate(1, 60))
  end
end
