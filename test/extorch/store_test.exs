defmodule ExTorch.StoreTest do
  use ExTorch.Case
  alias ExTorch.Python.Dict
  alias ExTorch.{Checkpoint, Store}
  alias ExTorch.Store.{ApplyResult, PyTorch, Safetensors, Sharded}
  import ExTorch.Test.Accounting

  defmodule Net do
    @derive {ExTorch.Module, only: [:encoder, :head]}
    defstruct [:encoder, :head, :config]
  end

  defmodule Plain do
    defstruct [:tensor]
  end

  @moduletag :tmp_dir

  setup %{tmp_dir: dir}, do: {:ok, path: Path.join(dir, "model.pt")}

  defp zeros(shape, opts \\ []), do: ExTorch.zeros(shape, opts)
  defp ones(shape, opts \\ []), do: ExTorch.ones(shape, opts)
  defp list(tensor), do: Tensor.to_list(tensor)

  @tag :torch
  test "modules of every kind are traversed and rebuilt", %{path: path} do
    module = %{
      "a" => zeros({2}),
      list: [zeros({1}), %{b: zeros({3}), n: 5}],
      tuple: {zeros({2, 2}), "text"},
      kw: [x: zeros({1}), y: nil],
      net: %Net{encoder: [zeros({2})], head: %{w: zeros({1})}, config: zeros({9})},
      dict: %Dict{pairs: [{"z", zeros({1})}, {1, zeros({2})}]},
      plain: %Plain{tensor: zeros({7})},
      empty: %{}
    }

    names = ~w(a dict.1 dict.z kw.x list.0 list.1.b net.encoder.0 net.head.w tuple.0)
    full = for name <- names, into: %{}, do: {name, nil}
    assert :ok = Store.collect_from(PyTorch.new(path), module)
    assert Enum.sort(Checkpoint.keys(Checkpoint.open!(path))) == Enum.sort(Map.keys(full))

    filled = ExTorch.load!(path) |> Map.new(fn {name, t} -> {name, ExTorch.add(t, 1.0)} end)
    :ok = ExTorch.save(filled, path)
    assert {:ok, result} = Store.apply_to(PyTorch.new(path), module)
    account(result, names, names)
    assert Enum.sort(result.applied) == names
    new = result.module
    assert list(new["a"]) == [1.0, 1.0]
    assert [_, %{b: b, n: 5}] = new.list
    assert list(b) == [1.0, 1.0, 1.0]
    assert {t, "text"} = new.tuple
    assert list(t) == [[1.0, 1.0], [1.0, 1.0]]
    assert [x: x, y: nil] = new.kw
    assert list(x) == [1.0]
    assert %Net{encoder: [e], head: %{w: w}, config: config} = new.net
    assert list(e) ++ list(w) == [1.0, 1.0, 1.0]
    assert list(config) == List.duplicate(0.0, 9)
    assert %Dict{pairs: [{"z", z}, {1, _}]} = new.dict
    assert list(z) == [1.0]
    assert list(new.plain.tensor) == List.duplicate(0.0, 7)
    # nothing is changed in place
    assert list(module["a"]) == [0.0, 0.0]
  end

  test "an empty module, and a file without tensors", %{path: path} do
    :ok = ExTorch.save(%{"a" => ones({1})}, path)

    assert {:ok, %{applied: [], unused: ["a"], module: %{}}} =
             Store.apply_to(PyTorch.new(path), %{})

    :ok = ExTorch.save(%{}, path)

    assert {:error, %{reason: :not_found}} =
             Store.apply_to(PyTorch.new(path), %{"a" => zeros({1})})

    assert :ok = Store.collect_from(PyTorch.new(path, overwrite: true), %{n: 5})
    assert ExTorch.load!(path) == %{}
  end

  test "values that are not tensors are ignored", %{path: path} do
    module = [{:linear, %{w: zeros({1})}}, {:relu, nil}, {:conv, [zeros({2})], padding: 1}]
    :ok = Store.collect_from(PyTorch.new(path), module)
    assert Enum.sort(Checkpoint.keys(Checkpoint.open!(path))) == ["0.1.w", "2.1.0"]

    assert {:ok, %{module: [{:linear, %{w: _}}, {:relu, nil}, {:conv, [_], padding: 1}]}} =
             Store.apply_to(PyTorch.new(path), module)
  end

  test "two keys with the same name are ambiguous" do
    assert {:error, %{reason: :ambiguous}} =
             Store.collect_from(PyTorch.new("/nowhere/x.pt"), %{"a" => zeros({1}), a: zeros({1})})
  end

  test "missing, unused and mismatched tensors", %{path: path} do
    :ok =
      ExTorch.save(
        %{
          "good" => ones({2}),
          "shape" => ones({3}),
          "dtype" => ones({2}, dtype: :int64),
          "extra" => ones({1}),
          "enc.weight" => ones({1})
        },
        path
      )

    module = %{
      "good" => zeros({2}),
      "shape" => zeros({2, 2}),
      "dtype" => zeros({2}),
      "lost" => zeros({1}),
      "encc.weight" => zeros({1})
    }

    assert {:error,
            %Error{reason: :bad_argument, path: ^path, result: %ApplyResult{} = result} = error} =
             Store.apply_to(PyTorch.new(path), module)

    account(
      %{result | applied: ["good"]},
      Map.keys(module),
      ~w(good shape dtype extra enc.weight)
    )

    assert result.module == module and result.applied == ["good"]
    assert result.missing == ["encc.weight", "lost"]
    assert Enum.sort(result.unused) == ["enc.weight", "extra"]
    assert result.suggestions == %{"encc.weight" => "enc.weight"}

    assert [
             %{name: "dtype", expected: %{dtype: :float32}, found: %{dtype: :int64}},
             %{name: "shape", expected: %{shape: {2, 2}}, found: %{shape: {3}}}
           ] = Enum.sort_by(result.errors, & &1.name)

    assert error.message =~ "allow_partial" and
             error.message =~ "encc.weight (the file has enc.weight)"

    assert {:ok, result} = Store.apply_to(PyTorch.new(path, allow_partial: true), module)
    assert result.applied == ["good"]
    assert list(result.module["good"]) == [1.0, 1.0]
    assert list(result.module["shape"]) == [[0.0, 0.0], [0.0, 0.0]]
    text = inspect(result)
    assert text =~ "1 applied, 2 missing, 2 with errors, 2 unused"
    assert text =~ "shape: expected shape {2, 2}, got {3}"
    refute ApplyResult.complete?(result)
  end

  test "the summary truncates long lists", %{path: path} do
    :ok = ExTorch.save(Map.new(1..30, &{"t#{&1}", ones({1})}), path)
    {:ok, result} = Store.apply_to(PyTorch.new(path), %{})
    assert inspect(result) =~ "… and 20 more"
    assert length(result.unused) == 30
  end

  test "skipped tensors are not read", %{path: path} do
    :ok = ExTorch.save(%{"a" => ones({2}), "b" => ones({100_000})}, path)
    # the bytes of b are damaged: reading it with verify would be an error
    data = File.read!(path)
    {at, _} = :binary.match(data, :binary.copy(<<1.0::float-32-little>>, 1000))
    File.write!(path, flip_bit(data, at + 4000, 0))

    assert {:ok, %{applied: ["a"], unused: ["b"]}} =
             Store.apply_to(PyTorch.new(path, verify: true), %{"a" => zeros({2})})

    assert {:error, %Error{reason: :corrupt, result: %{errors: [%{name: "b"}]}}} =
             Store.apply_to(PyTorch.new(path, verify: true), %{
               "a" => zeros({2}),
               "b" => zeros({100_000})
             })
  end

  test "validate: false broadcasts and converts", %{path: path} do
    :ok =
      ExTorch.save(
        %{
          "row" => ones({1, 3}),
          "int" => ones({2}, dtype: :int32),
          "scalar" => ExTorch.tensor(2.0),
          "no" => ones({4})
        },
        path
      )

    module = %{
      "row" => zeros({2, 3}),
      "int" => zeros({2}),
      "scalar" => zeros({2, 2}),
      "no" => zeros({2})
    }

    assert {:error, %{result: %{errors: errors}}} = Store.apply_to(PyTorch.new(path), module)
    assert length(errors) == 4

    assert {:ok, result} =
             Store.apply_to(PyTorch.new(path, validate: false, allow_partial: true), module)

    assert [%{name: "no"}] = result.errors
    assert list(result.module["row"]) == [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    assert %{dtype: :float32} = result.module["int"]
    assert list(result.module["scalar"]) == [[2.0, 2.0], [2.0, 2.0]]
  end

  test "errors of the file are returned unchanged", %{tmp_dir: dir, path: path} do
    assert {:error, %{reason: :not_found}} = Store.apply_to(PyTorch.new(path), %{})
    File.write!(path, "<html>")
    assert {:error, %{reason: :corrupt}} = Store.apply_to(PyTorch.new(path), %{})

    assert {:error, %{reason: :not_found}} =
             Store.collect_from(PyTorch.new(Path.join(dir, "no/such.pt")), %{})
  end

  test "options are checked when the store is created" do
    for opts <- [
          [remap: [{"(", "x"}]],
          [remap: [5]],
          [remap: 5],
          [only: 5],
          [nope: 1],
          [allow_partial: 1],
          [top_level_key: 5],
          [adapters: [5]],
          [adapters: [String]],
          [on_progress: 1]
        ] do
      assert reason(fn -> PyTorch.new("x.pt", opts) end) == :bad_argument, inspect(opts)
    end

    assert reason(fn -> PyTorch.new(5) end) == :bad_argument

    for size <- [0, "x", "5XB", -1],
        do:
          assert(
            reason(fn -> Sharded.new("x.index.json", max_shard_size: size) end) == :bad_argument
          )
  end

  test "apply_to! and collect_from!", %{path: path} do
    store = PyTorch.new(path)
    assert Store.collect_from!(store, %{"a" => ones({2})}) == :ok
    assert %ApplyResult{applied: ["a"]} = Store.apply_to!(store, %{"a" => zeros({2})})
    assert Store.keys!(store) == ["a"]
    assert %{shape: {2}} = Store.entry!(store, "a")
    assert list(Store.tensor!(store, "a")) == [1.0, 1.0]
    assert reason(fn -> Store.tensor!(store, "b") end) == :not_found
    assert reason(fn -> Store.apply_to!(store, %{"b" => zeros({1})}) end) == :not_found
    assert reason(fn -> Store.collect_from!(store, %{}) end) == :bad_argument
  end

  test "an existing file requires overwrite: true", %{path: path} do
    File.write!(path, "precious")

    assert {:error, %{reason: :bad_argument, message: message}} =
             Store.collect_from(PyTorch.new(path), %{"a" => ones({1})})

    assert message =~ "overwrite: true"
    assert File.read!(path) == "precious"
  end

  test "tied weights stay tied", %{tmp_dir: dir, path: path} do
    shared = ones({4})
    :ok = Store.collect_from(PyTorch.new(path), %{"a" => shared, "b" => shared})
    assert [%{nbytes: 16}] = Checkpoint.storages(Checkpoint.open!(path))

    {:ok, %{module: module}} =
      Store.apply_to(PyTorch.new(path), %{"a" => zeros({4}), "b" => zeros({4})})

    ExTorch.op("fill_", [module["a"], 5.0])
    assert list(module["b"]) == [5.0, 5.0, 5.0, 5.0]
    file = Path.join(dir, "x.safetensors")

    assert {:error, %{message: message}} =
             Store.collect_from(Safetensors.new(file), %{"a" => shared, "b" => shared})

    assert message =~ "share memory"

    assert :ok =
             Store.collect_from(Safetensors.new(file, duplicate: true), %{
               "a" => shared,
               "b" => shared
             })
  end

  # A file that has exactly the tensors of the module takes a short way, unless there is an adapter.
  test "the result is the same whether or not file and module have the same tensors", %{
    path: path
  } do
    tensors = for i <- 1..40, into: %{}, do: {"b.#{i}", ExTorch.tensor([i, -i])}
    tensors = Map.put(tensors, "a.0.w", ExTorch.tensor([[0.5]]))
    ExTorch.save!(tensors, path)

    module = %{
      "a" => [%{w: zeros({1, 1})}],
      "b" => for(i <- 1..40, into: %{}, do: {i, zeros({2}, dtype: :int64)})
    }

    identity = fn _entry, tensor, _target -> tensor end
    variants = [module, put_in(module["b"][1], zeros({2})), Map.put(module, :c, zeros({1}))]
    variants = variants ++ [Map.delete(module, "a"), put_in(module["b"]["1"], zeros({2}))]

    for variant <- variants, opts <- [[], [allow_partial: true]] do
      short = Store.apply_to(PyTorch.new(path, opts), variant)
      long = Store.apply_to(PyTorch.new(path, [adapters: identity] ++ opts), variant)
      assert comparable(short) == comparable(long)
    end

    assert {:ok, %{module: applied, applied: names}} = Store.apply_to(PyTorch.new(path), module)
    assert names == Checkpoint.keys(Checkpoint.open!(path))
    assert list(hd(applied["a"]).w) == [[0.5]]
    for i <- 1..40, do: assert(list(applied["b"][i]) == [i, -i])
  end

  defp comparable({:ok, result}), do: values(Map.from_struct(result))
  defp comparable({:error, error}), do: {error.message, values(Map.from_struct(error).result)}

  defp values(%Tensor{} = tensor), do: {tensor.shape, tensor.dtype, list(tensor)}
  defp values(%ApplyResult{} = result), do: values(Map.from_struct(result))
  defp values(map) when is_map(map), do: Map.new(map, fn {key, part} -> {key, values(part)} end)
  defp values(list) when is_list(list), do: Enum.map(list, &values/1)
  defp values(other), do: other

  test "safetensors with metadata", %{tmp_dir: dir} do
    file = Path.join(dir, "x.safetensors")
    store = Safetensors.new(file, metadata: %{"format" => "pt"})
    :ok = Store.collect_from(store, %{"a" => ones({4})})
    assert Checkpoint.metadata(Checkpoint.open!(file)).metadata == %{"format" => "pt"}
    assert {:ok, %{applied: ["a"]}} = Store.apply_to(store, %{"a" => zeros({4})})
  end

  test "a tensor that cannot be read is an error of its own, also in a batch", %{path: path} do
    module = Map.new(0..49, &{"t#{&1}", ExTorch.full({300}, &1 * 1.0)})
    :ok = Store.collect_from(PyTorch.new(path), module)
    [seven, other] = for value <- [7.0, 8.5], do: :binary.copy(<<value::float-32-little>>, 300)
    bytes = File.read!(path)
    assert {_at, 1200} = :binary.match(bytes, seven)
    File.write!(path, :binary.replace(bytes, seven, other))

    targets = Map.new(module, fn {name, _} -> {name, zeros({300})} end)

    assert {:ok, %{applied: applied, errors: [%{name: "t7", reason: :corrupt}]} = result} =
             Store.apply_to(PyTorch.new(path, verify: true, allow_partial: true), targets)

    assert length(applied) == 49
    assert list(result.module["t8"]) == List.duplicate(8.0, 300)
    assert list(result.module["t7"]) == List.duplicate(0.0, 300)
  end

  test "a small part of a large storage does not keep the storage in memory", %{path: path} do
    large = zeros({1_000_000})
    ExTorch.save!(%{"large" => large, "row" => ExTorch.op("narrow", [large, 0, 5, 10])}, path)
    Tensor.release(large)
    target = %{"row" => ones({10})}
    Memory.collect()
    before = Memory.live().bytes
    {:ok, result} = Store.apply_to(PyTorch.new(path), target)
    Memory.collect()
    assert Memory.live().bytes - before < 100_000
    assert list(result.module["row"]) == List.duplicate(0.0, 10)
  end

  test "progress, and 10,000 names", %{path: path} do
    module = Map.new(1..10_000, &{"layer.#{&1}.w", ones({2})})
    me = self()
    :ok = Store.collect_from(PyTorch.new(path), module)

    {:ok, result} =
      Store.apply_to(
        PyTorch.new(path, on_progress: &send(me, {&1, &2})),
        Map.new(module, fn {k, _} -> {k, zeros({2})} end)
      )

    assert length(result.applied) == 10_000
    assert_received {80_000, 80_000}
  end
end
