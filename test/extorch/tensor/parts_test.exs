defmodule ExTorch.Tensor.PartsTest do
  # LibTorch trusts the indices of sparse tensors: an index outside the shape makes it read or write other memory.
  use ExTorch.Case

  defp op(name, args, kwargs \\ []), do: ExTorch.op(name, args, kwargs)

  defp dense, do: ExTorch.tensor([[0.0, 1.0, 0.0, 2.0], [0.0, 0.0, 3.0, 0.0]])

  defp compressed(layout) do
    name = if layout in [:sparse_csr, :sparse_bsr], do: "row", else: "col"
    other = if name == "row", do: "col", else: "row"

    block =
      cond do
        layout in [:sparse_csr, :sparse_csc] -> ExTorch.tensor([1.0, 2.0])
        true -> ExTorch.tensor([[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]])
      end

    size = if layout in [:sparse_csr, :sparse_csc], do: [2, 2], else: [4, 4]
    pointers = ExTorch.tensor([0, 1, 2])
    plain = ExTorch.tensor([1, 0])

    sparse =
      op("sparse_compressed_tensor", [pointers, plain, block, size],
        layout: layout,
        dtype: :float32
      )

    {sparse, "c#{name}_indices", "#{other}_indices", pointers, plain}
  end

  @tag :torch
  test "the indices of a COO tensor cannot be changed" do
    indices = ExTorch.tensor([[0, 1], [1, 0]])
    sparse = op("sparse_coo_tensor", [indices, ExTorch.tensor([1.0, 2.0]), [2, 2]])
    view = op("aten::_indices", [sparse])

    for part <- [
          indices,
          view,
          op("detach", [view]),
          op("alias", [view]),
          op("select", [view, 0, 0])
        ] do
      assert reason(fn -> op("fill_", [part, 1_000_000]) end) == :frozen
      assert reason(fn -> op("zero_", [Blob.from_blob(Blob.to_blob(part))]) end) == :frozen
    end

    assert reason(fn -> op("add", [view, view], out: indices) end) == :frozen
    assert Tensor.to_list(sparse) == [[0.0, 1.0], [2.0, 0.0]]

    # a coalesced one has the public function
    coalesced = op("to_sparse", [dense()])
    assert reason(fn -> op("fill_", [op("indices", [coalesced]), 9]) end) == :frozen

    # values may be changed, and indices of a sparse tensor that was released
    op("fill_", [op("aten::_values", [sparse]), 5.0])
    assert Tensor.to_list(sparse) == [[0.0, 5.0], [5.0, 0.0]]
    Tensor.release(sparse)
    ExTorch.Memory.collect()
    op("fill_", [indices, 7])
    assert Tensor.to_list(indices) == [[7, 7], [7, 7]]
  end

  for layout <- [:sparse_csr, :sparse_csc, :sparse_bsr, :sparse_bsc] do
    test "the indices of a #{layout} tensor cannot be changed" do
      {sparse, compressed, plain, given, given_plain} = compressed(unquote(layout))
      parts = [op(compressed, [sparse]), op(plain, [sparse]), given, given_plain]

      for part <- parts, view <- [part, op("detach", [part]), op("slice", [part, 0, 0, 1])] do
        assert reason(fn -> op("fill_", [view, 1_000_000]) end) == :frozen
      end

      op("fill_", [op("values", [sparse]), 5.0])
    end

    @tag :torch
    test "a #{layout} tensor with indices outside its shape is refused" do
      {sparse, _, _, _, _} = compressed(unquote(layout))
      size = if unquote(layout) in [:sparse_csr, :sparse_csc], do: [2, 2], else: [4, 4]

      for {pointers, plain} <- [
            {[0, 1, 2], [1, 2]},
            {[0, 1, 2], [-1, 0]},
            {[0, 1, 3], [1, 0]},
            {[0, 3, 2], [1, 0]},
            {[1, 1, 2], [1, 0]},
            {[0, -5, 2], [1, 0]}
          ] do
        assert reason(fn ->
                 op(
                   "aten::_sparse_compressed_tensor_unsafe",
                   [
                     ExTorch.tensor(pointers),
                     ExTorch.tensor(plain),
                     op("values", [sparse]),
                     size
                   ],
                   layout: unquote(layout),
                   dtype: :float32
                 )
               end) == :bad_argument
      end
    end
  end

  @tag :torch
  test "a COO tensor with indices outside its shape is refused" do
    values = ExTorch.tensor([1.0, 2.0])

    for bad <- [[[0, 2]], [[-1, 0]], [[0, 1_000_000_000]]] do
      assert reason(fn ->
               op("aten::_sparse_coo_tensor_unsafe", [ExTorch.tensor(bad), values, [2]])
             end) == :bad_argument
    end
  end

  @tag :torch
  test "an operator that changes indices in place changes a copy" do
    sparse = op("to_sparse", [dense()])
    before = Tensor.to_list(sparse)

    for {name, args} <- [
          {"transpose_", [0, 1]},
          {"t_", []},
          {"sparse_resize_", [[6, 6], 2, 0]},
          {"sparse_resize_and_clear_", [[3, 1], 2, 0]},
          {"unsqueeze_", [0]},
          {"zero_", []}
        ] do
      copy = op("clone", [sparse])
      try do: op(name, [copy | args]), rescue: (_ in ExTorch.Error -> :ok)
      assert Tensor.to_list(copy) in [before, [[0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]]
    end

    transposed = op("transpose_", [sparse, 0, 1])
    assert Tensor.to_list(transposed) == Tensor.to_list(op("t", [dense()]))
    assert Tensor.to_list(sparse) == before

    assert Tensor.to_list(op("mul_", [sparse, 2])) == Tensor.to_list(ExTorch.mul(dense(), 2))
  end

  @tag :torch
  test "scales and zero points of a quantized tensor cannot be changed" do
    scales = ExTorch.tensor([0.5, 0.25], dtype: :float64)
    zeros = ExTorch.tensor([1, 2])
    q = op("quantize_per_channel", [ExTorch.ones({2, 3}), scales, zeros, 0, :qint8])
    before = Tensor.to_list(q)

    for name <- ["q_per_channel_scales", "q_per_channel_zero_points"] do
      assert reason(fn -> op("fill_", [op(name, [q]), 1_000_000]) end) == :frozen
    end

    for given <- [scales, zeros] do
      try do: op("fill_", [given, 100]), rescue: (_ in ExTorch.Error -> :ok)
    end

    assert Tensor.to_list(q) == before
  end

  @tag :torch
  test "indices that another process is writing are not used" do
    for _ <- 1..20 do
      indices = ExTorch.full({1, 200_000}, 1)
      values = ExTorch.ones({200_000})

      writer =
        Task.async(fn ->
          Enum.reduce_while(1..10_000, nil, fn k, _ ->
            try do
              op("fill_", [indices, if(rem(k, 2) == 0, do: 1, else: 1_000_000_000_000)])
              {:cont, nil}
            rescue
              error in ExTorch.Error -> {:halt, error.reason}
            end
          end)
        end)

      Process.sleep(1)

      for name <- ["sparse_coo_tensor", "aten::_sparse_coo_tensor_unsafe"] do
        try do
          Tensor.to_list(op("to_dense", [op(name, [indices, values, [2]])]))
        rescue
          error in ExTorch.Error -> assert error.reason in [:busy, :bad_argument, :torch, :frozen]
        end
      end

      Task.shutdown(writer, :brutal_kill)
    end
  end
end
