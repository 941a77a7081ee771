defmodule ExTorch.Store.KillTest do
  # Nodes that die during a sharded save: the directory loads as the old or the new checkpoint, and the next save leaves
  # only its own files. test/fire/saves.exs does the same at random instants, for as long as it is told to.
  use ExTorch.Case
  alias ExTorch.Store
  alias ExTorch.Store.{Sharded, ShardIndex}
  alias ExTorch.Test.VM

  @moduletag :tmp_dir
  @moduletag :no_asan
  @moduletag timeout: 900_000

  @name "model.safetensors.index.json"
  @save """
  [path, value] = System.argv()
  store = ExTorch.Store.Sharded.new(path, overwrite: true, max_shard_size: 2000)
  value = String.to_integer(value) * 1.0
  :ok = ExTorch.Store.collect_from(store, Map.new(1..2, &{"w\#{&1}", ExTorch.full({500}, value)}))
  IO.puts("saved")
  """

  setup %{tmp_dir: dir}, do: {:ok, index: Path.join(dir, @name)}

  defp save(index, value, count) do
    store = Sharded.new(index, overwrite: true, max_shard_size: 2000)
    Store.collect_from(store, Map.new(1..count, &{"w#{&1}", ExTorch.full({500}, value * 1.0)}))
  end

  defp loaded(index) do
    tensors = ExTorch.load!(index)
    values = for {_, tensor} <- tensors, value <- Tensor.to_list(tensor), uniq: true, do: value
    {values, map_size(tensors)}
  end

  defp only_checkpoint?(index) do
    {:ok, weight_map} = ShardIndex.read(index)
    File.ls!(Path.dirname(index)) -- [@name | ShardIndex.shards(weight_map)] == []
  end

  if System.find_executable("strace") do
    # strace counts the calls of each thread: files are used on a single one.
    defp strace(index, options) do
      env = ["env", "ELIXIR_ERL_OPTIONS=+SDio 1", "strace", "-f", "-qq", "-o", "/dev/null"]
      {output, _} = VM.run(@save, [index, "2"], through: env ++ options)
      output
    end

    # Kills the node before its first call of a kind, before the second, and so on until a save succeeds. Returns the
    # number of kills.
    defp kill_each(call, prepare, check, n \\ 1) do
      index = prepare.()
      killed = ~w(-e trace=#{call} -e inject=#{call}:signal=KILL:when=#{n})

      if strace(index, killed) =~ "saved" do
        assert loaded(index) == {[2.0], 2}
        n - 1
      else
        check.("#{call} #{n}")
        :ok = save(index, 3, 4)
        assert loaded(index) == {[3.0], 4}
        assert only_checkpoint?(index), "#{call} #{n}: #{inspect(File.ls!(Path.dirname(index)))}"
        kill_each(call, prepare, check, n + 1)
      end
    end

    test "kill -9 before every step of a save that replaces a checkpoint", %{index: index} do
      prepare = fn ->
        :ok = save(index, 1, 3)
        index
      end

      check = fn step ->
        assert {step, loaded(index)} in [{step, {[1.0], 3}}, {step, {[2.0], 2}}]
      end

      kills =
        for call <- ~w(fsync linkat renameat unlink unlinkat),
            do: kill_each(call, prepare, check)

      assert Enum.sum(kills) >= 10
    end

    test "kill -9 before every step of a first save", %{tmp_dir: dir, index: index} do
      prepare = fn ->
        for name <- File.ls!(dir), do: File.rm!(Path.join(dir, name))
        index
      end

      check = fn step -> refute File.exists?(index) and loaded(index) != {[2.0], 2}, step end
      kills = for call <- ~w(linkat renameat), do: kill_each(call, prepare, check)
      assert Enum.sum(kills) >= 3
    end

    # 0x6969 is NFS. The digits after the prefix are those of the host.
    test "where other hosts do not see locks, their new temporary files are kept", %{
      tmp_dir: dir,
      index: index
    } do
      poke = ~w(-e trace=fstatfs -e inject=fstatfs:poke_exit=@arg2=6969000000000000)
      [host] = digits_of_host(dir)

      files =
        for prefix <- [".extorch-save-", ".extorch-index-"],
            {kind, digits, days} <- [
              {:this, host, 0},
              {:other, "00000000", 0},
              {:old, "00000001", 2}
            ] do
          path = Path.join(dir, prefix <> digits <> String.duplicate("a", 16))
          File.write!(path, "")
          File.touch!(path, System.os_time(:second) - days * 86_400)
          {{prefix, kind}, path}
        end

      assert strace(index, poke) =~ "saved"

      for {{_, kind} = key, path} <- files,
          do: assert({key, File.exists?(path)} == {key, kind == :other})

      # on a local file system, the lock decides
      :ok = save(index, 1, 1)
      assert only_checkpoint?(index)
    end

    defp digits_of_host(dir) do
      {:ok, file, _} = ExTorch.Archive.AtomicFile.open_index(Path.join(dir, @name))
      names = File.ls!(dir)
      ExTorch.Archive.AtomicFile.discard(file)
      for ".extorch-index-" <> digits <- names, do: binary_part(digits, 0, 8)
    end
  end
end
