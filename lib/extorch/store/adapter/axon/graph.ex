defmodule ExTorch.Store.Adapter.Axon.Graph do
  @moduledoc false
  # Reads the layers of an Axon model. Axon is not needed: its structs are read as maps.
  #
  # A model has nodes by id and the id of its output. A node has the ids of its parents, the name of its operation, its
  # parameters, its options, and a function that gives the layer its name: "dense_0" is the first dense layer in the order
  # of Axon's compiler, parents first. A block is a function that makes a model. Its layers are counted anew, and its
  # parameters are those of one layer, however often it is applied.

  alias ExTorch.{Error, Options}

  # state: the names of the parameters that are not trained
  @type layer :: %{
          name: String.t(),
          op: atom(),
          parameters: [String.t()],
          state: [String.t()],
          opts: keyword()
        }

  # Returns the layers that have parameters. Raises if the model is none, or has different layers of the same name.
  @spec layers(term()) :: [layer()]
  def layers(model), do: model |> list("") |> Enum.uniq() |> check_names!()

  defp list(%{__struct__: Axon, nodes: nodes, output: output}, prefix) when is_map(nodes) do
    state = %{nodes: nodes, prefix: prefix, seen: %{}, counts: %{}, blocks: %{}, layers: []}
    Enum.reverse(visit(output, state).layers)
  end

  defp list(other, "") do
    Options.expected!("an Axon model; several outputs are one model with Axon.container/1", other)
  end

  defp list(other, prefix) do
    Options.expected!(
      "a function of the block #{inspect(prefix)} that returns an Axon model",
      other
    )
  end

  defp visit(id, %{seen: seen} = state) when is_map_key(seen, id), do: state

  defp visit(id, state) do
    node = Map.fetch!(state.nodes, id)
    state = Enum.reduce(node.parent || [], state, &visit/2)
    add(node, %{state | seen: Map.put(state.seen, id, true)})
  end

  # An optional node has no name.
  defp add(%{op: :optional}, state), do: state

  defp add(%{op: :block, opts: opts} = node, state) do
    id = opts[:block_id]

    if is_map_key(state.blocks, id) do
      state
    else
      {name, state} = name(node, :block, state)

      inputs =
        node.parent |> Enum.with_index() |> Enum.map(fn {_, i} -> input("subgraph#{i}") end)

      layers = list(apply(opts[:block_fun], inputs), name <> ".")
      layers = Enum.reverse(layers, state.layers)
      %{state | blocks: Map.put(state.blocks, id, true), layers: layers}
    end
  end

  defp add(node, state) do
    {name, state} = name(node, node.op_name, state)

    case node.parameters || [] do
      [] ->
        state

      parameters ->
        layer = %{
          name: name,
          op: operation(node),
          parameters: Enum.map(parameters, & &1.name),
          state: for(%{kind: :state, name: name} <- parameters, do: name),
          opts: node.opts
        }

        %{state | layers: [layer | state.layers]}
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
    if info[:module] == Axon.Layers and info[:name] == name, do: name, else: :custom
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
    layers
    |> Enum.group_by(& &1.name)
    |> Enum.each(fn {name, same} ->
      case Enum.uniq_by(same, &{&1.op, &1.parameters, &1.opts[:channels]}) do
        [_] ->
          :ok

        [a, b | _] ->
          raise Error.new(
                  :ambiguous,
                  "the model has several layers named #{inspect(name)}, which share their parameters: " <>
                    "#{describe(a)} and #{describe(b)}; give them different names"
                )
      end
    end)

    Enum.uniq_by(layers, & &1.name)
  end

  defp describe(layer), do: "#{layer.op} (#{Enum.join(layer.parameters, ", ")})"
end
