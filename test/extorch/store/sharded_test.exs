defmodule ExTorch.Store.ShardedTest do
  use ExTorch.Case
  alias ExTorch.Python.Dict
  alias ExTorch.Store
  alias ExTorch.Store.Sharded
  alias ExTorch.Test.Python, as: Torch

  @moduletag :tmp_dir

  defp zeros(shape, opts \\ []), do: ExTorch.zeros(shape, opts)
  defp ones(shape, opts \\ []), do: ExTorch.ones(shape, opts)
  defp list(tensor), do: Tensor.to_list(tensor)

  test "shards are written and read as safetensors and as zip", %{tmp_dir: dir} do
    for name <- ["model.safetensors.index.json", "pytorch_model.bin.index.json"] do
      index = Path.join([dir, name])
      module = Map.new(1..5, &{"w#{&1}", ExTorch.full({100}, &1 * 1.0)})
      store = Sharded.new(index, max_shard_size: 900)
      assert :ok = Store.collect_from(store, module)

      assert {:error, %{message: "the file already exists" <> _}} =
               Store.collect_from(store, module)

      shards =
        Enum.filter(
          File.ls!(dir),
          &(&1 =~ "-of-00003" and String.starts_with?(&1, hd(String.split(name, "."))))
        )

      assert length(shards) == 3
      target = Map.new(module, fn {k, _} -> {k, zeros({100})} end)
      assert {:ok, %{missing: [], unused: []} = result} = Store.apply_to(store, target)
      assert hd(list(result.module["w4"])) == 4.0
      assert {:ok, keys} = Store.keys(store)
      assert Enum.sort(keys) == Map.keys(module)
      assert {:ok, %{shape: {100}}} = Store.entry(store, "w5")
      assert {:ok, %Tensor{}} = Store.tensor(store, "w5")
      # fewer shards: the old ones are removed
      assert :ok =
               Store.collect_from(
                 Sharded.new(index, overwrite: true, max_shard_size: "1MB"),
                 module
               )

      refute Enum.any?(File.ls!(dir), &(&1 in shards))
    end
  end

  test "ExTorch.load loads an index, or its directory, as one checkpoint", %{tmp_dir: dir} do
    index = Path.join(dir, "model.safetensors.index.json")

    :ok =
      Store.collect_from(
        Sharded.new(index, max_shard_size: 8),
        Map.new(1..3, &{"w#{&1}", ExTorch.full({2}, &1 * 1.0)})
      )

    for source <- [index, dir] do
      assert %{"w1" => _, "w2" => w2, "w3" => _} = ExTorch.load!(source)
      assert list(w2) == [2.0, 2.0]
    end

    assert Map.keys(ExTorch.load!(dir, only: "w3")) == ["w3"]
    assert %Dict{pairs: [_, _, _]} = ExTorch.load!(dir, ordered: true)
    File.rm!(Path.join(dir, "model-00002-of-00003.safetensors"))
    assert {:error, %{reason: :not_found}} = ExTorch.load(dir)
  end

  test "only old shards are removed, and a failed save keeps them", %{tmp_dir: dir} do
    index = Path.join(dir, "model.safetensors.index.json")
    config = Path.join(dir, "config.json")
    File.write!(config, "precious")
    File.write!(index, ~s({"weight_map": {"q": "config.json"}}))

    :ok =
      Store.collect_from(Sharded.new(index, overwrite: true, max_shard_size: 8), %{
        "a" => ones({2}),
        "b" => ones({2})
      })

    assert File.read!(config) == "precious"
    before = for name <- File.ls!(dir), do: {name, File.read!(Path.join(dir, name))}
    bad = %{"a" => zeros({2}), "b" => zeros({2}, dtype: :complex128)}

    assert {:error, %{reason: :unsupported}} =
             Store.collect_from(Sharded.new(index, overwrite: true, max_shard_size: 8), bad)

    assert Enum.sort(before) ==
             Enum.sort(for name <- File.ls!(dir), do: {name, File.read!(Path.join(dir, name))})
  end

  test "the path may be a directory that contains an index", %{tmp_dir: dir} do
    index = Path.join(dir, "model.safetensors.index.json")
    :ok = Store.collect_from(Sharded.new(index), %{"a" => ones({1})})
    assert {:ok, ["a"]} = Store.keys(Sharded.new(dir))

    assert {:error, %{reason: :not_found}} =
             Store.keys(Sharded.new(System.tmp_dir!() <> "/no/such/index.json"))

    empty = Path.join(dir, "empty")
    File.mkdir_p!(empty)
    assert {:error, %{reason: :not_found, message: message}} = Store.keys(Sharded.new(empty))
    assert message =~ "index"
  end

  test "a directory that contains several indexes", %{tmp_dir: dir} do
    for name <- ["a.index.json", "b.index.json"],
        do: File.write!(Path.join(dir, name), ~s({"weight_map":{}}))

    for call <- [&ExTorch.load/1, &ExTorch.Checkpoint.open/1, &ExTorch.Checkpoint.state_dict/1] do
      assert {:error, %{reason: :ambiguous, message: message, path: ^dir}} = call.(dir)
      assert message =~ "pass the path of one of them"
    end
  end

  test "invalid indexes", %{tmp_dir: dir} do
    index = Path.join(dir, "m.safetensors.index.json")
    :ok = ExTorch.save(%{"a" => ones({1}), "b" => ones({1})}, Path.join(dir, "one.safetensors"))
    :ok = ExTorch.save(%{"b" => ones({1})}, Path.join(dir, "two.safetensors"))

    for {json, reason, words} <- [
          {~s({"weight_map": {"a": "one.safetensors", "b": "gone.safetensors"}}), :not_found,
           "gone.safetensors is missing"},
          {~s({"weight_map": {"a": "../one.safetensors"}}), :forbidden, "directory"},
          {~s({"weight_map": {"a": "/etc/passwd"}}), :forbidden, "directory"},
          {~s({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}), :ambiguous,
           "two shards"},
          {~s({"weight_map": {"a": "one.safetensors", "b": "one.safetensors", "c": "one.safetensors"}}),
           :corrupt, "is not"},
          {~s({"weight_map": {"a": "one.safetensors", "a": "one.safetensors"}}), :corrupt,
           "duplicate key"},
          {~s({"weight_map": 5}), :corrupt, "weight_map"},
          {~s({"weight_map": {"a": 5}}), :corrupt, "weight_map"},
          {~s({"weight_map": ), :corrupt, "JSON"},
          {String.duplicate("[", 100), :corrupt, "deep"}
        ] do
      File.write!(index, json)

      assert {:error, %Error{reason: ^reason, message: message}} =
               Store.apply_to(Sharded.new(index), %{"a" => zeros({1})})

      assert message =~ words
    end
  end

  if Torch.torch() do
    test "an index that Python wrote", %{tmp_dir: dir} do
      script = """
      import json, sys, torch
      d = sys.argv[1]
      parts = [{"h.0.w": torch.ones(2, 3), "h.0.b": torch.zeros(3)}, {"h.1.w": torch.full((2, 3), 2.0)}]
      names = ["pytorch_model-%05d-of-00002.bin" % (i + 1) for i in range(2)]
      for p, n in zip(parts, names): torch.save(p, d + "/" + n)
      index = {"metadata": {"total_size": 60, "note": "\\u00fc"}, "weight_map": {k: n for p, n in zip(parts, names) for k in p}}
      json.dump(index, open(d + "/pytorch_model.bin.index.json", "w"), indent=2)
      """

      Torch.run!(script, [dir])
      module = %{"h" => [%{"w" => zeros({2, 3}), "b" => ones({3})}, %{"w" => zeros({2, 3})}]}

      assert {:ok, %{missing: [], module: %{"h" => [_, %{"w" => w}]}}} =
               Store.apply_to(Sharded.new(dir), module)

      assert list(w) == [[2.0, 2.0, 2.0], [2.0, 2.0, 2.0]]
    end

    # transformers reads the files that weight_map names, and removes old shards by this expression.
    test "Python reads an index that was saved twice", %{tmp_dir: dir} do
      index = Path.join(dir, "pytorch_model.bin.index.json")

      for value <- [1.0, 2.0] do
        module = Map.new(1..3, &{"w#{&1}", ExTorch.full({10}, value)})
        store = Sharded.new(index, overwrite: true, max_shard_size: 50)
        :ok = Store.collect_from(store, module)
      end

      script = """
      import json, re, sys, torch
      d = sys.argv[1]
      index = json.load(open(d + "/pytorch_model.bin.index.json"))
      files = sorted(set(index["weight_map"].values()))
      assert index["metadata"]["total_size"] == 120 and len(files) == 3, index
      merged = {}
      for f in files:
          assert f.startswith("pytorch_model-"), f
          assert re.fullmatch(r"(.*?)-\\d{5}-of-\\d{5}", f.replace(".bin", "")), f
          for name, tensor in torch.load(d + "/" + f).items():
              assert index["weight_map"][name] == f
              merged[name] = tensor
      assert sorted(merged) == ["w1", "w2", "w3"]
      assert all(bool((t == 2).all()) and t.shape == (10,) for t in merged.values())
      """

      Torch.run!(script, [dir])
    end
  end
end
