defmodule ExTorch.Store.SavesTest do
  # Sharded saves: a directory contains one complete checkpoint, and nothing else, whoever saves at the same time and
  # whatever fails.
  use ExTorch.Case
  alias ExTorch.Archive.AtomicFile
  alias ExTorch.Store
  alias ExTorch.Store.{Directory, Sharded, ShardIndex}
  alias ExTorch.Test.VM

  @moduletag :tmp_dir
  @name "model.safetensors.index.json"

  setup %{tmp_dir: dir}, do: {:ok, index: Path.join(dir, @name)}

  # A module whose tensors all contain the value.
  defp module(value, count), do: Map.new(1..count, &{"w#{&1}", ExTorch.full({500}, value * 1.0)})

  defp save(index, value, count \\ 3, opts \\ []) do
    opts = Keyword.merge([overwrite: true, max_shard_size: 2000], opts)
    Store.collect_from(Sharded.new(index, opts), module(value, count))
  end

  # The value that all tensors contain, and the number of tensors.
  defp loaded(index) do
    tensors = ExTorch.load!(index)
    values = for {_, tensor} <- tensors, value <- Tensor.to_list(tensor), uniq: true, do: value
    {values, map_size(tensors)}
  end

  defp shards(index) do
    {:ok, weight_map} = ShardIndex.read(index)
    ShardIndex.shards(weight_map)
  end

  # The files beside the index and its shards.
  defp others(index), do: File.ls!(Path.dirname(index)) -- [Path.basename(index) | shards(index)]

  defp contents(dir),
    do: for(name <- Enum.sort(File.ls!(dir)), do: {name, digest(Path.join(dir, name))})

  defp digest(path), do: if(File.regular?(path), do: :erlang.md5(File.read!(path)))

  # ---- Names ----

  test "the first save has the usual names; later ones have names that were never used", %{
    index: index
  } do
    :ok = save(index, 1)
    first = shards(index)
    assert first == for(i <- 1..3, do: "model-0000#{i}-of-00003.safetensors")
    :ok = save(index, 2)
    second = shards(index)
    assert Enum.all?(second, &(&1 =~ ~r/^model-[0-9a-f]{16}-0000[123]-of-00003\.safetensors$/))
    :ok = save(index, 3)
    assert shards(index) -- (first ++ second) == shards(index)
    assert loaded(index) == {[3.0], 3}
    assert others(index) == []
  end

  test "fewer shards, another format and single files beside the index", %{
    tmp_dir: dir,
    index: index
  } do
    zip = Path.join(dir, "pytorch_model.bin.index.json")
    single = Path.join(dir, "model.safetensors")
    :ok = save(index, 1, 5)
    :ok = save(zip, 2, 4)
    :ok = Store.collect_from(Store.Safetensors.new(single), module(3, 2))
    :ok = save(index, 4, 2)
    assert loaded(index) == {[4.0], 2}
    assert loaded(zip) == {[2.0], 4}
    assert loaded(single) == {[3.0], 2}
    :ok = save(zip, 5, 1)

    assert Enum.sort(File.ls!(dir)) ==
             Enum.sort(
               [@name, Path.basename(zip), "model.safetensors"] ++ shards(index) ++ shards(zip)
             )
  end

  test "shards that another index refers to are kept", %{tmp_dir: dir, index: index} do
    :ok = save(index, 1)
    copy = Path.join(dir, "backup.index.json")
    File.cp!(index, copy)
    :ok = save(index, 2)
    assert loaded(index) == {[2.0], 3}
    assert loaded(copy) == {[1.0], 3}
    # an index that is not valid refers to nothing
    File.write!(copy, "{")
    :ok = save(index, 3)
    assert loaded(index) == {[3.0], 3}
  end

  test "files that are not shards of the index are kept", %{tmp_dir: dir, index: index} do
    for name <- ["a.safetensors", "model-ema-00001-of-00001.safetensors"],
        do: :ok = ExTorch.save(%{name => ExTorch.ones({1})}, Path.join(dir, name))

    names = for name <- File.ls!(dir), into: %{}, do: {name, name}
    weight_map = Enum.map_join(names, ",", fn {k, v} -> ~s("#{k}": "#{v}") end)
    File.write!(index, ~s({"weight_map": {#{weight_map}}}))
    :ok = save(index, 1)
    assert others(index) |> Enum.sort() == names |> Map.keys() |> Enum.sort()
  end

  test "names that are in use without an index are not touched", %{tmp_dir: dir, index: index} do
    taken = Path.join(dir, "model-00002-of-00003.safetensors")
    File.mkdir_p!(taken)

    assert {:error, %Error{reason: :bad_argument, path: ^taken}} =
             save(index, 1, 3, overwrite: false)

    :ok = save(index, 1)
    assert loaded(index) == {[1.0], 3}
    assert others(index) == [Path.basename(taken)]
  end

  test "a directory name with special characters", %{tmp_dir: dir} do
    inner = Path.join(dir, "a[1]{x}*?")
    File.mkdir_p!(inner)
    :ok = save(Path.join(inner, @name), 1)
    assert loaded(inner) == {[1.0], 3}
  end

  # ---- Saves at the same time ----

  @tag timeout: 300_000
  test "savers in one node: what remains is what one of them wrote", %{index: index} do
    for round <- 1..24 do
      savers = for i <- 1..3, do: {round * 10 + i, rem(i, 2) + 2}

      results =
        savers
        |> Enum.map(fn {value, count} -> Task.async(fn -> save(index, value, count) end) end)
        |> Task.await_many(60_000)

      assert results == [:ok, :ok, :ok]
      assert {[value], count} = loaded(index)
      assert {trunc(value), count} in savers
      assert others(index) == []
    end
  end

  test "savers that must not overwrite: one succeeds", %{index: index} do
    for round <- 1..24 do
      results =
        1..3
        |> Enum.map(&Task.async(fn -> {&1, save(index, &1, 3, overwrite: false)} end))
        |> Task.await_many(60_000)

      assert [{value, :ok}] = Enum.filter(results, &(elem(&1, 1) == :ok))

      for {_, result} <- results, result != :ok do
        assert {:error, %Error{reason: :bad_argument, message: message}} = result
        assert message =~ "already exists"
      end

      assert loaded(index) == {[value * 1.0], 3}, "round #{round}"
      assert others(index) == []
      for name <- [@name | shards(index)], do: File.rm!(Path.join(Path.dirname(index), name))
    end
  end

  @child """
  [path, shards] = System.argv()
  store = ExTorch.Store.Sharded.new(path, overwrite: true, max_shard_size: 2000)
  IO.puts("ready")

  for line <- IO.stream(:stdio, :line) do
    value = line |> String.trim() |> String.to_integer()
    module = Map.new(1..String.to_integer(shards), &{"w\#{&1}", ExTorch.full({500}, value * 1.0)})
    IO.puts(inspect(ExTorch.Store.collect_from(store, module)))
  end
  """

  @tag :no_asan
  @tag timeout: 300_000
  test "savers in two nodes: what remains is what one of them wrote", %{index: index} do
    ports =
      for shards <- [2, 3] do
        Port.open({:spawn_executable, System.find_executable("elixir")}, [
          :binary,
          {:line, 1000},
          args: VM.args(@child, [index, to_string(shards)])
        ])
      end

    for port <- ports, do: assert_receive({^port, {:data, {:eol, "ready"}}}, 60_000)

    for round <- 1..24 do
      for {port, i} <- Enum.with_index(ports), do: Port.command(port, "#{round * 10 + i}\n")
      for port <- ports, do: assert_receive({^port, {:data, {:eol, ":ok"}}}, 60_000)
      assert {[value], count} = loaded(index)
      assert {trunc(value), count} in [{round * 10, 2}, {round * 10 + 1, 3}]
      assert others(index) == []
    end

    Enum.each(ports, &Port.close/1)
  end

  test "a reader gets the old or the new checkpoint while saves replace it", %{index: index} do
    :ok = save(index, 0)

    saver =
      Task.async(fn -> for i <- 1..60, do: :ok = save(index, i, 2 + rem(i, 3), fsync: false) end)

    results =
      Stream.repeatedly(fn ->
        {:ok, tensors} = ExTorch.load(index)
        {:ok, keys} = Store.keys(Sharded.new(index))

        values =
          for {_, tensor} <- tensors, value <- Tensor.to_list(tensor), uniq: true, do: value

        assert [value] = values
        assert map_size(tensors) == if(value == 0.0, do: 3, else: 2 + rem(trunc(value), 3))
        assert length(keys) in 2..4
        value
      end)
      |> Enum.take_while(fn _ -> Task.yield(saver, 0) == nil end)

    assert length(Enum.uniq(results)) > 1
  end

  test "a reader that has opened the shards goes on when they are replaced", %{index: index} do
    :ok = save(index, 1)

    Sharded.with_file(Sharded.new(index), fn file ->
      :ok = save(index, 2)
      assert {:ok, tensor} = file.tensor.("w3")
      assert Enum.uniq(Tensor.to_list(tensor)) == [1.0]
    end)
  end

  # ---- The lock ----

  test "a directory that another process keeps locked", %{tmp_dir: dir} do
    me = self()

    ours = fn ->
      Directory.locked(dir, fn -> send(me, :locked) && Process.sleep(:infinity) end)
    end

    {pid, ref} = spawn_monitor(ours)
    assert_receive :locked, 5000

    assert {:error, %Error{reason: :busy, path: ^dir}} =
             Directory.locked(dir, 50, fn -> :never end)

    # a killed holder releases the lock
    Process.exit(pid, :kill)
    assert_receive {:DOWN, ^ref, _, _, :killed}, 5000
    assert Directory.locked(dir, fn -> :mine end) == :mine
    # so does an exception
    assert_raise RuntimeError, fn -> Directory.locked(dir, fn -> raise "x" end) end
    assert Directory.locked(dir, 0, fn -> :mine end) == :mine
    assert File.ls!(dir) == []
  end

  test "many waiting savers leave the schedulers to others", %{tmp_dir: dir, index: index} do
    me = self()

    holder =
      spawn(fn ->
        Directory.locked(dir, fn -> send(me, :locked) && receive(do: (:go -> :ok)) end)
      end)

    assert_receive :locked, 5000
    savers = for i <- 1..40, do: Task.async(fn -> save(index, i, 1, fsync: false) end)
    # loads use the same dirty schedulers
    other = Path.join(System.tmp_dir!(), "extorch_#{System.unique_integer([:positive])}.pt")
    :ok = ExTorch.save(1, other)
    task = Task.async(fn -> for _ <- 1..20, do: 1 = ExTorch.load!(other) end)
    assert {:ok, _} = Task.yield(task, 10_000)
    File.rm!(other)
    send(holder, :go)
    assert savers |> Task.await_many(60_000) |> Enum.uniq() == [:ok]
    assert others(index) == []
  end

  # ---- What dead saves leave ----

  defp temporary(dir), do: Enum.filter(File.ls!(dir), &String.starts_with?(&1, ".extorch"))

  defp dead_index(dir, shards) do
    {:ok, file, digits} = AtomicFile.open_index(Path.join(dir, @name))
    {:ok, text} = ShardIndex.text(Enum.map(shards, &{&1, &1}), 0, %{})
    {:ok, _, _} = AtomicFile.write(file, text)
    {file, digits}
  end

  test "the next save of any store removes what a dead save has left, and nothing of a live one",
       %{
         tmp_dir: dir,
         index: index
       } do
    single = Path.join(dir, "x.safetensors")

    for next <- [
          fn -> save(index, 1) end,
          fn ->
            Store.collect_from(Store.Safetensors.new(single, overwrite: true), module(1, 1))
          end
        ] do
      shard = "model-00001-of-00002.safetensors"
      path = Path.join(dir, shard)
      {file, _} = dead_index(dir, [shard, "x.safetensors", "../up-00001-of-00001.safetensors"])
      outside = Path.join(Path.dirname(dir), "up-00001-of-00001.safetensors")
      for path <- [path, outside], do: File.write!(path, "incomplete")
      assert next.() == :ok
      assert File.exists?(path)
      assert [_] = temporary(dir)
      AtomicFile.close(file)
      assert next.() == :ok
      refute File.exists?(path)
      assert File.exists?(outside)
      assert temporary(dir) == []
      File.rm!(outside)
      for name <- File.ls!(dir), do: File.rm!(Path.join(dir, name))
    end
  end

  test "a killed process leaves nothing after the next save", %{index: index} do
    :ok = save(index, 0)

    for i <- 1..60 do
      {pid, ref} = spawn_monitor(fn -> save(index, i, 2 + rem(i, 3)) end)
      Process.sleep(:rand.uniform(15))
      Process.exit(pid, :kill)
      assert_receive {:DOWN, ^ref, _, _, _}, 5000
      assert {[value], count} = loaded(index)
      assert count == if(value == 0.0, do: 3, else: 2 + rem(trunc(value), 3))
    end

    # a native call of a killed process may still be running; it holds the lock of its index
    assert wait_until(fn -> save(index, 100) == :ok and others(index) == [] end)
    assert loaded(index) == {[100.0], 3}
  end

  test "an index that cannot be read may refer to any shard", %{tmp_dir: dir, index: index} do
    :ok = save(index, 1)
    old = shards(index)
    large = Path.join(dir, "large.index.json")
    {:ok, file} = :file.open(large, [:write, :raw])
    {:ok, _} = :file.position(file, 64 * 1024 * 1024 + 1)
    :ok = :file.truncate(file)
    :ok = :file.close(file)
    :ok = save(index, 2)
    assert loaded(index) == {[2.0], 3}
    for shard <- old, do: assert(File.exists?(Path.join(dir, shard)))
    File.rm!(large)
    :ok = save(index, 3)
    assert others(index) == []
  end

  if System.cmd("id", ["-u"]) |> elem(0) |> String.trim() == "0" do
    test "a temporary index of another user is not trusted", %{tmp_dir: dir, index: index} do
      shard = Path.join(dir, "precious-00001-of-00001.safetensors")
      File.write!(shard, "precious")
      {file, _} = dead_index(dir, [Path.basename(shard)])
      AtomicFile.close(file)
      [name] = temporary(dir)
      File.chown!(Path.join(dir, name), 12_345)
      :ok = save(index, 1)
      assert File.read!(shard) == "precious"
      assert temporary(dir) == [name]
    end
  end

  # ---- Errors ----

  # The save fails with the reason, and the directory stays as it was.
  defp refused(index, reason, opts \\ [], count \\ 3) do
    dir = Path.dirname(index)
    before = contents(dir)
    assert {:error, %Error{reason: ^reason, path: ^index} = error} = save(index, 9, count, opts)
    refute Exception.message(error) =~ ".extorch"
    assert contents(dir) == before
    error.message
  end

  test "a directory in place of the index", %{index: index} do
    File.mkdir_p!(index)
    assert refused(index, :io) =~ "directory"
    assert refused(index, :bad_argument, overwrite: false) =~ "already exists"
  end

  test "a link in place of the index is replaced, its target is not", %{
    tmp_dir: dir,
    index: index
  } do
    target = Path.join(dir, "blob")
    File.write!(target, "precious")

    for to <- ["blob", "gone", @name] do
      File.ln_s!(to, index)
      assert refused(index, :bad_argument, overwrite: false) =~ "already exists"
      :ok = save(index, 1)
      assert loaded(index) == {[1.0], 3}
      assert {:error, _} = File.read_link(index)
      for name <- [@name | shards(index)], do: File.rm!(Path.join(dir, name))
    end

    assert File.read!(target) == "precious"
    assert File.ls!(dir) == ["blob"]
  end

  test "paths that are no paths", %{tmp_dir: dir} do
    for path <- [
          Path.join(dir, "a\0b.index.json"),
          Path.join(dir, String.duplicate("x/", 2100) <> @name),
          Path.join(dir, String.duplicate("x", 300) <> ".index.json"),
          Path.join([dir, "none", @name])
        ] do
      assert {:error, %Error{reason: reason}} = save(path, 1)
      assert reason in [:io, :not_found]
    end

    assert File.ls!(dir) == []
  end

  test "a name that JSON cannot contain", %{tmp_dir: dir} do
    index = Path.join(dir, "pytorch_model.bin.index.json")

    assert {:error, %Error{reason: :bad_argument, message: message}} =
             Store.collect_from(Sharded.new(index), %{<<255>> => ExTorch.ones({1})})

    assert message =~ "UTF-8"
    assert File.ls!(dir) == []
  end

  test "a callback that raises", %{index: index} do
    :ok = save(index, 1)
    before = contents(Path.dirname(index))
    assert_raise RuntimeError, fn -> save(index, 2, 3, on_progress: fn _, _ -> raise "x" end) end
    # the garbage collection closes the incomplete shard
    assert wait_until(fn -> contents(Path.dirname(index)) == before end)
  end

  @tag timeout: 300_000
  test "a full disk and a read-only file system", %{tmp_dir: dir} do
    small = Path.join(dir, "small")
    File.mkdir_p!(small)
    index = Path.join(small, @name)

    case System.cmd("mount", ["-t", "tmpfs", "-o", "size=256k", "tmpfs", small],
           stderr_to_stdout: true
         ) do
      {_, 0} ->
        try do
          :ok = save(index, 1)
          assert refused(index, :io, [], 200) =~ "disk is full"
          assert loaded(index) == {[1.0], 3}
          {_, 0} = System.cmd("mount", ["-o", "remount,ro", small])
          assert refused(index, :io) =~ "read-only"
          assert loaded(index) == {[1.0], 3}
        after
          assert wait_until(fn ->
                   match?({_, 0}, System.cmd("umount", [small], stderr_to_stdout: true))
                 end)

          File.rmdir!(small)
        end

      _ ->
        # mounting is not permitted
        assert save(index, 1) == :ok
    end
  end
end
