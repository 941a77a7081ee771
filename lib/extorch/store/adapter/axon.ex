defmodule ExTorch.Store.Adapter.Axon do
  @moduledoc """
  Maps state dicts of PyTorch to the parameters of an Axon model and back. It knows the model: the operation of each layer,
  its options and its parameters decide about names and layouts, not their names or shapes.

      model =
        Axon.input("tokens")
        |> Axon.embedding(100, 64, name: "embed")
        |> Axon.dense(64, name: "fc")

      {init, predict} = Axon.build(model)
      state = init.(Nx.template({1, 8}, :s64), Axon.ModelState.empty())

      store = ExTorch.Store.PyTorch.new("model.pt", adapters: [{ExTorch.Store.Adapter.Axon, model}])
      {:ok, result} = ExTorch.Store.apply_to(store, state)
      predict.(result.module, tokens)

  `ExTorch.Store.collect_from/2` with the same adapter saves a state dict that `load_state_dict` of PyTorch accepts.

  | layer | Axon | PyTorch |
  | --- | --- | --- |
  | `dense` | `kernel` `{in, out}`, `bias` | `weight` `{out, in}`, `bias` |
  | `bilinear` | `kernel`, `bias` | `weight`, `bias` |
  | `conv`, `depthwise_conv`, channels last | `kernel` `{…, in / groups, out}` | `weight` `{out, in / groups, …}` |
  | the same, channels first | `kernel` `{out, in / groups, …}` | `weight` `{out, in / groups, …}` |
  | `conv_transpose`, channels last | `kernel` `{…, in, out}` | `weight` `{in, out, …}`, flipped in each spatial dimension |
  | the same, channels first | `kernel` `{out, in, …}` | `weight` `{in, out, …}`, flipped in each spatial dimension |
  | `embedding` | `kernel` | `weight` |
  | `batch_norm`, `instance_norm` | `gamma`, `beta`, `mean`, `var` | `weight`, `bias`, `running_mean`, `running_var` |
  | `layer_norm`, `group_norm`, `rms_norm` | `gamma`, `beta` | `weight`, `bias` |
  | `lstm` | `input_kernel.wii`, `wif`, `wig`, `wio` | `weight_ih_l0` |
  | | `hidden_kernel.whi`, `whf`, `whg`, `who` | `weight_hh_l0` |
  | | `bias.bi`, `bf`, `bg`, `bo` | `bias_ih_l0` + `bias_hh_l0` |
  | `gru` | `input_kernel.wir`, `wiz`, `win` | `weight_ih_l0` |
  | | `hidden_kernel.whr`, `whz`, `whn` | `weight_hh_l0` |
  | | `bias.br`, `bz` | rows of `bias_ih_l0` + `bias_hh_l0` |
  | | `bias.bin`, `bhn` | the last rows of `bias_ih_l0` and `bias_hh_l0` |
  | attention: three `dense` layers `query`, `key`, `value` | `kernel`, `bias` of each | their own `weight` and `bias`, or `in_proj_weight` and `in_proj_bias` of `nn.MultiheadAttention` |

  A model with channels last flattens them in another order than PyTorch. The kernel of a dense layer behind `flatten`, and
  the parameters of a normalization, have the same order. If an operation between the convolution and `flatten` is not
  known, such as a custom layer, they are applied as they are, and the result lists them in `ambiguous`.

  Axon adds one bias where PyTorch adds two. They are added when a file is applied. When a module is saved, the sum is the
  bias of the input, and that of the hidden state is zero. `num_batches_tracked` of a batch normalization is listed in
  `unused`; PyTorch does not need it.

  The kernels of dense layers may be quantized (`Axon.Quantization`): what is applied is quantized, and their values are saved.

  Parameters of other layers, such as custom ones, keep their names and layouts. The keys of random generators (dropout,
  random initial states) stay as they are and are listed in `skipped`. PyTorch starts recurrent layers with zeros: use
  `recurrent_initializer: :zeros`.

  ## Options

  `{ExTorch.Store.Adapter.Axon, model}` is short for `{ExTorch.Store.Adapter.Axon, model: model}`.

    * `:model` - the Axon model
    * `:layers` - maps names of layers in Axon to those in PyTorch: a map, or a function of the name. Layers that the map
      does not contain have the same name. Layers in a block are `"block.layer"`. For a layer of a deeper or of a backward
      LSTM or GRU, the name in PyTorch ends with its suffix: `"lstm.l1"`, `"lstm.l0_reverse"`.
    * `:fused` - maps weights in PyTorch to the dense layers whose kernels they consist of, one below another:
      `%{"attn.qkv.weight" => ["query", "key", "value"]}`. The name of their bias ends with `bias` in place of `weight`.
      `true` stands for the attention layers of the model: those with dense layers named `query`, `key` and `value` (or
      `q`, `q_proj`, `to_q`, …) are saved as `nn.MultiheadAttention`. Files with its `in_proj_weight` are recognized without
      this option.
    * `:flatten` - `:channels_last` if also the model in PyTorch flattens with channels last. Defaults to `:channels_first`.
  """
  @behaviour ExTorch.Store.Adapter

  alias ExTorch.{Error, Options}
  alias ExTorch.Store.Adapter.Axon.{Graph, Layout}
  alias ExTorch.Store.Rule

  @attention ~r/\A(?:(.*)[._])?(?:(query|q|q_proj|to_q)|(key|k|k_proj|to_k)|(value|v|v_proj|to_v)|(output|out|o_proj))\z/s

  @options [model: nil, layers: %{}, fused: %{}, flatten: :channels_first]

  @impl true
  def init(model) when not is_list(model), do: init(model: model)

  def init(options) do
    options = options |> Options.validate!(@options) |> Map.new()
    layers = options.model |> Graph.layers() |> Enum.map(&put_torch_name(&1, options.layers))

    unless options.flatten in [:channels_first, :channels_last],
      do: Options.invalid!(:flatten, ":channels_first or :channels_last", options.flatten)

    %{
      layers: layers,
      fused: check_fused!(options.fused, layers),
      flatten: options.flatten
    }
  end

  defp put_torch_name(layer, map) when is_map(map) and not is_struct(map),
    do: Map.put(layer, :torch, check_name!(Map.get(map, layer.name, layer.name), layer))

  defp put_torch_name(layer, fun) when is_function(fun, 1),
    do: Map.put(layer, :torch, check_name!(fun.(layer.name), layer))

  defp put_torch_name(_layer, other),
    do: Options.invalid!(:layers, "a map or a function of the name of a layer", other)

  defp check_name!(name, _layer) when is_binary(name), do: name

  defp check_name!(other, layer),
    do: Options.invalid!(:layers, "a string for the layer #{inspect(layer.name)}", other)

  defp check_fused!(true, _layers), do: true

  defp check_fused!(fused, layers) when is_map(fused) and not is_struct(fused) do
    by_name = Map.new(layers, &{&1.name, &1})

    for {weight, names} <- fused do
      unless is_binary(weight) and String.ends_with?(weight, "weight") and is_list(names) and
               names != [],
             do: invalid_fused!(%{weight => names})

      {weight, Enum.map(names, &dense!(&1, by_name))}
    end
  end

  defp check_fused!(other, _layers), do: invalid_fused!(other)

  @spec invalid_fused!(term()) :: no_return()
  defp invalid_fused!(other) do
    Options.invalid!(
      :fused,
      ~s(a map such as %{"attn.qkv.weight" => ["query", "key", "value"]}),
      other
    )
  end

  defp dense!(name, by_name) do
    case by_name do
      %{^name => %{op: :dense} = layer} ->
        layer

      _ ->
        dense = for {name, %{op: :dense}} <- by_name, do: name

        raise Error.new(
                :bad_argument,
                "the option :fused names the layer #{inspect(name)}, which is not a dense layer of the model; " <>
                  "its dense layers are #{inspect(dense, limit: 20)}"
              )
    end
  end

  @impl true
  def rules(targets, %{layers: layers, fused: fused, flatten: flatten}) do
    each = Enum.flat_map(layers, &layer_rules(put_channels(&1, targets, flatten)))
    attention = attention_rules(layers, targets)

    # The first rule of a tensor is the one that is saved.
    if fused == true,
      do: attention ++ each,
      else: fused_rules(fused, targets) ++ each ++ attention
  end

  # Replaces the order of the input by the number of channels that are flattened, or :unknown, or nil if nothing is.
  defp put_channels(layer, _targets, :channels_last), do: %{layer | input: nil}

  defp put_channels(layer, targets, :channels_first) do
    channels =
      case layer.input do
        {:flat, source} -> channels_of(targets[source <> ".kernel"])
        :lost_flat -> :unknown
        _ -> nil
      end

    %{layer | input: channels}
  end

  # The kernel has channels last.
  defp channels_of(%{shape: shape}) when tuple_size(shape) > 2,
    do: elem(shape, tuple_size(shape) - 1)

  defp channels_of(_target), do: :unknown

  # ---- One layer ----

  defp layer_rules(%{op: :dense, input: channels} = layer) do
    layout =
      case channels do
        nil -> :transposed
        :unknown -> {:guess, :transposed}
        channels -> {:flat, channels}
      end

    one_by_one(layer, %{"kernel" => {"weight", layout}, "bias" => "bias"})
  end

  defp layer_rules(%{op: op} = layer) when op in [:bilinear, :embedding, :bias],
    do: one_by_one(layer, %{"kernel" => "weight", "bias" => "bias"})

  defp layer_rules(%{op: op} = layer) when op in [:conv, :depthwise_conv, :conv_transpose],
    do: one_by_one(layer, %{"kernel" => {"weight", {op, channels(layer)}}, "bias" => "bias"})

  defp layer_rules(%{op: op} = layer)
       when op in [:batch_norm, :instance_norm, :layer_norm, :group_norm, :rms_norm] do
    layout =
      case layer.input do
        nil -> :same
        channels when is_integer(channels) and op != :group_norm -> {:flat_vector, channels}
        _ -> {:guess, :same}
      end

    one_by_one(layer, %{
      "gamma" => {"weight", layout},
      "beta" => {"bias", layout},
      "mean" => {"running_mean", layout},
      "var" => {"running_var", layout}
    })
  end

  defp layer_rules(%{op: op} = layer) when op in [:lstm, :gru] do
    {prefix, suffix} = recurrent_name(layer.torch)
    file = &"#{prefix}#{&1}_#{suffix}"
    gates = if op == :lstm, do: ~w(i f g o), else: ~w(r z n)

    for {parameter, kind, names} <- [
          {"input_kernel", :gates, [file.("weight_ih")]},
          {"hidden_kernel", :gates, [file.("weight_hh")]},
          {"bias", op, [file.("bias_ih"), file.("bias_hh")]}
        ],
        parameter in layer.parameters do
      parts = for part <- parts(parameter, op, gates), do: "#{layer.name}.#{parameter}.#{part}"
      Layout.rule(kind, names, parts)
    end
  end

  # The keys of random generators.
  defp layer_rules(%{state: state, name: name}) do
    for "key" <- state, do: %Rule{file: [], module: [name <> ".key"]}
  end

  defp parts("input_kernel", _op, gates), do: Enum.map(gates, &"wi#{&1}")
  defp parts("hidden_kernel", _op, gates), do: Enum.map(gates, &"wh#{&1}")
  defp parts("bias", :lstm, gates), do: Enum.map(gates, &"b#{&1}")
  defp parts("bias", :gru, _gates), do: ~w(br bz bin bhn)

  defp channels(layer), do: Keyword.get(layer.opts, :channels, :last)

  # "lstm.l1_reverse" is the backward direction of the second layer.
  defp recurrent_name(name) do
    case Regex.run(~r/\A(|.*\.)(l\d+(?:_reverse)?)\z/s, name, capture: :all_but_first) do
      [prefix, suffix] -> {prefix, suffix}
      nil -> {dotted(name), "l0"}
    end
  end

  defp dotted(""), do: ""
  defp dotted(name), do: name <> "."

  defp one_by_one(layer, names) do
    for parameter <- layer.parameters, target = names[parameter] do
      {name, layout} = if is_binary(target), do: {target, :same}, else: target
      Layout.rule(layout, [dotted(layer.torch) <> name], ["#{layer.name}.#{parameter}"])
    end
  end

  # ---- Several dense layers ----

  defp fused_rules(fused, targets) do
    for {weight, layers} <- fused, rule <- fused_rule(weight, layers, targets), do: rule
  end

  defp fused_rule(weight, layers, targets) do
    kernels = for layer <- layers, do: "#{layer.name}.kernel"
    biases = for layer <- layers, "bias" in layer.parameters, do: "#{layer.name}.bias"
    bias = String.replace_suffix(weight, "weight", "bias")

    [Layout.rule({:rows, sizes(kernels, targets)}, [weight], kernels)] ++
      if length(biases) == length(layers),
        do: [Layout.rule({:parts, sizes(biases, targets)}, [bias], biases)],
        else: []
  end

  # The number of outputs of each layer, if all are known.
  defp sizes(names, targets) do
    sizes =
      for name <- names do
        case targets do
          %{^name => %{shape: {_in, out}}} -> out
          %{^name => %{shape: {out}}} -> out
          _ -> nil
        end
      end

    if Enum.all?(sizes), do: sizes
  end

  # nn.MultiheadAttention has one weight for query, key and value, and calls the last layer out_proj.
  defp attention_rules(layers, targets) do
    layers
    |> Enum.filter(&(&1.op == :dense))
    |> Enum.flat_map(&attention_part/1)
    |> Enum.group_by(&elem(&1, 0), fn {_, part, layer} -> {part, layer} end)
    |> Enum.flat_map(fn {prefix, parts} -> attention(dotted(prefix), Map.new(parts), targets) end)
  end

  defp attention_part(layer) do
    case Regex.run(@attention, layer.torch, capture: :all_but_first) do
      nil -> []
      [prefix | found] -> [{prefix, Enum.find_index(found, &(&1 != "")), layer}]
    end
  end

  defp attention(prefix, %{0 => query, 1 => key, 2 => value} = parts, targets) do
    separate =
      for {letter, layer} <- [{"q", query}, {"k", key}, {"v", value}] do
        Layout.rule(:transposed, ["#{prefix}#{letter}_proj_weight"], ["#{layer.name}.kernel"])
      end

    out =
      case parts do
        %{3 => layer} -> layer_rules(%{layer | torch: prefix <> "out_proj", input: nil})
        _ -> []
      end

    fused_rule(prefix <> "in_proj_weight", [query, key, value], targets) ++ separate ++ out
  end

  defp attention(_prefix, _parts, _targets), do: []
end
