defmodule ExTorch.StoreTest do
  use ExTorch.Case
  alias ExTorch.Python.Dict
  alias ExTorch.{Checkpoint, Store}
  alias ExTorch.Store.{Adapter, ApplyResult, PyTorch, Safetensors, Sharded}
  alias ExTorch.Test.Python, as: Torch

  defmodule Net do
    @derive {ExTorch.Module, only: [:encoder, :head]}
    defstruct [:encoder, :head, :config]
  end

  defmodule Plain do
    defstruct [:tensor]
  end

  setup do
    dir = Path.join(System.tmp_dir!(), "extorch_store_#{System.unique_integer([:positive])}")
    File.mkdir_p!(dir)
    on_exit(fn -> File.rm_rf!(dir) end)
    {:ok, dir: dir, path: Path.join(dir, "model.pt")}
  end

  defp zeros(shape, opts \\ []), do: ExTorch.zeros(shape, opts)
  defp ones(shape, opts \\ []), do: ExTorch.ones(shape, opts)
  defp list(tensor), do: Tensor.to_list(tensor)

  # Every name of both sides in exactly one list.
  defp account(result, module_names, file_names) do
    all =
      result.applied ++
        result.missing ++ result.skipped ++ result.unused ++ Enum.map(result.errors, & &1.name)

    assert all -- Enum.uniq(all) == []
    for name <- module_names, do: assert(Enum.count(all, &(&1 == name)) == 1, name)
    for name <- file_names, do: assert(name in all, name)
    result
  end

  # ---- Modules ----

  test "modules of every kind are walked and put together again", %{path: path} do
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

  test "variants: what is no tensor decides nothing", %{path: path} do
    module = [{:linear, %{w: zeros({1})}}, {:relu, nil}, {:conv, [zeros({2})], padding: 1}]
    :ok = Store.collect_from(PyTorch.new(path), module)
    assert Enum.sort(Checkpoint.keys(Checkpoint.open!(path))) == ["0.1.w", "2.1.0"]

    assert {:ok, %{module: [{:linear, %{w: _}}, {:relu, nil}, {:conv, [_], padding: 1}]}} =
             Store.apply_to(PyTorch.new(path), module)
  end

  test "events, for those who listen", %{path: path} do
    unless Code.ensure_loaded?(:telemetry) do
      body =
        quote(
          do:
            def(execute(event, measurements, metadata),
              do: send(:extorch_listener, {event, measurements, metadata})
            )
        )

      Module.create(:telemetry, body, Macro.Env.location(__ENV__))
      Process.register(self(), :extorch_listener)
      :ok = Store.collect_from(PyTorch.new(path), %{"a" => ones({2})})
      {:ok, _} = Store.apply_to(PyTorch.new(path), %{"a" => zeros({2})})
      assert_received {[:extorch, :store, :collect], %{tensors: 1, duration: _}, %{path: ^path}}
      assert_received {[:extorch, :store, :apply], %{applied: 1, bytes: 8}, %{path: ^path}}
      Process.unregister(:extorch_listener)
      :code.purge(:telemetry)
      :code.delete(:telemetry)
    end
  end

  test "a bare tensor has no name, and names must be told apart" do
    assert {:error, %{reason: :ambiguous}} =
             Store.collect_from(PyTorch.new("/nowhere/x.pt"), %{"a" => zeros({1}), a: zeros({1})})
  end

  # ---- The account ----

  test "partial, extra, mismatched", %{path: path} do
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

  test "long lists are cut in the summary", %{path: path} do
    :ok = ExTorch.save(Map.new(1..30, &{"t#{&1}", ones({1})}), path)
    {:ok, result} = Store.apply_to(PyTorch.new(path), %{})
    assert inspect(result) =~ "… and 20 more"
    assert length(result.unused) == 30
  end

  test "nothing of what is left out is read", %{path: path} do
    :ok = ExTorch.save(%{"a" => ones({2}), "b" => ones({100_000})}, path)
    # the bytes of b are damaged: reading it with verify would tell
    data = File.read!(path)
    {at, _} = :binary.match(data, :binary.copy(<<1.0::float-32-little>>, 1000))
    File.write!(path, turn(data, at + 4000, 0))

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

  test "errors of the file come as they are", %{dir: dir, path: path} do
    assert {:error, %{reason: :not_found}} = Store.apply_to(PyTorch.new(path), %{})
    File.write!(path, "<html>")
    assert {:error, %{reason: :corrupt}} = Store.apply_to(PyTorch.new(path), %{})

    assert {:error, %{reason: :not_found}} =
             Store.collect_from(PyTorch.new(Path.join(dir, "no/such.pt")), %{})
  end

  # ---- Filters and names ----

  test "filters: names, regular expressions, functions, several", %{path: path} do
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

  test "top-level keys, given and found", %{path: path} do
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
    # a file without a top-level key is found as it is
    :ok = ExTorch.save(state, path)
    assert {:ok, %{missing: []}} = Store.apply_to(PyTorch.new(path, top_level_key: :auto), module)
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

  test "options are checked when the store is made" do
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

  test "the raising twins", %{path: path} do
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

  test "overwrite is asked for", %{path: path} do
    File.write!(path, "precious")

    assert {:error, %{reason: :bad_argument, message: message}} =
             Store.collect_from(PyTorch.new(path), %{"a" => ones({1})})

    assert message =~ "overwrite: true"
    assert File.read!(path) == "precious"
  end

  # ---- Adapters ----

  test "casts, halves and functions", %{path: path} do
    :ok =
      ExTorch.save(
        %{"w" => ones({2}, dtype: :float64), "norm.w" => ones({2}, dtype: :float64)},
        path
      )

    module = %{"w" => zeros({2}), "norm.w" => zeros({2})}
    assert {:ok, result} = Store.apply_to(PyTorch.new(path, adapters: [Adapter.Cast]), module)
    assert result.module["w"].dtype == :float32
    half = PyTorch.new(path, adapters: [Adapter.Half, {Adapter.Cast, []}])
    assert {:ok, _} = Store.apply_to(half, module)

    double = fn _entry, tensor, target ->
      ExTorch.mul(ExTorch.Tensor.to(tensor, dtype: target.dtype), 2.0)
    end

    assert {:ok, result} = Store.apply_to(PyTorch.new(path, adapters: [double]), module)
    assert list(result.module["w"]) == [2.0, 2.0]
    :ok = Store.collect_from(PyTorch.new(path, overwrite: true, adapters: [Adapter.Half]), module)
    assert %{"w" => %{dtype: :float16}, "norm.w" => %{dtype: :float32}} = ExTorch.load!(path)

    # a function that looks at values is checked when they are there
    peek = fn _entry, tensor, _target ->
      if Enum.sum(list(tensor)) >= 0, do: ExTorch.Tensor.to(tensor, dtype: :float32), else: tensor
    end

    assert {:ok, _} = Store.apply_to(PyTorch.new(path, adapters: [peek]), module)
  end

  if Torch.torch() do
    test "a PyTorch model in Axon's shape computes what PyTorch computes", %{dir: dir} do
      path = Path.join(dir, "net.pt")

      script = """
      import sys, torch
      torch.manual_seed(0)
      class Net(torch.nn.Module):
          def __init__(self):
              super().__init__()
              self.embedding = torch.nn.Embedding(7, 4)
              self.conv = torch.nn.Conv2d(2, 3, (2, 3))
              self.bn = torch.nn.BatchNorm2d(3)
              self.dense = torch.nn.Linear(12, 5)
              self.lstm = torch.nn.LSTM(4, 6)
          def forward(self, x, i):
              y = self.bn(self.conv(x)).flatten(1)
              return self.dense(y), self.lstm(self.embedding(i))[0]
      net = Net()
      net(torch.randn(8, 2, 3, 4), torch.tensor([[0, 1]]))
      net.eval()
      x, i = torch.randn(2, 2, 3, 4), torch.tensor([[3], [1], [6]])
      y, z = net(x, i)
      torch.save({"state_dict": net.state_dict(), "x": x, "i": i, "y": y.detach(), "z": z.detach()}, sys.argv[1])
      """

      Torch.run!(script, [path])
      %{"x" => x, "i" => i, "y" => y, "z" => z} = ExTorch.load!(path)

      axon = %{
        "embedding" => %{"kernel" => zeros({7, 4})},
        "conv" => %{"kernel" => zeros({2, 3, 2, 3}), "bias" => zeros({3})},
        "bn" => %{
          "gamma" => zeros({3}),
          "beta" => zeros({3}),
          "mean" => zeros({3}),
          "var" => zeros({3})
        },
        "dense" => %{"kernel" => zeros({12, 5}), "bias" => zeros({5})},
        "lstm" => %{
          "weight_ih_l0" => zeros({24, 4}),
          "weight_hh_l0" => zeros({24, 6}),
          "bias_ih_l0" => zeros({24}),
          "bias_hh_l0" => zeros({24})
        }
      }

      store = PyTorch.new(path, top_level_key: "state_dict", adapters: [Adapter.PyTorchToAxon])
      assert {:ok, result} = Store.apply_to(store, axon)
      assert result.missing == [] and result.errors == []
      assert Enum.sort(result.unused) == ~w(i state_dict.bn.num_batches_tracked x y z)
      net = result.module

      # the forward pass with Axon's layouts: channels last, kernels {in, out}
      kernel = ExTorch.op("permute", [net["conv"]["kernel"], [3, 2, 0, 1]])
      conv = ExTorch.op("conv2d", [x, kernel, net["conv"]["bias"]])
      bn = net["bn"]

      normed =
        ExTorch.op("batch_norm", [
          conv,
          bn["gamma"],
          bn["beta"],
          bn["mean"],
          bn["var"],
          false,
          0.1,
          1.0e-5,
          false
        ])

      out =
        ExTorch.add(
          ExTorch.matmul(ExTorch.op("flatten", [normed, 1, -1]), net["dense"]["kernel"]),
          net["dense"]["bias"]
        )

      assert alike?(out, y)
      embedded = ExTorch.op("embedding", [net["embedding"]["kernel"], i])
      lstm = net["lstm"]

      weights = [
        lstm["weight_ih_l0"],
        lstm["weight_hh_l0"],
        lstm["bias_ih_l0"],
        lstm["bias_hh_l0"]
      ]

      start = zeros({1, 1, 6})

      {states, _, _} =
        ExTorch.op("lstm.input", [
          embedded,
          [start, start],
          weights,
          true,
          1,
          0.0,
          false,
          false,
          false
        ])

      assert alike?(states, z)

      # and back: PyTorch's own names and shapes
      back = Path.join(dir, "back.pt")
      :ok = Store.collect_from(PyTorch.new(back, adapters: [Adapter.AxonToPyTorch]), net)
      original = ExTorch.load!(path)["state_dict"]

      for {name, tensor} <- ExTorch.load!(back), not String.starts_with?(name, "lstm") do
        assert Tensor.equal?(tensor, original[name]), name
      end
    end
  end

  defp alike?(a, b), do: ExTorch.op("allclose", [a, b, 1.0e-4, 1.0e-5, false])

  # ---- Sharing ----

  test "tied weights stay tied", %{dir: dir, path: path} do
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

  test "safetensors with metadata", %{dir: dir} do
    file = Path.join(dir, "x.safetensors")
    store = Safetensors.new(file, metadata: %{"format" => "pt"})
    :ok = Store.collect_from(store, %{"a" => ones({4})})
    assert Checkpoint.metadata(Checkpoint.open!(file)).metadata == %{"format" => "pt"}
    assert {:ok, %{applied: ["a"]}} = Store.apply_to(store, %{"a" => zeros({4})})
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

  # ---- Shards ----

  describe "sharded" do
    test "written and read, as safetensors and as zip", %{dir: dir} do
      for name <- ["model.safetensors.index.json", "pytorch_model.bin.index.json"] do
        index = Path.join([dir, name])
        module = Map.new(1..5, &{"w#{&1}", ExTorch.full({100}, &1 * 1.0)})
        store = Sharded.new(index, max_shard_size: 900)
        assert :ok = Store.collect_from(store, module)
        assert {:error, %{message: "the file exists" <> _}} = Store.collect_from(store, module)

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
        # fewer shards: those of before are gone
        assert :ok =
                 Store.collect_from(
                   Sharded.new(index, overwrite: true, max_shard_size: "1MB"),
                   module
                 )

        refute Enum.any?(File.ls!(dir), &(&1 in shards))
      end
    end

    test "ExTorch.load takes an index, or its folder, as one checkpoint", %{dir: dir} do
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

    test "only shards are removed, and a failed save leaves the old ones", %{dir: dir} do
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

    test "a folder is its index; tied weights may be in one shard", %{dir: dir} do
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

    test "what is wrong with an index", %{dir: dir} do
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
      test "an index that Python wrote", %{dir: dir} do
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
    end
  end
end
