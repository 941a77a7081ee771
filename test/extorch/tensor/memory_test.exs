defmodule ExTorch.Tensor.MemoryTest do
  # Tensors as memory: views, frozen memory, lifetimes and the budget, with operators that every build has.
  use ExTorch.Case
  @moduletag :tmp_dir

  defp fill(tensor), do: ExTorch.op("fill_", [tensor, 7])

  test "memory that a binary sees is not written, through any view" do
    binary = :binary.copy(<<1, 2, 3, 4, 5, 6>>)
    t = Tensor.from_binary(binary, {2, 3}, :uint8)

    views = [
      t,
      Tensor.transpose(t),
      Tensor.slice(t, [1]),
      Tensor.reshape(t, {6}),
      ExTorch.op("view", [t, :int8]),
      Blob.from_blob(Blob.to_blob(t)),
      Tensor.requires_grad(t, true)
    ]

    for view <- views, name <- ["fill_", "zero_", "copy_"] do
      args = %{"fill_" => [view, 7], "zero_" => [view], "copy_" => [view, view]}
      assert reason(fn -> ExTorch.op(name, args[name]) end) == :frozen
    end

    assert binary == <<1, 2, 3, 4, 5, 6>>
    assert Tensor.to_list(fill(Tensor.clone(t))) == [[7, 7, 7], [7, 7, 7]]
  end

  test "to_binary freezes as long as the binary exists, to_list and equal? do not" do
    t = ExTorch.arange(1000)
    Tensor.to_list(t)
    Tensor.equal?(t, t)
    inspect(t)
    fill(t)

    Task.await(
      Task.async(fn ->
        binary = Tensor.to_binary(Tensor.slice(t, 0, 0..99))
        assert reason(fn -> fill(t) end) == :frozen
        fill(Tensor.slice(t, 0, 100..999))
        assert byte_size(binary) == 800
      end)
    )

    assert wait_until(fn -> reason(fn -> fill(t) end) == :none end)
  end

  test "views, blobs and binaries keep the memory, whatever is released first" do
    before = Memory.live()

    for order <- [[0, 1, 2], [2, 1, 0], [1, 0, 2], [1, 2, 0]] do
      t = ExTorch.arange(50_000)
      view = Tensor.slice(t, 0, 49_000..49_999)
      tensors = [t, view, Blob.from_blob(Blob.to_blob(view))]
      last = Enum.at(tensors, List.last(order))
      for i <- Enum.drop(order, -1), do: Tensor.release(Enum.at(tensors, i))
      assert Tensor.to_list(Tensor.slice(last, [-1])) == 49_999
      binary = Tensor.to_binary(last)
      Tensor.release(last)
      assert binary_part(binary, byte_size(binary), -8) == <<49_999::64-native>>
    end

    assert Memory.live().tensors >= before.tensors
  end

  test "an operator within the budget, and one beyond it" do
    t = ExTorch.zeros({1000})
    budget = Memory.budget()
    on_exit(fn -> Memory.set_budget(budget) end)
    Memory.set_budget(Memory.live().bytes + 10_000)
    assert Tensor.clone(t).shape == {1000}
    assert reason(fn -> ExTorch.zeros({1_000_000}) end) == :limit
    assert reason(fn -> Tensor.contiguous(ExTorch.op("expand", [t, [1000, 1000]])) end) == :limit
    Memory.set_budget(budget)
    assert ExTorch.zeros({1_000_000}).shape == {1_000_000}
  end

  test "load, view, convert and save", %{tmp_dir: dir} do
    path = Path.join(dir, "a.pt")
    t = ExTorch.op("arange", [0, 24]) |> Tensor.reshape({2, 3, 4})
    tied = Tensor.transpose(t, 0, 2)
    :ok = ExTorch.save(%{"a" => t, "b" => tied, "h" => Tensor.to(t, :bfloat16)}, path)

    for mmap <- [false, true] do
      loaded = ExTorch.load!(path, mmap: mmap)
      assert Tensor.equal?(loaded["a"], t) and Tensor.equal?(loaded["b"], tied)
      assert Tensor.strides(loaded["b"]) == {1, 4, 12}
      assert Blob.to_blob(loaded["a"]).ptr == Blob.to_blob(loaded["b"]).ptr
      assert Tensor.to_list(Tensor.slice(loaded["h"], [1, 2, 3])) == 23.0
      assert ExTorch.diff!(path, path) |> ExTorch.Diff.equal?()
    end

    other = Path.join(dir, "a.safetensors")
    :ok = ExTorch.convert(path, other, dtype: :float16, duplicate: true)
    assert Tensor.to_list(Tensor.slice(ExTorch.load!(other)["b"], [3, 2, 1])) == 23.0
  end

  test "every dtype is held, viewed and saved", %{tmp_dir: dir} do
    for dtype <- ExTorch.DType.names(),
        ExTorch.DType.supported?(dtype),
        ExTorch.DType.kind(dtype) != :quant do
      size = ExTorch.DType.size(dtype)
      data = :binary.copy(<<1>>, 6 * size)
      t = Tensor.from_binary(data, {2, 3}, dtype)
      assert Tensor.to_binary(Tensor.contiguous(Tensor.transpose(t))) == data
      path = Path.join(dir, "#{dtype}.pt")

      case ExTorch.save(%{"t" => t}, path) do
        :ok -> assert Tensor.to_binary(ExTorch.load!(path)["t"]) == data
        {:error, error} -> assert error.reason == :unsupported
      end
    end
  end
end
