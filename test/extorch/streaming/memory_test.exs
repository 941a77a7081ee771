defmodule ExTorch.Streaming.MemoryTest do
  # What a stream holds: it is part of the budget, and it is freed as soon as the stream has ended, not when the process
  # is garbage collected.
  use ExTorch.Case
  alias ExTorch.Streaming
  alias ExTorch.Streaming.{Body, UploadWriter}
  alias ExTorch.Test.{Formats, Pickle, Zip}
  import Formats
  import Pickle, only: [dict: 1, global: 2, reduce: 2]

  defmodule Conn do
    defstruct [:chunks]

    def read_body(%{chunks: [chunk | chunks]} = conn, _),
      do: {:more, chunk, %{conn | chunks: chunks}}

    def read_body(%{chunks: :raise}, _), do: raise("gone")
    def read_body(%{chunks: _}, _), do: {:error, :timeout}
  end

  defmodule FailingSource do
    @behaviour ExTorch.Source
    defstruct [:path, :left, :reads]
    def size(source), do: {:ok, File.stat!(source.path).size}

    def read_at(source, offset, length) do
      :counters.add(source.left, 1, 1)

      if :counters.get(source.left, 1) > source.reads,
        do: {:error, :eio},
        else: {:ok, binary_part(File.read!(source.path), offset, length)}
    end

    def close(_source), do: :ok
  end

  describe "a stream that was decompressed" do
    defp packed(bytes), do: chunks(:zlib.gzip(bytes), [65_536])
    defp load_packed(bytes, opts \\ []), do: Streaming.load(Streaming.gunzip(packed(bytes)), opts)

    test "may hold by its compressed bytes, not by what they become" do
      lists = Pickle.make(["](", :binary.copy("]", 10_000_000), "e"])
      assert {:error, %{reason: :limit, message: message}} = load_packed(lists)
      assert message =~ "limits: [memory: n]"

      assert_raise ExTorch.Error, ~r/too much/, fn ->
        packed(lists) |> Streaming.gunzip() |> Streaming.tensors() |> Stream.run()
      end

      pickle = Pickle.make(Pickle.text(:binary.copy("x", 62_000_000)))
      assert {:error, %{reason: :limit, message: message}} = load_packed(pickle)
      assert message =~ "bytes of gzip data become more than"
      assert {:ok, _, ""} = load_packed(pickle, limits: [memory: 400_000_000])
    end

    test "skips no more than that of what is neither object nor tensor" do
      skipped = [
        {"a/data.pkl", Pickle.make(Pickle.tensor())},
        {"a/extra/zeros", <<0::800_000_000>>},
        {"a/data/0", <<0::128>>},
        {"a/version", "3\n"}
      ]

      assert {:error, %{reason: :limit}} = load_packed(Zip.make(skipped))
      assert {:ok, _, ""} = load_packed(Zip.make(skipped), limits: [memory: 200_000_000])
    end

    test "may have tensors of any size, also tensors that are not selected" do
      bytes =
        ExTorch.Case.saved(%{"a" => ExTorch.zeros({25_000_000}), "b" => ExTorch.zeros({2})},
          format: :zip
        )

      assert {:ok, %{"a" => %{shape: {25_000_000}}}, ""} = load_packed(bytes)
      assert {:ok, %{"b" => _}, ""} = load_packed(bytes, only: "b")
    end

    test "is an enumerable of its decompressed bytes" do
      stream = Streaming.gunzip(packed("a checkpoint"))
      assert stream |> Enum.to_list() |> IO.iodata_to_binary() == "a checkpoint"
      assert stream |> Stream.take(1) |> Enum.count() == 1
    end
  end

  # Runs the function in a process that is not garbage collected, and asserts that afterwards, while the process still
  # exists, native memory is what it was before.
  defp assert_freed(fun) do
    test = self()
    Memory.collect()

    body = fn ->
      before = Memory.live()
      result = fun.()
      send(test, {before, after_a_while(before), self()})
      # keeps the result alive
      receive do: (:end -> result)
    end

    options = [:link, min_heap_size: 4_000_000, min_bin_vheap_size: 100_000_000]
    :erlang.spawn_opt(body, options)
    assert_receive {before, later, pid}, 60_000
    send(pid, :end)
    assert later == before
  end

  defp after_a_while(expected, tries \\ 200) do
    live = Memory.live()

    if live == expected or tries == 0 do
      live
    else
      Process.sleep(10)
      after_a_while(expected, tries - 1)
    end
  end

  defp state, do: for(i <- 1..8, into: %{}, do: {"t#{i}", ExTorch.zeros({10_000})})

  # In a task, so that the saved tensors are not garbage of the test process.
  defp saved_state(opts \\ []), do: in_task(fn -> saved(state(), opts) end)
  defp part(bytes, size), do: chunks(binary_part(bytes, 0, size), [10_000])

  # A legacy file with a nested checkpoint, whose storage has the key "bytes0/0".
  defp nested do
    inner = legacy(legacy_storage(), ["0"], [<<2::little-64>>, two_floats()])
    bytes = pickled_bytes(IO.iodata_to_binary(inner))
    tensor_of(reduce(global("torch.storage", "_load_from_bytes"), [bytes]))
  end

  describe "a storage whose data comes twice" do
    test "a list of keys that names a storage inside the pickle" do
      object = dict([{"t", tensor_of(legacy_storage())}, {"n", nested()}])
      data = [<<2::little-64>>, two_floats()]
      good = IO.iodata_to_binary(legacy(object, ["0"], data))
      bad = IO.iodata_to_binary(legacy(object, ["bytes0/0"], data))
      assert {:ok, %{"t" => t, "n" => n}, ""} = Streaming.load([good])
      assert Tensor.to_list(t) == Tensor.to_list(n)

      for opts <- [[], [only: "t"], [only: "n"]], sizes <- [[1000], [1]] do
        assert {:error, %Error{reason: :corrupt}} = Streaming.load(chunks(bad, sizes), opts)

        assert reason(fn -> chunks(bad, sizes) |> Streaming.tensors(opts) |> Stream.run() end) ==
                 :corrupt
      end

      assert {:error, %Error{reason: :corrupt}} = ExTorch.load({:binary, bad})
    end

    test "a compressed record of a sparse tensor's part" do
      # the tensor waits for its values, which do not come
      part = fn class, key ->
        [class: global("torch", class), key: Pickle.text(key), numel: Pickle.int(4)]
      end

      two = Pickle.tuple([Pickle.int(2), Pickle.int(2)])

      indices =
        Pickle.tensor(
          part.("LongStorage", "0") ++
            [size: two, stride: Pickle.tuple([Pickle.int(2), Pickle.int(1)])]
        )

      values = Pickle.tensor(part.("FloatStorage", "1") ++ [size: Pickle.tuple([Pickle.int(2)])])

      object =
        reduce(global("torch._utils", "_rebuild_sparse_tensor"), [
          reduce(global("torch.serialization", "_get_layout"), [Pickle.text("torch.sparse_coo")]),
          Pickle.tuple([indices, values, two])
        ])

      data = <<0::256>>
      z = :zlib.open()
      :ok = :zlib.deflateInit(z, :default, :deflated, -15, 8, :default)
      packed = IO.iodata_to_binary(:zlib.deflate(z, data, :finish))
      :zlib.close(z)
      record = {"a/data/0", data, method: 8, bytes: packed, packed: byte_size(packed)}
      records = [{"a/data.pkl", Pickle.make(object)}, record, record, {"a/version", "3\n"}]

      assert {:error, %Error{reason: :corrupt, message: message}} =
               Streaming.load([Zip.make(records)])

      assert message =~ "twice"
    end
  end

  describe "is freed at once" do
    test "after an error, with the tensors that were complete" do
      for format <- [:streaming, :zip, :legacy, :safetensors] do
        bytes = saved_state(format: format)
        half = div(byte_size(bytes), 2)

        assert_freed(fn -> {:error, %{reason: :truncated}} = Streaming.load(part(bytes, half)) end)

        assert_freed(fn ->
          {:error, %{reason: :truncated}} = Enum.into(part(bytes, half), Streaming.loader())
        end)
      end

      # the central directory is damaged; the tensors are made by the same call
      bytes = saved_state(format: :zip)
      {at, _} = :binary.match(bytes, "PK" <> <<1, 2>>)

      damaged = flip_bit(bytes, at + 16, 0)
      assert_freed(fn -> {:error, %{reason: :corrupt}} = Streaming.load([damaged]) end)
    end

    test "after a stream that was complete, but for the tensors" do
      for format <- [:streaming, :zip, :legacy, :safetensors] do
        bytes = saved_state(format: format)

        assert_freed(fn ->
          {:ok, term, ""} = Streaming.load([bytes])
          for {_, tensor} <- term, do: Tensor.release(tensor)
          term
        end)

        assert_freed(fn ->
          for {_, tensor} <- Streaming.tensors([bytes]), do: Tensor.release(tensor)
        end)
      end

      pickle =
        IO.iodata_to_binary(Pickle.make(dict([{"n", numpy_array([2], "f4", two_floats())}])))

      padded =
        IO.iodata_to_binary(
          Pickle.make([pickled_bytes(:binary.copy("x", 500_000)), "0", nested()])
        )

      for bytes <- [pickle, padded], bytes = binary_part(bytes, 0, byte_size(bytes)) do
        assert_freed(fn ->
          result = Streaming.load([bytes])

          with {:ok, term, ""} <- result,
               do:
                 for(
                   t <-
                     if(is_map(term) and not is_struct(term), do: Map.values(term), else: [term]),
                   do: Tensor.release(t)
                 )

          result
        end)
      end
    end

    test "a spool of which only a small tensor is wanted" do
      object =
        dict([
          {"large", Pickle.tensor(key: Pickle.text("0"), numel: Pickle.int(100_000))},
          {"small", Pickle.tensor(key: Pickle.text("1"))}
        ])

      storages = [
        {"a/data/0", :binary.copy(<<0>>, 400_000)},
        {"a/data/1", ExTorch.Test.Hostile.four_floats()}
      ]

      zip = Zip.make(storages ++ [{"a/data.pkl", Pickle.make(object)}], align: 64)
      before = Memory.live().bytes
      assert {:ok, %{"small" => small}, ""} = Streaming.load(chunks(zip, [1000]), only: "small")
      assert wait_until(fn -> Memory.live().bytes - before < 1000 end)
      assert Tensor.to_list(small) == [1.0, 2.0, 3.0, 4.0]
      assert {:ok, %{"large" => large}, ""} = Streaming.load(chunks(zip, [1000]))
      assert Tensor.to_list(large) == [0.0, 0.0, 0.0, 0.0]
    end

    test "if the enumerable raises or the consumer stops" do
      bytes = saved_state()

      assert_freed(fn ->
        chunks = Stream.concat(part(bytes, 200_000), Stream.map([1], fn _ -> raise "mine" end))
        {RuntimeError, "mine"} = rescued(fn -> Streaming.load(chunks) end)

        {RuntimeError, "mine"} =
          rescued(fn -> for {_, t} <- Streaming.tensors(chunks), do: Tensor.release(t) end)

        {RuntimeError, "mine"} = rescued(fn -> Enum.into(chunks, Streaming.loader()) end)
        chunks
      end)

      assert_freed(fn ->
        [{_, tensor}] = bytes |> chunks([10_000]) |> Streaming.tensors() |> Enum.take(1)
        Tensor.release(tensor)
      end)

      # an enumerable that raised is not stopped again
      test = self()

      chunks =
        Stream.resource(fn -> [] end, fn _ -> raise "mine" end, fn _ -> send(test, :closed) end)

      for fun <- [&Streaming.load/1, &Enum.to_list(Streaming.tensors(&1))] do
        assert {RuntimeError, "mine"} = rescued(fn -> fun.(chunks) end)
        assert_received :closed
        refute_received :closed
      end
    end

    defp rescued(fun) do
      fun.()
    rescue
      error -> {error.__struct__, Exception.message(error)}
    end

    test "after a request body or an upload that was given up" do
      chunks = saved_state() |> part(200_000) |> Enum.to_list()

      assert_freed(fn ->
        {:error, %{reason: :timeout}, conn} = Body.load(%Conn{chunks: chunks})
        conn
      end)

      assert_freed(fn -> rescued(fn -> Body.load(%Conn{chunks: chunks ++ :raise}) end) end)

      assert_freed(fn ->
        {:ok, state} = UploadWriter.init([])

        state =
          Enum.reduce(chunks, state, fn chunk, state ->
            {:ok, state} = UploadWriter.write_chunk(chunk, state)
            state
          end)

        UploadWriter.close(state, :cancel)
      end)
    end

    test "if the feeding process dies while another one has the loader" do
      bytes = saved_state()

      assert_freed(fn ->
        owner = self()
        on_tensor = fn _, _ -> self() == owner or Process.sleep(:infinity) end
        loader = Streaming.loader(on_tensor: on_tensor)
        {:more, loader} = Streaming.feed(loader, binary_part(bytes, 0, 20_000))
        pid = spawn(fn -> Streaming.feed(loader, binary_part(bytes, 20_000, 100_000)) end)
        Process.sleep(50)
        Process.exit(pid, :kill)
        loader
      end)

      # inside the native call
      large = Pickle.make(pickled_bytes(:binary.copy("x", 60_000_000)))

      assert_freed(fn ->
        loader = Streaming.loader()
        pid = spawn(fn -> Streaming.feed(loader, large) end)
        Process.sleep(5)
        Process.exit(pid, :kill)
        loader
      end)
    end

    @tag :tmp_dir
    test "after a load from a file or a source", %{tmp_dir: dir} do
      path = Path.join(dir, "a.pt")
      in_task(fn -> ExTorch.save!(state(), path) end)

      files = fn ->
        Path.wildcard("/proc/self/fd/*") |> Enum.count(&match?({:ok, ^path}, :file.read_link(&1)))
      end

      assert_freed(fn ->
        term = ExTorch.load!(path)
        for {_, tensor} <- term, do: Tensor.release(tensor)
        {:error, %{reason: :limit}} = ExTorch.load(path, limits: [total_bytes: 1000])
        rescued(fn -> ExTorch.load(path, on_progress: fn _, _ -> raise "mine" end) end)
        term
      end)

      assert wait_until(fn -> files.() == 0 end)

      # a source that fails while it is opened, and one that fails at the last storages
      for reads <- [1, 7] do
        assert_freed(fn ->
          {:error, %{reason: :io}} =
            ExTorch.load(%FailingSource{path: path, left: :counters.new(1, []), reads: reads})
        end)
      end
    end
  end

  describe "chunks" do
    test "the rest does not keep its chunk" do
      bytes = saved(%{"w" => ExTorch.zeros({1000})}) <> "next"
      assert {:ok, _, "next" = rest} = Streaming.load([bytes])
      assert :binary.referenced_byte_size(rest) < 100
    end

    test "an idle process does not keep the chunks of a long stream" do
      bytes = saved(%{"w" => ExTorch.zeros({16_000_000})})

      size = 4_000_000

      held =
        in_task(fn ->
          chunks =
            Stream.unfold(0, fn
              at when at >= byte_size(bytes) ->
                nil

              at ->
                {:binary.copy(binary_part(bytes, at, min(size, byte_size(bytes) - at))),
                 at + size}
            end)

          {:ok, term, ""} = Streaming.load(chunks)
          Process.put(:term, term)
          {:binary, list} = Process.info(self(), :binary)
          Enum.sum(for {_, ^size, _} <- list, do: size)
        end)

      assert held <= size
    end
  end

  test "a small tensor that is kept keeps only the block that it shares with its neighbors" do
    for format <- [:streaming, :legacy, :zip, :safetensors] do
      bytes =
        in_task(fn ->
          saved(for(i <- 1..2000, into: %{}, do: {"t#{i}", ExTorch.full({64}, i)}), format: format)
        end)

      Memory.collect()
      before = Memory.live().bytes

      [{"t" <> i, tensor}] =
        bytes
        |> chunks([10_000])
        |> Streaming.tensors()
        |> Stream.drop(1500)
        |> Enum.take(1)

      :erlang.garbage_collect()
      Memory.collect()
      assert (Memory.live().bytes - before) in 256..(16 * 1024)
      assert Tensor.to_list(tensor) == List.duplicate(String.to_integer(i) * 1.0, 64)
      Tensor.release(tensor)
    end
  end

  describe "the budget" do
    setup do
      before = Memory.budget()
      on_exit(fn -> Memory.set_budget(before) end)
    end

    test "includes the spool" do
      pickle = Pickle.make([pickled_bytes(:binary.copy("x", 60_000_000)), "0", "N"])
      assert {:ok, nil, ""} = Streaming.load(chunks(pickle, [1_000_000]))
      Memory.collect()
      budget = Memory.live().bytes + 10_000_000
      Memory.set_budget(budget)

      assert {:error, %Error{reason: :limit, message: message}} =
               pickle
               |> chunks([1_000_000])
               |> Stream.each(fn _ -> assert Memory.live().bytes <= budget end)
               |> Streaming.load()

      assert message =~ "budget" and message =~ "write the stream to a file"
      # a spool that fits is not refused because its buffer has spare room
      Memory.collect()

      assert {:ok, nil, ""} =
               [pickled_bytes(:binary.copy("x", 9_000_000)), "0", "N"]
               |> Pickle.make()
               |> chunks([100_000])
               |> Streaming.load()
    end

    test "includes a pickle that is not complete, and many small records" do
      Memory.set_budget(Memory.live().bytes + 4_000_000)
      magic = legacy_magic() <> Pickle.make(Pickle.int(1001)) <> Pickle.make(dict([]))
      long = [magic, <<0x80, 2, "B", 50_000_000::little-32>>, :binary.copy("x", 49_000_000)]

      assert {:error, %Error{reason: :limit, message: message}} =
               long |> IO.iodata_to_binary() |> chunks([100_000]) |> Streaming.load()

      assert message =~ "budget"
      records = for i <- 1..40_000, do: {"a/data/#{i}", ""}
      zip = Zip.make([{"a/data.pkl", Pickle.make("N")} | records])
      assert {:error, %Error{reason: :limit}} = zip |> chunks([100_000]) |> Streaming.load()
    end
  end
end
