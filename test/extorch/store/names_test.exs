defmodule ExTorch.Store.NamesTest do
  use ExTorch.Case
  alias ExTorch.{Checkpoint, Store}
  alias ExTorch.Store.PyTorch
  import ExTorch.Test.Accounting

  @moduletag :tmp_dir

  setup %{tmp_dir: dir}, do: {:ok, path: Path.join(dir, "model.pt")}

  defp zeros(shape, opts \\ []), do: ExTorch.zeros(shape, opts)
  defp ones(shape, opts \\ []), do: ExTorch.ones(shape, opts)

  test "filters: names, regular expressions, functions, and lists of them", %{path: path} do
    names = ~w(enc.0.w enc.1.w dec.w dec.b)
    :ok = ExTorch.save(Map.new(names, &{&1, ones({1})}), path)
    module = Map.new(names, &{&1, zeros({1})})

    applied = fn opts ->
      {:ok, result} = Store.apply_to(PyTorch.new(path, opts), module)
      account(result, names, names).applied
    end

    assert applied.(only: ~r/^enc/) == ["enc.0.w", "enc.1.w"]
    assert applied.(only: ["dec.w", ~r/0/]) == ["dec.w", "enc.0.w"]
    assert applied.(except: "dec.b") == ["dec.w", "enc.0.w", "enc.1.w"]

    assert applied.(only: &String.ends_with?(&1, "w"), except: [~r/^dec/, "enc.1.w"]) == [
             "enc.0.w"
           ]

    assert applied.(only: fn name, entry -> name != "dec.b" and entry.shape == {1} end) == [
             "dec.w",
             "enc.0.w",
             "enc.1.w"
           ]

    {:ok, result} =
      Store.apply_to(PyTorch.new(path, only: "enc.0.w"), %{
        "enc.0.w" => zeros({1}),
        "other" => zeros({1})
      })

    assert Enum.sort(result.skipped) == ["dec.b", "dec.w", "enc.1.w", "other"]

    shape = fn _name, entry -> entry.shape == {1} end

    assert {:ok, %{missing: ["other"]}} =
             Store.apply_to(PyTorch.new(path, only: shape, allow_partial: true), %{
               "other" => zeros({1})
             })

    :ok = Store.collect_from(PyTorch.new(path, overwrite: true, except: ~r/dec/), module)
    assert Checkpoint.keys(Checkpoint.open!(path)) == ["enc.0.w", "enc.1.w"]
  end

  test "remapping: chained, by function, collisions", %{path: path} do
    :ok = ExTorch.save(%{"model.bert.w" => ones({1}), "model.bert.b" => ones({1})}, path)
    module = %{"encoder.w" => zeros({1}), "encoder.b" => zeros({1})}

    assert {:ok, %{missing: []}} =
             Store.apply_to(
               PyTorch.new(path, remap: [{~r/^model\./, ""}, {"^bert", "encoder"}]),
               module
             )

    assert {:ok, %{applied: applied}} =
             Store.apply_to(
               PyTorch.new(path, remap: &String.replace(&1, "model.bert", "encoder")),
               module
             )

    assert length(applied) == 2

    assert {:error, %{reason: :ambiguous, message: message}} =
             Store.apply_to(PyTorch.new(path, remap: [{~r/\.[wb]$/, ".x"}]), module)

    assert message =~ "model.bert.w" and message =~ "model.bert.b"

    assert {:error, %{reason: :ambiguous}} =
             Store.collect_from(
               PyTorch.new(path, overwrite: true, remap: [{~r/\.[wb]$/, ""}]),
               module
             )

    :ok =
      Store.collect_from(
        PyTorch.new(path, overwrite: true, remap: [{~r/^encoder/, "net"}]),
        module
      )

    assert Checkpoint.keys(Checkpoint.open!(path)) == ["net.b", "net.w"]
    store = PyTorch.new(path, remap: [{~r/^net/, "encoder"}])
    assert {:ok, ["encoder.b", "encoder.w"]} = Store.keys(store)
    assert {:ok, %{name: "net.w"}} = Store.entry(store, "encoder.w")
    assert {:ok, %Tensor{}} = Store.tensor(store, "encoder.w")
    assert {:error, %{reason: :not_found, message: message}} = Store.tensor(store, "encoder.x")
    assert message =~ "encoder.w" or message =~ "encoder.b"
  end

  test "the top-level key is found among hundreds, and renumbered below it" do
    keys = for i <- 1..300, do: "part#{i}.#{i}.x"
    keys = keys ++ for(i <- [3, 9, 12], do: "model.layers.#{i}.w")
    options = Store.Options.check!("", top_level_key: :auto, renumber: true)
    names = ["layers.0.w", "layers.1.w", "layers.2.w"]
    no_shapes = fn -> flunk("no shapes") end

    {:ok, pairs, outside, "model"} =
      Store.Names.plan(keys, no_shapes, options, Map.from_keys(names, true))

    assert Enum.map(pairs, &elem(&1, 1)) == names
    assert length(outside) == 300
  end

  test "the shapes are read once while the top-level key is searched" do
    options =
      Store.Options.check!("", top_level_key: :auto, adapters: [Store.Adapter.PyTorchToAxon])

    keys = for i <- 1..100, do: "state.#{i}.weight"

    shapes = fn ->
      send(self(), :shapes)
      Map.new(keys, &{&1, %Checkpoint.Entry{name: &1, shape: {1}}})
    end

    names = Map.from_keys(["1.gamma", "2.gamma"], true)
    {:ok, pairs, _outside, "state"} = Store.Names.plan(keys, shapes, options, names)
    assert {"state.1.weight", "1.gamma"} in pairs
    assert_received :shapes
    refute_received :shapes
  end

  test "top-level keys, given and detected", %{path: path} do
    state = %{"w" => ones({1}), "b" => ones({1})}

    :ok =
      ExTorch.save(
        %{"state_dict" => state, "ema" => %{"model" => %{"w" => zeros({1})}}, "epoch" => 3},
        path
      )

    module = %{"w" => zeros({1}), "b" => zeros({1})}

    assert {:ok, %{applied: ["b", "w"], unused: ["ema.model.w"]}} =
             Store.apply_to(PyTorch.new(path, top_level_key: "state_dict"), module)

    assert {:ok, %{applied: ["b", "w"]}} =
             Store.apply_to(PyTorch.new(path, top_level_key: :auto), module)

    assert {:ok, %{applied: ["w"], missing: ["b"]}} =
             Store.apply_to(
               PyTorch.new(path, top_level_key: "ema.model", allow_partial: true),
               module
             )

    assert {:error, %{reason: :not_found, message: message}} =
             Store.apply_to(PyTorch.new(path, top_level_key: "model"), module)

    assert message =~ "state_dict"

    assert {:error, %{message: message}} =
             Store.apply_to(PyTorch.new(path, top_level_key: :auto), %{"w" => zeros({1})})

    assert message =~ "several parts" and message =~ "state_dict" and message =~ "ema"

    assert {:error, %{message: message}} =
             Store.apply_to(PyTorch.new(path, top_level_key: :auto), %{"q" => zeros({1})})

    assert message =~ "no part"
    flat = PyTorch.new(path, top_level_key: "a.b", overwrite: true)
    :ok = Store.collect_from(flat, module)
    assert Checkpoint.keys(Checkpoint.open!(path)) == ["a.b.b", "a.b.w"]
    assert {:ok, %{missing: []}} = Store.apply_to(flat, module)
    # a file without a top-level key needs no prefix
    :ok = ExTorch.save(state, path)
    assert {:ok, %{missing: []}} = Store.apply_to(PyTorch.new(path, top_level_key: :auto), module)
  end

  test "the top-level key that was found is in the result", %{path: path} do
    module = %{"w" => zeros({2}), "b" => zeros({1})}
    key = fn -> Store.apply_to!(PyTorch.new(path, top_level_key: :auto), module).top_level_key end

    # Lightning, data parallel, compiled
    for prefix <- ["", "model.", "module.", "model._orig_mod.", "net.module._orig_mod."] do
      state = %{(prefix <> "w") => ones({2}), (prefix <> "b") => ones({1})}
      :ok = ExTorch.save(%{"state_dict" => state, "epoch" => 3}, path)
      assert key.() == String.trim_trailing("state_dict." <> prefix, ".")
    end

    :ok = ExTorch.save(%{"w" => ones({2}), "b" => ones({1})}, path)
    assert key.() == nil
    :ok = ExTorch.save(%{"x" => %{"w" => ones({2}), "b" => ones({1})}}, path)
    result = Store.apply_to!(PyTorch.new(path, top_level_key: :auto), module)
    assert inspect(result) =~ ~s(2 applied from "x")
    assert Store.apply_to!(PyTorch.new(path, top_level_key: "x"), module).top_level_key == "x"
  end

  test "keys with the same tensors are equivalent", %{path: path} do
    {w, b} = {ones({2}), ones({1})}
    module = %{"w" => zeros({2}), "b" => zeros({1})}
    lightning = %{"model.w" => w, "model.b" => b}
    store = PyTorch.new(path, top_level_key: :auto)

    :ok = ExTorch.save(%{"state_dict" => lightning, "model" => %{"w" => w, "b" => b}}, path)

    assert {:ok, %{top_level_key: "model", applied: [_, _]} = result} =
             Store.apply_to(store, module)

    assert Enum.sort(result.unused) == ["state_dict.model.b", "state_dict.model.w"]

    # a view of the same memory is another tensor
    for other <- [ones({1}), ExTorch.op("narrow", [w, 0, 1, 1])] do
      :ok = ExTorch.save(%{"state_dict" => lightning, "ema" => %{"w" => w, "b" => other}}, path)
      assert {:error, %{message: message}} = Store.apply_to(store, module)
      assert message =~ "several parts" and message =~ "state_dict.model" and message =~ "ema"
    end
  end

  test "renumbering", %{path: path} do
    :ok =
      ExTorch.save(Map.new(~w(fc.0.w fc.2.w fc.10.w fc.2.sub.5.x top.7), &{&1, ones({1})}), path)

    store = PyTorch.new(path, renumber: true)
    assert {:ok, keys} = Store.keys(store)
    assert Enum.sort(keys) == ["fc.0.w", "fc.1.sub.0.x", "fc.1.w", "fc.2.w", "top.0"]

    assert {:ok, %{missing: []}} =
             Store.apply_to(store, %{"fc" => for(_ <- 1..3, do: %{"w" => zeros({1})})})
  end
end
