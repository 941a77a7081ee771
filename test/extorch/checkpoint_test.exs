defmodule ExTorch.CheckpointTest do
  use ExTorch.Case
  alias ExTorch.Checkpoint
  alias ExTorch.Test.{FileSource, Pickle, Zip}

  describe "names" do
    setup do
      [path: "test/fixtures/2.14.1/nested.pt"]
    end

    test "are in file order, as dotted names or paths", %{path: path} do
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

      assert inspect(ckpt) =~
               ~r/^#ExTorch.Checkpoint<nested.pt \(zip\), #{length(Checkpoint.keys(ckpt))} tensors, \d+ parameters, \d+ B, float32 \d+, .*: model.0.weight, model.0.bias, model.1.weight, …>$/
    end

    test "the error for an unknown name suggests similar ones", %{path: path} do
      ckpt = Checkpoint.open!(path)
      assert {:error, error} = Checkpoint.tensor(ckpt, "model.0.wieght")
      assert error.reason == :not_found
      assert error.path == path
      assert error.message =~ ~s("model.0.weight")
      assert {:error, %{reason: :not_found}} = Checkpoint.entry(ckpt, [])
      assert_raise Error, fn -> Checkpoint.entry!(ckpt, "nothing like it") end
    end

    test "a dotted name of two paths is ambiguous" do
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

    test "keys that are large integers: paths find them, messages are short" do
      key = fn i -> [<<0x8B, 8000::little-32>>, :binary.copy(<<0x55>>, 7999), <<i>>] end
      pickle = Pickle.make(["}(", for(i <- 1..3, do: [key.(i), Pickle.tensor()]), "u"])
      ckpt = Checkpoint.open!({:binary, Zip.checkpoint(pickle, %{"0" => <<0::128>>})})
      assert Checkpoint.keys(ckpt) == ["?", "?", "?"]
      [entry | _] = Checkpoint.entries(ckpt)
      assert Checkpoint.tensor!(ckpt, entry.path).shape == {4}
      assert {:error, %{reason: :ambiguous} = error} = Checkpoint.tensor(ckpt, "?")
      assert byte_size(error.message) < 4000

      assert {:error, %{reason: :not_found} = error} =
               Checkpoint.tensor(ckpt, [hd(entry.path) + 1])

      assert byte_size(error.message) < 4000
    end

    test "records with long names are found" do
      name = String.duplicate("n", 60_000)
      data = [{"a/" <> name, "data"} | ExTorch.Test.Hostile.valid_records()]
      ckpt = Checkpoint.open!({:binary, Zip.make(Enum.reverse(data))})
      assert name in Checkpoint.records(ckpt)
      assert Checkpoint.read_record(ckpt, name) == {:ok, "data"}
    end

    test "a tensor at the root" do
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

  test "a closed handle returns an error, and its tensors remain valid" do
    ckpt = Checkpoint.open!("test/fixtures/2.6.0/views.pt", mmap: true)
    tensor = Checkpoint.tensor!(ckpt, "base")
    assert Checkpoint.close(ckpt) == :ok
    assert Checkpoint.close(ckpt) == :ok
    assert {:error, %{reason: :released}} = Checkpoint.tensor(ckpt, "base")
    assert_raise Error, fn -> Checkpoint.keys(ckpt) end
    assert inspect(ckpt) == "#ExTorch.Checkpoint<closed>"
    assert length(Tensor.to_list(tensor)) == 24
  end

  test "stream returns the tensors in file order" do
    ckpt = Checkpoint.open!("test/fixtures/2.14.1/many.pt")
    assert ckpt |> Checkpoint.stream() |> Enum.map(&elem(&1, 0)) == Checkpoint.keys(ckpt)
    assert [{"t03", tensor}] = ckpt |> Checkpoint.stream(only: "t03") |> Enum.to_list()
    assert Tensor.to_list(tensor) == [3.0, 3.0, 3.0]
  end

  test "only the selected tensors are read" do
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

  @tag :tmp_dir
  test "a stream reads small tensors together, and gives each its own memory", %{tmp_dir: dir} do
    path = Path.join(dir, "many.pt")
    small = for i <- 1..1500, do: {"s#{i}", ExTorch.tensor([i, -i])}
    tied = ExTorch.tensor([1.0, 2.0])
    large = ExTorch.zeros({200_000})

    ExTorch.save!(
      %ExTorch.Python.Dict{pairs: small ++ [{"a", tied}, {"large", large}, {"b", tied}]},
      path
    )

    for source <- [path, {:binary, File.read!(path)}, %FileSource{path: path}] do
      {:ok, ckpt} = Checkpoint.open(source)
      pairs = Enum.to_list(Checkpoint.stream(ckpt))
      assert Enum.map(pairs, &elem(&1, 0)) == Checkpoint.keys(ckpt)
      tensors = Map.new(pairs)
      for {name, tensor} <- small, do: assert(Tensor.equal?(tensors[name], tensor))
      unless match?({:binary, _}, source), do: ExTorch.op("fill_", [tensors["a"], 9])
      assert Tensor.to_list(tensors["b"]) == [1.0, 2.0]
      assert [{"s1", _}, {"s2", _}] = ckpt |> Checkpoint.stream() |> Enum.take(2)
      Checkpoint.close(ckpt)
    end
  end

  @tag :tmp_dir
  test "a stream raises where a tensor cannot be read", %{tmp_dir: dir} do
    path = Path.join(dir, "bad.pt")

    ExTorch.save!(
      %ExTorch.Python.Dict{
        pairs: for(i <- 1..20, do: {"t#{i}", ExTorch.tensor([1_234_567_890_000 + i])})
      },
      path
    )

    bytes = File.read!(path)
    # The data of the fifteenth tensor.
    value = 1_234_567_890_015
    {at, 8} = :binary.match(bytes, <<value::little-64>>)
    <<before::binary-size(at), _, rest::binary>> = bytes
    flipped = <<before::binary, 0, rest::binary>>
    {:ok, ckpt} = Checkpoint.open({:binary, flipped}, verify: true)
    stream = Checkpoint.stream(ckpt)
    assert length(Enum.take(stream, 14)) == 14
    assert_raise Error, fn -> Enum.take(stream, 15) end
  end
end
