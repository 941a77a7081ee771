defmodule ExTorch.StreamingTest do
  # Loading forward only: however a stream is cut into chunks, the result is that of a whole read, and loading stops at the
  # end of the checkpoint. test/c/checkpoint/push_test.c cuts at every byte; the terms, options and errors are tested here.
  use ExTorch.Case
  alias ExTorch.{Checkpoint, Streaming}
  alias ExTorch.Test.Zip

  import ExTorch.Test.Terms, only: [plain: 1, state: 0]

  @fixtures "test/fixtures/**/*.{pt,stream,safetensors,pkl}"
            |> Path.wildcard()
            |> Enum.reject(&(&1 =~ "tar.pt" or &1 =~ "several"))

  for path <- @fixtures do
    test "#{path}: byte by byte and in random chunks" do
      bytes = File.read!(unquote(path))
      whole = plain(ExTorch.load!(unquote(path)))
      {:ok, term, ""} = Streaming.load(chunks(bytes, [1]))
      assert plain(term) == whole

      for seed <- 1..10 do
        :rand.seed(:exsss, {seed, 2, 3})
        sizes = for _ <- 1..7, do: :rand.uniform(2 ** :rand.uniform(11))
        assert {:ok, term, "rest"} = Streaming.load(chunks(bytes <> "rest", sizes) |> join_last())
        assert plain(term) == whole
      end

      names = Checkpoint.open!(unquote(path)) |> Checkpoint.keys() |> Enum.sort()
      assert [bytes] |> Streaming.tensors() |> Enum.map(&elem(&1, 0)) |> Enum.sort() == names
    end
  end

  # The bytes after the checkpoint are in the last chunk.
  defp join_last(chunks) do
    chunks = Enum.to_list(chunks)
    {first, last} = Enum.split(chunks, max(length(chunks) - 4, 0))
    first ++ [IO.iodata_to_binary(last)]
  end

  test "several checkpoints in one stream" do
    bytes = File.read!("test/fixtures/more/several.pt")
    {:ok, first, rest} = Streaming.load([bytes])
    {:ok, second, rest} = Streaming.load([rest])
    {:ok, third, _} = Streaming.load([rest])
    metadata = Checkpoint.metadata(Checkpoint.open!("test/fixtures/more/several.pt"))
    assert plain(first) == plain(ExTorch.load!("test/fixtures/more/several.pt"))

    assert plain(second) ==
             plain(ExTorch.load!("test/fixtures/more/several.pt", offset: metadata.next_offset))

    assert third
  end

  test "tar and gzip are refused; gunzip/1 decompresses gzip" do
    assert {:error, %Error{reason: :unsupported, message: message}} =
             Streaming.load([File.read!("test/fixtures/more/tar.pt")])

    assert message =~ "file"

    for path <- Path.wildcard("test/fixtures/more/*.gz") do
      bytes = File.read!(path)
      assert {:error, %Error{reason: :unsupported}} = Streaming.load([bytes])
      assert {:ok, term, ""} = chunks(bytes, [100]) |> Streaming.gunzip() |> Streaming.load()
      assert plain(term) == plain(ExTorch.load!(path))
    end

    packed = :zlib.gzip(saved(state(), format: :zip))
    half = binary_part(packed, 0, div(byte_size(packed), 2))
    assert {:error, %Error{reason: :truncated}} = [half] |> Streaming.gunzip() |> Streaming.load()
    broken = flip_bit(packed, 40, 1)
    assert reason(fn -> [broken] |> Streaming.gunzip() |> Enum.to_list() end) == :corrupt
  end

  test "no more elements of an enumerable are taken than needed" do
    bytes = saved(%{a: 1})
    endless = Stream.concat([bytes], Stream.repeatedly(fn -> raise "asked" end))
    assert {:ok, %{"a" => 1}, ""} = Streaming.load(endless)
    assert Streaming.tensors(endless) |> Enum.to_list() == []
  end

  test "storages before the object are kept in memory, up to a limit" do
    path = "test/fixtures/2.14.1/script.pt"
    bytes = File.read!(path)
    assert {:ok, _, ""} = Streaming.load(chunks(bytes, [100]))

    assert {:error, %Error{reason: :limit, message: message}} =
             Streaming.load(chunks(bytes, [100]), limits: [spool_bytes: 1000])

    assert message =~ "spool_bytes"
  end

  test "a zip file that was created again, deflated or in another order" do
    path = "test/fixtures/2.14.1/state_dict.pt"
    whole = plain(ExTorch.load!(path))
    records = Zip.unzip(File.read!(path))

    for pack <- [& &1, &Zip.deflated/1, &Zip.with_descriptor/1],
        order <- [& &1, &Enum.reverse/1] do
      bytes = records |> order.() |> Enum.map(pack) |> Zip.make()

      for sizes <- [[1], [77], [100_000]] do
        assert {:ok, term, ""} = Streaming.load(chunks(bytes, sizes))
        assert plain(term) == whole
      end
    end
  end

  test "the options only, ordered, device and on_progress" do
    bytes = saved(state(), format: :zip)
    test = self()

    assert {:ok, term, ""} =
             Streaming.load(chunks(bytes, [1000]),
               only: "w",
               on_progress: fn done, total -> send(test, {:progress, done, total}) end
             )

    assert Map.keys(term) == ["name", "step", "w"]
    assert_received {:progress, 84_000, 84_000}
    assert {:ok, %ExTorch.Python.Dict{}, ""} = Streaming.load([bytes], ordered: true)

    assert {:ok, term, ""} =
             Streaming.load([bytes],
               device: fn where ->
                 send(test, where)
                 :meta
               end
             )

    assert term["w"].device == :meta
    assert_received "cpu"
  end

  test "the options strict, verify and limits" do
    bytes = File.read!("test/fixtures/2.14.1/nested.pt")
    assert {:ok, _, ""} = Streaming.load([bytes])

    module = File.read!("test/fixtures/more/module.pt")
    assert {:error, %Error{reason: :forbidden}} = Streaming.load([module], strict: true)

    for format <- [:zip] do
      tensor = ExTorch.op("full", [[1000], 3.0])
      bytes = saved(%{t: tensor}, format: format)
      {at, _} = :binary.match(bytes, <<3.0::float-32-little>>)
      broken = flip_bit(bytes, at + 40, 0)
      assert {:ok, _, ""} = Streaming.load([broken])

      assert {:error, %Error{reason: :corrupt}} =
               Streaming.load(chunks(broken, [100]), verify: true)

      assert {:ok, _, ""} = Streaming.load(chunks(bytes, [100]), verify: true)
    end

    bytes = saved(state())

    for {limit, value} <- [total_bytes: 1000, pickle_bytes: 10, tensor_bytes: 1000] do
      assert {:error, %Error{reason: :limit}} = Streaming.load([bytes], limits: [{limit, value}])
    end
  end

  test "no memory is allocated for a declared size before its bytes arrive" do
    json = ~s({"t":{"dtype":"U8","shape":[2000000000],"data_offsets":[0,2000000000]}})
    head = <<byte_size(json)::little-64, json::binary, 0::size(1000)>>
    before = rss()
    {:more, loader} = Streaming.feed(Streaming.loader(), head)
    {:more, loader} = Streaming.feed(loader, :binary.copy(<<1>>, 5_000_000))
    Process.sleep(200)
    assert rss() - before < 64 * 1024 * 1024
    assert {:error, %Error{reason: :truncated, message: message}} = Streaming.ended(loader)
    assert message =~ "1994999875"
  end

  test "a record whose compressed size exceeds the limit is refused before it is received" do
    path = "test/fixtures/1.13.0a0/tensor.pt"

    records =
      for {name, data} <- Zip.unzip(File.read!(path)), not (name =~ "version"), do: {name, data}

    {name, _} = hd(records)
    root = name |> String.split("/") |> hd()

    false_record =
      {root <> "/version", "3\n", method: 8, bytes: "xx", local: [packed: 0xFFFFFFF0]}

    bytes = Zip.make(records ++ [false_record])
    assert {:error, %Error{reason: reason}} = Streaming.load(chunks(bytes, [50]))
    assert reason in [:corrupt, :limit]
  end

  test "the bytes after the checkpoint are returned, also after spooling" do
    # an unknown record before the object: the whole stream is spooled and then opened
    entry = fn key, data ->
      [
        "ctorch.distributed._serialization\n_Entry\n)\x81}(X",
        <<3::little-32>>,
        "key",
        "X",
        <<byte_size(key)::little-32>>,
        key,
        "X",
        <<10::little-32>>,
        "is_storage",
        <<0x89>>,
        "X",
        <<6::little-32>>,
        "length",
        "J",
        <<byte_size(data)::little-32>>,
        "ub"
      ]
    end

    object = <<0x80, 2, "}.">>
    records = [{"odd", "bytes"}, {"data.pkl", object}, {"byteorder", "little"}]
    list = [<<0x80, 2>>, "](", Enum.map(records, fn {k, d} -> entry.(k, d) end), "e."]
    bytes = IO.iodata_to_binary([list, Enum.map(records, &elem(&1, 1))])
    assert {:ok, %{}, "after it"} = Streaming.load([bytes <> "after it"])

    for cut <- 1..(byte_size(bytes) - 1)//7 do
      assert {:ok, %{}, "after it"} =
               Streaming.load([
                 binary_part(bytes, 0, cut),
                 binary_part(bytes <> "after it", cut, byte_size(bytes) + 8 - cut)
               ])
    end
  end

  @tag :torch
  test "small pickles, and archives without tensors" do
    for pickle <- ["(t.", "(d.", "N." <> "", <<0x80, 2, "N.">>], byte_size(pickle) > 2 do
      assert {:ok, whole} = ExTorch.load({:binary, pickle})
      assert {:ok, ^whole, "x"} = Streaming.load([pickle <> "x"])
      assert {:ok, ^whole, ""} = Streaming.load(chunks(pickle, [1]))
    end

    {:ok, empty} = ExTorch.Archive.save(%{}, {:binary, ""})
    assert {:ok, whole} = ExTorch.load({:binary, empty})
    assert {:ok, ^whole, ""} = Streaming.load(chunks(empty, [100]))
  end

  test "small pickles of any first opcode end where they end, however the stream is cut" do
    long = String.duplicate("long ", 60)

    for {pickle, value} <- [
          {<<"M", 1001::little-16, ".">>, 1001},
          {"I5\n.", 5},
          {"F1.5\n.", 1.5},
          {"S'abc'\n.", "abc"},
          {"V#{long}\n.", long},
          {"(dp0\n.", %{}},
          {<<0x80, 2, "N.">>, nil}
        ],
        next = pickle <> :binary.copy(<<0x80, 2, "M", 1, 2, ".">>, 400),
        bytes = pickle <> next,
        size <- [1, 2, 3, 7, 8, 9, 100, byte_size(bytes)] do
      {first, rest, pushed} = first_save(Streaming.loader(), bytes, size, 0)
      assert first == value
      assert pushed - byte_size(rest) == byte_size(pickle)
    end
  end

  test "an opcode that declares nearly 2 ** 64 bytes" do
    for start <- ["8R", "N", <<0x80, 5>>, "]("],
        opcode <- [0x8D, 0x8E, 0x96],
        size <- [-1, -2, -16, -24] do
      bytes = start <> <<opcode, size::little-64>> <> :binary.copy("u.PK", 500)
      assert {:error, %Error{}} = Streaming.load([bytes])
      assert {:error, %Error{}} = Streaming.load(chunks(bytes, [1]))
      assert {:error, %Error{}} = ExTorch.load({:binary, bytes})
    end
  end

  defp first_save(loader, bytes, size, at) do
    piece = binary_part(bytes, at, min(size, byte_size(bytes) - at))

    case Streaming.feed(loader, piece) do
      {:more, loader} -> first_save(loader, bytes, size, at + byte_size(piece))
      {:done, object, rest} -> {object, rest, at + byte_size(piece)}
    end
  end

  test "an enumerable is closed exactly once, also after errors" do
    test = self()

    source = fn chunks ->
      Stream.resource(
        fn -> send(test, :opened) && chunks end,
        fn
          [] -> {:halt, []}
          [chunk | chunks] -> {[chunk], chunks}
        end,
        fn _ -> send(test, :closed) end
      )
    end

    bytes = saved(state())
    page = "<html>" <> String.duplicate(" ", 2000)

    for {chunks, expected} <- [
          {[bytes], :none},
          {[bytes, "more"], :none},
          {[binary_part(bytes, 0, 100)], :truncated},
          {[page, "more"], :corrupt}
        ] do
      assert reason(fn -> chunks |> source.() |> Streaming.tensors() |> Stream.run() end) ==
               expected

      assert_received :opened
      assert_received :closed
      refute_received :opened
      refute_received :closed
    end

    half = binary_part(:zlib.gzip(bytes), 0, 5000)

    assert reason(fn -> [half] |> Streaming.gunzip() |> Streaming.tensors() |> Stream.run() end) ==
             :truncated
  end

  test "a stream that exceeds the budget collects garbage and continues, or fails with :limit" do
    in_task(fn ->
      base = Memory.live().bytes
      large = ExTorch.op("ones", [[500, 500]])
      plain = saved(%{t: large}, format: :zip)
      packed = plain |> Zip.unzip() |> Enum.map(&Zip.deflated/1) |> Zip.make()
      turned = %{t: ExTorch.op("t", [ExTorch.op("ones", [[500, 400]])])}
      before = Memory.budget()
      fill = fn -> for _ <- 1..5, do: ExTorch.op("ones", [[500, 500]]) end

      try do
        for bytes <- [plain, packed] do
          Memory.collect()
          Memory.set_budget(base + 5_000_000 + 2_000_000)
          spawn_garbage(fill)
          assert {:ok, %{"t" => _}, ""} = Streaming.load(chunks(bytes, [100_000]))
        end

        Memory.collect()
        spawn_garbage(fill)

        assert {:ok, _, ""} =
                 turned
                 |> Streaming.save(format: :safetensors)
                 |> Enum.to_list()
                 |> Streaming.load()

        Memory.set_budget(base + 100_000)
        assert {:error, %Error{reason: :limit}} = Streaming.load([plain])
      after
        Memory.set_budget(before)
      end
    end)
  end

  # Garbage on the heap of this process.
  defp spawn_garbage(fill) do
    fill.()
    :ok
  end

  test "a stream that ends after a record is truncated; the error contains the position" do
    for format <- [:streaming, :zip, :safetensors, :legacy] do
      bytes = saved(Map.take(state(), ["w", "b"]), format: format)

      for size <- [0, 1, 3, 8, 9, 40, 200, 700, 1200, byte_size(bytes) - 1] do
        assert {:error, %Error{reason: :truncated, message: message}} =
                 Streaming.load([binary_part(bytes, 0, size)])

        assert message =~ "#{size} bytes"
      end
    end
  end

  test "a flipped bit is an error or another value, never a crash" do
    for path <- ~w(tensor.pt tensor.stream dtypes.safetensors list.legacy.pt),
        bytes = File.read!("test/fixtures/2.14.1/#{path}"),
        at <- 0..(byte_size(bytes) - 1)//3 do
      bit = rem(at, 8)
      assert elem(Streaming.load([flip_bit(bytes, at, bit)]), 0) in [:ok, :error]
    end
  end
end
