defmodule ExTorch.CheckpointTest do
  use ExTorch.Case
  alias ExTorch.{Checkpoint, DType}
  alias ExTorch.Python.{Complex, RawTensor}
  alias ExTorch.Test.{FileSource, JSON, Pickle, Python, Zip}
  doctest ExTorch.Python.Dict

  # torch 1.13 does not save the conj bit: its file holds other values than the tensor had.
  @fixtures Path.wildcard("test/fixtures/[12]*/*.{pt,stream,safetensors}")
            |> Enum.reject(&String.contains?(&1, ["script", "sparse", "1.13.0a0/conj"]))

  # ---- The fixtures: every tensor's description and bytes, by every way to read it ----

  defp described(file) do
    file
    |> String.replace(~r/(\.proto4|\.legacy)?\.(pt|stream)$/, ".json")
    |> String.replace(~r/\.safetensors$/, ".safetensors.json")
    |> File.read!()
    |> JSON.decode!()
  end

  defp at(object, []), do: object
  defp at(object, [key | path]) when is_list(object), do: object |> Enum.at(key) |> at(path)
  defp at(object, [key | path]) when is_tuple(object), do: object |> elem(key) |> at(path)

  defp at(%ExTorch.Python.Dict{} = dict, [key | path]),
    do: dict |> ExTorch.Python.Dict.fetch(key) |> elem(1) |> at(path)

  defp at(object, [key | path]), do: object |> Map.fetch!(key) |> at(path)

  # Row-major bytes of whatever stands for a tensor.
  defp bytes(%Tensor{dtype: dtype} = tensor) when dtype in [:quint8, :qint8] do
    Tensor.to_binary(ExTorch.op("int_repr", [tensor]))
  end

  defp bytes(%Tensor{} = tensor), do: Tensor.to_binary(tensor)

  defp bytes(%RawTensor{shape: shape, strides: strides, data: data, dtype: dtype}) do
    size = DType.size(dtype)

    Enum.zip(Tuple.to_list(shape), Tuple.to_list(strides))
    |> Enum.reduce([0], fn {n, stride}, offsets ->
      for at <- offsets, i <- Enum.take(0..n, n), do: at + i * stride
    end)
    |> Enum.map_join(&binary_part(data, &1 * size, size))
  end

  defp check_tensor(expected, entry, read, context) do
    dtype = String.to_existing_atom(expected["dtype"])
    assert {entry.dtype, Tuple.to_list(entry.shape)} == {dtype, expected["shape"]}, context
    assert Tuple.to_list(entry.strides) == expected["strides"], context
    assert entry.offset == expected["offset"], context
    assert entry.requires_grad == expected["requires_grad"], context
    assert Base.encode16(bytes(read), case: :lower) == expected["bytes"], context
  end

  for file <- @fixtures do
    test "#{file}" do
      file = unquote(file)
      expected = described(file)

      for opts <- [
            [],
            [mmap: true],
            [verify: true],
            [ordered: true],
            [source: :binary],
            [source: :struct]
          ] do
        {kind, opts} = Keyword.pop(opts, :source, :path)
        source = source(kind, file)
        {:ok, ckpt} = Checkpoint.open(source, opts)
        # a source cannot give tensors of several storages
        several = kind == :struct and String.contains?(file, "quantized")
        loaded = unless several, do: ExTorch.load!(source(kind, file), opts)

        for %{"kind" => "tensor", "path" => path} = item <- expected do
          {:ok, entry} = Checkpoint.entry(ckpt, path)
          assert entry.path == path
          in_place = loaded && at(loaded, path)

          if loaded,
            do:
              check_tensor(
                item,
                entry,
                in_place,
                "#{file} #{inspect(path)} loaded, #{inspect(opts)}"
              )

          case Checkpoint.tensor(ckpt, path) do
            {:error, %{reason: :unsupported, message: "cannot read a tensor of several" <> _}} ->
              assert kind == :struct

            {:ok, tensor} ->
              check_tensor(item, entry, tensor, "#{file} #{inspect(path)}, #{inspect(opts)}")
              assert Tensor.requires_grad(tensor) == item["requires_grad"]

            {:error, error} ->
              assert error.reason == :unsupported
              refute DType.supported?(entry.dtype)
              assert %RawTensor{} = in_place
          end
        end

        assert length(Checkpoint.keys(ckpt)) ==
                 Enum.count(expected, &(&1["kind"] in ["tensor", "meta"]))

        Checkpoint.close(ckpt)
      end
    end
  end

  defp source(:path, file), do: file
  defp source(:binary, file), do: {:binary, File.read!(file)}
  defp source(:struct, file), do: %FileSource{path: file}

  test "sparse tensors, whole and checked" do
    for version <- ~w(1.13.0a0 2.6.0 2.14.1),
        suffix <- ~w(pt legacy.pt),
        opts <- [[], [mmap: true], [verify: true]] do
      file = "test/fixtures/#{version}/sparse.#{suffix}"
      ckpt = Checkpoint.open!(file, opts)
      loaded = ExTorch.load!(file, opts)
      assert Checkpoint.keys(ckpt) == ["coo", "csr"]
      eye = for i <- 0..2, do: for(j <- 0..2, do: if(i == j, do: 1.0, else: 0.0))

      for {name, kind} <- [{"coo", :sparse_coo}, {"csr", :sparse_csr}] do
        assert %{kind: ^kind, shape: {3, 3}, dtype: :float32, strides: nil, device: "cpu"} =
                 Checkpoint.entry!(ckpt, name)

        for tensor <- [loaded[name], Checkpoint.tensor!(ckpt, name)] do
          assert Tensor.strides(tensor) == nil
          assert Tensor.to_list(tensor) == eye
        end
      end
    end
  end

  test "sparse tensors whose indices leave the shape are refused" do
    indices =
      Pickle.tensor(
        key: Pickle.text("0"),
        class: Pickle.global("torch", "LongStorage"),
        numel: Pickle.int(2),
        size: Pickle.tuple([Pickle.int(1), Pickle.int(2)]),
        stride: Pickle.tuple([Pickle.int(2), Pickle.int(1)])
      )

    values =
      Pickle.tensor(
        key: Pickle.text("1"),
        numel: Pickle.int(2),
        size: Pickle.tuple([Pickle.int(2)])
      )

    layout =
      Pickle.reduce(Pickle.global("torch.serialization", "_get_layout"), [
        Pickle.text("torch.sparse_coo")
      ])

    sparse = fn parts ->
      Pickle.make(
        Pickle.reduce(Pickle.global("torch._utils", "_rebuild_sparse_tensor"), [
          layout,
          Pickle.tuple(parts)
        ])
      )
    end

    size = Pickle.tuple([Pickle.int(4)])

    data = fn a, b ->
      %{
        "0" => <<a::little-64, b::little-64>>,
        "1" => <<1.0::float-32-little, 2.0::float-32-little>>
      }
    end

    assert {:ok, t} =
             ExTorch.load(
               {:binary, Zip.checkpoint(sparse.([indices, values, size]), data.(1, 3))}
             )

    assert Tensor.to_list(t) == [0.0, 1.0, 0.0, 2.0]

    for bad <- [data.(0, 4), data.(0, -1), data.(0, 2 ** 40)] do
      assert {:error, %{reason: :corrupt}} =
               ExTorch.load({:binary, Zip.checkpoint(sparse.([indices, values, size]), bad)})
    end

    for parts <- [[indices, size], [indices, Pickle.int(1), size], [indices, values]] do
      assert {:error, %{reason: :corrupt}} =
               ExTorch.load({:binary, Zip.checkpoint(sparse.(parts), data.(0, 1))})
    end
  end

  test "every other value of the nested fixture" do
    for version <- ~w(1.13.0a0 2.6.0 2.14.1), suffix <- ~w(pt proto4.pt) do
      {:ok, object} = ExTorch.load("test/fixtures/#{version}/nested.#{suffix}")
      assert object["epoch"] == 12
      assert object["best"] == 0.25
      assert object["name"] == "ünïcode ✓"
      assert object["done"] == true
      assert object["big"] == 2 ** 80
      assert object["neg"] == -(2 ** 70)
      assert object["inf"] == :infinity
      assert object["nan"] == :nan
      assert object["raw"] == %ExTorch.Python.Bytes{data: <<0, 255, 16>>}
      assert object["size"] == {2, 3}
      assert object["dtype"] == %ExTorch.Python.DType{name: :float16}
      assert object["device"] == %ExTorch.Python.Device{type: "cpu", index: nil}
      assert object["ids"] == MapSet.new([1, 2, 3])
      assert object["z"] == %Complex{re: 1.0, im: -2.0}
      assert object[5] == "integer key"
      assert object[{1, "t"}] == "tuple key"
      assert {%Tensor{}, nil} = object["pair"]
      assert [1.5, 2.5, %Tensor{}] = object["history"]
      assert object["optimizer"]["param_groups"] |> hd() |> Map.get("betas") == {0.9, 0.999}
    end
  end

  test "views share their storage again, and only then" do
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

  # ---- Asking ----

  describe "names" do
    setup do
      [path: "test/fixtures/2.14.1/nested.pt"]
    end

    test "are in file order, dotted or paths", %{path: path} do
      ckpt = Checkpoint.open!(path)

      assert Enum.take(Checkpoint.keys(ckpt), 3) == [
               "model.0.weight",
               "model.0.bias",
               "model.1.weight"
             ]

      assert Checkpoint.tensor!(ckpt, "optimizer.state.0.step").shape == {}
      assert Checkpoint.tensor!(ckpt, ["optimizer", "state", 0, "step"]).shape == {}

      assert {:error, %{reason: :not_found}} =
               Checkpoint.tensor(ckpt, ["optimizer", "state", "0", "step"])

      assert Checkpoint.tensor!(ckpt, "history.2") |> Tensor.to_list() == [1, 2]
      assert Enum.map(Checkpoint.entries(ckpt), & &1.name) == Checkpoint.keys(ckpt)

      assert inspect(ckpt) ==
               "#ExTorch.Checkpoint<nested.pt, #{length(Checkpoint.keys(ckpt))} tensors>"
    end

    test "a wrong name suggests near ones", %{path: path} do
      ckpt = Checkpoint.open!(path)
      assert {:error, error} = Checkpoint.tensor(ckpt, "model.0.wieght")
      assert error.reason == :not_found
      assert error.path == path
      assert error.message =~ ~s("model.0.weight")
      assert {:error, %{reason: :not_found}} = Checkpoint.entry(ckpt, [])
      assert_raise Error, fn -> Checkpoint.entry!(ckpt, "nothing like it") end
    end

    test "a name that two paths share is ambiguous" do
      pickle =
        Pickle.make(
          Pickle.dict([
            {"a.b", Pickle.tensor()},
            {"a",
             Pickle.dict([
               {"b", Pickle.tensor(offset: Pickle.int(1), size: Pickle.tuple([Pickle.int(1)]))}
             ])}
          ])
        )

      ckpt =
        Checkpoint.open!(
          {:binary, Zip.checkpoint(pickle, %{"0" => <<1.0::float-32-little, 0::96>>})}
        )

      assert Checkpoint.keys(ckpt) == ["a.b", "a.b"]
      assert {:error, error} = Checkpoint.tensor(ckpt, "a.b")
      assert error.reason == :ambiguous
      assert error.message =~ ~s(["a.b"]) and error.message =~ ~s(["a", "b"])
      assert Checkpoint.tensor!(ckpt, ["a.b"]).shape == {4}
      assert Checkpoint.tensor!(ckpt, ["a", "b"]).shape == {1}
    end

    test "the root itself" do
      ckpt = Checkpoint.open!("test/fixtures/2.6.0/tensor.pt")
      assert Checkpoint.keys(ckpt) == [""]
      assert Checkpoint.tensor!(ckpt, []).shape == {3, 4}
      assert %Tensor{shape: {3, 4}} = ExTorch.load!("test/fixtures/2.6.0/tensor.pt")
    end
  end

  test "object, metadata, storages and records" do
    ckpt = Checkpoint.open!("test/fixtures/2.14.1/state_dict.pt")

    assert {:ok, %{"0.weight" => %Checkpoint.Entry{name: "0.weight", shape: {4, 3, 3, 3}}}} =
             Checkpoint.object(ckpt)

    assert %{format: :zip, byteorder: :little, version: "3", alignment: "64", format_version: "1"} =
             Checkpoint.metadata(ckpt)

    assert [%{key: "0", nbytes: 432, location: "cpu"} | _] = Checkpoint.storages(ckpt)
    assert Checkpoint.has_storage?(ckpt, "0") and Checkpoint.has_storage?(ckpt, "data/0")
    refute Checkpoint.has_storage?(ckpt, "99")
    assert {:ok, bytes} = Checkpoint.read_storage(ckpt, "0")
    assert bytes == Tensor.to_binary(Checkpoint.tensor!(ckpt, "0.weight"))
    assert Checkpoint.read_storage(ckpt, "data/0", 4, 8) == {:ok, binary_part(bytes, 4, 8)}
    assert Checkpoint.read_storage(ckpt, "0", 432, 0) == {:ok, ""}
    assert {:error, %{reason: :bad_argument}} = Checkpoint.read_storage(ckpt, "0", 430, 3)
    assert {:error, %{reason: :bad_argument}} = Checkpoint.read_storage(ckpt, "0", 2 ** 63, 3)
    assert {:error, %{reason: :not_found}} = Checkpoint.read_storage(ckpt, "99")
    assert "data.pkl" in Checkpoint.records(ckpt)
    assert Checkpoint.read_record(ckpt, "version") == {:ok, "3\n"}
    assert {:error, %{reason: :not_found}} = Checkpoint.read_record(ckpt, "../../etc/passwd")
    assert Checkpoint.read_storage!(ckpt, "0") == bytes
    assert Checkpoint.read_storage!(ckpt, "0", 4, 8) == binary_part(bytes, 4, 8)
    assert Checkpoint.read_record!(ckpt, "version") == "3\n"
    assert reason(fn -> Checkpoint.read_record!(ckpt, "none") end) == :not_found

    assert Checkpoint.metadata(Checkpoint.open!("test/fixtures/1.13.0a0/script.pt")).format ==
             :torchscript
  end

  test "a closed handle says so, and its tensors live on" do
    ckpt = Checkpoint.open!("test/fixtures/2.6.0/views.pt", mmap: true)
    tensor = Checkpoint.tensor!(ckpt, "base")
    assert Checkpoint.close(ckpt) == :ok
    assert Checkpoint.close(ckpt) == :ok
    assert {:error, %{reason: :released}} = Checkpoint.tensor(ckpt, "base")
    assert_raise Error, fn -> Checkpoint.keys(ckpt) end
    assert inspect(ckpt) == "#ExTorch.Checkpoint<closed>"
    assert length(Tensor.to_list(tensor)) == 24
  end

  test "stream goes through in file order" do
    ckpt = Checkpoint.open!("test/fixtures/2.14.1/many.pt")
    assert ckpt |> Checkpoint.stream() |> Enum.map(&elem(&1, 0)) == Checkpoint.keys(ckpt)
    assert [{"t03", tensor}] = ckpt |> Checkpoint.stream(only: "t03") |> Enum.to_list()
    assert Tensor.to_list(tensor) == [3.0, 3.0, 3.0]
  end

  test "only reads what it selects" do
    file = "test/fixtures/2.14.1/many.pt"
    assert {:ok, map} = ExTorch.load(file, only: ["t01", ~r/^t2/])
    assert map |> Map.keys() |> Enum.sort() == ~w(t01 t20 t21 t22 t23 t24)

    assert {:ok, map} =
             ExTorch.load(file,
               only: fn name, entry -> name == "t05" and entry.dtype == :float32 end,
               ordered: true
             )

    assert [{"t05", %Tensor{}}] = map.pairs

    assert {:ok, [%Checkpoint.Entry{}, [%Tensor{}]]} =
             ExTorch.load("test/fixtures/2.14.1/list.pt", only: "1.0")

    assert reason(fn -> ExTorch.load!(file, only: 5) end) == :bad_argument
    source = %FileSource{path: file, log: self()}
    assert {:ok, _} = ExTorch.load(source, only: "t03")
    assert_received :closed
    refute_received :closed
    big = for {:read, _, n} <- flush(), n > 1000, do: n
    # the beginning and the end of the file, its directory and the pickle
    assert length(big) <= 4
  end

  defp flush do
    receive do
      message -> [message | flush()]
    after
      0 -> []
    end
  end

  test "options are checked" do
    file = "test/fixtures/2.14.1/many.pt"

    for opts <- [
          [nope: 1],
          [mmap: 1],
          [limits: [nope: 1]],
          [limits: [depth: 0]],
          [limits: [depth: "x"]],
          [on_progress: 1],
          [device: :gpu]
        ] do
      assert reason(fn -> ExTorch.load(file, opts) end) == :bad_argument
    end

    assert {:error, %{reason: :bad_argument}} = ExTorch.load(:nope)
    assert {:error, %{reason: :not_found, path: "no/such.pt"}} = ExTorch.load("no/such.pt")
    assert {:error, %{reason: :io}} = ExTorch.load("test")
    assert {:error, %{reason: :not_found}} = ExTorch.load("a\0b")
    assert_raise Error, ~r/no\/such.pt/, fn -> ExTorch.load!("no/such.pt") end
  end

  test "device takes a map or a function of the saved location" do
    file = "test/fixtures/2.14.1/many.pt"
    assert {:ok, %{"t00" => %{device: :meta}}} = ExTorch.load(file, device: :meta)
    assert {:ok, %{"t00" => %{device: :meta}}} = ExTorch.load(file, device: %{"cpu" => :meta})
    assert {:ok, %{"t00" => %{device: :cpu}}} = ExTorch.load(file, device: %{"cuda:0" => :meta})
    assert {:ok, %{"t00" => %{device: :cpu}}} = ExTorch.load(file, device: fn "cpu" -> :cpu end)
    pickle = Pickle.make(Pickle.tensor(location: Pickle.text("cuda:1")))
    ckpt = Checkpoint.open!({:binary, Zip.checkpoint(pickle, %{"0" => <<0::128>>})})
    assert Checkpoint.entry!(ckpt, []).device == "cuda:1"
    assert Checkpoint.tensor!(ckpt, []).device == :cpu
  end

  test "limits" do
    file = "test/fixtures/2.14.1/views.pt"
    assert {:error, %{reason: :limit}} = ExTorch.load(file, limits: [pickle_bytes: 10])
    assert {:error, %{reason: :limit}} = ExTorch.load(file, limits: [nodes: 5])
    assert {:error, %{reason: :limit}} = ExTorch.load(file, limits: [tensor_bytes: 30])
    assert {:error, %{reason: :limit}} = ExTorch.load(file, limits: [total_bytes: 30])

    assert {:error, %{reason: :limit}} =
             ExTorch.load("test/fixtures/2.14.1/nested.pt", limits: [depth: 2])
  end

  test "progress" do
    me = self()

    assert {:ok, _} =
             ExTorch.load("test/fixtures/2.14.1/many.pt",
               on_progress: fn done, total -> send(me, {done, total}) end
             )

    assert_received {300, 300}
    assert {:ok, _} = ExTorch.load("test/fixtures/2.14.1/many.pt", on_progress: &send(me, &1))
    assert_received %{done: 300, total: 300}
  end

  # ---- Python writes, we read ----

  @tag :python
  @tag :tmp_dir
  test "fresh random checkpoints of the installed torch", %{tmp_dir: dir} do
    Python.run!(
      """
      import sys, torch, collections, random
      random.seed(5); torch.manual_seed(5)
      dts = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64]
      for n in range(12):
          obj, lines = {}, []
          bases = []
          for i in range(random.randint(1, 30)):
              if bases and random.random() < 0.4:
                  t = random.choice(bases)
                  for _ in range(random.randint(1, 3)):
                      if t.dim() and random.random() < 0.5:
                          d = random.randrange(t.dim()); s = t.size(d)
                          a = random.randint(0, s); b = random.randint(a, s)
                          t = t.narrow(d, a, b - a)
                          if t.size(d) > 1 and random.random() < 0.3: t = t[(slice(None),) * d + (slice(None, None, 2),)]
                      elif t.dim() > 1:
                          t = t.transpose(random.randrange(t.dim()), random.randrange(t.dim()))
                      elif t.dim() == 1 and t.size(0) == 1: t = t.expand(random.randint(1, 4))
              else:
                  shape = [random.randint(0, 6) for _ in range(random.randint(0, 4))]
                  dt = random.choice(dts)
                  t = (torch.randn(shape) * 10).to(dt)
                  bases.append(t)
              obj["k%d" % i] = t
              raw = t.detach().contiguous().clone()
              import ctypes
              h = ctypes.string_at(raw.data_ptr(), raw.numel() * raw.element_size()).hex() if raw.numel() else ""
              lines.append("%s|%s|%s|%s|%d|%s" % ("k%d" % i, str(t.dtype)[6:], ",".join(map(str, t.shape)), ",".join(map(str, t.stride())), t.storage_offset(), h))
          torch.save(obj, "%s/%d.pt" % (sys.argv[1], n))
          open("%s/%d.txt" % (sys.argv[1], n), "w").write("\\n".join(lines))
      """,
      [dir]
    )

    for n <- 0..11 do
      path = Path.join(dir, "#{n}.pt")
      ckpt = Checkpoint.open!(path)
      loaded = ExTorch.load!(path)

      for line <- Path.join(dir, "#{n}.txt") |> File.read!() |> String.split("\n", trim: true) do
        [name, dtype, shape, strides, offset, hex] = String.split(line, "|")
        entry = Checkpoint.entry!(ckpt, name)
        assert to_string(entry.dtype) == dtype
        assert entry.shape |> Tuple.to_list() |> Enum.join(",") == shape
        assert entry.strides |> Tuple.to_list() |> Enum.join(",") == strides
        assert to_string(entry.offset) == offset

        for tensor <- [Checkpoint.tensor!(ckpt, name), loaded[name]] do
          assert Base.encode16(Tensor.to_binary(tensor), case: :lower) == hex, "#{name} of #{n}"
        end
      end
    end
  end

  # ---- Sparse reading ----

  test "rows are gathered where the span is much larger" do
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

    dir = System.tmp_dir!() |> Path.join("extorch_gather_#{System.unique_integer([:positive])}")
    File.mkdir_p!(dir)
    path = Path.join(dir, "gather.pt")
    File.write!(path, Zip.checkpoint(pickle, %{"0" => data}))

    try do
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
    after
      File.rm_rf!(dir)
    end
  end
end
