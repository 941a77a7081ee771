defmodule ExTorch.CheckpointFileTest do
  # Files that change while they are read, compressed and large files, concurrent readers, and callers that are killed.
  use ExTorch.Case
  alias ExTorch.Checkpoint
  alias ExTorch.Test.{FileSource, Pickle, Zip}

  @moduletag :tmp_dir
  @mib 1024 * 1024

  defp floats(count), do: for(i <- 1..count, into: <<>>, do: <<i * 1.0::float-32-little>>)

  defp pickle(count) do
    size = Pickle.tuple([Pickle.int(count)])
    Pickle.make(Pickle.dict([{"w", Pickle.tensor(numel: Pickle.int(count), size: size)}]))
  end

  defp write(dir, count, opts \\ []) do
    path = Path.join(dir, "file.pt")
    File.write!(path, Zip.checkpoint(pickle(count), %{"0" => floats(count)}, opts))
    path
  end

  describe "a file that changes while it is open" do
    test "is detected if it shrinks, grows or is rewritten", %{tmp_dir: dir} do
      for change <- [
            fn path -> File.write!(path, binary_part(File.read!(path), 0, 5000)) end,
            fn path -> File.write!(path, "more", [:append]) end,
            fn path -> File.write!(path, "") end
          ] do
        path = write(dir, 5000)
        ckpt = Checkpoint.open!(path)
        held = Checkpoint.tensor!(ckpt, "w")
        change.(path)
        assert {:error, error} = Checkpoint.tensor(ckpt, "w")
        assert error.reason == :file_changed
        assert error.path == path
        assert {:error, %{reason: :file_changed}} = Checkpoint.read_storage(ckpt, "0")
        # tensors that were read before are unchanged
        assert Tensor.to_binary(held) == floats(5000)
      end
    end

    test "has no effect if it is replaced by another file", %{tmp_dir: dir} do
      path = write(dir, 5000)
      ckpt = Checkpoint.open!(path)
      File.write!(path <> ".new", "something else")
      File.rename!(path <> ".new", path)
      assert Tensor.to_binary(Checkpoint.tensor!(ckpt, "w")) == floats(5000)
      assert {:error, _} = Checkpoint.open(path)
    end

    @tag :torch
    test "is an error if it is mapped and truncated, not a crash", %{tmp_dir: dir} do
      path = write(dir, 100_000)
      ckpt = Checkpoint.open!(path, mmap: true)
      tensor = Checkpoint.tensor!(ckpt, "w")
      other = ExTorch.op("as_strided", [tensor, [2, 50_000], [1, 2]])
      assert Memory.live().mapped >= 400_000
      assert Tensor.to_list(Tensor.slice(tensor, [99_999])) == 100_000.0
      {:ok, file} = :file.open(path, [:read, :write, :raw])
      {:ok, _} = :file.position(file, 8192)
      :ok = :file.truncate(file)
      :file.close(file)
      assert reason(fn -> ExTorch.sum(tensor) end) == :file_changed
      assert reason(fn -> Tensor.to_list(tensor) end) == :file_changed
      assert reason(fn -> Tensor.equal?(tensor, tensor) end) == :file_changed
      # these copy the values first
      assert reason(fn -> Tensor.to_binary(other) end) == :file_changed
      saved = Path.join(dir, "saved.safetensors")
      assert {:error, %{reason: :file_changed}} = ExTorch.save(%{"t" => other}, saved)
      refute File.exists?(saved)
      assert {:error, %{reason: :file_changed}} = ExTorch.Archive.save(tensor, {:binary, ""})

      assert reason(fn -> Tensor.to_binary(Tensor.slice(tensor, 0, 0..-1//2)) end) ==
               :file_changed

      assert {:error, %{reason: :file_changed}} = Checkpoint.tensor(ckpt, "w")
      # a binary over the truncated mapping reads as zeros and does not crash
      binary = Tensor.to_binary(tensor)
      assert :binary.last(binary) == 0
    end
  end

  @tag :torch
  test "mappings are private: writing to a tensor does not change the file", %{tmp_dir: dir} do
    path = write(dir, 100)
    before = File.read!(path)
    {:ok, %{"w" => tensor}} = ExTorch.load(path, mmap: true)
    ExTorch.op("zero_", [tensor])
    assert Tensor.to_list(ExTorch.sum(tensor)) == 0.0
    assert File.read!(path) == before
  end

  test "the tensors of a binary share its memory and are frozen" do
    binary = Zip.checkpoint(pickle(1000), %{"0" => floats(1000)})
    before = Memory.live().bytes
    {:ok, %{"w" => tensor}} = ExTorch.load({:binary, binary})
    wait_until(fn -> Memory.live().bytes == before end)
    assert reason(fn -> ExTorch.op("zero_", [tensor]) end) == :frozen
    assert Tensor.to_binary(tensor) == floats(1000)
  end

  # ---- Zip files of other programs ----

  test "deflated and unaligned records, no root directory, bytes after the end", %{tmp_dir: dir} do
    data = floats(3000)
    packed = fn name, data -> Zip.deflated({name, data}) end

    archives = [
      Zip.make([
        packed.("r/data.pkl", pickle(3000)),
        packed.("r/data/0", data),
        {"r/version", "3\n"}
      ]),
      Zip.make([{"r/data.pkl", pickle(3000)}, {"r/data/0", data}, {"r/version", "3\n"}]),
      Zip.make([{"r/x", "1"}, {"r/data.pkl", pickle(3000)}, {"r/data/0", data}]),
      Zip.make([{"data.pkl", pickle(3000)}, {"data/0", data}]),
      Zip.checkpoint(pickle(3000), %{"0" => data}, tail: String.duplicate("appended", 100)),
      Zip.checkpoint(pickle(3000), %{"0" => data}, end64: []),
      Zip.checkpoint(pickle(3000), %{"0" => data}, align: 4096),
      Zip.checkpoint(pickle(3000), %{"0" => data},
        more: [{"archive/extra/note.txt", "hello"}, {"other/file", "x"}]
      )
    ]

    for {archive, i} <- Enum.with_index(archives) do
      path = Path.join(dir, "#{i}.pt")
      File.write!(path, archive)

      for source <- [path, {:binary, archive}, %FileSource{path: path}],
          opts <- [[], [verify: true], [mmap: true]] do
        assert {:ok, %{"w" => tensor}} = ExTorch.load(source, opts)
        assert Tensor.to_binary(tensor) == data
        {:ok, ckpt} = Checkpoint.open(source, opts)
        assert Tensor.to_binary(Checkpoint.tensor!(ckpt, "w")) == data
        assert Checkpoint.read_storage(ckpt, "0") == {:ok, data}
      end
    end
  end

  test "big-endian files", %{tmp_dir: dir} do
    for {class, item, big, little} <- [
          {"FloatStorage", 4, <<1.5::float-32-big, -2.0::float-32-big>>,
           <<1.5::float-32-little, -2.0::float-32-little>>},
          {"LongStorage", 8, <<7::big-64, -9::big-64>>, <<7::little-64, -9::little-64>>},
          {"ComplexFloatStorage", 8,
           <<1.0::float-32-big, 2.0::float-32-big, 3.0::float-32-big, 4.0::float-32-big>>,
           <<1.0::float-32-little, 2.0::float-32-little, 3.0::float-32-little,
             4.0::float-32-little>>},
          {"ByteStorage", 1, <<1, 2>>, <<1, 2>>}
        ] do
      count = div(byte_size(big), item)

      pickle =
        Pickle.make(
          Pickle.tensor(
            class: Pickle.global("torch", class),
            numel: Pickle.int(count),
            size: Pickle.tuple([Pickle.int(count)])
          )
        )

      path = Path.join(dir, class)

      File.write!(
        path,
        Zip.checkpoint(pickle, %{"0" => big}, more: [{"archive/byteorder", "big"}])
      )

      for source <- [path, {:binary, File.read!(path)}],
          opts <- [[], [verify: true], [mmap: true]] do
        assert Tensor.to_binary(ExTorch.load!(source, opts)) == little
        ckpt = Checkpoint.open!(source, opts)
        assert Checkpoint.metadata(ckpt).byteorder == :big
        assert Tensor.to_binary(Checkpoint.tensor!(ckpt, [])) == little
      end
    end
  end

  test "verify: true detects wrong checksums", %{tmp_dir: dir} do
    path = write(dir, 1000)
    data = File.read!(path)
    {at, _} = :binary.match(data, floats(3))
    File.write!(path, flip_bit(data, at, 0))
    assert {:ok, _} = ExTorch.load(path)
    assert {:error, %{reason: :corrupt, message: message}} = ExTorch.load(path, verify: true)
    assert message =~ "checksum"

    assert {:error, %{reason: :corrupt}} =
             path |> Checkpoint.open!(verify: true) |> Checkpoint.tensor("w")

    assert {:error, %{reason: :corrupt}} = ExTorch.load({:binary, File.read!(path)}, verify: true)

    assert {:error, %{reason: :corrupt}} =
             path |> Checkpoint.open!(verify: true) |> Checkpoint.read_storage("0")
  end

  # ---- Large files, concurrency and interruption ----

  @tag :no_asan
  test "a sparse file of more than 4 GiB", %{tmp_dir: dir} do
    # one storage of 5 GiB with a few bytes at its end, zip64 in every place that needs it
    path = Path.join(dir, "large.pt")
    size = 5 * 1024 * @mib
    numel = div(size, 4)

    pickle =
      Pickle.make(
        Pickle.dict([
          {"end",
           Pickle.tensor(
             numel: Pickle.int(numel),
             offset: Pickle.int(numel - 2),
             size: Pickle.tuple([Pickle.int(2)])
           )},
          {"after",
           Pickle.tensor(
             key: Pickle.text("1"),
             numel: Pickle.int(2),
             size: Pickle.tuple([Pickle.int(2)])
           )}
        ])
      )

    name = "large/data/0"
    pkl = "large/data.pkl"

    pkl_local =
      <<"PK", 3, 4, 0::32, 0::16, 0::32, 0::32, byte_size(pickle)::little-32,
        byte_size(pickle)::little-32, byte_size(pkl)::little-16, 0::16, pkl::binary>>

    at0 = byte_size(pkl_local) + byte_size(pickle)

    local0 =
      <<"PK", 3, 4, 0::16, 0x0808::little-16, 0::16, 0::32, 0::96, byte_size(name)::little-16,
        0::16, name::binary>>

    data0 = at0 + byte_size(local0)
    pad = rem(64 - rem(data0, 64), 64)

    local0 =
      <<"PK", 3, 4, 0::16, 0x0808::little-16, 0::16, 0::32, 0::96, byte_size(name)::little-16,
        pad::little-16, name::binary, 0::size(pad)-unit(8)>>

    data0 = at0 + byte_size(local0)
    at1 = data0 + size

    local1 =
      <<"PK", 3, 4, 0::32, 0::16, 0::32, 0::32, 8::little-32, 8::little-32, 12::little-16, 0::16,
        "large/data/1">>

    cd_at = at1 + byte_size(local1) + 8

    entry = fn name, packed, offset, extra ->
      <<"PK", 1, 2, 0::32, if(packed == 0xFFFFFFFF, do: 0x0808, else: 0)::little-16, 0::16, 0::32,
        0::32, packed::little-32, packed::little-32, byte_size(name)::little-16,
        byte_size(extra)::little-16, 0::16, 0::16, 0::16, 0::32, offset::little-32, name::binary,
        extra::binary>>
    end

    directory =
      entry.(pkl, byte_size(pickle), 0, "") <>
        entry.(
          name,
          0xFFFFFFFF,
          at0,
          <<1::little-16, 16::little-16, size::little-64, size::little-64>>
        ) <>
        entry.("large/data/1", 8, 0xFFFFFFFF, <<1::little-16, 8::little-16, at1::little-64>>)

    {:ok, file} = :file.open(path, [:write, :raw, :binary])
    :ok = :file.pwrite(file, 0, [pkl_local, pickle, local0])
    :ok = :file.pwrite(file, data0 + size - 8, <<1.5::float-32-little, 2.5::float-32-little>>)

    :ok =
      :file.pwrite(file, at1, [
        local1,
        <<3.5::float-32-little, 4.5::float-32-little>>,
        directory,
        <<"PK", 6, 6, 44::little-64, 0::96, 3::little-64, 3::little-64,
          byte_size(directory)::little-64, cd_at::little-64>>,
        <<"PK", 6, 7, 0::32, cd_at + byte_size(directory)::little-64, 1::little-32>>,
        <<"PK", 5, 6, 0::32, 3::little-16, 3::little-16, byte_size(directory)::little-32,
          0xFFFFFFFF::little-32, 0::16>>
      ])

    :file.close(file)

    for opts <- [[], [mmap: true]] do
      before = Memory.live().bytes
      ckpt = Checkpoint.open!(path, opts)
      assert Tensor.to_list(Checkpoint.tensor!(ckpt, "end")) == [1.5, 2.5]
      assert Tensor.to_list(Checkpoint.tensor!(ckpt, "after")) == [3.5, 4.5]
      assert Memory.live().bytes - before < @mib

      assert {:ok, <<_::32, 2.5::float-32-little>>} =
               Checkpoint.read_storage(ckpt, "0", size - 8, 8)
    end
  end

  test "many processes read from one handle", %{tmp_dir: dir} do
    path = write(dir, 20_000)
    expected = floats(20_000)

    for opts <- [[], [mmap: true]] do
      ckpt = Checkpoint.open!(path, opts)

      1..50
      |> Enum.map(fn i ->
        Task.async(fn ->
          for _ <- 1..20, do: assert(Tensor.to_binary(Checkpoint.tensor!(ckpt, "w")) == expected)
          if i == 25, do: Checkpoint.keys(ckpt)
        end)
      end)
      |> Task.await_many(60_000)
    end
  end

  test "closing is safe during concurrent reads", %{tmp_dir: dir} do
    path = write(dir, 2000)

    for _ <- 1..50 do
      ckpt = Checkpoint.open!(path)

      readers =
        for _ <- 1..4, do: Task.async(fn -> for _ <- 1..10, do: Checkpoint.tensor(ckpt, "w") end)

      Checkpoint.close(ckpt)

      for result <- readers |> Task.await_many() |> List.flatten() do
        assert match?({:ok, _}, result) or match?({:error, %{reason: :released}}, result)
      end
    end
  end

  test "a killed load leaks nothing", %{tmp_dir: dir} do
    count = 4 * @mib
    path = Path.join(dir, "file.pt")
    File.write!(path, Zip.checkpoint(pickle(count), %{"0" => :binary.copy(<<0>>, 4 * count)}))
    before = {Memory.live(), descriptors()}

    for i <- 1..40 do
      pid = spawn(fn -> for _ <- 1..100, do: ExTorch.load!(path, mmap: rem(i, 2) == 0) end)
      Process.sleep(:rand.uniform(8))
      Process.exit(pid, :kill)
    end

    assert_live(elem(before, 0))
    assert wait_until(fn -> descriptors() == elem(before, 1) end)
  end

  test "a garbage-collected handle closes its file", %{tmp_dir: dir} do
    path = write(dir, 10)
    before = descriptors()
    in_task(fn -> for(_ <- 1..50, do: Checkpoint.open!(path)) |> length() end)
    assert wait_until(fn -> descriptors() == before end)
    for _ <- 1..50, do: assert({:error, _} = Checkpoint.open(__ENV__.file))
    assert wait_until(fn -> descriptors() == before end)
  end

  defp descriptors, do: "/proc/self/fd" |> File.ls!() |> Enum.count(&pt?("/proc/self/fd/#{&1}"))

  defp pt?(link) do
    case File.read_link(link) do
      {:ok, target} -> String.contains?(target, [".pt", ".exs"])
      _ -> false
    end
  end

  test "a load that exceeds the budget is refused, and succeeds if garbage can be collected", %{
    tmp_dir: dir
  } do
    count = 2 * @mib
    path = Path.join(dir, "file.pt")
    File.write!(path, Zip.checkpoint(pickle(count), %{"0" => :binary.copy(<<0>>, 4 * count)}))
    budget = Memory.budget()

    try do
      Memory.set_budget(Memory.live().bytes + @mib)
      assert {:error, %{reason: :limit, path: ^path}} = ExTorch.load(path)
      assert {:error, %{reason: :limit}} = path |> Checkpoint.open!() |> Checkpoint.tensor("w")
      Memory.collect()
      Memory.set_budget(Memory.live().bytes + 12 * @mib)
      # the first object is garbage when the second is loaded
      Enum.each(1..5, fn _ -> load_and_drop(path) end)
    after
      Memory.set_budget(budget)
    end
  end

  # Returns without a reference to the object.
  defp load_and_drop(path) do
    assert {:ok, %{"w" => tensor}} = ExTorch.load(path)
    assert tensor.shape == {2 * @mib}
    :ok
  end

  test "verify: true checks the pickle", %{tmp_dir: dir} do
    path = write(dir, 10)
    data = File.read!(path)
    {at, _} = :binary.match(data, "_rebuild_tensor_v2")
    # a name of the same length changes the contents but not the size
    changed =
      binary_part(data, 0, at) <>
        "_rebuild_tensor_v9" <> binary_part(data, at + 18, byte_size(data) - at - 18)

    File.write!(path, changed)
    assert {:ok, %{"w" => %ExTorch.Python.Object{}}} = ExTorch.load(path)
    assert {:error, %{reason: :corrupt}} = ExTorch.load(path, verify: true)
  end

  test "a device that does not exist is an error, and requires_grad is kept on meta", %{
    tmp_dir: dir
  } do
    path = write(dir, 10)

    if ExTorch.Device.cuda_count() == 0 do
      assert {:error, %{reason: :unsupported, path: ^path}} = ExTorch.load(path, device: :cuda)

      assert {:error, %{reason: :unsupported}} =
               path |> Checkpoint.open!(device: :cuda) |> Checkpoint.tensor("w")
    end

    {:ok, %{"p" => p}} = ExTorch.load("test/fixtures/2.14.1/parameter.pt", device: :meta)
    assert Tensor.requires_grad(p)
  end

  test "a source that fails, raises or returns wrong sizes", %{tmp_dir: dir} do
    path = write(dir, 100)

    defmodule FaultySource do
      @behaviour ExTorch.Source
      defstruct [:path, :how]
      @impl true
      def size(%{how: :size}), do: {:error, :enoent}
      def size(%{how: {:size, size}}), do: {:ok, size}
      def size(%{how: :longer, path: path}), do: {:ok, File.stat!(path).size + 1000}
      def size(%{path: path}), do: {:ok, File.stat!(path).size}
      @impl true
      def read_at(%{how: :short, path: path}, at, n),
        do: {:ok, binary_part(File.read!(path), at, n - 1)}

      def read_at(%{how: :error}, _, _),
        do: {:error, %ExTorch.Error{reason: :io, message: "gone"}}

      def read_at(%{how: :longer, path: path}, at, n),
        do: {:ok, binary_part(File.read!(path) <> <<0::8000>>, at, n)}

      def read_at(_, _, _), do: raise("oops")
      @impl true
      def close(_), do: :ok
    end

    assert {:error, %{reason: :io}} = ExTorch.load(struct(FaultySource, path: path, how: :size))
    assert {:error, %{reason: :io}} = ExTorch.load(struct(FaultySource, path: path, how: :short))

    for size <- [2 ** 62 + 1, 2 ** 70] do
      source = struct(FaultySource, path: path, how: {:size, size})
      assert {:error, %{reason: :limit, message: message}} = ExTorch.load(source)
      assert message =~ "more than 2 ** 62 bytes"
      assert {:error, %{reason: :limit}} = ExTorch.Source.read_all(source, 1000)
    end

    for size <- [-1, 1.0, nil, "100"] do
      source = struct(FaultySource, path: path, how: {:size, size})
      assert {:error, %{reason: :io, message: message}} = ExTorch.load(source)
      assert message =~ "size to return a number of bytes"
      assert {:error, %{reason: :io}} = ExTorch.Source.read_all(source, 1000)
    end

    assert {:error, %{reason: :io, message: "gone"}} =
             ExTorch.load(struct(FaultySource, path: path, how: :error))

    assert {:ok, _} = ExTorch.load(struct(FaultySource, path: path, how: :longer))

    assert_raise RuntimeError, "oops", fn ->
      ExTorch.load(struct(FaultySource, path: path, how: :raise))
    end
  end
end
