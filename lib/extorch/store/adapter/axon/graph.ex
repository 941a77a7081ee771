defmodule ExTorch.Store.Adapter.Axon.Graph do
  @moduledoc false
  # Reads the layers of an Axon model. Axon is not needed: its structs are read as maps.
  #
  # A model has nodes by id and the id of its output. A node has the ids of its parents, the name of its operation, its
  # parameters, its options, and a function that gives the layer its name: "dense_0" is the first dense layer in the order
  # of Axon's compiler, parents first. A block is a function that makes a model. Its layers are counted anew, and its
  # parameters are those of one layer, however often it is applied.
  #
  # For what is flattened, the order of its dimensions is followed through the model. PyTorch has channels first, so the
  # features of a flattened tensor are in another order if the model has channels last.

  alias ExTorch.{Error, Options}

  # {:last, layer}: channels last, as many as the kernel of this layer makes; {:flat, layer}: the same, flattened; :lost and
  # :lost_flat: this went through an operation that is not known; nil: anything else
  @type order :: {:last | :flat, String.t()} | :lost | :lost_flat | nil

  # state: the names of the parameters that are not trained
  # input: the order of the first input
  @type layer :: %{
          name: String.t(),
          op: atom(),
          parameters: [String.t()],
          state: [String.t()],
          opts: keyword(),
          input: order()
        }

  @convolutions [:conv, :depthwise_conv, :conv_transpose]
  # These keep the order of the dimensions and the number of channels.
  @same_order [
                :add,
                :subtract,
                :multiply,
                :pad,
                :resize,
                :dropout,
                :spatial_dropout,
                :alpha_dropout,
                :feature_alpha_dropout,
                :batch_norm,
                :instance_norm,
                :layer_norm,
                :group_norm,
                :rms_norm,
                :bias,
                :max_pool,
                :avg_pool,
                :lp_pool,
                :blur_pool,
                :adaptive_avg_pool,
                :adaptive_max_pool,
                :adaptive_lp_pool
              ] ++
                ~w(celu elu exp gelu hard_sigmoid hard_silu hard_tanh leaky_relu linear log_sigmoid log_softmax mish relu relu6
                   selu sigmoid silu softmax softplus softsign tanh)a
  # These leave no spatial dimensions.
  @reductions [:global_avg_pool, :global_max_pool, :global_lp_pool]

  # Returns the layers that have parameters. Raises if the model is none, or has different layers of the same name.
  @spec layers(term()) :: [layer()]
  def layers(model) do
    {layers, _order} = list(model, "", [])
    check_names!(layers)
  end

  # Also returns the order of the output. `inputs` are those of the inputs of a block.
  defp list(%{__struct__: Axon, nodes: nodes, output: output}, prefix, inputs)
       when is_map(nodes) do
    state = %{
      nodes: nodes,
      prefix: prefix,
      orders: %{},
      counts: %{},
      blocks: %{},
      layers: [],
      inputs: for({order, i} <- Enum.with_index(inputs), into: %{}, do: {"subgraph#{i}", order})
    }

    state = visit(output, state)
    {Enum.reverse(state.layers), state.orders[output]}
  end

  defp list(other, "", _inputs) do
    Options.expected!("an Axon model; several outputs are one model with Axon.container/1", other)
  end

  defp list(other, prefix, _inputs) do
    Options.expected!(
      "a function of the block #{inspect(prefix)} that returns an Axon model",
      other
    )
  end

  defp visit(id, %{orders: orders} = state) when is_map_key(orders, id), do: state

  defp visit(id, state) do
    node = Map.fetch!(state.nodes, id)
    parents = node.parent || []
    state = Enum.reduce(parents, state, &visit/2)
    {order, state} = add(node, Enum.map(parents, &state.orders[&1]), state)
    %{state | orders: Map.put(state.orders, id, order)}
  end

  # An optional node has no name.
  defp add(%{op: :optional}, orders, state), do: {List.first(orders), state}

  defp add(%{op: :input} = node, _orders, state) do
    {name, state} = name(node, :input, state)
    {state.inputs[String.replace_prefix(name, state.prefix, "")], state}
  end

  defp add(%{op: :block, opts: opts} = node, orders, state) do
    id = opts[:block_id]

    case state.blocks do
      %{^id => order} ->
        {order, state}

      _ ->
        {name, state} = name(node, :block, state)
        inputs = for {_, i} <- Enum.with_index(orders), do: input("subgraph#{i}")
        {layers, order} = list(apply(opts[:block_fun], inputs), name <> ".", orders)
        layers = Enum.reverse(layers, state.layers)
        {order, %{state | blocks: Map.put(state.blocks, id, order), layers: layers}}
    end
  end

  defp add(node, orders, state) do
    {name, state} = name(node, node.op_name, state)
    op = operation(node)
    order = order(op, node, name, orders)

    case node.parameters || [] do
      [] ->
        {order, state}

      parameters ->
        layer = %{
          name: name,
          op: op,
          parameters: Enum.map(parameters, & &1.name),
          state: for(%{kind: :state, name: name} <- parameters, do: name),
          opts: node.opts,
          input: List.first(orders)
        }

        {order, %{state | layers: [layer | state.layers]}}
    end
  end

  defp order(op, node, name, _orders) when op in @convolutions,
    do: if(Keyword.get(node.opts, :channels, :last) == :last, do: {:last, name})

  defp order(op, _node, _name, orders) when op in @same_order, do: Enum.find(orders, & &1)
  defp order(op, _node, _name, _orders) when op in @reductions, do: nil

  defp order(:flatten, _node, _name, [order | _]) do
    case order do
      {:last, layer} -> {:flat, layer}
      :lost -> :lost_flat
      other -> other
    end
  end

  # The inputs of :add and the like.
  defp order(_op, %{op_name: :container}, _name, orders), do: Enum.find(orders, & &1)

  defp order(:dense, _node, _name, [order | _]) when order in [nil, :lost_flat], do: nil
  defp order(:dense, _node, _name, [{:flat, _} | _]), do: nil

  defp order(_op, _node, _name, orders) do
    cond do
      Enum.any?(orders, &(&1 == :lost_flat or match?({:flat, _}, &1))) -> :lost_flat
      Enum.any?(orders) -> :lost
      true -> nil
    end
  end

  defp name(node, op, state) do
    name = state.prefix <> node.name.(op, state.counts)
    {name, %{state | counts: Map.update(state.counts, op, 1, &(&1 + 1))}}
  end

  # A custom layer may call itself "dense": its function decides.
  defp operation(%{op: op, op_name: op}), do: op

  defp operation(%{op: fun, op_name: name}) when is_function(fun) do
    info = Function.info(fun)

    case {info[:module], info[:name]} do
      {Axon.Layers, ^name} -> name
      {Axon.Quantization.Layers, :weight_only_quantized_dense} -> :dense
      _ -> :custom
    end
  end

  defp operation(_node), do: :custom

  # Returns the input of a block, as Axon's compiler does.
  defp input(name) do
    if Code.ensure_loaded?(Axon) and function_exported?(Axon, :input, 1),
      do: apply(Axon, :input, [name]),
      else: %{__struct__: Axon, output: 0, nodes: %{0 => input_node(name)}}
  end

  defp input_node(name) do
    %{
      __struct__: Axon.Node,
      id: 0,
      name: fn _op, _counts -> name end,
      parent: [],
      parameters: [],
      op: :input,
      op_name: :input,
      opts: []
    }
  end

  # Layers of the same name share their parameters.
  defp check_names!(layers) do
    by_name = Enum.group_by(layers, & &1.name)
    for layer <- Enum.uniq_by(layers, & &1.name), do: shared!(Map.fetch!(by_name, layer.name))
  end

  defp shared!([layer | _] = same) do
    case Enum.uniq_by(same, &{&1.op, &1.parameters, &1.opts[:channels]}) do
      [_] ->
        %{layer | input: shared_input(same |> Enum.map(&flat/1) |> Enum.uniq())}

      [a, b | _] ->
        raise Error.new(
                :ambiguous,
                "the model has several layers named #{inspect(layer.name)}, which share their parameters: " <>
                  "#{describe(a)} and #{describe(b)}; give them different names"
              )
    end
  end

  defp flat(%{input: {:flat, _} = order}), do: order
  defp flat(%{input: :lost_flat}), do: :lost_flat
  defp flat(_layer), do: nil

  defp shared_input([order]), do: order
  defp shared_input(_orders), do: :lost_flat

  defp describe(layer), do: "#{layer.op} (#{Enum.join(layer.parameters, ", ")})"
end
