defmodule ExTorch.FilterTest do
  # Filters in every function that takes them: prefixes, and filters that select nothing.
  use ExTorch.Case
  alias ExTorch.{Checkpoint, Store, Streaming}

  @moduletag :tmp_dir

  setup %{tmp_dir: dir} do
    path = Path.join(dir, "model.pt")
    names = ["encoder.0.weight", "encoder.0.bias", "encoder.1.weight", "decoder.weight"]
    term = %{"model" => Map.new(names, &{&1, ExTorch.ones({2})}), "epoch" => 3}
    in_task(fn -> ExTorch.save!(term, path) end)
    [path: path, dir: dir, bytes: File.read!(path)]
  end

  # The message of the error that every function returns or raises for the filter.
  defp messages(%{path: path, bytes: bytes}, only) do
    ckpt = Checkpoint.open!(path)

    errors = [
      elem(ExTorch.load(path, only: only), 1),
      elem(Streaming.load([bytes], only: only), 1),
      assert_raise(Error, fn -> Checkpoint.stream(ckpt, only: only) end),
      assert_raise(Error, fn -> [bytes] |> Streaming.tensors(only: only) |> Stream.run() end),
      elem(Store.keys(Store.PyTorch.new(path, only: only)), 1),
      elem(Store.apply_to(Store.PyTorch.new(path, only: only), %{"a" => ExTorch.ones({2})}), 1)
    ]

    assert Enum.all?(errors, &match?(%Error{reason: :not_found}, &1))
    Enum.map(errors, & &1.message)
  end

  test "a filter that selects nothing is an error that shows the nearest names", context do
    for message <- messages(context, "model") do
      assert message =~ ~s({:prefix, "model."} selects "model.)
    end

    for message <- messages(context, "model.decoder.wieght"),
        do: assert(message =~ ~s("model.decoder.weight"))

    for message <- messages(context, [~r/^model\.decoder\.wieght$/]),
        do: assert(message =~ ~s("model.decoder.weight"))

    for message <- messages(context, {:prefix, "model.encodr."}),
        do: assert(message =~ ~s("model.encoder.))

    for message <- messages(context, fn _name, _entry -> false end) do
      assert message =~ "selects none of the"
      assert message =~ ~s("model.decoder.weight")
    end
  end

  test "the error is not one of hostile names", %{dir: dir} do
    path = Path.join(dir, "long.pt")
    ExTorch.save!(%{String.duplicate("x", 100_000) => ExTorch.ones({1})}, path)
    assert {:error, %Error{message: message}} = ExTorch.load(path, only: "y")
    assert byte_size(message) < 500
    ExTorch.save!(%{"epoch" => 1}, path)
    assert {:error, %Error{message: message}} = ExTorch.load(path, only: "y")
    assert message =~ "none of the 0 tensors"
  end

  test "the empty list reads what is not a tensor", %{path: path, bytes: bytes} do
    assert ExTorch.load(path, only: []) == {:ok, %{"epoch" => 3, "model" => %{}}}
    assert Streaming.load([bytes], only: []) == {:ok, %{"epoch" => 3, "model" => %{}}, ""}
    assert Checkpoint.open!(path) |> Checkpoint.stream(only: []) |> Enum.to_list() == []
    assert Store.keys(Store.PyTorch.new(path, only: [])) == {:ok, []}
  end

  test "a prefix is a filter", %{path: path, bytes: bytes} do
    only = {:prefix, "model.encoder."}
    selected = ["encoder.0.bias", "encoder.0.weight", "encoder.1.weight"]
    assert {:ok, %{"model" => model}} = ExTorch.load(path, only: only)
    assert model |> Map.keys() |> Enum.sort() == selected
    assert {:ok, %{"model" => model}, ""} = Streaming.load([bytes], only: [only])
    assert model |> Map.keys() |> Enum.sort() == selected

    assert {:ok, _} = ExTorch.load(path, only: ["model.decoder.weight", only])

    for bad <- [{:prefix, 1}, {:prefix, nil}, {:other, "a"}, {"a", "b"}] do
      assert_raise Error, ~r/:only/, fn -> ExTorch.load(path, only: bad) end
    end
  end

  test "the keys of a store are those that the filters select", %{path: path} do
    keys = &Enum.sort(Store.keys!(Store.PyTorch.new(path, [top_level_key: "model"] ++ &1)))
    assert keys.(only: {:prefix, "decoder"}) == ["decoder.weight"]
    assert keys.(except: [{:prefix, "encoder"}]) == ["decoder.weight"]

    assert keys.(only: ~r/weight/, except: fn _, entry -> entry.shape == {3} end) ==
             ["decoder.weight", "encoder.0.weight", "encoder.1.weight"]

    assert {:error, %Error{message: message}} =
             Store.keys(Store.PyTorch.new(path, only: ~r/weight/, except: ~r/weight/))

    assert message =~ "only: ~r/weight/ with except: ~r/weight/ selects none of the 4 tensors"
  end

  test "a store does not save a module of which filters leave nothing", %{path: path} do
    store = Store.PyTorch.new(path, overwrite: true, only: "weigth")
    before = File.read!(path)

    assert {:error, %Error{reason: :not_found, message: message}} =
             Store.collect_from(store, %{"weight" => ExTorch.ones({1})})

    assert message =~ ~s(similar names are "weight")
    assert File.read!(path) == before
  end

  test "a filter must select a tensor of some shard, not of every shard", %{dir: dir} do
    path = Path.join(dir, "model.safetensors.index.json")
    store = Store.Sharded.new(path, max_shard_size: 8)

    Store.collect_from!(store, %{
      "a.w" => ExTorch.ones({2}),
      "b.w" => ExTorch.ones({2}),
      "c.w" => ExTorch.ones({2})
    })

    assert {:ok, %{"b.w" => _} = loaded} = ExTorch.load(path, only: {:prefix, "b"})
    assert map_size(loaded) == 1
    assert {:error, %Error{reason: :not_found} = error} = ExTorch.load(path, only: "b")
    assert {error.path, error.message =~ ~s({:prefix, "b."})} == {path, true}
    assert Store.keys(Store.Sharded.new(path, only: {:prefix, "c"})) == {:ok, ["c.w"]}
  end
end
