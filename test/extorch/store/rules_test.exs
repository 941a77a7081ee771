defmodule ExTorch.Store.RulesTest do
  # Adapters with rules: one tensor for several, several for one, and what the result says about them.
  use ExTorch.Case
  alias ExTorch.Store
  alias ExTorch.Store.{Adapter, PyTorch, Rule}

  @moduletag :tmp_dir

  setup %{tmp_dir: dir}, do: {:ok, path: Path.join(dir, "model.pt")}

  # The rules are the options.
  defmodule Rules do
    @behaviour Adapter

    @impl true
    def rules(module, rules) when is_function(rules), do: rules.(module)
    def rules(_module, rules), do: rules
  end

  defp attention do
    %Rule{
      file: ["attention.in_proj_weight"],
      module: ["attention.query", "attention.key", "attention.value"],
      load: fn [weight] -> ExTorch.op("chunk", [weight, 3, 0]) end,
      save: fn parts -> [ExTorch.op("cat", [parts, 0])] end
    }
  end

  defp sum do
    %Rule{
      file: ["a", "b"],
      module: ["sum"],
      load: fn [a, b] -> [ExTorch.add(a, b)] end,
      save: fn [sum] -> [sum, ExTorch.zeros(sum.shape)] end
    }
  end

  defp store(path, rules, options \\ []),
    do: PyTorch.new(path, [adapters: [{Rules, rules}]] ++ options)

  defp full(shape, value), do: ExTorch.full(shape, value)
  defp zeros(shape), do: ExTorch.zeros(shape)
  defp list(tensor), do: Tensor.to_list(tensor)

  @tag :torch
  test "one for several and several for one, both ways", %{path: path, tmp_dir: dir} do
    weight = ExTorch.op("reshape", [ExTorch.arange(6, dtype: :float32), [6, 1]])

    file = %{
      "attention.in_proj_weight" => weight,
      "a" => full({2}, 1.0),
      "b" => full({2}, 2.0),
      "own" => full({1}, 5.0)
    }

    :ok = ExTorch.save(file, path)

    module = %{
      "attention" => %{"query" => zeros({2, 1}), "key" => zeros({2, 1}), "value" => zeros({2, 1})},
      "sum" => zeros({2}),
      "own" => zeros({1})
    }

    {:ok, result} = Store.apply_to(store(path, [attention(), sum()]), module)
    assert Enum.sort(result.applied) == ~w(attention.key attention.query attention.value own sum)
    assert result.unused == [] and result.missing == [] and result.skipped == []
    assert list(result.module["attention"]["key"]) == [[2.0], [3.0]]
    assert list(result.module["sum"]) == [3.0, 3.0]
    assert result.sources["sum"] == ["a", "b"]
    assert result.sources["attention.value"] == ["attention.in_proj_weight"]
    refute Map.has_key?(result.sources, "own")

    out = Path.join(dir, "out.pt")
    :ok = Store.collect_from(store(out, [attention(), sum()]), result.module)
    saved = ExTorch.load!(out)
    assert Enum.sort(Map.keys(saved)) == ~w(a attention.in_proj_weight b own)
    assert Tensor.equal?(saved["attention.in_proj_weight"], weight)
    assert list(saved["a"]) == [3.0, 3.0] and list(saved["b"]) == [0.0, 0.0]
  end

  test "tied weights are one rule", %{path: path} do
    tied = %Rule{
      file: ["embed"],
      module: ["embed", "head"],
      load: fn [weight] -> [weight, ExTorch.op("t", [weight])] end,
      save: fn [embed, _head] -> [embed] end
    }

    :ok = ExTorch.save(%{"embed" => full({3, 2}, 1.0)}, path)
    module = %{"embed" => zeros({3, 2}), "head" => zeros({2, 3})}

    assert {:ok, %{applied: ["embed", "head"], unused: []}} =
             Store.apply_to(store(path, [tied]), module)

    :ok = Store.collect_from(store(path, [tied], overwrite: true), module)
    assert Map.keys(ExTorch.load!(path)) == ["embed"]
  end

  @tag :torch
  test "names are renamed before the rules, and after them when a module is saved", %{path: path} do
    :ok =
      ExTorch.save(%{"state" => %{"net.a" => full({2}, 1.0), "net.b" => full({2}, 2.0)}}, path)

    for key <- ["state", :auto] do
      store = store(path, [sum()], top_level_key: key, remap: [{~r/^net\./, ""}])
      assert {:ok, result} = Store.apply_to(store, %{"sum" => zeros({2})})
      assert result.applied == ["sum"] and result.top_level_key == "state"
    end

    store =
      store(path, [sum()], top_level_key: "state", remap: [{~r/^/, "net."}], overwrite: true)

    :ok = Store.collect_from(store, %{"sum" => full({2}, 4.0)})
    assert %{"state" => %{"net.a" => a, "net.b" => _}} = ExTorch.load!(path)
    assert list(a) == [4.0, 4.0]
  end

  @tag :torch
  test "the first rule whose tensors are there is used, as a whole", %{path: path} do
    direct = %Rule{file: ["direct"], module: ["sum"]}
    module = %{"sum" => zeros({2})}

    apply_file = fn file, rules ->
      :ok = ExTorch.save(file, path)
      Store.apply_to(store(path, rules, allow_partial: true), module)
    end

    [a, b, direct_file] =
      for {name, value} <- [{"a", 1.0}, {"b", 2.0}, {"direct", 7.0}],
          do: %{name => full({2}, value)}

    both = Map.merge(a, b)

    for {file, rules, value, unused} <- [
          {both, [sum(), direct], 3.0, []},
          {direct_file, [sum(), direct], 7.0, []},
          {Map.merge(both, direct_file), [sum(), direct], 3.0, ["direct"]},
          {Map.merge(both, direct_file), [direct, sum()], 7.0, ["a", "b"]},
          {Map.merge(a, direct_file), [sum(), direct], 7.0, ["a"]}
        ] do
      assert {:ok, %{applied: ["sum"], missing: [], unused: ^unused} = result} =
               apply_file.(file, rules)

      assert list(result.module["sum"]) == [value, value]
    end

    # half of a rule is nothing; nor does the name of the tensor in the module count
    file = Map.put(a, "sum", full({2}, 9.0))
    assert {:ok, result} = apply_file.(file, [sum(), direct])
    assert result.missing == ["sum"] and result.unused == ["a", "sum"] and result.applied == []
    assert result.sources == %{"sum" => ["a", "b"]}

    assert inspect(result) =~ "sum (needs a and b, the file has a)"
    assert list(result.module["sum"]) == [0.0, 0.0]
  end

  test "nothing is used twice", %{path: path} do
    :ok = ExTorch.save(%{"a" => full({2}, 1.0), "b" => full({2}, 1.0)}, path)
    module = %{"sum" => zeros({2}), "other" => zeros({2}), "a" => zeros({2})}
    again = %Rule{file: ["a"], module: ["other"]}

    assert {:error, %{reason: :ambiguous, message: message}} =
             Store.apply_to(store(path, [sum(), again]), module)

    assert message =~ ~s("a") and message =~ ~s("sum") and message =~ ~s("other")
    # the tensor of the module with the name of a used one is missing
    assert {:error, %{result: %{missing: ["a", "other"]}}} =
             Store.apply_to(store(path, [sum()]), module)

    assert {:error, %{reason: :ambiguous}} =
             Store.collect_from(
               store(path, [sum()], overwrite: true),
               Map.delete(module, "other")
             )
  end

  test "tensors that only the module has", %{path: path} do
    :ok = ExTorch.save(%{"w" => full({2}, 1.0)}, path)
    module = %{"w" => zeros({2}), "seed" => full({2}, 3.0)}
    rules = [%Rule{file: [], module: ["seed"]}]

    assert {:ok, %{applied: ["w"], skipped: ["seed"], missing: []} = result} =
             Store.apply_to(store(path, rules), module)

    assert list(result.module["seed"]) == [3.0, 3.0]
    :ok = Store.collect_from(store(path, rules, overwrite: true), module)
    assert Map.keys(ExTorch.load!(path)) == ["w"]
  end

  test "a module that has some of what a rule makes", %{path: path} do
    :ok = ExTorch.save(%{"attention.in_proj_weight" => full({6, 1}, 1.0)}, path)
    module = %{"attention.key" => zeros({2, 1})}

    assert {:ok, %{applied: ["attention.key"]}} =
             Store.apply_to(store(path, [attention()]), module)

    assert {:error, %{message: message}} =
             Store.collect_from(store(path, [attention()], overwrite: true), module)

    assert message =~ "the module does not have attention.query, attention.value"
    # rules about another module are of no effect
    :ok = ExTorch.save(%{"w" => full({1}, 1.0)}, path)

    assert {:ok, %{applied: ["w"], sources: sources}} =
             Store.apply_to(store(path, [attention()]), %{"w" => zeros({1})})

    assert sources == %{}
  end

  test "errors of a rule are those of its tensors", %{path: path} do
    :ok =
      ExTorch.save(%{"a" => full({2}, 1.0), "b" => full({2}, 2.0), "w" => full({1}, 1.0)}, path)

    module = %{"sum" => zeros({2}), "w" => zeros({1})}

    for {load, text} <- [
          {fn _ -> {:error, "too old"} end, "too old"},
          {fn [a, _] -> [a, a] end, "expected the rule to return 1 tensors, for sum"},
          {fn _ -> [5] end, "expected the rule to return 1 tensors"},
          {fn _ -> raise Error.new(:unsupported, "not now") end, "not now"},
          {fn [a, _] -> [Tensor.to(a, dtype: :int32)] end, "expected dtype :float32, got :int32"},
          # needs the values: checked after reading
          {fn [a, _] -> [ExTorch.full({length(list(a)) + 1}, 0.0)] end,
           "expected shape {2}, got {3}: a has shape {2}"}
        ] do
      store = store(path, [%{sum() | load: load}], allow_partial: true)
      assert {:ok, result} = Store.apply_to(store, module)
      assert result.applied == ["w"] and result.missing == [] and result.unused == []
      assert [%{name: "sum", message: message, expected: %{shape: {2}}}] = result.errors
      assert message =~ text
    end

    assert {:error, %{message: message}} =
             Store.collect_from(
               store(path, [%{sum() | save: fn _ -> {:error, "no"} end}], overwrite: true),
               module
             )

    assert message =~ "no"
  end

  test "a tensor that cannot be read", %{path: path} do
    :ok = ExTorch.save(%{"a" => full({300}, 7.0), "b" => full({300}, 2.0)}, path)
    [seven, other] = for value <- [7.0, 8.5], do: :binary.copy(<<value::float-32-little>>, 300)
    File.write!(path, path |> File.read!() |> :binary.replace(seven, other))
    store = store(path, [sum()], verify: true, allow_partial: true)

    assert {:ok, %{applied: [], errors: [%{name: "sum", reason: :corrupt}]}} =
             Store.apply_to(store, %{"sum" => zeros({300})})
  end

  test "what is not a list of rules", %{path: path} do
    :ok = ExTorch.save(%{"a" => full({2}, 1.0)}, path)

    for bad <- [
          5,
          [5],
          [%{sum() | module: []}],
          [%{sum() | file: ["a", "a"]}],
          [%{sum() | load: 5}],
          [%{sum() | file: [:a]}]
        ] do
      assert {:error, %{reason: :bad_argument, message: message}} =
               Store.apply_to(store(path, fn _ -> bad end), %{"sum" => zeros({2})})

      assert message =~ "ExTorch.Store.RulesTest.Rules.rules/2"

      assert {:error, %{reason: :bad_argument}} =
               Store.collect_from(store(path, fn _ -> bad end, overwrite: true), %{
                 "sum" => zeros({2})
               })
    end
  end

  @tag :torch
  test "adapters before and after a rule", %{path: path} do
    me = self()
    :ok = ExTorch.save(%{"a" => full({2}, 1.0), "b" => full({2}, 2.0)}, path)

    spy = fn label ->
      fn entry, tensor, target ->
        send(me, {label, entry.name, target})
        ExTorch.mul(tensor, 2.0)
      end
    end

    adapters = [spy.(:before), {Rules, [sum()]}, spy.(:later)]

    assert {:ok, result} =
             Store.apply_to(PyTorch.new(path, adapters: adapters), %{"sum" => zeros({2})})

    assert list(result.module["sum"]) == [12.0, 12.0]
    assert_received {:before, "a", %{shape: nil, dtype: :float32}}
    assert_received {:before, "b", %{shape: nil, dtype: :float32}}
    assert_received {:later, "a", %{shape: {2}, dtype: :float32}}

    :ok =
      Store.collect_from(PyTorch.new(path, adapters: adapters, overwrite: true), %{
        "sum" => full({2}, 1.0)
      })

    assert_received {:before, "sum", nil}
    assert_received {:later, "a", nil}
    assert list(ExTorch.load!(path)["a"]) == [4.0, 4.0]
  end

  test "nothing is read for tensors that filters leave out", %{path: path} do
    :ok =
      ExTorch.save(%{"a" => full({2}, 1.0), "b" => full({2}, 2.0), "w" => full({1}, 1.0)}, path)

    rule = %{sum() | load: fn _ -> flunk("not wanted") end}
    module = %{"sum" => zeros({2}), "w" => zeros({1})}

    for filter <- [
          [only: "w"],
          [except: "sum"],
          [only: fn name, entry -> name == "w" and entry.shape == {1} end]
        ] do
      assert {:ok, %{applied: ["w"], skipped: ["sum"], unused: []}} =
               Store.apply_to(store(path, [rule], filter), module)
    end

    assert {:error, error} = Store.apply_to(store(path, [rule], only: "nothing"), module)

    assert error.reason == :not_found and
             error.message =~ ~s(none of the 2 tensors; their names are "sum", "w")
  end

  test "ten thousand rules", %{path: path} do
    names = for i <- 1..10_000, do: "layer.#{i}"
    :ok = ExTorch.save(Map.new(names, &{&1 <> ".weight", full({1, 2}, 1.0)}), path)
    transpose = fn [tensor] -> [ExTorch.op("t", [tensor])] end

    rules =
      for name <- names,
          do: %Rule{
            file: [name <> ".weight"],
            module: [name <> ".kernel"],
            load: transpose,
            save: transpose
          }

    module = Map.new(names, &{&1 <> ".kernel", zeros({2, 1})})
    {:ok, result} = Store.apply_to(store(path, rules), module)
    assert length(result.applied) == 10_000 and result.unused == []
  end

  @tag :torch
  test "progress counts what is read, and tied tensors of the file stay one", %{path: path} do
    shared = full({4}, 1.0)
    :ok = ExTorch.save(%{"a" => shared, "b" => shared, "c" => full({4}, 2.0)}, path)
    me = self()
    store = store(path, [sum()], on_progress: &send(me, {&1, &2}))
    assert {:ok, result} = Store.apply_to(store, %{"sum" => zeros({4}), "c" => zeros({4})})
    assert list(result.module["sum"]) == [2.0, 2.0, 2.0, 2.0]
    assert_received {48, 48}
  end
end
