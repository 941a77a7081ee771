defmodule ExTorch.Checkpoint.ViewsTest do
  use ExTorch.Case
  alias ExTorch.Checkpoint
  alias ExTorch.Test.{Pickle, Zip}

  @tag :torch
  test "only views of the same storage share memory" do
    {:ok, object} = ExTorch.load("test/fixtures/2.14.1/views.pt")
    ptr = fn name -> Blob.to_blob(object[name]).ptr end
    assert ptr.("matrix") == ptr.("base")
    assert ptr.("transposed") == ptr.("base")
    assert ptr.("row") == ptr.("base") + 24
    refute ptr.("scalar") == ptr.("base")
    ExTorch.op("add_", [object["base"], 100])
    assert hd(Tensor.to_list(object["row"])) == 106.0
    assert object["empty"].shape == {0}
    assert object["empty_2d"].shape == {0, 10}
  end

  @tag :tmp_dir
  test "only the rows of a view are read if its span is much larger", %{tmp_dir: dir} do
    rows = 2000
    data = for i <- 0..(rows * 100 - 1), into: <<>>, do: <<i::little-signed-32>>

    int_storage =
      Pickle.storage(class: Pickle.global("torch", "IntStorage"), numel: Pickle.int(rows * 100))

    view = fn offset, size, stride ->
      Pickle.tensor(
        storage: int_storage,
        offset: Pickle.int(offset),
        size: Pickle.tuple(Enum.map(size, &Pickle.int/1)),
        stride: Pickle.tuple(Enum.map(stride, &Pickle.int/1))
      )
    end

    pickle =
      Pickle.make(
        Pickle.dict([
          {"column", view.(7, [rows], [100])},
          {"rows", view.(50_000, [4, 100], [30_000, 1])},
          {"corner", view.(0, [rows, 2], [100, 1])},
          {"permuted", view.(3, [2, rows], [1, 100])},
          {"expanded", view.(5, [1000, 3], [0, 1])},
          {"transposed", view.(0, [3, 4, rows], [2, 10, 100])}
        ])
      )

    path = Path.join(dir, "gather.pt")
    File.write!(path, Zip.checkpoint(pickle, %{"0" => data}))

    for opts <- [[], [mmap: true], [verify: true]] do
      ckpt = Checkpoint.open!(path, opts)
      read = fn name -> Tensor.to_list(Checkpoint.tensor!(ckpt, name)) end
      assert read.("column") == for(i <- 0..(rows - 1), do: 7 + 100 * i)

      assert read.("rows") ==
               for(i <- 0..3, do: Enum.to_list((50_000 + i * 30_000)..(50_099 + i * 30_000)))

      assert read.("corner") == for(i <- 0..(rows - 1), do: [100 * i, 100 * i + 1])

      assert read.("permuted") ==
               for(k <- 0..1, do: for(i <- 0..(rows - 1), do: 3 + k + 100 * i))

      assert read.("transposed") ==
               for(
                 a <- 0..2,
                 do: for(b <- 0..3, do: for(c <- 0..(rows - 1), do: 2 * a + 10 * b + 100 * c))
               )

      assert read.("expanded") == List.duplicate([5, 6, 7], 1000)

      if opts == [] do
        before = Memory.live().bytes
        tensor = Checkpoint.tensor!(ckpt, "column")
        assert Memory.live().bytes - before < 20_000
        assert Tensor.strides(tensor) == {1}
      end
    end
  end
end
