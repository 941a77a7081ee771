defmodule ExTorch.Store.AxonTest do
  # The models of test/fixtures/zoo through ExTorch.Store.Adapter.Axon.
  use ExTorch.Case
  alias ExTorch.Store
  alias ExTorch.Store.{Adapter, PyTorch}
  alias ExTorch.Test.{AxonModel, Python, Zoo}

  @moduletag :tmp_dir
  # The models are run.
  @moduletag :torch

  defp store(path, model, options, more \\ []) do
    PyTorch.new(path, [adapters: [{Adapter.Axon, [model: model] ++ options}]] ++ more)
  end

  # Every name of the file and of the module is accounted for.
  defp account(result, file_names, module_names) do
    failed = Enum.map(result.errors, & &1.name)
    lists = result.applied ++ result.missing ++ result.skipped ++ result.unused ++ failed
    assert Enum.uniq(lists) == lists
    for name <- module_names, do: assert(Enum.count(lists, &(&1 == name)) == 1, name)
    used = for name <- result.applied, from <- result.sources[name] || [name], do: from
    assert Enum.sort(Enum.uniq(used) ++ result.unused) == Enum.sort(file_names)
    result
  end

  defp names(parameters, prefix \\ "") do
    Enum.flat_map(parameters, fn
      {name, %Tensor{}} -> [prefix <> name]
      {name, map} -> names(map, prefix <> name <> ".")
    end)
  end

  for {name, order, options} <- Zoo.all() do
    @tag name: name, order: order, options: options
    test "#{name}, channels #{order}", %{name: name, order: order, options: options, tmp_dir: dir} do
      %{"state_dict" => state_dict, "input" => x, "output" => expected} =
        ExTorch.load!(Zoo.file(name))

      model = Zoo.model(name, AxonModel, order)
      x = Zoo.to_order(x, order)
      zeros = AxonModel.init(model, x)
      key = if name == "lightning", do: :auto, else: "state_dict"

      {:ok, result} =
        Store.apply_to(store(Zoo.file(name), model, options, top_level_key: key), zeros)

      prefix = if name == "lightning", do: "state_dict.model", else: "state_dict"
      assert result.top_level_key == prefix
      assert result.missing == [] and result.errors == [] and result.ambiguous == []
      assert Enum.sort(result.applied) == Enum.sort(names(zeros))
      file_names = for name <- Map.keys(state_dict), do: String.replace(name, ~r/^model\./, "")
      inside = result.unused -- ["input", "output"]
      inside = Enum.map(inside, &String.replace(&1, prefix <> ".", ""))
      account(%{result | unused: inside}, file_names, names(zeros))
      assert Enum.all?(inside, &String.ends_with?(&1, "num_batches_tracked"))

      output = AxonModel.predict(model, result.module, x)
      assert difference(output, Zoo.to_order(expected, order)) < 1.0e-5

      # and back
      back = Path.join(dir, "back.pt")
      :ok = Store.collect_from(store(back, model, options), result.module)

      original =
        Map.new(state_dict, fn {name, t} -> {String.replace(name, ~r/^model\./, ""), t} end)

      assert_same_state(ExTorch.load!(back), original)
      {:ok, again} = Store.apply_to(store(back, model, options), zeros)

      for {a, b} <- Enum.zip(leaves(again.module), leaves(result.module)),
          do: assert(Tensor.equal?(a, b))

      assert again.unused == []
    end
  end

  if Code.ensure_loaded?(Axon) do
    for {name, order, options} <- Zoo.all() do
      @tag name: name, order: order, options: options
      test "Axon: #{name}, channels #{order}",
           %{name: name, order: order, options: options} = context do
        %{"state_dict" => state_dict, "input" => x, "output" => expected} =
          ExTorch.load!(Zoo.file(name))

        model = Zoo.model(name, ExTorch.Test.RealAxon, order)
        x = ExTorch.Nx.to_nx(Zoo.to_order(x, order), backend: Nx.BinaryBackend)
        {init, predict} = Axon.build(model)
        state = init.(x, Axon.ModelState.empty())
        store = store(Zoo.file(name), model, options, top_level_key: :auto)
        {:ok, result} = Store.apply_to(store, state)
        assert result.missing == [] and result.errors == [] and result.skipped == []
        assert %Axon.ModelState{} = result.module

        output = ExTorch.Nx.from_nx(predict.(result.module, x))
        difference = difference(output, Zoo.to_order(expected, order))
        if System.get_env("EXTORCH_ZOO"), do: IO.puts("#{name} #{order}: #{difference}")
        assert difference < 1.0e-5

        back = Path.join(context.tmp_dir, "back.pt")
        :ok = Store.collect_from(store(back, model, options), result.module)

        original =
          Map.new(state_dict, fn {name, t} -> {String.replace(name, ~r/^model\./, ""), t} end)

        assert_same_state(ExTorch.load!(back), original)
      end
    end
  end

  if Code.ensure_loaded?(Axon.Quantization) do
    test "Axon: a quantized state", %{tmp_dir: dir} do
      model = Zoo.model("mlp", ExTorch.Test.RealAxon, :first)
      %{"input" => x, "output" => expected} = ExTorch.load!(Zoo.file("mlp"))
      x = ExTorch.Nx.to_nx(x, backend: Nx.BinaryBackend)
      {init, predict} = Axon.build(model)
      state = init.(x, Axon.ModelState.empty())
      [options] = for {"mlp", _, options} <- Zoo.all(), do: options
      store = store(Zoo.file("mlp"), model, options, top_level_key: :auto)
      {:ok, %{module: plain}} = Store.apply_to(store, state)
      assert difference(ExTorch.Nx.from_nx(predict.(plain, x)), expected) < 1.0e-5

      {quantized_model, quantized} = Axon.Quantization.quantize(model, plain)
      {_, predict} = Axon.build(quantized_model)
      {_, zeros} = Axon.Quantization.quantize(model, state)

      # the adapter knows both models, and what is applied is quantized
      for model <- [model, quantized_model] do
        store = store(Zoo.file("mlp"), model, options, top_level_key: :auto)
        {:ok, result} = Store.apply_to(store, zeros)
        assert result.missing == [] and result.errors == []
        assert "dense_0.kernel" in result.applied and "fc2.kernel" in result.applied
        assert %Axon.Quantization.QTensor{} = result.module.data["fc2"]["kernel"]
        assert result.module.data == quantized.data
        output = ExTorch.Nx.from_nx(predict.(result.module, x))
        assert difference(output, expected) < 0.05

        # its values are saved
        path = Path.join(dir, "quantized.pt")
        :ok = Store.collect_from(store(path, model, options, overwrite: true), result.module)
        saved = ExTorch.load!(path)
        %{"state_dict" => original} = ExTorch.load!(Zoo.file("mlp"))
        assert Enum.sort(Map.keys(saved)) == Enum.sort(Map.keys(original))
        for {name, t} <- original, do: assert(difference(saved[name], t) < 0.02)
        {:ok, again} = Store.apply_to(store(path, model, options), zeros)
        assert difference(ExTorch.Nx.from_nx(predict.(again.module, x)), output) < 0.05
      end
    end
  end

  # PyTorch reads what was saved from the parameters of Axon.
  @tag :python
  test "load_state_dict accepts what is saved", %{tmp_dir: dir} do
    files =
      for {name, order, options} <- Zoo.all() do
        model = Zoo.model(name, AxonModel, order)
        %{"input" => x} = ExTorch.load!(Zoo.file(name))
        zeros = AxonModel.init(model, Zoo.to_order(x, order))
        store = store(Zoo.file(name), model, options, top_level_key: :auto)
        {:ok, result} = Store.apply_to(store, zeros)
        path = Path.join(dir, "#{name}-#{order}.pt")
        prefix = if name == "lightning", do: "model.", else: ""

        :ok =
          Store.collect_from(store(path, model, options, remap: &(prefix <> &1)), result.module)

        path
      end

    {output, 0} =
      System.cmd(Python.torch(), ["test/fixtures/zoo.py", "--check" | files],
        env: [{"LD_PRELOAD", nil}]
      )

    differences = Regex.scan(~r/^(\S+) (\S+)$/m, output, capture: :all_but_first)
    assert length(differences) == length(Zoo.all())
    for [name, difference] <- differences, do: assert(String.to_float(difference) < 1.0e-5, name)
  end

  # ---- Other models ----

  defp save(dir, tensors) do
    path = Path.join(dir, "state.pt")
    :ok = ExTorch.save(Map.new(tensors, fn {name, shape} -> {name, numbers(shape)} end), path)
    path
  end

  defp numbers(shape), do: numbers(shape, 0)

  defp numbers(shape, from) do
    count = Tuple.product(shape)
    flat = ExTorch.tensor(Enum.map(1..count//1, &(&1 / 8 + from)))
    ExTorch.op("reshape", [flat, Tuple.to_list(shape)])
  end

  defp list(tensor), do: Tensor.to_list(tensor)

  test "blocks, blocks in blocks, and blocks and layers that are used twice", %{tmp_dir: dir} do
    inner = AxonModel.block(&AxonModel.dense(&1, 4), name: "inner")
    outer = AxonModel.block(fn x -> x |> inner.() |> inner.() |> AxonModel.dense(4) end)

    shared = fn x -> AxonModel.dense(x, 4, name: "shared") end
    x = AxonModel.input("x")
    model = x |> outer.() |> outer.() |> shared.() |> shared.()
    parameters = AxonModel.init(model, ExTorch.zeros({1, 4}))
    layers = ~w(block_0.dense_0 block_0.inner.dense_0 shared)
    assert Enum.sort(names(parameters)) == for(l <- layers, p <- ~w(bias kernel), do: "#{l}.#{p}")

    path =
      save(
        dir,
        for(
          layer <- layers,
          {p, s} <- [{"weight", {4, 4}}, {"bias", {4}}],
          do: {"#{layer}.#{p}", s}
        )
      )

    {:ok, result} = Store.apply_to(store(path, model, []), parameters)
    assert length(result.applied) == 6 and result.unused == []
    kernel = result.module["block_0"]["inner"]["dense_0"]["kernel"]
    assert list(kernel) == list(ExTorch.op("t", [numbers({4, 4})]))
  end

  test "layers of the same name", %{tmp_dir: dir} do
    x = AxonModel.input("x")
    model = x |> AxonModel.dense(4, name: "a") |> AxonModel.layer_norm(name: "a")

    error = assert_raise Error, fn -> store("x.pt", model, []) end
    assert error.reason == :ambiguous
    message = error.message
    assert message =~ ~s("a") and message =~ "dense (kernel, bias) and layer_norm (gamma, beta)"

    # two layers of the model for one of PyTorch
    model = x |> AxonModel.dense(4, name: "a") |> AxonModel.dense(4, name: "b")
    path = save(dir, %{"c.weight" => {4, 4}, "c.bias" => {4}})
    parameters = AxonModel.init(model, ExTorch.zeros({1, 4}))
    store = store(path, model, layers: fn _ -> "c" end)
    assert {:error, %{reason: :ambiguous, message: message}} = Store.apply_to(store, parameters)
    assert message =~ ~s("c.) and message =~ ~s("a.) and message =~ ~s("b.)
    store = store(Path.join(dir, "out.pt"), model, layers: fn _ -> "c" end)
    assert {:error, %{reason: :ambiguous}} = Store.collect_from(store, parameters)
  end

  test "unknown operations keep their names and layouts", %{tmp_dir: dir} do
    scale = AxonModel.parameter("kernel", fn _ -> {2, 2} end)
    add = fn [x], %{"kernel" => kernel}, _ -> ExTorch.add(x, kernel) end
    x = AxonModel.input("x")

    # A layer that calls itself dense is not one of Axon's.
    model =
      x
      |> List.wrap()
      |> then(&AxonModel.layer(add, &1, [scale], name: "mine", op_name: :dense))
      |> then(&AxonModel.layer(add, [&1], [scale], name: "other", op_name: :custom))
      |> AxonModel.dropout()

    parameters = AxonModel.init(model, ExTorch.zeros({2, 2}))

    path =
      save(dir, %{"mine.kernel" => {2, 2}, "other.kernel" => {2, 2}, "other.weight" => {2, 2}})

    {:ok, result} = Store.apply_to(store(path, model, []), parameters)
    assert result.applied == ["mine.kernel", "other.kernel"] and result.unused == ["other.weight"]
    assert list(result.module["mine"]["kernel"]) == list(numbers({2, 2}))

    # the key of the random generator is the module's own
    assert result.skipped == ["dropout_0.key"] and result.missing == []
    out = Path.join(dir, "out.pt")
    :ok = Store.collect_from(store(out, model, []), result.module)
    assert Enum.sort(Map.keys(ExTorch.load!(out))) == ["mine.kernel", "other.kernel"]
  end

  test "biases that only the file or only the model has", %{tmp_dir: dir} do
    x = AxonModel.input("x")
    model = AxonModel.dense(x, 2, name: "fc", use_bias: false)
    path = save(dir, %{"fc.weight" => {2, 3}, "fc.bias" => {2}})
    parameters = AxonModel.init(model, ExTorch.zeros({1, 3}))

    assert {:ok, %{applied: ["fc.kernel"], unused: ["fc.bias"]}} =
             Store.apply_to(store(path, model, []), parameters)

    model = AxonModel.dense(x, 2, name: "fc")
    parameters = AxonModel.init(model, ExTorch.zeros({1, 3}))
    path = save(dir, %{"fc.weight" => {2, 3}, "fcc.bias" => {2}})
    assert {:error, error} = Store.apply_to(store(path, model, []), parameters)
    assert error.reason == :not_found and error.result.missing == ["fc.bias"]
    assert error.message =~ "fc.bias (needs fc.bias, the file has fcc.bias)"
  end

  test "a recurrent layer whose file has more or less", %{tmp_dir: dir} do
    {model, _} = AxonModel.input("x") |> AxonModel.lstm(2, name: "rnn")
    parameters = AxonModel.init(model, ExTorch.zeros({1, 3, 3}))

    weights = %{
      "rnn.weight_ih_l0" => {8, 3},
      "rnn.weight_hh_l0" => {8, 2},
      "rnn.bias_ih_l0" => {8}
    }

    # without the second bias none of the gates has one; peepholes and projections are not in Axon
    path = save(dir, Map.merge(weights, %{"rnn.weight_hr_l0" => {2, 2}, "rnn.weight_ci" => {2}}))
    store = store(path, model, [], allow_partial: true)
    {:ok, result} = Store.apply_to(store, parameters)
    biases = ["rnn.bias.bf", "rnn.bias.bg", "rnn.bias.bi", "rnn.bias.bo"]
    assert Enum.sort(result.missing) == biases
    assert Enum.sort(result.unused) == ["rnn.bias_ih_l0", "rnn.weight_ci", "rnn.weight_hr_l0"]
    assert result.sources["rnn.bias.bf"] == ["rnn.bias_ih_l0", "rnn.bias_hh_l0"]
    assert inspect(result) =~ "rnn.bias.bf (needs rnn.bias_ih_l0 and rnn.bias_hh_l0"
    file_names = Map.keys(weights) ++ ["rnn.weight_hr_l0", "rnn.weight_ci"]
    account(result, file_names, names(parameters))
  end

  test "shapes that do not fit", %{tmp_dir: dir} do
    {states, _} = AxonModel.input("x") |> AxonModel.gru(2, name: "rnn")
    model = AxonModel.dense(states, 4, name: "fc")
    parameters = AxonModel.init(model, ExTorch.zeros({1, 3, 3}))

    path =
      save(dir, %{
        "rnn.weight_ih_l0" => {7, 3},
        "rnn.weight_hh_l0" => {6, 5},
        "rnn.bias_ih_l0" => {6},
        "rnn.bias_hh_l0" => {1},
        "fc.weight" => {5, 2},
        "fc.bias" => {4, 1}
      })

    assert {:error, error} = Store.apply_to(store(path, model, []), parameters)
    assert error.reason == :bad_argument and error.result.applied == []
    messages = Map.new(error.result.errors, &{&1.name, &1.message})
    assert map_size(messages) == 12
    assert messages["rnn.input_kernel.wir"] =~ "rnn.weight_ih_l0 has shape {7, 3}"

    assert messages["rnn.hidden_kernel.whz"] ==
             "expected shape {2, 2}, got {5, 2}: rnn.weight_hh_l0 has shape {6, 5}, the module needs {6, 2}"

    assert messages["rnn.bias.bz"] == "rnn.bias_ih_l0 has shape {6}, rnn.bias_hh_l0 has {1}"

    assert messages["fc.kernel"] ==
             "expected shape {2, 4}, got {2, 5}: fc.weight has shape {5, 2}, the module needs {4, 2}"

    assert messages["fc.bias"] =~ "fc.bias has shape {4, 1}, the module needs {4}"
  end

  test "half precision is converted before the biases are added, if Cast comes first", %{
    tmp_dir: dir
  } do
    {model, _} = AxonModel.input("x") |> AxonModel.lstm(6, name: "rnn")
    %{"state_dict" => state_dict} = ExTorch.load!(Zoo.file("lstm"))
    half = Map.new(state_dict, fn {name, t} -> {name, Tensor.to(t, dtype: :bfloat16)} end)
    path = Path.join(dir, "half.pt")
    :ok = ExTorch.save(Map.reject(half, fn {name, _} -> name =~ "fc" end), path)
    parameters = AxonModel.init(model, ExTorch.zeros({1, 4, 5}))

    exact =
      ExTorch.add(
        Tensor.to(half["rnn.bias_ih_l0"], dtype: :float32),
        Tensor.to(half["rnn.bias_hh_l0"], dtype: :float32)
      )

    adapted = fn adapters ->
      with {:ok, result} <- Store.apply_to(PyTorch.new(path, adapters: adapters), parameters) do
        assert result.module["rnn"]["input_kernel"]["wii"].dtype == :float32
        bias = for gate <- ~w(bi bf bg bo), do: result.module["rnn"]["bias"][gate]
        difference(ExTorch.op("cat", [bias, 0]), exact)
      end
    end

    assert adapted.([Adapter.Cast, {Adapter.Axon, model}]) == 0.0
    assert adapted.([{Adapter.Axon, model}, Adapter.Cast]) > 0.0
    assert {:error, %{result: %{errors: [error | _]}}} = adapted.([{Adapter.Axon, model}])

    assert error.message =~
             "expected dtype :float32, got :bfloat16 (use ExTorch.Store.Adapter.Cast"
  end

  test "filters see the names of the module", %{tmp_dir: dir} do
    {model, _} = AxonModel.input("x") |> AxonModel.lstm(6, name: "rnn")
    parameters = AxonModel.init(model, ExTorch.zeros({1, 4, 5}))
    options = [top_level_key: "state_dict", only: ["rnn.bias.bi", ~r/input_kernel/]]
    {:ok, result} = Store.apply_to(store(Zoo.file("lstm"), model, [], options), parameters)
    assert length(result.applied) == 5
    assert Enum.count(result.skipped, &String.starts_with?(&1, "rnn.")) == 7

    assert Enum.sort(result.skipped -- names(parameters)) ==
             ~w(state_dict.fc.bias state_dict.fc.weight)

    out = Path.join(dir, "out.pt")

    assert {:error, error} =
             Store.collect_from(store(out, model, [], only: ~r/bias.b[if]/), parameters)

    assert error.message =~
             "rnn.bias_ih_l0 and rnn.bias_hh_l0 cannot be saved without rnn.bias.bg, rnn.bias.bo"

    :ok = Store.collect_from(store(out, model, [], only: ~r/bias/), parameters)
    assert Enum.sort(Map.keys(ExTorch.load!(out))) == ["rnn.bias_hh_l0", "rnn.bias_ih_l0"]
  end

  test "attention is recognized in the file", %{tmp_dir: dir} do
    model = Zoo.model("attention", AxonModel, :first)

    %{"state_dict" => state_dict, "input" => x, "output" => expected} =
      ExTorch.load!(Zoo.file("attention"))

    zeros = AxonModel.init(model, x)

    {:ok, result} =
      Store.apply_to(store(Zoo.file("attention"), model, [], top_level_key: :auto), zeros)

    assert difference(AxonModel.predict(model, result.module, x), expected) < 1.0e-5
    assert result.sources["attn.output.kernel"] == ["attn.out_proj.weight"]

    # with three weights, as with kdim and vdim
    [q, k, v] = ExTorch.op("chunk", [state_dict["attn.in_proj_weight"], 3, 0])
    separate = %{"attn.q_proj_weight" => q, "attn.k_proj_weight" => k, "attn.v_proj_weight" => v}
    path = Path.join(dir, "separate.pt")

    :ok =
      ExTorch.save(state_dict |> Map.delete("attn.in_proj_weight") |> Map.merge(separate), path)

    {:ok, again} = Store.apply_to(store(path, model, []), zeros)

    for {a, b} <- Enum.zip(leaves(again.module), leaves(result.module)),
        do: assert(Tensor.equal?(a, b))

    # the layers and the weights can also be named
    named = [
      fused: %{"attn.in_proj_weight" => ["attn.query", "attn.key", "attn.value"]},
      layers: %{"attn.output" => "attn.out_proj"}
    ]

    :ok = Store.collect_from(store(path, model, named, overwrite: true), result.module)
    assert_same_state(ExTorch.load!(path), state_dict)

    # with linear layers of its own names, which is how it is saved without options
    :ok = Store.collect_from(store(path, model, [], overwrite: true), result.module)
    assert Map.has_key?(ExTorch.load!(path), "attn.query.weight")
    {:ok, again} = Store.apply_to(store(path, model, []), zeros)
    assert again.unused == [] and length(again.applied) == 10
  end

  test "safetensors, and shards that separate the tensors of a rule", %{tmp_dir: dir} do
    for {name, order} <- [{"lstm", :first}, {"transposed", :last}, {"conv", :last}] do
      model = Zoo.model(name, AxonModel, order)
      %{"input" => x} = ExTorch.load!(Zoo.file(name))
      zeros = AxonModel.init(model, Zoo.to_order(x, order))

      {:ok, result} =
        Store.apply_to(store(Zoo.file(name), model, [], top_level_key: :auto), zeros)

      adapters = [adapters: [{Adapter.Axon, model}]]

      for store <- [
            Store.Safetensors.new(Path.join(dir, name <> ".safetensors"), adapters),
            Store.Sharded.new(
              Path.join(dir, name <> ".safetensors.index.json"),
              [max_shard_size: 100] ++ adapters
            )
          ] do
        :ok = Store.collect_from(store, result.module)
        {:ok, again} = Store.apply_to(store, zeros)
        assert again.unused == [] and Enum.sort(again.applied) == Enum.sort(result.applied)

        for {a, b} <- Enum.zip(leaves(again.module), leaves(result.module)),
            do: assert(Tensor.equal?(a, b))
      end
    end

    assert length(Path.wildcard(Path.join(dir, "lstm-*-of-*"))) > 4
  end

  test "fused weights of different sizes", %{tmp_dir: dir} do
    x = AxonModel.input("x")

    [q, k, v] =
      for {name, size} <- [q: 4, k: 2, v: 2], do: AxonModel.dense(x, size, name: "#{name}")

    model = AxonModel.container([q, k, v])
    parameters = AxonModel.init(model, ExTorch.zeros({1, 4}))
    options = [fused: %{"attn.qkv.weight" => ["q", "k", "v"]}]
    path = save(dir, %{"attn.qkv.weight" => {8, 4}, "attn.qkv.bias" => {8}})
    {:ok, result} = Store.apply_to(store(path, model, options), parameters)
    assert result.module["k"]["kernel"].shape == {4, 2}
    assert list(result.module["k"]["bias"]) == [0.625, 0.75]
    out = Path.join(dir, "out.pt")
    :ok = Store.collect_from(store(out, model, options), result.module)

    for {name, tensor} <- ExTorch.load!(path),
        do: assert(Tensor.equal?(ExTorch.load!(out)[name], tensor))

    path = save(dir, %{"attn.qkv.weight" => {12, 4}, "attn.qkv.bias" => {8}})
    assert {:error, %{message: message}} = Store.apply_to(store(path, model, options), parameters)
    assert message =~ "attn.qkv.weight has shape {12, 4}, the module needs 8 rows: 4 + 2 + 2"
  end

  test "what is flattened with channels last", %{tmp_dir: dir} do
    conv = &AxonModel.conv(&1, 3, kernel_size: {2, 2}, channels: &2, name: "conv")
    dense = &AxonModel.dense(&1, 2, name: "fc")
    x = AxonModel.input("x")
    custom = fn x -> AxonModel.layer(fn [x], _, _ -> x end, [x], [], op_name: :custom) end
    flat = &AxonModel.flatten/1

    block =
      AxonModel.block(fn x -> x |> AxonModel.relu() |> flat.() |> dense.() end, name: "head")

    # rows of the weight are counted from 0: {channel, position} of 3 x 4
    weight = ExTorch.op("reshape", [ExTorch.arange(24, dtype: :float32), [2, 12]])
    last = for position <- 0..3, channel <- 0..2, do: 4.0 * channel + position
    first = for row <- 0..11, do: row / 1

    kernel = fn model, options ->
      parameters = AxonModel.init(model, ExTorch.zeros({1, 3, 3, 3}))
      path = Path.join(dir, "flat.pt")
      state = %{"conv.weight" => numbers({3, 3, 2, 2}), "conv.bias" => numbers({3})}
      name = if parameters["head"], do: "head.fc", else: "fc"

      :ok =
        ExTorch.save(
          Map.merge(state, %{(name <> ".weight") => weight, (name <> ".bias") => numbers({2})}),
          path
        )

      {:ok, result} = Store.apply_to(store(path, model, options), parameters)
      :ok = Store.collect_from(store(path, model, options, overwrite: true), result.module)
      assert Tensor.equal?(ExTorch.load!(path)[name <> ".weight"], weight)
      kernel = get_in(result.module, String.split(name <> ".kernel", "."))
      {list(ExTorch.op("select", [kernel, 1, 0])), result.ambiguous}
    end

    for {model, options, expected, ambiguous} <- [
          {x |> conv.(:last) |> flat.() |> dense.(), [], last, []},
          {x |> conv.(:last) |> flat.() |> dense.(), [flatten: :channels_last], first, []},
          {x |> conv.(:first) |> flat.() |> dense.(), [], first, []},
          {x
           |> conv.(:last)
           |> AxonModel.relu()
           |> AxonModel.dropout()
           |> flat.()
           |> AxonModel.relu()
           |> dense.(), [], last, []},
          {x |> conv.(:last) |> then(&AxonModel.add(&1, &1)) |> flat.() |> dense.(), [], last,
           []},
          {x |> conv.(:last) |> block.(), [], last, []},
          {x |> conv.(:last) |> custom.() |> flat.() |> dense.(), [], first, ["fc.kernel"]},
          {x |> conv.(:last) |> flat.() |> custom.() |> dense.(), [], first, ["fc.kernel"]},
          {x |> conv.(:last) |> custom.() |> flat.() |> dense.(), [flatten: :channels_last],
           first, []}
        ] do
      assert kernel.(model, options) == {expected, ambiguous}
    end
  end

  test "options are checked" do
    model = AxonModel.input("x") |> AxonModel.dense(2, name: "fc")

    for {bad, text} <- [
          {5, "Axon"},
          {{model, nil}, "Axon"},
          {[model: {model, model}], "Axon.container/1"},
          {[], "Axon"},
          {[model: model, layer: %{}], "layer"},
          {[model: model, layers: 5], "layers"},
          {[model: model, layers: %{"fc" => 5}], ~s("fc")},
          {[model: model, fused: 5], "fused"},
          {[model: model, fused: false], "fused"},
          {[model: model, flatten: true], "flatten"},
          {[model: model, fused: %{"qkv" => ["fc"]}], "fused"},
          {[model: model, fused: %{"qkv.weight" => ["q"]}], ~s(["fc"])}
        ] do
      error = assert_raise Error, fn -> PyTorch.new("x.pt", adapters: [{Adapter.Axon, bad}]) end
      assert error.reason == :bad_argument
      assert error.message =~ text
    end
  end

  # Axon has no counter of batches, and the sum of the two biases of a recurrent layer.
  defp assert_same_state(state, original) do
    original = Map.reject(original, fn {name, _} -> name =~ "num_batches_tracked" end)
    assert Enum.sort(Map.keys(state)) == Enum.sort(Map.keys(original))

    for {name, tensor} <- original do
      if name =~ "bias_ih" or name =~ "bias_hh" do
        [a, b] =
          for kind <- ["bias_ih", "bias_hh"], do: String.replace(name, ~r/bias_[ih]h/, kind)

        sum = &ExTorch.add(&1[a], &1[b])
        assert difference(sum.(state), sum.(original)) < 1.0e-6
      else
        assert Tensor.equal?(state[name], tensor), name
      end
    end
  end

  defp difference(a, b) do
    assert a.shape == b.shape
    ExTorch.op("max", [ExTorch.op("abs", [ExTorch.sub(a, b)])]) |> Tensor.to_list()
  end

  defp leaves(%Tensor{} = tensor), do: [tensor]
  defp leaves(map), do: map |> Enum.sort() |> Enum.flat_map(fn {_, part} -> leaves(part) end)
end
