defmodule ExTorch.StreamingTest do
  # Forward only: whatever way a stream is cut, it gives what a whole read gives, and stops at its end. The cuts at every
  # byte are in test/c/checkpoint/push_test.c; here are the terms, the options, and what goes wrong.
  use ExTorch.Case
  alias ExTorch.{Checkpoint, Streaming}
  alias ExTorch.Test.{Python, Zip}

  doctest ExTorch.Streaming
  doctest ExTorch.Streaming.Loader

  @fixtures "test/fixtures/**/*.{pt,stream,safetensors,pkl}"
            |> Path.wildcard()
            |> Enum.reject(&(&1 =~ "tar.pt" or &1 =~ "several"))

  # ---- Helpers ----

  # Terms with tensors as what they are and hold.
  defp plain(%Tensor{} = t) do
    values =
      case Tensor.strides(t) do
        nil -> ExTorch.op("to_dense", [t])
        _ -> t
      end

    {:tensor, t.dtype, t.shape, Tensor.strides(t), Tensor.requires_grad(t), bytes(values)}
  end

  defp plain(%MapSet{} = set), do: set
  defp plain(%module{} = struct), do: {module, struct |> Map.from_struct() |> plain()}
  defp plain(map) when is_map(map), do: Map.new(map, fn {k, v} -> {plain(k), plain(v)} end)
  defp plain(list) when is_list(list), do: Enum.map(list, &plain/1)
  defp plain(tuple) when is_tuple(tuple), do: tuple |> Tuple.to_list() |> plain()
  defp plain(other), do: other

  defp bytes(%{device: :meta}), do: :meta

  defp bytes(t) do
    if t.dtype in [:qint8, :quint8, :qint32],
      do: ExTorch.op("int_repr", [t]) |> Tensor.contiguous() |> Tensor.to_binary(),
      else: t |> Tensor.contiguous() |> Tensor.to_binary()
  end

  defp cut(binary, sizes) do
    Stream.unfold({binary, sizes}, fn
      {"", _} ->
        nil

      {binary, [size | sizes]} ->
        size = min(size, byte_size(binary))
        left = byte_size(binary) - size
        {binary_part(binary, 0, size), {binary_part(binary, size, left), sizes ++ [size]}}
    end)
  end

  defp state do
    %{
      "w" => ExTorch.rand({300, 70}),
      "b" => ExTorch.tensor([1, 2, 3]),
      "step" => 7,
      "name" => "ü"
    }
  end

  defp binary(term, opts),
    do: term |> Streaming.save(opts) |> Enum.to_list() |> IO.iodata_to_binary()

  # ---- Loading ----

  for path <- @fixtures do
    test "#{path}: byte by byte and in random pieces" do
      bytes = File.read!(unquote(path))
      whole = plain(ExTorch.load!(unquote(path)))
      {:ok, term, ""} = Streaming.load(cut(bytes, [1]))
      assert plain(term) == whole

      for seed <- 1..10 do
        :rand.seed(:exsss, {seed, 2, 3})
        sizes = for _ <- 1..7, do: :rand.uniform(2 ** :rand.uniform(11))
        assert {:ok, term, "rest"} = Streaming.load(cut(bytes <> "rest", sizes) |> join_last())
        assert plain(term) == whole
      end

      names = Checkpoint.open!(unquote(path)) |> Checkpoint.keys() |> Enum.sort()
      assert [bytes] |> Streaming.tensors() |> Enum.map(&elem(&1, 0)) |> Enum.sort() == names
    end
  end

  # What follows the end comes in the last piece.
  defp join_last(chunks) do
    chunks = Enum.to_list(chunks)
    {first, last} = Enum.split(chunks, max(length(chunks) - 4, 0))
    first ++ [IO.iodata_to_binary(last)]
  end

  test "several saves in one stream, one after the other" do
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

  test "tar and gzip are refused, and a gzip can be unpacked on the way" do
    assert {:error, %Error{reason: :unsupported, message: message}} =
             Streaming.load([File.read!("test/fixtures/more/tar.pt")])

    assert message =~ "file"

    for path <- Path.wildcard("test/fixtures/more/*.gz") do
      bytes = File.read!(path)
      assert {:error, %Error{reason: :unsupported}} = Streaming.load([bytes])
      assert {:ok, term, ""} = cut(bytes, [100]) |> Streaming.gunzip() |> Streaming.load()
      assert plain(term) == plain(ExTorch.load!(path))
    end

    packed = :zlib.gzip(binary(state(), format: :zip))
    half = binary_part(packed, 0, div(byte_size(packed), 2))
    assert {:error, %Error{reason: :truncated}} = [half] |> Streaming.gunzip() |> Streaming.load()
    broken = turn(packed, 40, 1)
    assert reason(fn -> [broken] |> Streaming.gunzip() |> Enum.to_list() end) == :corrupt
  end

  test "a file is collected into a loader" do
    path = "test/fixtures/2.14.1/nested.pt"
    chunks = file_stream(path, 1000)
    assert {:ok, term, ""} = Enum.into(chunks, Streaming.loader())
    assert plain(term) == plain(ExTorch.load!(path))

    assert {:error, %Error{reason: :truncated}} =
             chunks |> Enum.take(3) |> Enum.into(Streaming.loader())

    assert {:error, %Error{reason: :corrupt}} =
             Enum.into(["<html>", String.duplicate(" ", 2000)], Streaming.loader())
  end

  test "what changes between two chunks is saved as it is then" do
    for chunk <- [1_000_000, 1024 * 1024] do
      changed = changing(ExTorch.zeros({4 * 1024 * 1024}), chunk)
      assert {:ok, %{"t" => _}} = ExTorch.load({:binary, changed}, verify: true)
    end
  end

  # Adds one in place after the fourth chunk.
  defp changing(tensor, chunk) do
    stream = Streaming.save(%{"t" => tensor}, format: :zip, chunk: chunk)
    step = fn part, _ -> {:suspend, part |> IO.iodata_to_binary() |> :binary.copy()} end
    go_on(&Enumerable.reduce(stream, &1, step), tensor, [], 0)
  end

  defp go_on(next, tensor, parts, n) do
    case next.({:cont, nil}) do
      {:suspended, part, next} ->
        if n == 3 do
          Process.sleep(5)
          Memory.collect()
          ExTorch.op("add_", [tensor, 1.0])
        end

        go_on(next, tensor, [parts | part], n + 1)

      {_done, _} ->
        IO.iodata_to_binary(parts)
    end
  end

  test "an enumerable is asked for no more than is needed" do
    bytes = binary(%{a: 1}, [])
    endless = Stream.concat([bytes], Stream.repeatedly(fn -> raise "asked" end))
    assert {:ok, %{"a" => 1}, ""} = Streaming.load(endless)
    assert Streaming.tensors(endless) |> Enum.to_list() == []
  end

  test "storages first: kept until the object comes, within a limit" do
    path = "test/fixtures/2.14.1/script.pt"
    bytes = File.read!(path)
    assert {:ok, _, ""} = Streaming.load(cut(bytes, [100]))

    assert {:error, %Error{reason: :limit, message: message}} =
             Streaming.load(cut(bytes, [100]), limits: [spool_bytes: 1000])

    assert message =~ "spool_bytes"
  end

  test "a zip that was packed again, deflated or in another order" do
    path = "test/fixtures/2.14.1/state_dict.pt"
    whole = plain(ExTorch.load!(path))
    {:ok, files} = :zip.unzip(File.read!(path), [:memory])
    records = for {name, data} <- files, do: {to_string(name), data}

    for pack <- [& &1, &deflated/1, &described/1], order <- [& &1, &Enum.reverse/1] do
      bytes = records |> order.() |> Enum.map(pack) |> Zip.make()

      for sizes <- [[1], [77], [100_000]] do
        assert {:ok, term, ""} = Streaming.load(cut(bytes, sizes))
        assert plain(term) == whole
      end
    end
  end

  defp deflated({name, data}), do: {name, data, method: 8, bytes: deflate(data)}

  # Sizes behind the data only, as those write who cannot seek.
  defp described({name, data}) do
    packed = deflate(data)
    size = byte_size(packed)

    tail =
      <<"PK", 7, 8, :erlang.crc32(data)::little-32, size::little-32, byte_size(data)::little-32>>

    {name, data,
     method: 8, flags: 8, bytes: packed <> tail, packed: size, local: [crc: 0, size: 0, packed: 0]}
  end

  defp deflate(data) do
    z = :zlib.open()
    :zlib.deflateInit(z, :default, :deflated, -15, 8, :default)
    packed = z |> :zlib.deflate(data, :finish) |> IO.iodata_to_binary()
    :zlib.close(z)
    packed
  end

  # ---- Options ----

  test "only, ordered, device and progress" do
    bytes = binary(state(), format: :zip)
    test = self()

    assert {:ok, term, ""} =
             Streaming.load(cut(bytes, [1000]),
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

  test "strict, verify and limits" do
    bytes = File.read!("test/fixtures/2.14.1/nested.pt")
    assert {:ok, _, ""} = Streaming.load([bytes])

    module = File.read!("test/fixtures/more/module.pt")
    assert {:error, %Error{reason: :forbidden}} = Streaming.load([module], strict: true)

    for format <- [:zip] do
      tensor = ExTorch.op("full", [[1000], 3.0])
      saved = binary(%{t: tensor}, format: format)
      {at, _} = :binary.match(saved, <<3.0::float-32-little>>)
      broken = turn(saved, at + 40, 0)
      assert {:ok, _, ""} = Streaming.load([broken])
      assert {:error, %Error{reason: :corrupt}} = Streaming.load(cut(broken, [100]), verify: true)
      assert {:ok, _, ""} = Streaming.load(cut(saved, [100]), verify: true)
    end

    saved = binary(state(), [])

    for {limit, value} <- [total_bytes: 1000, pickle_bytes: 10, tensor_bytes: 1000] do
      assert {:error, %Error{reason: :limit}} = Streaming.load([saved], limits: [{limit, value}])
    end
  end

  test "a claim takes no memory before it is kept" do
    json = ~s({"t":{"dtype":"U8","shape":[8000000000],"data_offsets":[0,8000000000]}})
    head = <<byte_size(json)::little-64, json::binary, 0::size(1000)>>
    before = rss()
    {:more, loader} = Streaming.feed(Streaming.loader(), head)
    {:more, loader} = Streaming.feed(loader, :binary.copy(<<1>>, 5_000_000))
    Process.sleep(200)
    assert rss() - before < 64 * 1024 * 1024
    assert {:error, %Error{reason: :truncated, message: message}} = Streaming.ended(loader)
    assert message =~ "7994999875"
  end

  test "a record that is longer packed than it may be is refused before it comes" do
    path = "test/fixtures/1.13.0a0/tensor.pt"
    {:ok, files} = :zip.unzip(File.read!(path), [:memory])

    records =
      for {name, data} <- files, not (to_string(name) =~ "version"), do: {to_string(name), data}

    {name, _} = hd(records)
    root = name |> String.split("/") |> hd()

    false_record =
      {root <> "/version", "3\n", method: 8, bytes: "xx", local: [packed: 0xFFFFFFF0]}

    bytes = Zip.make(records ++ [false_record])
    assert {:error, %Error{reason: reason}} = Streaming.load(cut(bytes, [50]))
    assert reason in [:corrupt, :limit]
  end

  test "what follows is given back whatever was read ahead" do
    # a list of records with something unknown before the object: all of it is kept, and then opened
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

  test "small pickles, and archives without tensors" do
    for pickle <- ["(t.", "(d.", "N." <> "", <<0x80, 2, "N.">>], byte_size(pickle) > 2 do
      assert {:ok, whole} = ExTorch.load({:binary, pickle})
      assert {:ok, ^whole, "x"} = Streaming.load([pickle <> "x"])
      assert {:ok, ^whole, ""} = Streaming.load(cut(pickle, [1]))
    end

    {:ok, empty} = ExTorch.Archive.save(%{}, {:binary, ""})
    assert {:ok, whole} = ExTorch.load({:binary, empty})
    assert {:ok, ^whole, ""} = Streaming.load(cut(empty, [100]))
  end

  test "a source is closed once, whatever ends the stream" do
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

    saved = binary(state(), [])
    page = "<html>" <> String.duplicate(" ", 2000)

    for {chunks, expected} <- [
          {[saved], :none},
          {[saved, "more"], :none},
          {[binary_part(saved, 0, 100)], :truncated},
          {[page, "more"], :corrupt}
        ] do
      assert reason(fn -> chunks |> source.() |> Streaming.tensors() |> Stream.run() end) ==
               expected

      assert_received :opened
      assert_received :closed
      refute_received :opened
      refute_received :closed
    end

    half = binary_part(:zlib.gzip(saved), 0, 5000)

    assert reason(fn -> [half] |> Streaming.gunzip() |> Streaming.tensors() |> Stream.run() end) ==
             :truncated
  end

  test "the budget: garbage is collected and the stream goes on, or the error is a limit" do
    aside(fn ->
      base = Memory.live().bytes
      large = ExTorch.op("ones", [[500, 500]])
      plain = binary(%{t: large}, format: :zip)
      {:ok, files} = :zip.unzip(plain, [:memory])
      packed = Zip.make(for {name, data} <- files, do: deflated({to_string(name), data}))
      turned = %{t: ExTorch.op("t", [ExTorch.op("ones", [[500, 400]])])}
      before = Memory.budget()
      fill = fn -> for _ <- 1..5, do: ExTorch.op("ones", [[500, 500]]) end

      try do
        for bytes <- [plain, packed] do
          Memory.collect()
          Memory.set_budget(base + 5_000_000 + 2_000_000)
          spawn_garbage(fill)
          assert {:ok, %{"t" => _}, ""} = Streaming.load(cut(bytes, [100_000]))
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

  # On this heap, and referred to by nobody.
  defp spawn_garbage(fill) do
    fill.()
    :ok
  end

  test "bad options" do
    assert reason(fn -> Streaming.loader(limits: [spool_bytes: 2 ** 70]) end) == :bad_argument
    assert reason(fn -> Streaming.loader(mmap: true) end) == :bad_argument
    assert reason(fn -> Streaming.loader(offset: 1) end) == :bad_argument
    assert reason(fn -> Streaming.loader(on_tensor: 1) end) == :bad_argument
    assert reason(fn -> Streaming.loader(nonsense: 1) end) == :bad_argument
    assert reason(fn -> Streaming.save(1, chunk: 0) end) == :bad_argument
    assert reason(fn -> Streaming.save(1, fsync: true) end) == :bad_argument
    assert reason(fn -> Streaming.save(1, format: :tar) end) == :bad_argument
    assert {:error, %Error{reason: :bad_argument}} = Streaming.feed(Streaming.loader(), :atom)
  end

  # ---- As they complete ----

  test "tensors are ready before the stream has ended" do
    tensors = for i <- 1..9, into: %{}, do: {"t#{i}", ExTorch.op("full", [[1000], i * 1.0])}
    test = self()

    for format <- [:streaming, :zip, :safetensors, :legacy] do
      bytes = binary(tensors, format: format)
      half = div(byte_size(bytes), 2)
      loader = Streaming.loader(on_tensor: fn name, tensor -> send(test, {name, tensor}) end)
      {:more, loader} = Streaming.feed(loader, binary_part(bytes, 0, half))

      for i <- 1..3 do
        name = "t#{i}"
        assert_received {^name, tensor}
        assert Tensor.to_list(tensor) == List.duplicate(i * 1.0, 1000)
      end

      refute_received {"t9", _}
      rest = binary_part(bytes, half, byte_size(bytes) - half)
      assert {:done, term, ""} = Streaming.feed(loader, rest)
      for i <- 4..9, name = "t#{i}", do: assert_received({^name, _})
      # the object has the same tensors
      assert plain(term) == plain(tensors)
    end
  end

  test "tensors/2 holds one at a time" do
    tensors = for i <- 1..50, into: %{}, do: {"t#{i}", ExTorch.op("full", [[100_000], i * 1.0])}
    chunks = tensors |> Streaming.save(chunk: 65_536) |> Enum.map(&IO.iodata_to_binary/1)
    before = Memory.live().bytes

    most =
      chunks
      |> Streaming.tensors()
      |> Enum.reduce(0, fn {_name, tensor}, most ->
        Tensor.release(tensor)
        Memory.collect()
        max(most, Memory.live().bytes - before)
      end)

    assert most < 5 * 400_000

    assert reason(fn -> chunks |> Enum.take(20) |> Streaming.tensors() |> Stream.run() end) ==
             :truncated

    assert chunks |> Streaming.tensors(only: ~r/7$/) |> Enum.count() == 5
    # a consumer that stops leaves nothing
    assert chunks |> Streaming.tensors() |> Enum.take(1) |> length() == 1
  end

  test "views of one storage share it again" do
    {:ok, term, ""} = Streaming.load(cut(File.read!("test/fixtures/2.14.1/views.stream"), [50]))
    whole = ExTorch.load!("test/fixtures/2.14.1/views.stream")
    assert plain(term) == plain(whole)
    base = ExTorch.tensor([[1.0, 2.0], [3.0, 4.0]])
    bytes = binary(%{base: base, turned: ExTorch.op("t", [base])}, format: :streaming)
    {:ok, term, ""} = Streaming.load([bytes])
    ExTorch.op("fill_", [term["base"], 9.0])
    assert Tensor.to_list(term["turned"]) == [[9.0, 9.0], [9.0, 9.0]]
  end

  # ---- States ----

  test "an old loader is stale, and one that another process feeds is busy" do
    bytes = binary(state(), [])
    [a, b] = [binary_part(bytes, 0, 100), binary_part(bytes, 100, byte_size(bytes) - 100)]
    old = Streaming.loader()
    {:more, new} = Streaming.feed(old, a)
    assert {:error, %Error{reason: :stale}} = Streaming.feed(old, a)
    assert {:done, term, ""} = Streaming.feed(new, b)
    assert Map.keys(term) == ["b", "name", "step", "w"]
    assert {:error, %Error{reason: :stale}} = Streaming.feed(new, b)

    test = self()

    loader =
      Streaming.loader(
        on_tensor: fn _, _ ->
          send(test, {:inside, self()})
          receive do: (:go -> :ok)
        end
      )

    task = Task.async(fn -> Streaming.feed(loader, bytes) end)
    assert_receive {:inside, pid}
    assert {:error, %Error{reason: :busy}} = Streaming.feed(loader, bytes)
    send(pid, :go)
    assert_receive {:inside, ^pid}
    send(pid, :go)
    assert {:done, _, ""} = Task.await(task)
    assert {:error, %Error{reason: :stale}} = Streaming.feed(loader, bytes)
  end

  test "a feeder that is killed or raises leaves a stale loader and nothing else" do
    bytes = binary(state(), [])

    aside(fn ->
      test = self()

      loader =
        Streaming.loader(
          on_tensor: fn _, _ ->
            send(test, :inside)
            Process.sleep(:infinity)
          end
        )

      pid = spawn(fn -> Streaming.feed(loader, bytes) end)
      receive do: (:inside -> :ok)
      Process.exit(pid, :kill)
      Process.sleep(20)
      assert {:error, %Error{reason: :stale}} = Streaming.feed(loader, bytes)

      loader = Streaming.loader(on_tensor: fn _, _ -> raise "mine" end)
      assert_raise RuntimeError, "mine", fn -> Streaming.feed(loader, bytes) end
      assert {:error, %Error{reason: :stale}} = Streaming.feed(loader, bytes)
    end)
  end

  test "cut off at every record's edge: truncated, with how far it came" do
    for format <- [:streaming, :zip, :safetensors, :legacy] do
      bytes = binary(Map.take(state(), ["w", "b"]), format: format)

      for size <- [0, 1, 3, 8, 9, 40, 200, 700, 1200, byte_size(bytes) - 1] do
        assert {:error, %Error{reason: :truncated, message: message}} =
                 Streaming.load([binary_part(bytes, 0, size)])

        assert message =~ "#{size} bytes"
      end
    end
  end

  test "a turned bit is an error or another value, never a crash" do
    for path <- ~w(tensor.pt tensor.stream dtypes.safetensors list.legacy.pt),
        bytes = File.read!("test/fixtures/2.14.1/#{path}"),
        at <- 0..(byte_size(bytes) - 1)//3 do
      bit = rem(at, 8)
      assert elem(Streaming.load([turn(bytes, at, bit)]), 0) in [:ok, :error]
    end
  end

  test "1,000 streams at once" do
    bytes = binary(state(), format: :zip)
    expected = plain(state_of(bytes))

    1..1000
    |> Task.async_stream(
      fn i ->
        {:ok, term, ""} = Streaming.load(cut(bytes, [i * 37]))
        plain(term) == expected
      end,
      max_concurrency: 1000,
      timeout: 120_000
    )
    |> Enum.each(fn {:ok, same} -> assert same end)
  end

  defp state_of(bytes), do: ExTorch.load!({:binary, bytes})

  test "100 stalled streams hold no thread" do
    bytes = binary(state(), format: :zip)

    loaders =
      for _ <- 1..100 do
        {:more, loader} = Streaming.feed(Streaming.loader(), binary_part(bytes, 0, 50_000))
        loader
      end

    assert Memory.live().threads == 0
    task = Task.async(fn -> for _ <- 1..50, do: File.read!("mix.exs") end)
    assert Task.yield(task, 5000)
    assert length(loaders) == 100
  end

  # ---- Saving ----

  test "tensors' bytes are the tensors' memory" do
    tensor = ExTorch.op("full", [[1_000_000], 2.0])
    before = Memory.live().bytes
    chunks = %{t: tensor} |> Streaming.save() |> Enum.to_list()
    assert Memory.live().bytes == before
    assert reason(fn -> ExTorch.op("fill_", [tensor, 3.0]) end) == :frozen
    address = Blob.to_blob(tensor).ptr
    large = chunks |> List.flatten() |> Enum.filter(&(byte_size(&1) > 100_000))
    assert Enum.sum(Enum.map(large, &byte_size/1)) == 4_000_000
    [first | _] = Enum.map(large, &Tensor.from_binary(&1, {div(byte_size(&1), 4)}, :float32))
    assert Blob.to_blob(first).ptr == address
  end

  test "views, dtypes and devices that have to be brought into order" do
    base = ExTorch.rand({400, 300})

    term = %{
      "turned" => ExTorch.op("t", [base]),
      "part" => ExTorch.op("narrow", [base, 1, 10, 20]),
      "conj" => ExTorch.op("aten::_conj", [ExTorch.op("complex", [base, base])])
    }

    for format <- [:streaming, :zip, :legacy, :safetensors], chunk <- [1000, 1_000_000] do
      term = if format == :safetensors, do: Map.delete(term, "conj"), else: term

      opts =
        [format: format, chunk: chunk] ++
          if(format == :safetensors, do: [duplicate: true], else: [])

      chunks = Enum.to_list(Streaming.save(term, opts))
      {:ok, back, ""} = Streaming.load(chunks)

      for {name, tensor} <- term do
        assert Tensor.to_list(back[name]) == Tensor.to_list(tensor)
      end
    end
  end

  test "every enumeration begins anew, and one that stops leaves nothing" do
    saved = Streaming.save(state(), chunk: 10_000)
    assert Enum.count(saved) > 8
    assert saved |> Enum.take(2) |> length() == 2
    assert {:ok, _, ""} = Streaming.load(saved)
    assert {:ok, _, ""} = Streaming.load(saved)
  end

  test "what cannot be saved is raised, with its place" do
    error = assert_raise Error, fn -> Enum.to_list(Streaming.save(%{a: [self()]})) end
    assert error.message =~ "a"

    assert reason(fn -> Enum.to_list(Streaming.save([1], format: :safetensors)) end) ==
             :bad_argument

    released = ExTorch.tensor([1])
    Tensor.release(released)
    assert reason(fn -> Enum.to_list(Streaming.save([released])) end) == :released
  end

  @tag :python
  test "torch reads what is streamed as a zip" do
    path =
      Path.join(System.tmp_dir!(), "extorch_streamed_#{System.unique_integer([:positive])}.pt")

    term = %{
      "a" => ExTorch.tensor([[1.5, 2.5]]),
      "n" => ExTorch.op("t", [ExTorch.rand({300, 400})])
    }

    File.write!(path, Enum.to_list(Streaming.save(term, format: :zip, chunk: 5000)))
    on_exit(fn -> File.rm(path) end)

    [a, n] =
      Python.eval!("x = torch.load(#{inspect(path)})", [
        "x['a']",
        "x['n'].sum(dtype=torch.float64)"
      ])

    assert a == [[1.5, 2.5]]
    assert close?(n, Tensor.to_list(ExTorch.op("sum", [term["n"]], dtype: :float64)))
  end
end
