defmodule ExTorch.Checkpoint.Hostile.PartsTest do
  # Tensors that consist of other tensors: LibTorch trusts their parts, so each is checked before it sees them.
  use ExTorch.Case
  alias ExTorch.Test.{Hostile, Pickle, Zip}
  import Pickle, only: [text: 1, int: 1, tuple: 1, global: 2, reduce: 2]

  @quantized %{"qint8" => {"QInt8Storage", 1}, "qint32" => {"QInt32Storage", 4}}
  @parts %{
    float64: {"DoubleStorage", 8},
    float32: {"FloatStorage", 4},
    int64: {"LongStorage", 8},
    int32: {"IntStorage", 4},
    uint8: {"ByteStorage", 1},
    bool: {"BoolStorage", 1},
    complex64: {"ComplexFloatStorage", 8}
  }

  defp part(key, dtype, shape) do
    {class, _size} = @parts[dtype]
    numel = Enum.product(shape)
    strides = shape |> Enum.reverse() |> Enum.scan(1, &(&1 * &2)) |> Enum.reverse() |> tl()

    Pickle.tensor(
      class: global("torch", class),
      key: text(key),
      numel: int(numel),
      size: tuple(Enum.map(shape, &int/1)),
      stride: tuple(Enum.map(strides ++ [1], &int/1))
    )
  end

  defp bytes(dtype, shape), do: :binary.copy(<<0>>, elem(@parts[dtype], 1) * Enum.product(shape))

  defp quantized(name, scales, zeros, counts \\ [2, 2], axis \\ 0) do
    {class, size} = @quantized[name]
    [scale_count, zero_count] = counts

    pickle =
      Pickle.make(
        reduce(global("torch._utils", "_rebuild_qtensor"), [
          Pickle.storage(class: global("torch", class), numel: int(6)),
          int(0),
          tuple([int(2), int(3)]),
          tuple([int(3), int(1)]),
          tuple([
            global("torch", "per_channel_affine"),
            part("1", scales, [scale_count]),
            part("2", zeros, [zero_count]),
            int(axis)
          ]),
          <<0x89>>,
          reduce(global("collections", "OrderedDict"), [])
        ])
      )

    Hostile.load(
      Zip.checkpoint(pickle, %{
        "0" => :binary.copy(<<0>>, 6 * size),
        "1" => bytes(scales, [scale_count]),
        "2" => bytes(zeros, [zero_count])
      })
    )
  end

  for name <- ["qint8", "qint32"], scales <- Map.keys(@parts), zeros <- Map.keys(@parts) do
    test "per-channel #{name} with scales #{scales} and zero points #{zeros}" do
      result = quantized(unquote(name), unquote(scales), unquote(zeros))

      if unquote(scales) in [:float32, :float64] and unquote(zeros) in [:int32, :int64] do
        assert {:ok, tensor} = result
        assert inspect(tensor) =~ unquote(name)
        assert ExTorch.op("dequantize", [tensor]).shape == {2, 3}
      else
        assert {:corrupt, message} = result
        assert message =~ "scales must be floats and zero points integers"
      end
    end
  end

  test "per-channel parameters of another number than the axis has" do
    assert {:corrupt, _} = quantized("qint8", :float64, :int64, [3, 2])
    assert {:corrupt, _} = quantized("qint8", :float64, :int64, [2, 3])
    assert {:corrupt, _} = quantized("qint8", :float64, :int64, [2, 2], 1)
    assert {:corrupt, _} = quantized("qint8", :float64, :int64, [2, 2], 2)
    assert {:corrupt, _} = quantized("qint8", :float64, :int64, [2, 2], -1)
  end

  defp sparse(layout, parts, size) do
    args = for {{dtype, shape}, key} <- Enum.with_index(parts), do: part("#{key}", dtype, shape)

    pickle =
      Pickle.make(
        reduce(global("torch._utils", "_rebuild_sparse_tensor"), [
          reduce(global("torch.serialization", "_get_layout"), [text(layout)]),
          tuple(args ++ [tuple(Enum.map(size, &int/1))])
        ])
      )

    storages =
      for {{dtype, shape}, key} <- Enum.with_index(parts),
          into: %{},
          do: {"#{key}", bytes(dtype, shape)}

    Hostile.load(Zip.checkpoint(pickle, storages))
  end

  for dtype <- Map.keys(@parts) do
    test "sparse indices of #{dtype}" do
      coo = sparse("torch.sparse_coo", [{unquote(dtype), [2, 1]}, {:float32, [1]}], [2, 2])

      csr =
        sparse(
          "torch.sparse_csr",
          [{unquote(dtype), [3]}, {unquote(dtype), [0]}, {:float32, [0]}],
          [2, 2]
        )

      mixed =
        sparse("torch.sparse_csr", [{:int64, [3]}, {unquote(dtype), [0]}, {:float32, [0]}], [2, 2])

      if unquote(dtype) == :int64,
        do: assert({:ok, %Tensor{shape: {2, 2}}} = coo),
        else: assert({:corrupt, _} = coo)

      if unquote(dtype) in [:int32, :int64],
        do: assert({:ok, %Tensor{shape: {2, 2}}} = csr),
        else: assert({:corrupt, _} = csr)

      if unquote(dtype) == :int64,
        do: assert({:ok, _} = mixed),
        else: assert({:corrupt, _} = mixed)
    end
  end

  test "sparse indices outside the shape, and parts that do not fit each other" do
    assert {:corrupt, _} = sparse("torch.sparse_coo", [{:int64, [3, 1]}, {:float32, [1]}], [2, 2])
    assert {:corrupt, _} = sparse("torch.sparse_coo", [{:int64, [2, 2]}, {:float32, [1]}], [2, 2])
    assert {:corrupt, _} = sparse("torch.sparse_coo", [{:int64, [2, 1]}, {:float32, [1]}], [0, 2])

    assert {:corrupt, _} =
             sparse("torch.sparse_csr", [{:int64, [2]}, {:int64, [0]}, {:float32, [0]}], [2, 2])
  end
end
