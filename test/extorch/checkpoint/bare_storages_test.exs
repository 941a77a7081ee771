defmodule ExTorch.Checkpoint.BareStoragesTest do
  # Storages outside tensors: tensor.storage() in Python.
  use ExTorch.Case
  alias ExTorch.{Checkpoint, Error, Streaming, Tensor}
  alias ExTorch.Python.Storage
  alias ExTorch.Test.{FileSource, Python}

  @moduletag :tmp_dir

  @objects """
  import sys, torch, gzip, warnings
  warnings.simplefilter("ignore")
  def untyped(tensor):
      storage = tensor.storage()
      return storage._untyped() if hasattr(storage, "_untyped") else tensor.untyped_storage() if hasattr(
          tensor, "untyped_storage") else storage.untyped()
  def objects():
      t = torch.arange(12.0).reshape(3, 4)
      u8 = torch.arange(7, dtype=torch.uint8)
      q = torch.quantize_per_tensor(torch.arange(5.0), 0.5, 10, torch.quint8)
      every = [torch.tensor([1, 0, 1]).to(dtype).storage() for dtype in (
          torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
          torch.bool, torch.complex64, torch.complex128)]
      return {"top": t.storage(), "untyped": untyped(t), "list": [t.storage(), (t.storage(), 5), {"x": t[1:]}],
              "storage_first": {"s": t.storage(), "t": t, "rows": t[1:], "column": t[:, 1], "n": 5},
              "tensor_first": {"rows": t[1:], "s": t.storage()}, "every": every, "empty": [torch.zeros(0).storage()],
              "bytes": {"t": u8, "s": u8.storage(), "rest": u8[2:]}, "quantized": {"q": q.storage()}}
  def flat(x, name=""):
      if isinstance(x, dict):
          for key in sorted(x): yield from flat(x[key], name + "." + key)
      elif isinstance(x, (list, tuple)):
          for i, item in enumerate(x): yield from flat(item, name + "." + str(i))
      else: yield name, x
  def describe(x):
      seen, out = {}, []
      for name, leaf in flat(x):
          if not torch.is_tensor(leaf) and not isinstance(leaf, torch.storage.TypedStorage):
              out.append((name, leaf))
              continue
          storage = leaf.storage() if torch.is_tensor(leaf) else leaf
          place = (leaf.storage_offset(), tuple(leaf.shape), leaf.stride()) if torch.is_tensor(leaf) else None
          data = bytes(torch.tensor([], dtype=torch.uint8).set_(
              storage._untyped_storage if hasattr(storage, "_untyped_storage") else storage._storage).tolist())
          number = seen.setdefault(storage.data_ptr(), len(seen))
          out.append((name, type(leaf).__name__, str(leaf.dtype), storage.size(), place, data, number))
      return out
  """

  setup_all do
    dir = Path.join(System.tmp_dir!(), "extorch_bare_#{System.unique_integer([:positive])}")
    File.mkdir_p!(dir)
    on_exit(fn -> File.rm_rf!(dir) end)

    Python.torch() &&
      Python.run!(
        @objects <>
          """
          for name, x in objects().items():
              for legacy in (False, True):
                  path = sys.argv[1] + "/" + name + (".legacy.pt" if legacy else ".zip.pt")
                  torch.save(x, path, _use_new_zipfile_serialization=not legacy)
                  open(path + ".gz", "wb").write(gzip.compress(open(path, "rb").read()))
          """,
        [dir]
      )

    {:ok, dir: dir}
  end

  defp stream!(path) do
    chunks = file_stream(path, 100)
    chunks = if String.ends_with?(path, ".gz"), do: Streaming.gunzip(chunks), else: chunks
    {:ok, object, ""} = Streaming.load(chunks)
    object
  end

  @tag :python
  test "loaded by every way in and saved in every format with a pickle, Python sees the same storages",
       %{dir: dir, tmp_dir: out} do
    cases =
      for path <- Path.wildcard(dir <> "/*.pt*"),
          {way, load} <- [
            path: &ExTorch.load!/1,
            binary: &ExTorch.load!({:binary, File.read!(&1)}),
            mapped: &ExTorch.load!(&1, mmap: true),
            source: &ExTorch.load!(%FileSource{path: &1}),
            stream: &stream!/1
          ],
          format <- [:zip, :legacy],
          # gzip files cannot be mapped
          not (way == :mapped and String.ends_with?(path, ".gz")) do
        [name | _] = path |> Path.basename() |> String.split(".")
        file = Path.join(out, "#{Path.basename(path)}.#{way}.#{format}.pt")
        object = load.(path)
        assert :ok = ExTorch.save(object, file, format: format)
        assert {:ok, again, ""} = Streaming.load(Streaming.save(object, format: :streaming))
        assert :ok = ExTorch.save(again, file <> ".streamed.pt", format: format)
        [{name, file}, {name, file <> ".streamed.pt"}]
      end
      |> List.flatten()

    assert length(cases) == 9 * 2 * (5 + 4) * 2 * 2
    list = Path.join(out, "list.txt")
    File.write!(list, Enum.map(cases, fn {name, file} -> "#{name} #{file}\n" end))

    assert Python.run!(
             @objects <>
               """
               expected = {name: describe(x) for name, x in objects().items()}
               # torch.load returns untyped storages as typed ones of bytes
               expected["untyped"] = describe(torch.ByteStorage(list(bytes(objects()["untyped"].tolist()))))
               bad = 0
               for line in open(sys.argv[1]):
                   name, file = line.split()
                   if describe(torch.load(file)) != expected[name]:
                       bad += 1
                       print(file, describe(torch.load(file)), expected[name])
               print(bad)
               """,
             [list]
           ) == "0\n"
  end

  @tag :python
  @tag :torch
  test "what a storage is, and its entry", %{dir: dir} do
    for format <- ["zip", "legacy"] do
      path = Path.join(dir, "storage_first.#{format}.pt")
      object = ExTorch.load!(path)
      assert %Storage{dtype: :float32, numel: 12, location: "cpu", tensor: tensor} = object["s"]
      assert tensor.shape == {12}
      assert Tensor.to_list(tensor) == Enum.map(0..11, &(&1 * 1.0))
      ExTorch.op("mul_.Scalar", [object["t"], 2.0])
      assert Tensor.to_list(tensor) == Enum.map(0..11, &(&1 * 2.0))

      ckpt = Checkpoint.open!(path)
      assert Checkpoint.keys(ckpt) == ["s", "t", "rows", "column"]
      assert %{kind: :storage, shape: {12}, nbytes: 48} = Checkpoint.entry!(ckpt, "s")
      assert Tensor.to_list(Checkpoint.tensor!(ckpt, "s")) == Enum.map(0..11, &(&1 * 1.0))

      assert %{"s" => %Storage{tensor: %Checkpoint.Entry{name: "s"}}, "n" => 5} =
               Checkpoint.object!(ckpt)

      assert {:ok, %{"s" => _, "t" => _}} = Checkpoint.state_dict(path)
      assert ExTorch.load!(path, only: "t")["s"].tensor |> Map.get(:name) == "s"
    end

    top = ExTorch.load!(Path.join(dir, "top.zip.pt"))
    assert %Storage{dtype: :float32, numel: 12} = top
    assert %Storage{dtype: :uint8, numel: 48} = ExTorch.load!(Path.join(dir, "untyped.legacy.pt"))

    assert %{"q" => %Storage{dtype: :quint8, tensor: %{dtype: :uint8}}} =
             ExTorch.load!(Path.join(dir, "quantized.zip.pt"))
  end

  @tag :python
  @tag :torch
  test "convert keeps storages", %{dir: dir, tmp_dir: out} do
    path = Path.join(out, "x.pt")
    assert :ok = ExTorch.convert(Path.join(dir, "storage_first.legacy.pt"), path)
    assert %{"s" => %Storage{tensor: tensor}, "t" => t} = ExTorch.load!(path)
    ExTorch.op("mul_.Scalar", [t, 2.0])
    assert Tensor.to_list(tensor) == Enum.map(0..11, &(&1 * 2.0))
  end

  test "storages of one's own", %{tmp_dir: dir} do
    path = Path.join(dir, "x.pt")
    whole = ExTorch.tensor(Enum.to_list(0..9))
    part = ExTorch.op("slice.Tensor", [whole, 0, 2, 5])

    for format <- [:zip, :legacy] do
      assert :ok =
               ExTorch.save([%Storage{tensor: part}, whole, %Storage{tensor: whole}], path,
                 format: format
               )

      # a part of a storage becomes a storage of its own
      assert [%Storage{numel: 3, tensor: part}, again, %Storage{numel: 10, key: key}] =
               ExTorch.load!(path)

      assert Tensor.to_list(part) == [2, 3, 4]
      assert Tensor.to_list(again) == Enum.to_list(0..9)
      assert %{storage: ^key} = path |> Checkpoint.open!() |> Checkpoint.entry!("1")
    end

    blob = Tensor.Blob.to_blob(whole)
    inside = Tensor.Blob.from_blob(%{blob | shape: {4}, strides: [1]})

    for {tensor, words} <- [
          {nil, "needs its elements as a tensor"},
          {5, "needs its elements as a tensor"},
          {ExTorch.tensor([[1.0]]), "one dimension"},
          {ExTorch.tensor(1), "one dimension"},
          {ExTorch.op("slice.Tensor", [whole, 0, 0, 10, 2]), "contiguous"},
          {Tensor.to(part, device: :meta), "data"}
        ] do
      assert {:error, %Error{reason: :bad_argument, message: message}} =
               ExTorch.save(%{"s" => %Storage{tensor: tensor}}, path)

      assert message =~ words
      assert message =~ ~s(term["s"])
    end

    assert {:error, %Error{reason: :bad_argument, message: message}} =
             ExTorch.save([whole, %Storage{tensor: inside}], path)

    assert message =~ "shares memory with a tensor that extends past it"

    Tensor.release(part)

    assert {:error, %Error{reason: :released}} = ExTorch.save(%Storage{tensor: part}, path)
  end

  test "formats that have no pickle cannot represent them", %{tmp_dir: dir} do
    storage = %Storage{tensor: ExTorch.tensor([1.0])}

    for name <- ["x.safetensors", "x.npz", "x.npy"] do
      term = if name == "x.npy", do: storage, else: %{"s" => storage}
      path = Path.join(dir, name)

      assert {:error, %Error{reason: :bad_argument, message: message}} = ExTorch.save(term, path)
      assert message =~ "to be a tensor" or message =~ "expected a tensor"
      assert message =~ "ExTorch.Python.Storage"
      refute File.exists?(path)
    end

    # the folders of torch.distributed.checkpoint have pickles of values
    folder = Path.join(dir, "folder")
    assert :ok = ExTorch.save(%{"s" => storage}, folder, format: :dcp)
    assert %{"s" => %Storage{tensor: tensor}} = ExTorch.load!(folder)
    assert Tensor.to_list(tensor) == [1.0]
  end
end
