defmodule ExTorch.ConvertTest do
  use ExTorch.Case
  alias ExTorch.{Checkpoint, Diff}
  alias ExTorch.Test.{FileSource, Python}

  @moduletag :tmp_dir

  @object_formats [:zip, :legacy, :streaming]

  defp save(term, dir, name, opts \\ []) do
    path = Path.join(dir, name)
    ExTorch.save!(term, path, opts)
    path
  end

  defp format(path), do: Checkpoint.metadata(Checkpoint.open!(path)).format
  defp same?(a, b, opts \\ []), do: Diff.equal?(ExTorch.diff!(a, b, opts))

  defp training,
    do: %{
      "model" => %{"w" => ExTorch.tensor([[1.5, -2.0]]), "n" => ExTorch.tensor([3])},
      "epoch" => 7
    }

  test "between the formats of torch.save the whole object is kept", %{tmp_dir: dir} do
    for file <- Path.wildcard("test/fixtures/2.14.1/*.{pt,stream}"),
        not String.contains?(file, ["script", "dtypes"]),
        to <- @object_formats do
      path = Path.join(dir, "out.pt")
      assert ExTorch.convert(file, path, format: to, fsync: false) == :ok
      assert format(path) == to
      assert same?(file, path), "#{file} to #{to}: #{inspect(ExTorch.diff!(file, path))}"
    end
  end

  @tag :python
  test "Python sees an equal object, value by value", %{tmp_dir: dir} do
    # torch 1.13 does not read the sparse tensors that newer versions write
    files =
      "test/fixtures/1.13.0a0/*.pt"
      |> Path.wildcard()
      |> Enum.reject(&String.contains?(&1, ["script", "sparse"]))

    pairs =
      for {file, i} <- Enum.with_index(files), format <- [:zip, :legacy] do
        path = Path.join(dir, "#{i}-#{format}.pt")
        assert ExTorch.convert(file, path, format: format, fsync: false) == :ok
        {file, path, false}
      end

    assert Python.compare!(pairs, dir) == length(pairs)
  end

  @tag :python
  test "to safetensors and back, with the values of torch", %{tmp_dir: dir} do
    [pt, st, back] = Enum.map(~w(a.pt a.safetensors back.pt), &Path.join(dir, &1))

    Python.run!(
      """
      import torch, sys
      x = torch.arange(24.).reshape(2, 3, 4)
      torch.save({"enc.w": x, "enc.t": (x + 1).transpose(0, 1), "half": x.half(), "int": torch.tensor([1, -2]),
                  "bool": torch.tensor([True, False]), "scalar": torch.tensor(2.5), "empty": torch.zeros(0, 3),
                  "bf": x.bfloat16(), "part": (x + 2)[1:, :, 2:], "u8": torch.arange(7, dtype=torch.uint8)}, sys.argv[1])
      """,
      [pt]
    )

    assert ExTorch.convert(pt, st) == :ok
    assert format(st) == :safetensors
    assert Checkpoint.metadata(Checkpoint.open!(st)).metadata == %{"format" => "pt"}
    assert ExTorch.convert(st, back) == :ok

    assert Python.run!(
             """
             import torch, sys, json
             a, b = torch.load(sys.argv[1]), torch.load(sys.argv[2])
             raw = open(sys.argv[3], "rb").read()
             n = int.from_bytes(raw[:8], "little")
             header = json.loads(raw[8:8 + n])
             assert set(header) - {"__metadata__"} == set(a) == set(b)
             for k in a:
                 assert a[k].dtype == b[k].dtype and a[k].shape == b[k].shape and torch.equal(a[k], b[k]), k
                 first, last = header[k]["data_offsets"]
                 bytes_ = raw[8 + n + first:8 + n + last]
                 flat = a[k].contiguous().flatten()
                 assert header[k]["shape"] == list(a[k].shape), k
                 if flat.numel(): assert torch.equal(torch.frombuffer(bytearray(bytes_), dtype=a[k].dtype), flat), k
             print("same")
             """,
             [pt, back, st]
           ) == "same\n"
  end

  test "what is not a tensor is an error, unless it is left out on request", %{tmp_dir: dir} do
    pt = save(training(), dir, "a.pt")
    st = Path.join(dir, "a.safetensors")
    assert {:error, %Error{reason: :bad_argument} = error} = ExTorch.convert(pt, st)
    assert {error.path, error.message =~ ~s("epoch"), File.exists?(st)} == {pt, true, false}
    assert ExTorch.convert(pt, st, tensors_only: true) == :ok
    assert Enum.sort(Map.keys(ExTorch.load!(st))) == ["model.n", "model.w"]
    assert ExTorch.convert(pt, st, top_level_key: "model") == :ok
    assert Enum.sort(Map.keys(ExTorch.load!(st))) == ["n", "w"]
    flat = Path.join(dir, "flat.pt")
    assert ExTorch.convert(pt, flat, tensors_only: true) == :ok
    assert Enum.sort(Map.keys(ExTorch.load!(flat))) == ["model.n", "model.w"]
    assert {:error, %Error{}} = ExTorch.convert(pt, flat, rename: [{~r/w/, "v"}])

    script = "test/fixtures/2.14.1/script.pt"
    assert {:error, %Error{message: message}} = ExTorch.convert(script, flat)
    assert message =~ "TorchScript"
    assert ExTorch.convert(script, flat, tensors_only: true) == :ok

    assert Enum.sort(Map.keys(ExTorch.load!(flat))) ==
             Enum.sort(Map.keys(Checkpoint.state_dict!(script)))

    module = "test/fixtures/more/module.pt"
    assert ExTorch.convert(module, st, tensors_only: true) == :ok

    assert ExTorch.load!(st) |> Map.keys() |> Enum.sort() ==
             Checkpoint.state_dict!(module) |> Map.keys() |> Enum.sort()
  end

  test "filters keep the structure, renaming makes it flat", %{tmp_dir: dir} do
    pt = save(training(), dir, "a.pt")
    out = Path.join(dir, "out.pt")
    assert ExTorch.convert(pt, out, only: "model.w") == :ok
    assert %{"epoch" => 7, "model" => %{"w" => _} = model} = ExTorch.load!(out)
    assert map_size(model) == 1
    assert ExTorch.convert(pt, out, except: "model.w") == :ok
    assert %{"model" => %{"n" => _}} = ExTorch.load!(out)
    opts = [rename: [{~r/^model\./, "m."}], tensors_only: true, only: {:prefix, "m.w"}]
    assert ExTorch.convert(pt, out, opts) == :ok
    assert Map.keys(ExTorch.load!(out)) == ["m.w"]
    before = File.read!(out)

    assert {:error, %Error{reason: :not_found, message: message}} =
             ExTorch.convert(pt, out, only: "w")

    assert message =~ ~s("model.w")
    assert File.read!(out) == before

    list = save([ExTorch.ones({1}), ExTorch.ones({2})], dir, "list.pt")
    assert {:error, %Error{message: message}} = ExTorch.convert(list, out, only: "1")
    assert message =~ ~s("0" cannot be left out)
    assert ExTorch.convert(list, out, only: "1", tensors_only: true) == :ok
    assert [{"1", %{shape: {2}}}] = Map.to_list(ExTorch.load!(out))

    # a part of a storage: only its own bytes are written
    base = ExTorch.zeros({100_000})

    views =
      save(
        %{"a" => Tensor.slice(base, 0, 0..9), "b" => Tensor.slice(base, 0, 10..-1//1)},
        dir,
        "views.pt"
      )

    assert ExTorch.convert(views, out, only: "a") == :ok
    assert File.stat!(out).size < 5000
  end

  test "dtypes", %{tmp_dir: dir} do
    x = Tensor.requires_grad(ExTorch.tensor([1.0, 2.5]), true)
    shared = ExTorch.ones({4})

    pt =
      save(
        %{
          "w" => x,
          "d" => ExTorch.tensor([0.1], dtype: :float64),
          "i" => ExTorch.tensor([300]),
          "s" => [shared, shared],
          "z" => ExTorch.tensor([%ExTorch.Python.Complex{re: 1.0, im: 2.0}])
        },
        dir,
        "a.pt"
      )

    out = Path.join(dir, "out.pt")

    dtypes = fn opts ->
      assert ExTorch.convert(pt, out, opts) == :ok
      for {name, t} <- Checkpoint.open!(out), into: %{}, do: {name, t.dtype}
    end

    assert dtypes.(dtype: :float16) ==
             %{
               "w" => :float16,
               "d" => :float16,
               "i" => :int64,
               "s.0" => :float16,
               "s.1" => :float16,
               "z" => :complex64
             }

    loaded = ExTorch.load!(out)
    assert {Tensor.to_list(loaded["w"]), Tensor.requires_grad(loaded["w"])} == {[1.0, 2.5], true}
    assert [s0, s1] = loaded["s"]
    ExTorch.op("fill_", [s0, 3.0])
    assert Tensor.to_list(s1) == [3.0, 3.0, 3.0, 3.0]
    assert length(Checkpoint.storages(Checkpoint.open!(out))) == 5

    assert %{"d" => :float32, "w" => :float32, "i" => :int32} =
             dtypes.(dtype: %{float64: :float, long: {:s, 32}})

    assert %{"w" => :bfloat16, "d" => :float64} =
             dtypes.(dtype: fn name -> if name == "w", do: :bfloat16 end)

    assert %{"w" => :float32, "i" => :int8} =
             dtypes.(dtype: fn _, e -> if e.dtype == :int64, do: :int8 end)

    for bad <- [:int8, :float31, 5, "float61", %{float32: :x}] do
      assert reason(fn -> ExTorch.convert(pt, out, dtype: bad) end) == :bad_argument
    end

    assert reason(fn -> ExTorch.convert!(pt, out, dtype: fn _ -> :x end) end) == :bad_argument
  end

  @tag :python
  test "converted values are those of torch, also of views", %{tmp_dir: dir} do
    [pt, out, st] = Enum.map(~w(a.pt out.pt out.safetensors), &Path.join(dir, &1))

    Python.run!(
      """
      import torch, sys
      torch.manual_seed(3)
      x = torch.randn(40, 30) * 100
      torch.save({"x": x, "t": torch.randn(8, 9).t(), "part": torch.randn(9, 9)[2:5, ::3], "d": x.double() / 3,
                  "i": torch.arange(5), "nan": torch.tensor([float("nan"), float("inf"), -1e30]), "e": torch.zeros(0, 2)},
                 sys.argv[1])
      """,
      [pt]
    )

    for dtype <- [:float16, :bfloat16, :float64] do
      assert ExTorch.convert(pt, out, dtype: dtype) == :ok
      assert ExTorch.convert(pt, st, dtype: dtype) == :ok
      assert same?(out, st)

      assert Python.run!(
               """
               import torch, sys
               a, b, dtype = torch.load(sys.argv[1]), torch.load(sys.argv[2]), getattr(torch, sys.argv[3])
               assert list(a) == list(b)
               for k in a:
                   want = a[k].to(dtype) if a[k].is_floating_point() else a[k]
                   assert want.dtype == b[k].dtype and want.shape == b[k].shape, k
                   assert torch.equal(want.nan_to_num(123.), b[k].nan_to_num(123.)) if want.is_floating_point() else torch.equal(want, b[k]), k
               print("same")
               """,
               [pt, out, to_string(dtype)]
             ) == "same\n"
    end
  end

  test "one converted tensor is in memory at a time", %{tmp_dir: dir} do
    tensor = ExTorch.rand({1024, 1024})
    pt = save(Map.new(1..20, &{"w#{&1}", Tensor.clone(tensor)}), dir, "a.pt", fsync: false)
    Tensor.release(tensor)

    # All of them are 40 MiB. The reaper frees a tensor after it was written: a moment later, or more on a busy machine.
    assert Enum.any?(1..5, fn _ -> peak_of_conversions(pt, dir) < 20 * 1024 * 1024 end)
    assert Path.wildcard(Path.join(dir, "shards-*-of-00003.safetensors")) |> length() == 3
  end

  defp peak_of_conversions(pt, dir) do
    ExTorch.Memory.collect()
    before = ExTorch.Memory.live().bytes
    table = :ets.new(:peak, [:public])
    done = spawn_link(fn -> watch(table, 0) end)

    for sink <- ["out.safetensors", "out.pt", "shards.safetensors"] do
      opts = if sink == "shards.safetensors", do: [max_shard_size: "20MB"], else: []
      opts = [dtype: :float16, fsync: false] ++ opts
      assert ExTorch.convert(pt, Path.join(dir, sink), opts) == :ok
    end

    send(done, {:stop, self()})
    assert_receive :stopped, 10_000
    [{:peak, peak}] = :ets.lookup(table, :peak)
    peak - before
  end

  defp watch(table, peak) do
    peak = max(peak, ExTorch.Memory.live().bytes)
    :ets.insert(table, {:peak, peak})

    receive do
      {:stop, pid} -> send(pid, :stopped)
    after
      1 -> watch(table, peak)
    end
  end

  test "shards, out and in", %{tmp_dir: dir} do
    weights = Map.new(1..9, &{"layer.#{&1}.weight", ExTorch.full({10}, &1)})
    pt = save(weights, dir, "a.pt")
    folder = Path.join(dir, "out")
    File.mkdir!(folder)

    for {sink, opts, stem} <- [
          {folder, [max_shard_size: 100], "out/model.safetensors"},
          {folder, [max_shard_size: 100, format: :zip], "out/pytorch_model.bin"},
          {Path.join(dir, "new"), [max_shard_size: 100], "new/model.safetensors"},
          {Path.join(dir, "zip"), [max_shard_size: 100, format: :zip], "zip/pytorch_model.bin"},
          {Path.join(dir, "x.safetensors"), [max_shard_size: "100"], "x.safetensors"},
          {Path.join(dir, "y.bin.index.json"), [], "y.bin"}
        ] do
      assert ExTorch.convert(pt, sink, opts) == :ok
      index = Path.join(dir, stem <> ".index.json")
      assert same?(pt, index)
      extension = Path.extname(stem)
      count = if opts == [], do: 1, else: 9

      assert length(Path.wildcard("#{Path.rootname(Path.join(dir, stem))}-*#{extension}")) ==
               count

      one = Path.join(dir, "one.safetensors")
      assert ExTorch.convert(index, one) == :ok
      assert same?(pt, one)
      # again: the index is replaced
      assert ExTorch.convert(pt, sink, opts) == :ok
      assert same?(pt, index)
    end

    me = self()
    progress = fn done, total -> send(me, {done, total}) end
    assert ExTorch.convert(pt, folder, max_shard_size: 100, on_progress: progress) == :ok
    # of all shards, and once; there are more calls if it takes long
    assert_received {720, 720}
    refute_received {720, 720}

    assert {:error, %Error{reason: :not_found}} =
             ExTorch.convert(pt, Path.join(dir, "no/such/folder"), max_shard_size: 100)

    assert {:error, %Error{reason: :bad_argument}} =
             ExTorch.convert(pt, Path.join(dir, "x.safetensors"),
               max_shard_size: 5,
               format: :legacy
             )
  end

  test "sources, metadata, progress, the file itself", %{tmp_dir: dir} do
    st =
      save(%{"w" => ExTorch.ones({1000})}, dir, "a.safetensors",
        metadata: %{"license" => "mit", "format" => "np"}
      )

    out = Path.join(dir, "out.safetensors")
    me = self()
    progress = fn done, total -> send(me, {done, total}) end

    for source <- [st, {:binary, File.read!(st)}, %FileSource{path: st}] do
      assert ExTorch.convert(source, out, metadata: %{by: "me"}, on_progress: progress) == :ok
      assert_received {4000, 4000}
      assert same?(st, out)

      assert Checkpoint.metadata(Checkpoint.open!(out)).metadata ==
               %{"license" => "mit", "format" => "np", "by" => "me"}
    end

    assert ExTorch.convert(out, out, dtype: :float16) == :ok
    assert ExTorch.load!(out)["w"].dtype == :float16
    assert ExTorch.convert(out, out) == :ok
    assert {:error, %Error{reason: :not_found}} = ExTorch.convert(Path.join(dir, "none.pt"), out)
    assert {:error, %Error{reason: :bad_argument}} = ExTorch.convert(st, Path.join(dir, "a.h5"))
    assert {:error, %Error{reason: :bad_argument}} = ExTorch.convert(st, 5)
    tied = ExTorch.ones({2})
    pt = save(%{"a" => tied, "b" => tied}, dir, "tied.pt")
    assert {:error, %Error{message: message}} = ExTorch.convert(pt, out)
    assert message =~ "duplicate: true"
    assert ExTorch.convert(pt, out, duplicate: true) == :ok
    assert {:error, %Error{message: message}} = ExTorch.convert(pt, out, dtype: :float16)
    assert message =~ "duplicate: true"
    assert ExTorch.convert(pt, out, dtype: :float16, duplicate: true) == :ok
    float8 = ExTorch.convert(pt, out, dtype: :float8_e4m3fn, duplicate: true)
    assert float8 == :ok or match?({:error, %Error{reason: :unsupported}}, float8)

    for bad <- [
          [tensors_only: 1],
          [format: :x],
          [metadata: 1],
          [x: 1],
          [mmap: true],
          [strict: 1],
          :x
        ] do
      assert reason(fn -> ExTorch.convert(pt, out, bad) end) == :bad_argument
    end
  end

  test "a large source that is not a file is copied to a temporary file, and nothing stays", %{
    tmp_dir: dir
  } do
    pt = save(%{"w" => ExTorch.rand({9, 1024, 1024}), "epoch" => 3}, dir, "big.pt", fsync: false)
    out = Path.join(dir, "out.pt")
    source = %FileSource{path: pt, log: self()}
    assert ExTorch.convert(source, out, fsync: false) == :ok
    assert_received :closed
    refute_received :closed
    assert same?(pt, out)
    assert Enum.sort(File.ls!(dir)) == ["big.pt", "out.pt"]
    assert {:error, %Error{}} = ExTorch.convert(source, Path.join(dir, "none/out.pt"))
  end

  # Parts of 16 MiB of the converted elements are in memory at a time.
  @tag :tmp_dir
  test "large tensors are cast in parts", %{tmp_dir: dir} do
    numbers = ExTorch.op("arange", [5_000_001], dtype: :float32)
    large = ExTorch.op("reshape", [ExTorch.op("slice.Tensor", [numbers, 0, 1]), [2500, 2000]])
    columns = ExTorch.op("transpose.int", [large, 0, 1])
    source = Path.join(dir, "source.pt")
    ExTorch.save!(%{"large" => large, "columns" => columns, "one" => ExTorch.tensor(1.5)}, source)

    for dtype <- [:float64, :bfloat16, :int32],
        name <- ["x.pt", "x.safetensors", "x.legacy.pt", "x.npz"],
        not (name == "x.npz" and dtype == :bfloat16) do
      path = Path.join(dir, name)
      opts = if name == "x.legacy.pt", do: [format: :legacy], else: []

      assert :ok =
               ExTorch.convert(source, path, [dtype: %{float32: dtype}, duplicate: true] ++ opts)

      loaded = ExTorch.load!(path, verify: true)
      assert Tensor.equal?(loaded["large"], Tensor.to(large, dtype: dtype))
      assert Tensor.equal?(loaded["columns"], Tensor.to(columns, dtype: dtype))
      File.rm!(path)
    end
  end
end
