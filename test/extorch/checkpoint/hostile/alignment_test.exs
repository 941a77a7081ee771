defmodule ExTorch.Checkpoint.Hostile.AlignmentTest do
  # LibTorch faults on elements that are not aligned to their size. Every dtype, at every offset, however it is read.
  use ExTorch.Case
  alias ExTorch.Checkpoint
  alias ExTorch.Test.{Pickle, Zip}
  import Pickle, only: [int: 1, tuple: 1, global: 2]

  @moduletag :tmp_dir

  @dtypes [
    complex128: {"ComplexDoubleStorage", 16},
    complex64: {"ComplexFloatStorage", 8},
    float64: {"DoubleStorage", 8},
    float32: {"FloatStorage", 4},
    float16: {"HalfStorage", 2},
    int64: {"LongStorage", 8}
  ]

  # Values of which every byte differs, so that a wrong offset gives other values.
  defp elements(size), do: for(i <- 0..(8 * size - 1), into: <<>>, do: <<rem(i * 7 + 1, 120)>>)

  defp checkpoint(class, size, padding) do
    pickle =
      Pickle.make(
        Pickle.tensor(
          class: global("torch", class),
          numel: int(8),
          size: tuple([int(7)]),
          offset: int(1)
        )
      )

    records = [
      {"a/data.pkl", pickle},
      {"a/#{String.duplicate("x", padding + 1)}", ""},
      {"a/data/0", elements(size)},
      {"a/version", "3\n"}
    ]

    Zip.make(records)
  end

  # Uses the values in ways that run vectorized code, where there is LibTorch.
  defp bytes(tensor) do
    sum = if ExTorch.info().version, do: ExTorch.op("add", [tensor, tensor]), else: tensor
    copy = ExTorch.op("clone", [sum])
    assert inspect(copy) =~ "ExTorch.Tensor"
    Tensor.to_binary(ExTorch.op("clone", [tensor]))
  end

  for {dtype, {class, size}} <- @dtypes do
    test "#{dtype} at every offset of a file", %{tmp_dir: dir} do
      size = unquote(size)
      expected = binary_part(elements(size), size, 7 * size)

      for padding <- 0..15 do
        file = checkpoint(unquote(class), size, padding)
        path = Path.join(dir, "t.pt")
        File.write!(path, file)

        for opts <- [[], [strict: true], [mmap: true], [verify: true]],
            source <- [path, {:binary, file}] do
          assert bytes(ExTorch.load!(source, opts)) == expected
          ckpt = Checkpoint.open!(source, opts)
          assert bytes(Checkpoint.tensor!(ckpt, [])) == expected
          Checkpoint.close(ckpt)
        end

        assert {:ok, tensor, ""} = ExTorch.Streaming.load([file])
        assert bytes(tensor) == expected
      end
    end

    test "#{dtype} at every offset of a binary" do
      size = unquote(size)

      for padding <- 0..31 do
        part = binary_part(:binary.copy(<<1, 2, 3>>, 64), padding, 3 * size)
        tensor = Tensor.from_binary(part, {3}, unquote(dtype))
        assert bytes(tensor) == part
      end
    end

    test "a blob of #{dtype} at an unaligned address is refused" do
      memory = ExTorch.zeros({256}, dtype: :uint8)
      %{ptr: ptr} = Blob.to_blob(memory)

      for shift <- 1..15, rem(shift, unquote(size)) != 0 do
        info = %{ptr: ptr + shift, shape: {2}, dtype: unquote(dtype)}
        assert reason(fn -> Blob.from_blob(info, owner: memory) end) == :bad_argument
      end
    end
  end
end
