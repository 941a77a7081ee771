defmodule ExTorch.Checkpoint.ReadersTest do
  # Files that several threads read.
  use ExTorch.Case
  alias ExTorch.Checkpoint
  alias ExTorch.Test.{Pickle, Zip}

  @moduletag :tmp_dir
  @mib 1024 * 1024
  @formats [:zip, :legacy, :streaming, :safetensors]

  # Larger than several pieces, not a multiple of anything, just above and below the size of a slab, and many small ones.
  @sizes [20 * @mib + 12, 9 * @mib, 2 * @mib + 8, 2 * @mib - 4, 64] ++
           List.duplicate(10_000, 50) ++ [8 * @mib]

  defp object do
    block = :crypto.strong_rand_bytes(21 * @mib)

    for {size, i} <- Enum.with_index(@sizes), into: %{} do
      # copied, because tensors that share memory are saved as one storage
      bytes = block |> binary_part(97 * i, size) |> :binary.copy()
      {"layer.#{i}", Tensor.from_binary(bytes, {div(size, 4)}, :int32)}
    end
  end

  defp binaries(object), do: Map.new(object, fn {name, t} -> {name, Tensor.to_binary(t)} end)

  # Which tensors differ; comparing maps of such binaries directly would print them.
  defp different(object, expected) do
    assert Map.keys(object) == Map.keys(expected)
    for {name, t} <- object, Tensor.to_binary(t) != expected[name], do: name
  end

  test "every format has the same values with any number of readers", %{tmp_dir: dir} do
    object = object()
    expected = binaries(object)

    for format <- @formats do
      path = Path.join(dir, "#{format}")
      ExTorch.save!(object, path, format: format, fsync: false)

      for readers <- [nil, 1, 2, 7, 64], verify <- [false, true] do
        opts = [readers: readers, verify: verify]
        assert {opts, []} == {opts, different(ExTorch.load!(path, opts), expected)}
        Memory.collect()
      end

      assert [] == different(ExTorch.load!(path, readers: 3, drop_behind: true), expected)
      progress = [readers: 3, on_progress: fn _, _ -> :ok end]
      assert [] == different(ExTorch.load!(path, progress), expected)
      ckpt = Checkpoint.open!(path, readers: 4)

      for {name, bytes} <- expected do
        assert {:ok, tensor} = Checkpoint.tensor(ckpt, name)
        assert {name, true} == {name, Tensor.to_binary(tensor) == bytes}
        Tensor.release(tensor)
      end

      assert [] == different(Map.new(ckpt), expected)
      File.rm!(path)
      assert %{threads: 0} = Memory.live()
    end
  end

  # What is dropped from the page cache is read from the disk by the next read, if the file system has a disk.
  test "files that are not in the page cache", %{tmp_dir: dir} do
    object = object()
    expected = binaries(object)
    uncached = [drop_behind: true]

    for format <- @formats do
      path = Path.join(dir, "#{format}")
      # what was not written to the disk stays in the cache
      ExTorch.save!(object, path, format: format, fsync: true)
      assert [] == different(ExTorch.load!(path, uncached), expected)
      assert [] == different(ExTorch.load!(path, uncached), expected)

      assert [] == different(ExTorch.load!(path, [readers: 2] ++ uncached), expected)

      assert [] ==
               different(ExTorch.load!(path, [verify: true, readers: 3] ++ uncached), expected)

      assert [] == different(path |> Checkpoint.open!(uncached) |> Map.new(), expected)
      assert [] == different(path |> Checkpoint.open!() |> Map.new(), expected)
      assert [] == different(ExTorch.load!(path, uncached), expected)
      assert [] == different(ExTorch.load!(path, mmap: :populate), expected)
      File.rm!(path)
    end
  end

  test "mapped files that are populated", %{tmp_dir: dir} do
    object = object()
    expected = binaries(object)

    for format <- @formats, readers <- [nil, 1, 5] do
      path = Path.join(dir, "#{format}")
      ExTorch.save!(object, path, format: format, fsync: false)
      assert [] == different(ExTorch.load!(path, mmap: :populate, readers: readers), expected)
      # one that is smaller than a page
      ExTorch.save!(%{"w" => ExTorch.ones({3})}, path, format: format)
      assert %{"w" => small} = ExTorch.load!(path, mmap: :populate, verify: true)
      assert Tensor.to_list(small) == [1.0, 1.0, 1.0]
    end
  end

  test "compressed records, and parts of files", %{tmp_dir: dir} do
    count = 3 * @mib
    names = ["0", "1", "2", "3"]
    text = :binary.copy(:crypto.strong_rand_bytes(1000), div(4 * count, 1000) + 1)
    data = Map.new(names, &{&1, binary_part(text, String.to_integer(&1), 4 * count)})

    pickle =
      Pickle.make(
        Pickle.dict(
          for key <- names do
            size = Pickle.tuple([Pickle.int(count)])
            {key, Pickle.tensor(key: Pickle.text(key), numel: Pickle.int(count), size: size)}
          end
        )
      )

    path = Path.join(dir, "file.pt")
    storages = for {key, bytes} <- data, do: Zip.deflated({"archive/data/" <> key, bytes})
    File.write!(path, Zip.checkpoint(pickle, %{}, more: storages))

    for readers <- [1, 4], only <- [nil, ["1", "3"]] do
      object = ExTorch.load!(path, readers: readers, only: only)
      assert [] == different(object, Map.take(data, only || names))
    end
  end

  # The bytes are holes of the file.
  test "a load that takes several calls", %{tmp_dir: dir} do
    path = Path.join(dir, "file.safetensors")
    sizes = %{"a" => 400 * @mib, "b" => 300 * @mib}

    {header, size} =
      Enum.map_reduce(sizes, 0, fn {name, size}, at ->
        {~s("#{name}":{"dtype":"U8","shape":[#{size}],"data_offsets":[#{at},#{at + size}]}),
         at + size}
      end)

    json = "{" <> Enum.join(header, ",") <> "}"
    {:ok, io} = :file.open(path, [:write, :raw])
    :ok = :file.write(io, [<<byte_size(json)::little-64>>, json])
    {:ok, _} = :file.position(io, 8 + byte_size(json) + size - 1)
    :ok = :file.write(io, <<1>>)
    :ok = :file.close(io)

    for opts <- [[], [readers: 1], [mmap: true], [only: ["a", "b"]]] do
      object = ExTorch.load!(path, opts)
      assert Map.new(object, fn {name, t} -> {name, elem(t.shape, 0)} end) == sizes
      assert object["b"] |> Tensor.slice(0, -2..-1//1) |> Tensor.to_list() == [0, 1]
      for {_name, t} <- object, do: Tensor.release(t)
    end

    Memory.collect()
    budget = Memory.budget()

    try do
      Memory.set_budget(Memory.live().bytes + 500 * @mib)
      assert {:error, %{reason: :limit, path: ^path}} = ExTorch.load(path)
    after
      Memory.set_budget(budget)
    end
  end

  test "a killed load leaves no thread and no memory", %{tmp_dir: dir} do
    path = Path.join(dir, "file.pt")
    ExTorch.save!(object(), path, fsync: false)
    Memory.collect()
    before = Memory.live()

    for i <- 1..20 do
      opts = [readers: rem(i, 8) + 1, verify: rem(i, 3) == 0]
      pid = spawn(fn -> for _ <- 1..100, do: ExTorch.load!(path, opts) end)
      Process.sleep(:rand.uniform(20))
      Process.exit(pid, :kill)
    end

    assert_live(before)
  end

  test "a file that shrinks while threads read it", %{tmp_dir: dir} do
    path = Path.join(dir, "file.pt")
    object = object()

    for opts <- [[], [verify: true], [readers: 8, on_progress: fn _, _ -> :ok end]] do
      ExTorch.save!(object, path, fsync: false)
      size = File.stat!(path).size

      task =
        Task.async(fn ->
          Process.sleep(:rand.uniform(15))
          {:ok, io} = :file.open(path, [:read, :write, :raw])
          {:ok, _} = :file.position(io, div(size, 3))
          :ok = :file.truncate(io)
          :file.close(io)
        end)

      case ExTorch.load(path, Keyword.put_new(opts, :readers, 4)) do
        {:ok, loaded} -> assert map_size(loaded) == map_size(object)
        {:error, error} -> assert error.reason in [:file_changed, :truncated, :corrupt]
      end

      Task.await(task)
    end
  end

  test "a load by several threads that exceeds the budget is refused", %{tmp_dir: dir} do
    path = Path.join(dir, "file.pt")
    ExTorch.save!(object(), path, fsync: false)
    Memory.collect()
    budget = Memory.budget()

    try do
      Memory.set_budget(Memory.live().bytes + 24 * @mib)
      assert {:error, %{reason: :limit, path: ^path}} = ExTorch.load(path, readers: 4)
    after
      Memory.set_budget(budget)
    end

    assert {:ok, _} = ExTorch.load(path, readers: 4)
  end

  test "stores", %{tmp_dir: dir} do
    object = object()
    expected = binaries(object)
    path = Path.join(dir, "file.safetensors")
    ExTorch.save!(object, path, format: :safetensors, fsync: false)
    store = ExTorch.Store.Safetensors.new(path, readers: 3, drop_behind: true)
    module = Map.new(object, fn {name, t} -> {name, ExTorch.zeros(t.shape, dtype: t.dtype)} end)
    assert {:ok, %{module: applied}} = ExTorch.Store.apply_to(store, module)
    assert [] == different(applied, expected)

    assert_raise Error, ~r/expected :readers to be nil/, fn ->
      ExTorch.Store.Safetensors.new(path, readers: 0)
    end
  end

  test "options", %{tmp_dir: dir} do
    path = Path.join(dir, "file.pt")
    ExTorch.save!(%{"w" => ExTorch.ones({3})}, path)

    for readers <- [0, -1, 65, 1.0, :all, "2"] do
      assert_raise Error, ~r/expected :readers to be nil or an integer from 1 to 64, got/, fn ->
        ExTorch.load(path, readers: readers)
      end
    end

    for mmap <- [nil, 1, :populated, "true"] do
      assert_raise Error, ~r/expected :mmap to be a boolean or :populate, got/, fn ->
        ExTorch.load(path, mmap: mmap)
      end
    end

    for drop <- [0, 1, :auto, "true"] do
      assert_raise Error, ~r/expected :drop_behind to be nil or a boolean, got/, fn ->
        Checkpoint.open(path, drop_behind: drop)
      end
    end

    assert_raise Error, ~r/unknown option :readers/, fn ->
      ExTorch.Streaming.loader(readers: 2)
    end

    # they do not matter for what is not a file
    opts = [readers: 2, drop_behind: true]
    assert {:ok, %{"w" => _}} = ExTorch.load({:binary, File.read!(path)}, opts)
    assert {:ok, %{"w" => _}} = ExTorch.load(path, [mmap: true, verify: true] ++ opts)
  end
end
