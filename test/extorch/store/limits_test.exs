defmodule ExTorch.Store.LimitsTest do
  # Every limit of the stores, at the limit and one past it.
  use ExTorch.Case
  alias ExTorch.Store
  alias ExTorch.Store.{Directory, Names, Sharded, ShardIndex}

  @moduletag :tmp_dir
  @moduletag timeout: 300_000

  setup %{tmp_dir: dir}, do: {:ok, index: Path.join(dir, "model.safetensors.index.json")}

  defp write_map(index, pairs) do
    File.write!(index, [
      ~s({"weight_map": {),
      pairs |> Enum.map(fn {k, v} -> [?", k, ~s(": "), v, ?"] end) |> Enum.intersperse(","),
      "}}"
    ])
  end

  defp reason(index, fun) do
    {:error, %Error{reason: reason, path: path} = error} = fun.(index)
    assert String.starts_with?(path, Path.dirname(index))
    if reason == :limit, do: assert(error.message =~ "at most")
    reason
  end

  test "bytes of an index", %{index: index} do
    json = ~s({"weight_map": {"a": "gone"}})

    for {bytes, expected} <- [{64 * 1024 * 1024, :not_found}, {64 * 1024 * 1024 + 1, :limit}] do
      File.write!(index, [json, String.duplicate(" ", bytes - byte_size(json))])
      assert reason(index, &ExTorch.load/1) == expected
    end
  end

  test "bytes of an index that is written", %{index: index} do
    {:ok, text} = ShardIndex.text([{"", "s"}], 0, %{})
    room = 64 * 1024 * 1024 - byte_size(text)
    assert {:ok, text} = ShardIndex.text([{String.duplicate("x", room), "s"}], 0, %{})
    File.write!(index, text)
    assert {:ok, _} = ShardIndex.read(index)

    assert {:error, %Error{reason: :limit}} =
             ShardIndex.text([{String.duplicate("x", room + 1), "s"}], 0, %{})
  end

  test "shards", %{index: index} do
    for {count, expected} <- [{10_000, :not_found}, {10_001, :limit}] do
      write_map(index, for(i <- 1..count, do: {"w#{i}", "s#{i}"}))
      assert reason(index, &Store.keys(Sharded.new(&1))) == expected
    end

    assert ShardIndex.check_counts(10_000, 10_000, index) == :ok
    File.rm!(index)
    tensor = ExTorch.ones({1})
    module = Map.new(1..10_001, &{"w#{&1}", tensor})

    assert reason(index, &Store.collect_from(Sharded.new(&1, max_shard_size: 1), module)) ==
             :limit

    assert File.ls!(Path.dirname(index)) == []
  end

  test "tensors", %{index: index} do
    for {count, expected} <- [{300_000, :not_found}, {300_001, :limit}] do
      write_map(index, for(i <- 1..count, do: {to_string(i), "gone"}))
      assert reason(index, &ExTorch.load/1) == expected
    end

    assert ShardIndex.check_counts(300_000, 1, index) == :ok
    assert {:error, %Error{reason: :limit}} = ShardIndex.check_counts(300_001, 1, index)
  end

  test "bytes of a file name", %{index: index} do
    for {bytes, expected} <- [{255, :not_found}, {256, :limit}] do
      write_map(index, [{"a", String.duplicate("x", bytes)}])
      assert reason(index, &ExTorch.load/1) == expected
    end
  end

  test "indexes in a directory", %{tmp_dir: dir} do
    make = "seq 1 10000 | sed 's/$/.index.json/' | xargs touch"
    {_, 0} = System.cmd("sh", ["-c", make], cd: dir)
    assert {:error, %Error{reason: :ambiguous}} = Store.keys(Sharded.new(dir))
    :ok = File.touch(Path.join(dir, "0.index.json"))
    assert {:error, %Error{reason: :limit, path: ^dir}} = Store.keys(Sharded.new(dir))
    assert {:error, %Error{reason: :limit}} = Directory.list(dir, "x", ".index.json")
  end

  test "max_shard_size" do
    for {size, bytes} <- [
          {1, 1},
          {"1", 1},
          {"0.001KB", 1},
          {"5GiB", 5 * 1024 ** 3},
          {2 ** 70, 2 ** 70}
        ],
        do: assert(Sharded.new("x", max_shard_size: size).options.max_shard_size == bytes)

    for size <- [0, "0", "0.9", "0.0009KB", "-1", "1e308GB", "1e400", "5XB", "", "GB", 1.5, nil],
        do:
          assert(
            reason(fn -> Sharded.new("x", max_shard_size: size) end) == :bad_argument,
            inspect(size)
          )
  end

  # ---- Names ----

  defp renumbered(names) do
    options = %{top_level_key: nil, renumber: true, remap: [], adapters: []}
    {:ok, pairs, [], nil} = Names.plan(names, fn -> %{} end, options, %{})
    Enum.map(pairs, &elem(&1, 1))
  end

  test "levels and digits of names that are renumbered" do
    deep = fn levels -> String.duplicate("x.", levels) end
    assert renumbered([deep.(64) <> "5"]) == [deep.(64) <> "0"]
    assert renumbered([deep.(65) <> "5"]) == [deep.(65) <> "5"]
    long = String.duplicate("9", 18)
    assert renumbered(["a." <> long]) == ["a.0"]
    assert renumbered(["a.9" <> long]) == ["a.9" <> long]
  end

  test "a name of a hundred megabytes is renumbered at once" do
    task =
      Task.async(fn ->
        renumbered([String.duplicate("1.", 25_000_000), String.duplicate("1", 25_000_000)])
      end)

    assert {:ok, [_, _]} = Task.yield(task, 60_000) || Task.shutdown(task, :brutal_kill)
  end

  test "names that are compared for suggestions" do
    for {bytes, found} <- [{199, 1}, {200, 0}] do
      name = String.duplicate("n", bytes - 1)
      assert map_size(Names.suggestions([{"x", [name <> "a"]}], [name <> "b"])) == found
    end

    missing = for i <- 1..51, do: {"#{i}", ["layer.#{i}.weight"]}
    assert map_size(Names.suggestions(missing, ["layer.0.weight"])) == 50
    noise = &for(i <- 1..&1, do: "#{i}")
    missing = [{"kernel", ["other", "weight"]}]
    assert Names.suggestions(missing, noise.(1999) ++ ["weights"]) == %{"kernel" => "weights"}
    assert Names.suggestions(missing, noise.(2000) ++ ["weights"]) == %{}
  end
end
