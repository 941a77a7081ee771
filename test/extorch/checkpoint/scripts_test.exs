defmodule ExTorch.Checkpoint.ScriptsTest do
  # TorchScript that is frozen or for mobile, archives that are no checkpoints, and files without checksums.
  use ExTorch.Case
  alias ExTorch.{Checkpoint, Streaming}
  alias ExTorch.Python.Object
  alias ExTorch.Test.{FileSource, Python, Zip}

  @script """
  import sys, gzip, torch, warnings
  warnings.simplefilter("ignore")
  dir = sys.argv[1] + "/"
  class M(torch.nn.Module):
      def __init__(self):
          super().__init__()
          self.l = torch.nn.Linear(3, 2)
          self.register_buffer("b", torch.arange(2.))
      def forward(self, x):
          return self.l(x) * 2 + torch.tensor([1.5, 2.5]) + self.b
  m = M().eval()
  with torch.no_grad():
      m.l.weight.copy_(torch.arange(6.).reshape(2, 3)); m.l.bias.copy_(torch.tensor([7., 8.]))
  script = torch.jit.script(m)
  frozen = torch.jit.freeze(script)
  script.save(dir + "script.pt"); frozen.save(dir + "frozen.pt")
  script._save_for_lite_interpreter(dir + "script.ptl"); frozen._save_for_lite_interpreter(dir + "frozen.ptl")
  for name in ("script.pt", "frozen.pt", "script.ptl", "frozen.ptl"):
      open(dir + name + ".gz", "wb").write(gzip.compress(open(dir + name, "rb").read()))
  from torch.package import PackageExporter
  with PackageExporter(dir + "package.pt") as e:
      e.extern("**")
      e.save_pickle("model", "model.pkl", {"w": torch.arange(3.)})
  """

  setup_all do
    dir = Path.join(System.tmp_dir!(), "extorch_scripts_#{System.unique_integer([:positive])}")
    File.mkdir_p!(dir)
    on_exit(fn -> File.rm_rf!(dir) end)

    # torch.jit.script reads the source of the class
    script = Path.join(dir, "make.py")
    File.write!(script, @script)

    if Python.torch(),
      do: Python.run!("import runpy, sys; runpy.run_path(sys.argv[2])", [dir, script])

    {:ok, dir: dir}
  end

  defp ways(path) do
    stream = file_stream(path, 200)
    stream = if String.ends_with?(path, ".gz"), do: Streaming.gunzip(stream), else: stream
    {:ok, streamed, ""} = Streaming.load(stream)

    [
      ExTorch.load!(path),
      ExTorch.load!({:binary, File.read!(path)}),
      ExTorch.load!(%FileSource{path: path}),
      streamed
    ]
  end

  defp tensors(%Object{state: state}), do: tensors(state)
  defp tensors(%Tensor{} = tensor), do: [Tensor.to_list(tensor)]

  defp tensors(map) when is_map(map) and not is_struct(map),
    do: map |> Map.values() |> Enum.flat_map(&tensors/1)

  defp tensors(_), do: []

  @weights [[[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]], [7.0, 8.0], [0.0, 1.0], [1.5, 2.5]]

  for file <- ~w(frozen.pt frozen.ptl frozen.pt.gz frozen.ptl.gz) do
    @tag :python
    test "#{file} has its tensors as constants", %{dir: dir} do
      path = Path.join(dir, unquote(file))

      for object <- ways(path) do
        assert %Object{state: %{"CONSTANTS" => constants}} = object
        assert Enum.sort(tensors(constants)) == Enum.sort(@weights)
      end

      ckpt = Checkpoint.open!(path)
      assert %{format: :torchscript, constants: 4} = Checkpoint.metadata(ckpt)
      assert "CONSTANTS.c0" in Checkpoint.keys(ckpt)
      assert %Tensor{} = Checkpoint.tensor!(ckpt, "CONSTANTS.c0")
      assert %{"CONSTANTS" => %{"c0" => %Checkpoint.Entry{}}} = Checkpoint.object!(ckpt).state
      Checkpoint.close(ckpt)
    end
  end

  for file <- ~w(script.pt script.ptl script.pt.gz script.ptl.gz) do
    @tag :python
    test "#{file} has its tensors as attributes", %{dir: dir} do
      path = Path.join(dir, unquote(file))

      for object <- ways(path) do
        assert %Object{state: %{"b" => b, "l" => %Object{state: linear}}} = object
        assert Tensor.to_list(b) == [0.0, 1.0]
        assert Tensor.to_list(linear["bias"]) == [7.0, 8.0]
      end

      ckpt = Checkpoint.open!(path)
      assert "l.weight" in Checkpoint.keys(ckpt)
      assert %{format: :torchscript} = Checkpoint.metadata(ckpt)
      Checkpoint.close(ckpt)
    end
  end

  @tag :python
  test "a torch.package archive is named", %{dir: dir} do
    path = Path.join(dir, "package.pt")

    for result <- [
          ExTorch.load(path),
          Checkpoint.open(path),
          ExTorch.load({:binary, :zlib.gzip(File.read!(path))})
        ] do
      assert {:error, %{reason: :unsupported, message: message}} = result
      assert message =~ "torch.package archive"
      assert message =~ "PackageImporter"
    end

    assert {:error, %{reason: :unsupported}} = Streaming.load(file_stream(path, 100))
  end

  test "a module for mobile as a FlatBuffer is named" do
    for root <- [",", "(", "]", <<0x80>>, <<24>>, <<200, 1>>] do
      bytes = binary_part(root <> <<0::32>>, 0, 4) <> "PTMF" <> :binary.copy(<<0, 7>>, 900)

      for result <- [
            ExTorch.load({:binary, bytes}),
            Checkpoint.open({:binary, bytes}),
            ExTorch.load({:binary, :zlib.gzip(bytes)}),
            Streaming.load([bytes]),
            Streaming.load(for(<<byte <- bytes>>, do: <<byte>>))
          ] do
        assert {:error, %{reason: :unsupported, message: message}} = result
        assert message =~ "FlatBuffer"
        assert message =~ "_use_flatbuffer=False"
      end
    end
  end

  @tag :python
  test "a FlatBuffer of torch itself", %{dir: dir} do
    path = Path.join(dir, "flatbuffer.ptl")

    written =
      Python.run!(
        """
        import sys, torch
        module = torch.jit.script(torch.nn.Linear(2, 3))
        try: print(module._save_for_lite_interpreter(sys.argv[1], _use_flatbuffer=True))
        except Exception as error: print("not supported")
        """,
        [path]
      )

    if written == "None\n" do
      assert {:error, %{reason: :unsupported, message: message}} = ExTorch.load(path)
      assert message =~ "FlatBuffer"
    end
  end

  test "the oldest TorchScript is named" do
    file = Zip.make([{"m/version", "1"}, {"m/model.json", "{}"}, {"m/tensors/0", <<0::64>>}])
    assert {:error, %{reason: :unsupported, message: message}} = ExTorch.load({:binary, file})
    assert message =~ "model.json"
    assert message =~ "torch.jit.load"

    file = Zip.make([{"m/other", "1"}])
    assert {:error, %{reason: :corrupt, message: message}} = ExTorch.load({:binary, file})
    assert message =~ "its first record is m/other"
  end

  # ---- Checksums ----

  # Sets the CRC of records to 0, in the directory and in the descriptors.
  defp without_crc(file, which) do
    for {at, 4} <- :binary.matches(file, ["PK\x01\x02", "PK\x07\x08"]),
        offset = if(binary_part(file, at, 4) == "PK\x01\x02", do: 16, else: 4),
        reduce: file do
      file ->
        <<before::binary-size(at), entry::binary>> = file
        <<head::binary-size(offset), crc::binary-4, rest::binary>> = entry
        if which.(crc), do: before <> head <> <<0::32>> <> rest, else: file
    end
  end

  @tag :tmp_dir
  test "files that were written without checksums", %{tmp_dir: tmp} do
    path = Path.join(tmp, "t.pt")
    :ok = ExTorch.save(%{"a" => ExTorch.tensor([1.0, 2.0]), "b" => ExTorch.tensor([3])}, path)
    file = File.read!(path)
    absent = without_crc(file, fn _ -> true end)
    assert absent != file

    for {file, expected} <- [{file, :present}, {absent, :absent}], verify <- [true, false] do
      for source <- [{:binary, file}, {:binary, :zlib.gzip(file)}] do
        assert {:ok, %{"a" => a}} = ExTorch.load(source, verify: verify)
        assert Tensor.to_list(a) == [1.0, 2.0]
        ckpt = Checkpoint.open!(source, verify: verify)
        assert %{checksums: ^expected} = Checkpoint.metadata(ckpt)
        assert {:ok, _} = Checkpoint.tensor(ckpt, "a")
        Checkpoint.close(ckpt)
      end

      assert {:ok, %{"a" => a}, ""} = Streaming.load(chunks(file, [100]), verify: verify)
      assert Tensor.to_list(a) == [1.0, 2.0]
    end

    # only some: damage
    crcs =
      for {at, 4} <- :binary.matches(file, "PK\x01\x02"),
          binary_part(file, at + 46, 10) =~ "/data",
          do: binary_part(file, at + 16, 4)

    assert length(crcs) == 3

    for crc <- Enum.uniq(crcs), crc != <<0::32>> do
      damaged = without_crc(file, &(&1 == crc))

      assert {:error, %{reason: :corrupt, message: message}} =
               ExTorch.load({:binary, damaged}, verify: true)

      assert message =~ "damaged"

      assert {:error, %{reason: :corrupt, message: message}} =
               Streaming.load(chunks(damaged, [64]), verify: true)

      assert message =~ "damaged"
      assert {:ok, _} = ExTorch.load({:binary, damaged})
    end

    assert %{checksums: nil} =
             Checkpoint.metadata(
               Checkpoint.open!({:binary, ExTorch.Test.Formats.safetensors("{}")})
             )
  end
end
