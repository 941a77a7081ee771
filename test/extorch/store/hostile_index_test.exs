defmodule ExTorch.Store.HostileIndexTest do
  # Directories from strangers: an index or a shard that is not what it seems is an error, at once, and nothing waits.
  use ExTorch.Case
  alias ExTorch.Store
  alias ExTorch.Store.Sharded

  @moduletag :tmp_dir

  # Every way to read the index, each in its own process with a time limit.
  defp reasons(index) do
    for fun <- [
          fn -> ExTorch.load(index) end,
          fn -> ExTorch.load(Path.dirname(index)) end,
          fn -> Store.keys(Sharded.new(index)) end,
          fn -> Store.apply_to(Sharded.new(index), %{"w" => ExTorch.zeros({1})}) end
        ] do
      task = Task.async(fun)

      case Task.yield(task, 5_000) || Task.shutdown(task, :brutal_kill) do
        {:ok, {:error, %Error{reason: reason}}} -> reason
        {:ok, other} -> other
        nil -> :hangs
      end
    end
    |> Enum.uniq()
  end

  # The file server answers other processes.
  defp file_server_alive?(dir) do
    task = Task.async(fn -> :file.list_dir(dir) end)
    match?({:ok, {:ok, _}}, Task.yield(task, 2_000) || Task.shutdown(task, :brutal_kill))
  end

  test "an index that is a FIFO", %{tmp_dir: dir} do
    index = Path.join(dir, "model.safetensors.index.json")
    {_, 0} = System.cmd("mkfifo", [index])
    assert reasons(index) == [:io]
    assert file_server_alive?(dir)
  end

  test "an index that links to a device without an end", %{tmp_dir: dir} do
    index = Path.join(dir, "model.safetensors.index.json")
    File.ln_s!("/dev/zero", index)
    assert reasons(index) == [:io]
  end

  test "an index that is a directory, or larger than an index is", %{tmp_dir: dir} do
    index = Path.join(dir, "model.safetensors.index.json")
    File.mkdir_p!(index)
    assert reasons(index) == [:not_found]
    File.rmdir!(index)
    {:ok, file} = :file.open(index, [:write, :raw])
    {:ok, _} = :file.position(file, 65 * 1024 * 1024)
    :ok = :file.truncate(file)
    :ok = :file.close(file)
    assert reasons(index) == [:limit]
  end

  test "shards that are a FIFO, a device, an index, or the index itself", %{tmp_dir: dir} do
    index = Path.join(dir, "model.safetensors.index.json")
    {_, 0} = System.cmd("mkfifo", [Path.join(dir, "fifo")])
    File.ln_s!("/dev/zero", Path.join(dir, "zero"))
    File.write!(Path.join(dir, "other.json"), ~s({"weight_map": {"w": "other.json"}}))

    for {shard, expected} <- [
          {"fifo", [:io]},
          {"zero", [:io]},
          {"other.json", [:corrupt]},
          {"model.safetensors.index.json", [:corrupt]}
        ] do
      File.write!(index, ~s({"weight_map": {"w": "#{shard}"}}))
      assert {shard, reasons(index)} == {shard, expected}
    end

    assert file_server_alive?(dir)
  end

  test "text after the end of the JSON", %{tmp_dir: dir} do
    index = Path.join(dir, "model.safetensors.index.json")

    for rest <- [<<0>>, <<0, "{">>, "x", "{}"] do
      File.write!(index, ~s({"weight_map": {}}) <> rest)
      assert reasons(index) == [:corrupt]
    end
  end
end
