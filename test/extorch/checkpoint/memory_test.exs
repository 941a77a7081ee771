defmodule ExTorch.CheckpointMemoryTest do
  # What a file makes the node hold. test/hostile measures it, for many more files.
  use ExTorch.Case
  import ExTorch.Test.Hostile
  import ExTorch.Test.Pickle, only: [text: 1, tensor: 1, int: 1, list: 1, dict: 1]
  alias ExTorch.Checkpoint
  alias ExTorch.Test.{Pickle, Zip}

  defp file(body), do: Zip.checkpoint(Pickle.make(body), %{"0" => four_floats()})

  describe "what a file contains several times" do
    test "becomes one term" do
      body = list([list([text("abc"), int(1)]), "q\1", "h\1", dict([{"k", "h\1"}])])
      assert {:ok, [first, second, %{"k" => third}]} = load_body(body)
      assert first == ["abc", 1]
      assert :erts_debug.same(first, second) and :erts_debug.same(first, third)

      assert {:ok, [first, second, _]} = load_body(body, ordered: true)
      assert :erts_debug.same(first, second)
    end

    test "becomes one tensor, with an entry for each name" do
      body = ["}(", text("a"), tensor([]), "q\1", text("b"), "h\1", "u"]
      assert {:ok, %{"a" => a, "b" => b}} = load_body(body)
      assert :erts_debug.same(a, b)
      assert {:ok, %{"b" => b}} = load_body(body, only: ["b"])
      assert Tensor.to_list(b) == [1.0, 2.0, 3.0, 4.0]

      ckpt = Checkpoint.open!({:binary, file(body)})
      assert Checkpoint.keys(ckpt) == ["a", "b"]
      assert %{"a" => %{name: "a"}, "b" => %{name: "b"}} = Checkpoint.object!(ckpt)
    end

    test "has the tensors of its own place if they are represented by entries" do
      body = list([list([tensor([])]), "q\1", "h\1"])
      ckpt = Checkpoint.open!({:binary, file(body)})
      assert [[%{name: "0.0"}], [%{name: "1.0"}]] = Checkpoint.object!(ckpt)
      assert {:ok, [[a], [b]]} = load_body(body)
      assert :erts_debug.same(a, b)
    end

    test "counts each time" do
      # each list contains the one before it ten times
      lists = for i <- 1..7, do: ["](", String.duplicate(<<"h", i - 1>>, 10), "eq", <<i>>, "0"]
      body = [text("x"), <<"q", 0>>, "0", lists, <<"h", 7>>]
      assert {:limit, message} = load_body(body)
      assert message =~ "limits: [memory: n]"
      assert {:ok, [_ | _]} = load_body([Enum.take(lists, 0), list([text("x")])])
    end
  end

  test "the limit of memory is exact" do
    file = file(list(for(i <- 1..2000, do: text("text #{i}"))))
    opens? = &match?({:ok, _}, Checkpoint.open({:binary, file}, limits: [memory: &1]))
    least = least(1, 10_000_000, opens?)
    assert opens?.(least) and not opens?.(least - 1)
    # the texts, the nodes and the list are more than the file and far less than the default
    assert least in byte_size(file)..2_000_000

    assert {:error, %{reason: :limit}} =
             ExTorch.load({:binary, file}, limits: [memory: least - 1])

    assert {:ok, [_ | _]} = ExTorch.load({:binary, file}, limits: [memory: least])
  end

  defp least(low, high, _opens?) when low == high, do: low

  defp least(low, high, opens?) do
    middle = div(low + high, 2)
    if opens?.(middle), do: least(low, middle, opens?), else: least(middle + 1, high, opens?)
  end

  test "an open checkpoint counts in the budget until it is closed" do
    body = list(for(i <- 1..20_000, do: text("text #{i}")))
    before = Memory.live().bytes
    ckpt = Checkpoint.open!({:binary, file(body)})
    assert (Memory.live().bytes - before) in 500_000..5_000_000
    Checkpoint.close(ckpt)
    wait_until(fn -> Memory.live().bytes == before end)

    budget = Memory.budget()

    try do
      Memory.set_budget(before + 500_000)
      assert {:error, %{reason: :limit} = error} = Checkpoint.open({:binary, file(body)})
      assert Exception.message(error) =~ "budget"
    after
      Memory.set_budget(budget)
    end

    wait_until(fn -> Memory.live().bytes == before end)
  end

  test "dicts and sets with equal keys" do
    keys = for i <- 1..50_000, do: [int(rem(i, 40_000)), int(i)]
    assert {:ok, map} = load_body(["}(", keys, "u"])
    assert map_size(map) == 40_000
    # the later value, as in Python
    assert map[1] == 40_001 and map[39_999] == 39_999

    set = [
      Pickle.global("builtins", "set"),
      "(",
      list(for(i <- 1..1000, do: int(rem(i, 7)))),
      "tR"
    ]

    assert {:ok, set} = load_body(set)
    assert set == MapSet.new(0..6)
    assert {:ok, map} = load_body(["}(", for(i <- 1..40, do: [int(rem(i, 3)), int(i)]), "u"])
    assert map == %{0 => 39, 1 => 40, 2 => 38}
  end

  describe "gzip" do
    @describetag :tmp_dir
    setup %{tmp_dir: dir} do
      path = Path.join(dir, "file.pt.gz")
      File.write!(path, :zlib.gzip(file(dict([{"w", tensor([])}]))))
      %{path: path}
    end

    test "operators do not change what the handle reads", %{path: path} do
      ckpt = Checkpoint.open!(path)
      first = Checkpoint.tensor!(ckpt, "w")
      ExTorch.op("zero_", [first])
      assert Tensor.to_list(first) == [0.0, 0.0, 0.0, 0.0]
      assert Tensor.to_list(Checkpoint.tensor!(ckpt, "w")) == [1.0, 2.0, 3.0, 4.0]
      {:ok, bytes} = Checkpoint.read_storage(ckpt, "0")
      assert bytes == four_floats()
      {:ok, %{"w" => loaded}} = ExTorch.load(path)
      ExTorch.op("zero_", [loaded])
      assert Tensor.to_list(Checkpoint.tensor!(ckpt, "w")) == [1.0, 2.0, 3.0, 4.0]
    end

    test "a file that expands too much is read with a higher limit, or as a stream", %{path: path} do
      zeros =
        Zip.checkpoint(Pickle.make(tensor(numel: int(20_000_000))), %{"0" => <<0::640_000_000>>})

      File.write!(path, :zlib.gzip(zeros))
      assert {:error, %{reason: :limit} = error} = ExTorch.load(path)
      assert Exception.message(error) =~ "ExTorch.Streaming.gunzip/1"
      assert {:ok, %Tensor{}} = ExTorch.load(path, limits: [memory: 200_000_000])
      stream = path |> file_stream(65_536) |> ExTorch.Streaming.gunzip()
      assert {:ok, %Tensor{}, ""} = ExTorch.Streaming.load(stream)
    end
  end

  @tag :tmp_dir
  test "a hole in a file does not allow a compressed pickle more memory", %{tmp_dir: dir} do
    path = Path.join(dir, "hole.pt")
    hole = 3_900_000_000
    pickle = Pickle.make(["](", :binary.copy("}", 2_000_000), "e"])

    records = [
      {"a/data.pkl", 8, deflate(pickle), byte_size(pickle), :erlang.crc32(pickle)},
      {"a/data/0", 0, {:hole, hole}, hole, 0},
      {"a/version", 0, "3\n", 2, :erlang.crc32("3\n")}
    ]

    {:ok, io} = :file.open(path, [:raw, :write, :binary])

    {directory, start} =
      Enum.map_reduce(records, 0, fn {name, method, data, size, crc}, at ->
        packed = with {:hole, bytes} <- data, do: bytes, else: (_ -> byte_size(data))

        fields =
          <<20::little-16, 0::16, method::little-16, 0::32, crc::little-32, packed::little-32,
            size::little-32>>

        local = <<"PK", 3, 4, fields::binary, byte_size(name)::little-16, 0::16, name::binary>>
        :ok = :file.pwrite(io, at, if(is_binary(data), do: local <> data, else: local))

        central =
          <<"PK", 1, 2, 20::little-16, fields::binary, byte_size(name)::little-16, 0::96,
            at::little-32, name::binary>>

        {<<central::binary>>, at + byte_size(local) + packed}
      end)

    directory = IO.iodata_to_binary(directory)

    ending =
      <<"PK", 5, 6, 0::32, 3::little-16, 3::little-16, byte_size(directory)::little-32,
        start::little-32, 0::16>>

    :ok = :file.pwrite(io, start, directory <> ending)
    :file.close(io)

    assert {:error, %{reason: :limit, message: message}} = ExTorch.load(path)
    assert message =~ "limits: [memory: n]"
    assert {:ok, list} = ExTorch.load(path, limits: [memory: 2_000_000_000])
    assert length(list) == 2_000_000
  end

  defp deflate(data) do
    z = :zlib.open()
    :ok = :zlib.deflateInit(z, 9, :deflated, -15, 8, :default)
    packed = :zlib.deflate(z, data, :finish)
    :zlib.close(z)
    IO.iodata_to_binary(packed)
  end
end
