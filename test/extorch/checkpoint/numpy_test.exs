defmodule ExTorch.Checkpoint.NumpyTest do
  # numpy's own files: .npy and .npz.
  use ExTorch.Case
  alias ExTorch.{Checkpoint, Streaming}
  alias ExTorch.Python.RawTensor
  alias ExTorch.Test.{FileSource, Python}

  @script """
  import sys, gzip, numpy, ctypes
  dir = sys.argv[1] + "/"
  arrays = {}
  for code in ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"):
      for order in "<>":
          a = (numpy.arange(24) % 7).reshape(2, 3, 4).astype(numpy.dtype(code).newbyteorder(order))
          name = code.replace("?", "b1") + {"<": "l", ">": "b"}[order]
          arrays[name] = a
          arrays[name + "_f"] = numpy.asfortranarray(a)
  arrays["empty"] = numpy.zeros((0, 3), "<f4")
  arrays["scalar"] = numpy.array(5, "<i4")
  arrays["large"] = numpy.arange(100000, dtype="<f4")
  arrays["with space.dot"] = numpy.arange(3, dtype="<f4")
  lines = []
  for name, a in arrays.items():
      numpy.save(dir + name + ".npy", a)
      native = numpy.ascontiguousarray(a.astype(a.dtype.newbyteorder("="))).reshape(a.shape)
      kind = {"b": "bool", "i": "int", "u": "uint", "f": "float", "c": "complex"}[a.dtype.kind]
      dtype = kind if kind == "bool" else kind + str(8 * a.dtype.itemsize)
      lines.append("%s|%s|%s|%s" % (name, dtype, ",".join(map(str, a.shape)), native.tobytes().hex()))
  open(dir + "list.txt", "w").write("\\n".join(lines))
  numpy.savez(dir + "all.npz", **arrays)
  numpy.savez_compressed(dir + "packed.npz", **arrays)
  for name in ("all.npz", "packed.npz", "f4l_f.npy", "i2b.npy"):
      open(dir + name + ".gz", "wb").write(gzip.compress(open(dir + name, "rb").read(), 1))
  for version in (1, 2, 3):
      with open(dir + "v%d.npy" % version, "wb") as f:
          numpy.lib.format.write_array(f, numpy.arange(3, dtype="<i8"), version=(version, 0))
  with open(dir + "several.npy", "wb") as f:
      numpy.save(f, numpy.arange(3)); numpy.save(f, numpy.ones(2, "<f4"))
  others = {"objects": numpy.array([1, None], dtype=object), "text": numpy.array(["ab"]), "bytes": numpy.array([b"ab"]),
            "structured": numpy.zeros(2, dtype=[("a", "f4")]), "date": numpy.array(["2020-01-01"], dtype="M8[D]"),
            "delta": numpy.array([1], dtype="m8[s]"), "void": numpy.zeros(2, "V2"), "long": numpy.zeros(2, "g")}
  for name, a in others.items():
      numpy.save(dir + "bad_" + name + ".npy", a)
      numpy.savez(dir + "bad_" + name + ".npz", good=numpy.zeros(1), other=a)
  """

  setup_all do
    dir = Path.join(System.tmp_dir!(), "extorch_numpy_#{System.unique_integer([:positive])}")
    File.mkdir_p!(dir)
    on_exit(fn -> File.rm_rf!(dir) end)
    if Python.torch(), do: Python.run!(@script, [dir])
    {:ok, dir: dir}
  end

  defp expected(dir) do
    for line <- dir |> Path.join("list.txt") |> File.read!() |> String.split("\n") do
      [name, dtype, shape, hex] = String.split(line, "|")

      shape =
        shape
        |> String.split(",", trim: true)
        |> Enum.map(&String.to_integer/1)
        |> List.to_tuple()

      {name, String.to_existing_atom(dtype), shape, Base.decode16!(hex, case: :lower)}
    end
  end

  defp ways(path) do
    stream = file_stream(path, 1000)
    stream = if String.ends_with?(path, ".gz"), do: Streaming.gunzip(stream), else: stream
    {:ok, streamed, ""} = Streaming.load(stream)

    [
      ExTorch.load!(path),
      ExTorch.load!(path, verify: true, strict: true),
      ExTorch.load!({:binary, File.read!(path)}),
      ExTorch.load!(%FileSource{path: path}),
      streamed
    ] ++ if(String.ends_with?(path, ".gz"), do: [], else: [ExTorch.load!(path, mmap: true)])
  end

  defp check(%Tensor{} = tensor, {name, dtype, shape, bytes}) do
    assert {tensor.dtype, tensor.shape} == {dtype, shape}, name
    assert Tensor.to_binary(Tensor.contiguous(tensor)) == bytes, name
  end

  # LibTorch before 2.3 does not have uint16 to uint64
  defp check(%RawTensor{} = tensor, {_name, dtype, shape, _bytes}),
    do: assert({tensor.dtype, tensor.shape} == {dtype, shape})

  @tag :python
  test "arrays of every type, order and byte order", %{dir: dir} do
    for {name, _, _, _} = expected <- expected(dir) do
      path = Path.join(dir, name <> ".npy")
      for object <- ways(path), do: check(object, expected)
      ckpt = Checkpoint.open!(path)
      assert [%{path: []} = entry] = Checkpoint.entries(ckpt)
      assert {entry.dtype, entry.shape} == {elem(expected, 1), elem(expected, 2)}
      assert Checkpoint.metadata(ckpt).format == :npy
      Checkpoint.close(ckpt)
    end

    for name <- ["f4l_f", "i2b"] do
      expected = Enum.find(expected(dir), &(elem(&1, 0) == name))
      for object <- ways(Path.join(dir, name <> ".npy.gz")), do: check(object, expected)
    end
  end

  @tag :python
  test "archives, stored and compressed", %{dir: dir} do
    expected = expected(dir)

    for file <- ~w(all.npz packed.npz all.npz.gz packed.npz.gz), path = Path.join(dir, file) do
      for object <- ways(path) do
        assert Enum.sort(Map.keys(object)) == expected |> Enum.map(&elem(&1, 0)) |> Enum.sort()
        for {name, _, _, _} = item <- expected, do: check(object[name], item)
      end

      for source <- [path, %FileSource{path: path}] do
        ckpt = Checkpoint.open!(source)
        assert Checkpoint.keys(ckpt) == Enum.map(expected, &elem(&1, 0))
        assert Checkpoint.metadata(ckpt).format == :npz
        item = Enum.find(expected, &(elem(&1, 0) == "f4b_f"))
        check(Checkpoint.tensor!(ckpt, "f4b_f"), item)
        check(Checkpoint.tensor!(ckpt, ["with space.dot"]), List.last(expected))
        Checkpoint.close(ckpt)
      end

      assert %{"large" => large} = ExTorch.load!(path, only: "large")
      assert large.shape == {100_000}
    end
  end

  @tag :python
  test "versions of the header, and several arrays in one file", %{dir: dir} do
    for version <- 1..3, object <- ways(Path.join(dir, "v#{version}.npy")) do
      assert Tensor.to_list(object) == [0, 1, 2]
    end

    path = Path.join(dir, "several.npy")
    ckpt = Checkpoint.open!(path)
    assert %{next_offset: next} = Checkpoint.metadata(ckpt)
    Checkpoint.close(ckpt)
    assert Tensor.to_list(ExTorch.load!(path)) == [0, 1, 2]
    assert Tensor.to_list(ExTorch.load!(path, offset: next)) == [1.0, 1.0]
    assert {:ok, first, rest} = Streaming.load([File.read!(path)])
    assert Tensor.to_list(first) == [0, 1, 2]
    assert {:ok, second, ""} = Streaming.load([rest])
    assert Tensor.to_list(second) == [1.0, 1.0]
  end

  @tag :python
  test "other types are refused by name, and pickles are not read", %{dir: dir} do
    for {name, words} <- [
          {"objects", "Python objects"},
          {"text", "strings"},
          {"bytes", "strings"},
          {"structured", "structured dtype"},
          {"date", "dates"},
          {"delta", "durations"},
          {"void", "void"},
          {"long", "type f16"}
        ],
        suffix <- ["npy", "npz"] do
      path = Path.join(dir, "bad_#{name}.#{suffix}")

      for result <- [ExTorch.load(path), Streaming.load(file_stream(path, 64))] do
        assert {:error, %{reason: :unsupported, message: message}} = result
        assert message =~ words
        if suffix == "npz", do: assert(message =~ "other.npy")
      end
    end
  end

  # ---- Saving ----

  @tag :python
  @tag :tmp_dir
  test "numpy reads what is saved", %{tmp_dir: tmp} do
    base = ExTorch.arange(24, dtype: :float32)

    tensors =
      for dtype <-
            ~w(bool uint8 int8 int16 int32 int64 float16 float32 float64 complex64 complex128)a,
          into: %{
            "t" => Tensor.transpose(ExTorch.op("view", [base, [4, 6]])),
            "base" => base,
            "scalar" => ExTorch.tensor(5),
            "empty" => ExTorch.op("zeros", [[0, 3]]),
            "name with é" => ExTorch.tensor([1.5])
          },
          do: {to_string(dtype), Tensor.to(ExTorch.op("view", [base, [2, 3, 4]]), dtype: dtype)}

    npz = Path.join(tmp, "all.npz")
    :ok = ExTorch.save(tensors, npz)
    File.write!(Path.join(tmp, "stream.npz"), saved(tensors, format: :npz))
    for {name, tensor} <- tensors, do: :ok = ExTorch.save(tensor, Path.join(tmp, name <> ".npy"))
    File.write!(Path.join(tmp, "streamed.npy"), saved(base, format: :npy))

    lines =
      for {name, tensor} <- tensors do
        hex = Base.encode16(Tensor.to_binary(Tensor.contiguous(tensor)), case: :lower)
        "#{name}|#{tensor.dtype}|#{tensor.shape |> Tuple.to_list() |> Enum.join(",")}|#{hex}"
      end

    File.write!(Path.join(tmp, "list.txt"), Enum.join(lines, "\n"))

    Python.run!(
      """
      import sys, numpy, zipfile
      dir = sys.argv[1] + "/"
      archives = [numpy.load(dir + name + ".npz") for name in ("all", "stream")]
      assert zipfile.ZipFile(dir + "all.npz").testzip() is None
      lines = open(dir + "list.txt", encoding="utf-8").read().split("\\n")
      assert all(len(a.files) == len(lines) for a in archives)
      for line in lines:
          name, dtype, shape, data = line.split("|")
          for a in [a[name] for a in archives] + [numpy.load(dir + name + ".npy")]:
              assert str(a.dtype) == dtype, (name, a.dtype)
              assert ",".join(map(str, a.shape)) == shape, name
              assert numpy.ascontiguousarray(a).tobytes().hex() == data, name
      assert numpy.load(dir + "streamed.npy").tolist() == list(range(24))
      """,
      [tmp]
    )

    # and ExTorch reads it again, with checksums
    for opts <- [[verify: true], [mmap: true]] do
      loaded = ExTorch.load!(npz, opts)
      assert Map.keys(loaded) == Map.keys(tensors)
      for {name, tensor} <- tensors, do: assert(Tensor.equal?(loaded[name], tensor), name)
    end
  end

  @tag :tmp_dir
  test "what numpy's files cannot have is refused", %{tmp_dir: tmp} do
    tensor = ExTorch.tensor([1.0])
    save = &ExTorch.save(&1, Path.join(tmp, &2))
    assert {:error, %{reason: :bad_argument, message: message}} = save.(%{"a" => tensor}, "a.npy")
    assert message =~ "save several as npz"

    assert {:error, %{reason: :bad_argument, message: message}} =
             save.(%{"a" => [tensor]}, "a.npz")

    assert message =~ "to save as npz"
    assert {:error, %{reason: :bad_argument}} = save.(tensor, "a.npz")
    assert {:error, %{reason: :bad_argument}} = save.(%{"" => tensor}, "a.npz")
    assert {:error, %{reason: :bad_argument}} = save.(%{<<"a", 0>> => tensor}, "a.npz")
    half = Tensor.to(tensor, dtype: :bfloat16)
    assert {:error, %{reason: :unsupported, message: message}} = save.(%{"w" => half}, "a.npz")
    assert message =~ "bfloat16"
    assert {:error, %{reason: :unsupported}} = save.(half, "a.npy")
    assert File.ls!(tmp) == []
  end

  # ---- Damaged files ----

  @tag :python
  test "truncated and damaged files are errors or other values, never more", %{dir: dir} do
    for name <- ["scalar.npy", "i2b.npy"], file = File.read!(Path.join(dir, name)) do
      for size <- 0..(byte_size(file) - 1) do
        assert {:error, %{reason: reason}} = ExTorch.load({:binary, binary_part(file, 0, size)})
        assert reason in [:truncated, :corrupt]
        assert {:error, _} = Streaming.load([binary_part(file, 0, size)])
      end

      for at <- 0..min(byte_size(file) - 1, 140), bit <- 0..7 do
        flipped = flip_bit(file, at, bit)
        assert {tag, _} = ExTorch.load({:binary, flipped})
        assert tag in [:ok, :error]
        Streaming.load([flipped])
      end
    end
  end

  test "headers that lie" do
    npy = fn text, data ->
      <<0x93, "NUMPY", 1, 0, byte_size(text)::little-16, text::binary, data::binary>>
    end

    header = &"{'descr': '<f4', 'fortran_order': False, 'shape': #{&1}}"
    load = &ExTorch.load({:binary, &1})

    assert {:error, %{reason: :truncated}} = load.(npy.(header.("(1000000000000,)"), ""))

    assert {:error, %{reason: :corrupt}} =
             load.(npy.(header.("(100000000000000000, 100000000000000000)"), ""))

    assert {:error, %{reason: :corrupt}} =
             load.(npy.(header.("(" <> String.duplicate("1,", 65) <> ")"), <<0::32>>))

    assert {:error, %{reason: :limit}} =
             load.(<<0x93, "NUMPY", 2, 0, 0xFFFFFFFF::little-32, 0::800>>)

    assert {:error, %{reason: :unsupported}} = load.(<<0x93, "NUMPY", 9, 0, 0::800>>)
    assert {:ok, tensor} = load.(npy.(header.("(0, 1000000000000000)"), ""))
    assert tensor.shape == {0, 1_000_000_000_000_000}
  end

  test "archives that lie" do
    alias ExTorch.Test.Zip
    array = fn shape, data -> header("<f4", shape) <> data end
    load = &ExTorch.load({:binary, IO.iodata_to_binary(Zip.make(&1))})

    assert {:ok, %{"a" => tensor, "d/b" => _}} =
             load.([
               {"a.npy", array.("(1,)", <<1.5::float-32-little>>)},
               {"d/b.npy", array.("()", <<0::32>>)}
             ])

    assert Tensor.to_list(tensor) == [1.5]

    assert {:error, %{reason: :corrupt, message: message}} =
             load.([{"a.npy", array.("(2,)", <<0::32>>)}])

    assert message =~ "a.npy does not fit its record"
    assert {:error, %{reason: :corrupt}} = load.([{"a.npy", "short"}])
    assert {:error, %{reason: :corrupt}} = load.([{"a.npy", "this is no array at all"}])
    # a member that is no array is only a record
    assert {:ok, map} = load.([{"a.npy", array.("()", <<0::32>>)}, {"readme.txt", "text"}])
    assert Map.keys(map) == ["a"]
  end

  defp header(descr, shape) do
    text = "{'descr': '#{descr}', 'fortran_order': False, 'shape': #{shape}}"
    text = String.pad_trailing(text, 118 - 1) <> "\n"
    <<0x93, "NUMPY", 1, 0, byte_size(text)::little-16, text::binary>>
  end
end
