defmodule ExTorch.SaverTest do
  use ExTorch.Case
  alias ExTorch.{Checkpoint, DType, Python}
  alias ExTorch.Test.Python, as: Torch
  import ExTorch.Test.Terms, only: [plain: 1]

  @moduletag :tmp_dir

  @term %{
    "int" => 5,
    "big" => 2 ** 100,
    "negative" => -(2 ** 100),
    "edge" => -(2 ** 63) - 1,
    "byte" => 255,
    "short" => 65_535,
    "min" => -(2 ** 31),
    "wide" => 2 ** 40,
    "float" => 0.1,
    "inf" => :infinity,
    "ninf" => :neg_infinity,
    "none" => nil,
    "yes" => true,
    "text" => "ünïcode ✓",
    "atom" => :atom,
    "list" => [1, [], [2, ["x"]]],
    "tuple" => {1, {}, {2, 3, 4, 5}},
    "dict" => %{1 => %{"a" => %{}}, {1, "t"} => "tuple key", 2.5 => nil},
    "keyword" => [b: 1, a: 2],
    "pairs" => %Python.Dict{pairs: [{"z", 1}, {"a", 2}]},
    "set" => MapSet.new([1, "two", {3}]),
    "empty" => MapSet.new(),
    "bytes" => %Python.Bytes{data: <<0, 127, 128, 255>>},
    "array" => %Python.ByteArray{data: <<1, 2, 200>>},
    "z" => %Python.Complex{re: 1.5, im: -2.0},
    "dtype" => %Python.DType{name: :float16},
    "device" => %Python.Device{type: "cpu", index: nil}
  }

  @tag :tmp_dir
  test "the ending of the path determines the format", %{tmp_dir: dir} do
    term = %{"a" => ExTorch.tensor([1.0])}
    format = fn path -> ExTorch.Checkpoint.metadata(ExTorch.Checkpoint.open!(path)).format end

    for name <- ~w(a.pt a.pth a.bin a.ckpt a.pkl a.tar a.pth.tar a A.PT .hidden a.b/c) do
      path = Path.join(dir, name)
      File.mkdir_p!(Path.dirname(path))
      assert ExTorch.save(term, path) == :ok
      assert format.(path) == :zip
    end

    for name <- ~w(a.safetensors A.SafeTensors) do
      assert ExTorch.save(term, Path.join(dir, name)) == :ok
      assert format.(Path.join(dir, name)) == :safetensors
    end

    for name <- ~w(a.safetensor a.h5 a.pt.gz model-0.95 a.) do
      path = Path.join(dir, name)
      assert {:error, %Error{reason: :bad_argument} = error} = ExTorch.save(term, path)
      assert {error.path, error.message =~ "format: :zip"} == {path, true}
      refute File.exists?(path)
      assert ExTorch.save(term, path, format: :legacy) == :ok
      assert format.(path) == :legacy
    end
  end

  test "every term that has a Python equivalent", %{tmp_dir: dir} do
    for format <- [:zip, :legacy, :streaming] do
      path = Path.join(dir, "term.#{format}")
      assert ExTorch.save(@term, path, format: format) == :ok

      expected =
        Map.merge(@term, %{
          "atom" => "atom",
          "keyword" => %{"a" => 2, "b" => 1},
          "pairs" => %{"a" => 2, "z" => 1}
        })

      assert ExTorch.load!(path) == expected
      assert ExTorch.load!(path, strict: true) == expected
    end

    ordered = ExTorch.load!(Path.join(dir, "term.zip"), ordered: true)
    {:ok, %Python.Dict{pairs: pairs}} = Python.Dict.fetch(ordered, "keyword")
    assert pairs == [{"b", 1}, {"a", 2}]
  end

  test "pairs with the keys nil, true or :nan remain a list", %{tmp_dir: dir} do
    path = Path.join(dir, "pairs.pt")
    term = [{nil, 1}, {true, 2}, {:nan, 3}]
    :ok = ExTorch.save(term, path)
    assert ExTorch.load!(path) == term
  end

  test "raw tensors of any dtype, in every format", %{tmp_dir: dir} do
    raw = %Python.RawTensor{
      dtype: :float32,
      shape: {2},
      strides: {1},
      data: <<1.0::float-32-little, 2.0::float-32-little>>
    }

    for format <- [:zip, :legacy, :streaming] do
      path = Path.join(dir, "raw.#{format}")
      :ok = ExTorch.save({raw, ExTorch.tensor([3.0])}, path, format: format)
      assert {a, _} = ExTorch.load!(path)
      assert Tensor.to_list(a) == [1.0, 2.0]
    end

    # dtypes that have no storage class are refused by name, not written for nobody to read
    for dtype <- [:uint16, :float8_e4m3fn] do
      raw = %Python.RawTensor{dtype: dtype, shape: {2}, strides: {1}, data: <<0::32>>}
      path = Path.join(dir, "no.legacy")

      assert {:error, %{reason: :unsupported, message: message}} =
               ExTorch.save(%{"layer" => [raw]}, path, format: :legacy)

      assert message =~ ~s(term["layer"][0])
      assert message =~ "#{dtype} tensors"
      refute File.exists?(path)
    end
  end

  if Torch.torch() do
    test "Python reads an equal object", %{tmp_dir: dir} do
      for format <- [:zip, :legacy] do
        path = Path.join(dir, "term.pt")
        :ok = ExTorch.save(@term, path, format: format)

        script = """
        import sys, torch
        x = torch.load(sys.argv[1])
        assert x["big"] == 2**100 and x["negative"] == -2**100 and x["edge"] == -2**63 - 1 and x["wide"] == 2**40
        assert x["byte"] == 255 and x["short"] == 65535 and x["min"] == -2**31
        assert x["float"] == 0.1 and x["inf"] == float("inf") and x["ninf"] == -float("inf") and x["none"] is None and x["yes"] is True
        assert x["text"] == "ünïcode ✓" and x["atom"] == "atom" and x["list"] == [1, [], [2, ["x"]]]
        assert x["tuple"] == (1, (), (2, 3, 4, 5)) and x["dict"] == {1: {"a": {}}, (1, "t"): "tuple key", 2.5: None}
        assert list(x["keyword"].items()) == [("b", 1), ("a", 2)] and list(x["pairs"].items()) == [("z", 1), ("a", 2)]
        assert x["set"] == {1, "two", (3,)} and x["empty"] == set()
        assert x["bytes"] == bytes([0, 127, 128, 255]) and x["array"] == bytearray([1, 2, 200])
        assert x["z"] == complex(1.5, -2) and x["dtype"] is torch.float16 and x["device"] == torch.device("cpu")
        print("equal")
        """

        assert Torch.run!(script, [path]) =~ "equal"
      end
    end
  end

  test "the error for a term that cannot be saved contains its path", %{tmp_dir: dir} do
    path = Path.join(dir, "x.pt")

    for {term, words} <- [
          {%{"a" => [1, %{b: self()}]}, ~s(term["a"][1][b])},
          {[1, make_ref()], "term[1]"},
          {fn -> 1 end, "function"},
          {%{"d" => ~D[2024-01-01]},
           ~s(cannot save term["d"]: structs of 'Elixir.Date' are not supported; convert it to a map)},
          {%Python.TensorSubclass{class: 1, tensor: ExTorch.tensor(1)}, "term[class]"},
          {%Python.TensorSubclass{
             class: %Python.Global{module: "a", name: "b"},
             tensor: 5
           }, "its tensor field is not a tensor"},
          {%{"b" => <<255, 255>>}, "UTF-8"},
          {%{"b" => <<1::3>>}, "bitstring"},
          {[1 | 2], "improper"},
          {%{:a => 1, "a" => 2}, "equal in Python"},
          {%{[1] => 2}, "list cannot be a key"},
          {%{%{} => 2}, "map cannot be a key"},
          {%Python.Dict{pairs: [1]}, "{key, value}"},
          {%Python.Storage{key: "0", dtype: :float32, numel: 1},
           "needs its elements as a tensor"},
          {%Python.Global{module: "a\nb", name: "c"}, "one line"},
          {%Python.NumpyScalar{dtype: :int8, value: 300}, "fit"},
          {%Python.RawTensor{dtype: :float32, shape: {10}, strides: {1}, data: "short"},
           "shorter"}
        ] do
      assert {:error, %Error{reason: :bad_argument, message: message, path: ^path}} =
               ExTorch.save(term, path)

      assert message =~ words
      refute File.exists?(path)
    end

    tensor = ExTorch.tensor([1.0])
    Tensor.release(tensor)

    assert {:error, %Error{reason: :released, message: message}} =
             ExTorch.save(%{"t" => [tensor]}, path)

    assert message =~ ~s(term["t"][0])
    assert File.ls!(dir) == []
  end

  test "options", %{tmp_dir: dir} do
    path = Path.join(dir, "x.pt")

    for opts <- [
          [format: :tar],
          [fsync: 1],
          [compact: nil],
          [nope: 1],
          [on_progress: 5],
          [metadata: %{"a" => "b"}],
          [metadata: 5]
        ] do
      assert reason(fn -> ExTorch.save(1, path, opts) end) == :bad_argument
    end

    assert {:error, %Error{reason: :bad_argument}} = ExTorch.save(1, :nowhere)
    assert {:error, %Error{reason: :not_found}} = ExTorch.save(1, "")
    assert_raise Error, fn -> ExTorch.save!(self(), path) end
    assert ExTorch.save!(1, path) == :ok
    me = self()
    tensor = ExTorch.zeros({300 * 1024 * 1024}, dtype: :uint8)
    assert ExTorch.save(tensor, path, on_progress: &send(me, {&1, &2}), fsync: false) == :ok
    assert_received {314_572_800, 314_572_800}
  end

  # torch reads no other dtypes from legacy files
  @with_storages ~w(float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 bool complex64 complex128)a

  test "every dtype of LibTorch", %{tmp_dir: dir} do
    for dtype <- DType.names(),
        DType.supported?(dtype),
        DType.kind(dtype) not in [:quant, :bits] do
      bytes =
        if dtype == :bool,
          do: <<0, 1, 1, 0>>,
          else: for(i <- 1..(4 * DType.size(dtype)), into: <<>>, do: <<i>>)

      tensor = Tensor.from_binary(bytes, {2, 2}, dtype)

      for format <- [:zip, :legacy, :streaming] do
        path = Path.join(dir, "#{dtype}.#{format}")

        case ExTorch.save(tensor, path, format: format, fsync: false) do
          :ok ->
            assert %Tensor{dtype: ^dtype, shape: {2, 2}} = again = ExTorch.load!(path)
            assert Tensor.to_binary(again) == bytes

          {:error, error} ->
            assert format == :legacy and dtype not in @with_storages
            assert error.reason == :unsupported
            assert error.message =~ "torch cannot read #{dtype} tensors from legacy files"
            refute File.exists?(path)
        end
      end
    end
  end

  test "shared memory is written once and shared after loading", %{tmp_dir: dir} do
    base = ExTorch.arange(1000, dtype: :float32)

    term = %{
      "base" => base,
      "part" => Tensor.slice(base, [10..19]),
      "again" => base,
      "t" => Tensor.transpose(ExTorch.op("view", [base, [10, 100]]))
    }

    path = Path.join(dir, "shared.pt")
    :ok = ExTorch.save(term, path)
    ckpt = Checkpoint.open!(path)
    assert [%{nbytes: 4000}] = Checkpoint.storages(ckpt)
    assert Checkpoint.entry!(ckpt, "part").offset == 10
    assert Checkpoint.entry!(ckpt, "t").strides == {1, 100}
    loaded = ExTorch.load!(path)
    ExTorch.op("fill_", [loaded["part"], -1.0])
    assert Enum.at(Tensor.to_list(loaded["base"]), 12) == -1.0

    # loaded tensors share memory but not a LibTorch storage: the memory is still written once
    :ok = ExTorch.save(loaded, path)
    assert [%{nbytes: 4000}] = Checkpoint.storages(Checkpoint.open!(path))

    # a view saves its whole storage, unless compact: true
    :ok = ExTorch.save(%{"part" => Tensor.slice(base, [10..19])}, path)
    assert [%{nbytes: 4000}] = Checkpoint.storages(Checkpoint.open!(path))
    :ok = ExTorch.save(%{"part" => Tensor.slice(base, [10..19])}, path, compact: true)
    assert [%{nbytes: 40}] = Checkpoint.storages(Checkpoint.open!(path))
    assert Tensor.to_list(ExTorch.load!(path)["part"]) == Enum.map(10..19, &(&1 * 1.0))
  end

  test "memory that is viewed as two dtypes is written twice", %{tmp_dir: dir} do
    floats = ExTorch.tensor([1.0, 2.0])
    ints = ExTorch.op("view.dtype", [floats, :int32])
    path = Path.join(dir, "two.pt")
    :ok = ExTorch.save({floats, ints}, path)
    {a, b} = ExTorch.load!(path)
    assert Tensor.to_binary(a) == Tensor.to_binary(b)
    assert b.dtype == :int32
  end

  test "saving does not freeze tensors", %{tmp_dir: dir} do
    tensor = ExTorch.tensor([1.0, 2.0])
    :ok = ExTorch.save(tensor, Path.join(dir, "x.pt"))
    ExTorch.op("fill_", [tensor, 3.0])
    assert Tensor.to_list(tensor) == [3.0, 3.0]
  end

  test "conjugated, negated, empty, scalar, expanded and mapped tensors", %{tmp_dir: dir} do
    z = ExTorch.tensor([%Python.Complex{re: 1.0, im: 2.0}], dtype: :complex64)
    path = Path.join(dir, "odd.pt")

    term = %{
      "conj" => ExTorch.op("aten::_conj", [z]),
      "empty" => ExTorch.zeros({0, 3}),
      "scalar" => ExTorch.tensor(5),
      "expanded" => ExTorch.op("expand", [ExTorch.tensor([1.0]), [3, 1]])
    }

    :ok = ExTorch.save(term, path)
    loaded = ExTorch.load!(path)
    assert Tensor.to_list(loaded["conj"]) == [%Python.Complex{re: 1.0, im: -2.0}]
    assert loaded["empty"].shape == {0, 3}
    assert Tensor.to_list(loaded["scalar"]) == 5
    assert Tensor.to_list(loaded["expanded"]) == [[1.0], [1.0], [1.0]]
    mapped = ExTorch.load!(path, mmap: true)
    # tensors that map a file keep its old contents when the file is replaced
    :ok = ExTorch.save(mapped, path)
    assert plain(ExTorch.load!(path)) == plain(loaded)
  end

  test "requires_grad is written back", %{tmp_dir: dir} do
    path = Path.join(dir, "x.pt")
    :ok = ExTorch.save(Tensor.requires_grad(ExTorch.tensor([1.0]), true), path)
    assert Tensor.requires_grad(ExTorch.load!(path))
  end

  # What a term contains twice in each level is written 2 ** 60 times.
  defp doubling, do: Enum.reduce(1..60, [1], fn _, term -> [term, term] end)

  test "a term whose pickle is endless exceeds the budget" do
    budget = ExTorch.Memory.budget()
    ExTorch.Memory.set_budget(ExTorch.Memory.live().bytes + 50_000_000)

    try do
      error =
        assert_raise ExTorch.Error, fn -> Enum.to_list(ExTorch.Streaming.save(doubling())) end

      assert error.reason == :limit
    after
      ExTorch.Memory.set_budget(budget)
    end
  end

  test "pickling a term ends with the process that saves it" do
    before = ExTorch.Memory.live().bytes
    {pid, monitor} = spawn_monitor(fn -> Enum.to_list(ExTorch.Streaming.save(doubling())) end)
    wait_until(fn -> ExTorch.Memory.live().bytes > before + 10_000_000 end)
    Process.exit(pid, :kill)
    assert_receive {:DOWN, ^monitor, _, _, :killed}, 30_000
    wait_until(fn -> ExTorch.Memory.live().bytes <= before end)
  end
end
