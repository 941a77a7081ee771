defmodule ExTorch.Test.AxonModel do
  @moduledoc false
  # Models with the structure of Axon's, and an interpreter that computes them with LibTorch. The functions have the names
  # and options of Axon's, the nodes the fields of Axon.Node, the parameters the layouts of Axon.Layers. It is written after
  # Axon's documentation of its layers, not after the adapter.

  # ---- Models ----

  def input(name, opts \\ []), do: node(:input, [], [], [name: name] ++ opts)

  def dense(x, units, opts \\ []) do
    kernel = parameter("kernel", fn [shape | _] -> {last(shape), units} end)
    node(:dense, [x], [kernel | bias({units}, opts)], opts)
  end

  def embedding(x, vocabulary, size, opts \\ []),
    do: node(:embedding, [x], [parameter("kernel", fn _ -> {vocabulary, size} end)], opts)

  def conv(x, units, opts), do: convolution(:conv, x, units, opts[:feature_group_size] || 1, opts)
  def conv_transpose(x, units, opts), do: convolution(:conv_transpose, x, units, 1, opts)

  def depthwise_conv(x, multiplier, opts) do
    kernel = fn [shape | _] ->
      kernel_shape(channels(shape, opts) * multiplier, 1, opts)
    end

    node(:depthwise_conv, [x], [parameter("kernel", kernel)], opts)
  end

  defp convolution(op, x, units, groups, opts) do
    kernel = fn [shape | _] -> kernel_shape(units, div(channels(shape, opts), groups), opts) end
    node(op, [x], [parameter("kernel", kernel) | bias({units}, opts)], opts)
  end

  defp kernel_shape(out, inputs, opts) do
    size = Tuple.to_list(opts[:kernel_size])

    if opts[:channels] == :first,
      do: List.to_tuple([out, inputs | size]),
      else: List.to_tuple(size ++ [inputs, out])
  end

  defp channels(shape, opts),
    do: if(opts[:channels] == :first, do: elem(shape, 1), else: last(shape))

  def layer_norm(x, opts \\ []), do: norm(:layer_norm, x, [:gamma, :beta], opts)

  def group_norm(x, groups, opts),
    do: norm(:group_norm, x, [:gamma, :beta], [num_groups: groups] ++ opts)

  def batch_norm(x, opts), do: norm(:batch_norm, x, [:gamma, :beta, :mean, :var], opts)

  defp norm(op, x, names, opts) do
    axis = opts[:channel_index] || -1
    shape = fn [shape | _] -> {shape |> Tuple.to_list() |> Enum.at(axis)} end

    parameters =
      for name <- names do
        kind = if name in [:mean, :var], do: :state, else: :parameter
        %{parameter(to_string(name), shape) | kind: kind}
      end

    node(op, [x], parameters, opts)
  end

  def relu(x), do: node(:relu, [x], [], [])
  def max_pool(x, opts), do: node(:max_pool, [x], [], opts)
  def flatten(x), do: node(:flatten, [x], [], [])
  def add(a, b), do: node(:add, [a, b], [], [])
  def concatenate(a, b), do: node(:concatenate, [a, b], [], [])
  def reverse(x), do: node(:reverse, [x], [], op_name: :nx)

  def attention(q, k, v, heads),
    do: node(:attention, [q, k, v], [], heads: heads, op_name: :custom)

  def container(nodes), do: node(:container, nodes, [], [])

  def dropout(x),
    do: node(:dropout, [x], [%{parameter("key", fn _ -> {2} end) | kind: :state}], [])

  def layer(op, inputs, parameters, opts) when is_function(op) or is_atom(op),
    do: node(op, inputs, parameters, opts)

  def lstm(x, units, opts \\ []),
    do: recurrent(:lstm, x, units, ~w(i f g o), ~w(bi bf bg bo), opts)

  def gru(x, units, opts \\ []), do: recurrent(:gru, x, units, ~w(r z n), ~w(br bz bin bhn), opts)

  defp recurrent(op, x, units, gates, biases, opts) do
    input = fn [shape | _] ->
      for gate <- gates, into: %{}, do: {"wi#{gate}", {last(shape), units}}
    end

    hidden = fn _ -> for gate <- gates, into: %{}, do: {"wh#{gate}", {units, units}} end
    bias = fn _ -> for name <- biases, into: %{}, do: {name, {units}} end

    parameters =
      [parameter("input_kernel", input), parameter("hidden_kernel", hidden)] ++
        if(opts[:use_bias] != false, do: [parameter("bias", bias)], else: [])

    # Axon gives the function of a layer without a bias. Its module exists only where Axon does.
    {node(op, [x], parameters, opts), nil}
  end

  def block(fun, opts \\ []) do
    id = System.unique_integer([:positive, :monotonic])
    fn x -> node(:block, [x], [], [block_fun: fun, block_id: id] ++ opts) end
  end

  defp bias(shape, opts) do
    if opts[:use_bias] == false, do: [], else: [parameter("bias", fn _ -> shape end)]
  end

  def parameter(name, shape) do
    %{__struct__: Axon.Parameter, name: name, template: shape, kind: :parameter, type: {:f, 32}}
  end

  defp node(op, inputs, parameters, opts) do
    {name, opts} = Keyword.pop(opts, :name)
    {op_name, opts} = Keyword.pop(opts, :op_name, op)
    id = System.unique_integer([:positive, :monotonic])

    name_fun =
      if name,
        do: fn _, _ -> name end,
        else: fn op, counts -> "#{op_name}_#{counts[op] || 0}" end

    node = %{
      __struct__: Axon.Node,
      id: id,
      mode: :both,
      name: name_fun,
      parent: Enum.map(inputs, & &1.output),
      parameters: parameters,
      op: op,
      op_name: op_name,
      opts: opts,
      meta: %{},
      hooks: [],
      global_options: []
    }

    nodes = inputs |> Enum.map(& &1.nodes) |> Enum.reduce(%{}, &Map.merge/2)
    %{__struct__: Axon, output: id, nodes: Map.put(nodes, id, node)}
  end

  defp last(shape), do: elem(shape, tuple_size(shape) - 1)

  # ---- Interpreter ----

  @doc "Returns the parameters, all zero, by layer."
  def init(model, input) do
    {_, state} = run(model, input, nil)
    state.parameters
  end

  @doc "Computes the output of the model."
  def predict(model, parameters, input) do
    {output, _} = run(model, input, parameters)
    output
  end

  defp run(model, input, parameters) do
    state = %{
      nodes: model.nodes,
      given: parameters,
      parameters: %{},
      counts: %{},
      done: %{},
      blocks: %{}
    }

    eval(model.output, Map.put(state, :input, input))
  end

  defp eval(id, %{done: done} = state) when is_map_key(done, id), do: {done[id], state}

  defp eval(id, state) do
    node = state.nodes[id]
    {inputs, state} = Enum.map_reduce(node.parent, state, &eval/2)
    {output, state} = compute(node, inputs, state)
    {output, put_in(state.done[id], output)}
  end

  defp compute(%{op: :input}, [], state), do: {state.input, state}

  defp compute(%{op: :block} = node, [x], state) do
    {name, state} = block_name(node, state)
    given = state.given && Map.get(state.given, name, %{})
    {output, inner} = run(node.opts[:block_fun].(input("x")), x, given)
    {output, put_in(state.parameters[name], inner.parameters)}
  end

  defp compute(node, inputs, state) do
    name = node.name.(node.op_name, state.counts)
    state = count(state, node.op_name)

    case node.parameters do
      [] ->
        {op(node.op, inputs, %{}, node.opts), state}

      parameters ->
        values =
          (state.given && state.given[name]) || zeros(parameters, Enum.map(inputs, & &1.shape))

        {op(node.op, inputs, values, node.opts), put_in(state.parameters[name], values)}
    end
  end

  # A block that is applied again has the same name.
  defp block_name(node, state) do
    id = node.opts[:block_id]

    case state.blocks do
      %{^id => name} ->
        {name, state}

      _ ->
        name = node.name.(:block, state.counts)
        {name, put_in(count(state, :block).blocks[id], name)}
    end
  end

  defp count(state, op), do: %{state | counts: Map.update(state.counts, op, 1, &(&1 + 1))}

  defp zeros(parameters, shapes),
    do: Map.new(parameters, &{&1.name, zero(&1.template.(shapes))})

  defp zero(shape) when is_tuple(shape), do: ExTorch.zeros(shape)
  defp zero(shapes), do: Map.new(shapes, fn {name, shape} -> {name, zero(shape)} end)

  # ---- Operations ----

  defp op(fun, inputs, values, opts) when is_function(fun), do: fun.(inputs, values, opts)
  defp op(:dense, [x], values, _opts), do: affine(x, values["kernel"], values["bias"])
  defp op(:embedding, [x], values, _opts), do: ExTorch.op("embedding", [values["kernel"], x])
  defp op(:relu, [x], _, _), do: ExTorch.op("relu", [x])
  defp op(:flatten, [x], _, _), do: ExTorch.op("flatten", [x, 1, -1])

  defp op(:max_pool, [x], _, opts) do
    channels_first(x, opts[:channels] == :first, fn x ->
      ExTorch.op("max_pool2d", [x, Tuple.to_list(opts[:kernel_size]), opts[:strides]])
    end)
  end

  defp op(:add, [a, b], _, _), do: ExTorch.add(a, b)
  defp op(:concatenate, tensors, _, _), do: ExTorch.op("cat", [tensors, -1])
  defp op(:reverse, [x], _, _), do: ExTorch.op("flip", [x, [1]])
  defp op(:container, tensors, _, _), do: List.to_tuple(tensors)
  defp op(:dropout, [x], _, _), do: x

  defp op(:layer_norm, [x], values, _opts) do
    ExTorch.op("layer_norm", [x, [last(x.shape)], values["gamma"], values["beta"], 1.0e-5, false])
  end

  defp op(:group_norm, [x], values, opts) do
    channels_first(x, opts[:channel_index] == 1, fn x ->
      ExTorch.op("group_norm", [
        x,
        opts[:num_groups],
        values["gamma"],
        values["beta"],
        1.0e-5,
        false
      ])
    end)
  end

  defp op(:batch_norm, [x], values, opts) do
    [gamma, beta, mean, var] = Enum.map(~w(gamma beta mean var), &values[&1])

    channels_first(x, opts[:channel_index] == 1 or tuple_size(x.shape) == 2, fn x ->
      ExTorch.op("batch_norm", [x, gamma, beta, mean, var, false, 0.1, 1.0e-5, false])
    end)
  end

  defp op(:conv, [x], values, opts), do: convolve(x, values, opts, opts[:feature_group_size] || 1)

  defp op(:depthwise_conv, [x], values, opts),
    do: convolve(x, values, opts, channels(x.shape, opts))

  # A convolution of the input with zeros between its elements.
  defp op(:conv_transpose, [x], values, opts) do
    size = Tuple.to_list(opts[:kernel_size])
    strides = opts[:strides] || Enum.map(size, fn _ -> 1 end)

    padding =
      with :valid <- opts[:padding] || :valid do
        Enum.zip_with(size, strides, fn k, s -> {k - 1, k + s - 2 + max(k - s, 0) - (k - 1)} end)
      end

    channels_first(x, opts[:channels] == :first, fn x ->
      convolve(
        dilate(x, strides),
        first_kernel(values, opts),
        [padding: padding, channels: :first],
        1
      )
    end)
  end

  defp op(:lstm, [x], values, _opts) do
    {_, units} = values["hidden_kernel"]["whi"].shape
    start = ExTorch.zeros({elem(x.shape, 0), units})

    unroll(x, {start, start}, fn x, {cell, hidden} ->
      gate = &gate(x, hidden, values, &1, "b#{&1}")
      kept = ExTorch.mul(sigmoid(gate.("f")), cell)
      cell = ExTorch.add(kept, ExTorch.mul(sigmoid(gate.("i")), tanh(gate.("g"))))
      hidden = ExTorch.mul(sigmoid(gate.("o")), tanh(cell))
      {hidden, {cell, hidden}}
    end)
  end

  defp op(:gru, [x], values, _opts) do
    {_, units} = values["hidden_kernel"]["whr"].shape
    bias = values["bias"] || %{}

    unroll(x, ExTorch.zeros({elem(x.shape, 0), units}), fn x, hidden ->
      reset = sigmoid(gate(x, hidden, values, "r", "br"))
      update = sigmoid(gate(x, hidden, values, "z", "bz"))
      past = affine(hidden, values["hidden_kernel"]["whn"], bias["bhn"])
      input = affine(x, values["input_kernel"]["win"], bias["bin"])
      new = tanh(ExTorch.add(input, ExTorch.mul(reset, past)))
      rest = ExTorch.mul(ExTorch.sub(ExTorch.ones(update.shape), update), new)
      hidden = ExTorch.add(rest, ExTorch.mul(update, hidden))
      {hidden, hidden}
    end)
  end

  defp op(:attention, tensors, _, opts) do
    {batch, length, size} = hd(tensors).shape
    heads = opts[:heads]

    [q, k, v] =
      for tensor <- tensors do
        split = ExTorch.op("reshape", [tensor, [batch, length, heads, div(size, heads)]])
        ExTorch.op("permute", [split, [0, 2, 1, 3]])
      end

    scores = ExTorch.matmul(q, ExTorch.op("transpose", [k, -2, -1]))
    scores = ExTorch.mul(scores, 1 / :math.sqrt(div(size, heads)))
    mixed = ExTorch.matmul(ExTorch.op("softmax", [scores, -1]), v)
    ExTorch.op("reshape", [ExTorch.op("permute", [mixed, [0, 2, 1, 3]]), [batch, length, size]])
  end

  defp affine(x, kernel, nil), do: ExTorch.matmul(x, kernel)
  defp affine(x, kernel, bias), do: ExTorch.add(ExTorch.matmul(x, kernel), bias)

  defp gate(x, hidden, values, gate, bias) do
    ExTorch.add(
      affine(x, values["input_kernel"]["wi#{gate}"], (values["bias"] || %{})[bias]),
      ExTorch.matmul(hidden, values["hidden_kernel"]["wh#{gate}"])
    )
  end

  defp sigmoid(x), do: ExTorch.op("sigmoid", [x])
  defp tanh(x), do: ExTorch.op("tanh", [x])

  defp unroll(x, start, fun) do
    {outputs, _} =
      Enum.map_reduce(0..(elem(x.shape, 1) - 1), start, fn step, state ->
        fun.(ExTorch.op("select", [x, 1, step]), state)
      end)

    ExTorch.op("stack", [outputs, 1])
  end

  defp convolve(x, values, opts, groups) do
    channels_first(x, opts[:channels] == :first, fn x ->
      values = first_kernel(values, opts)
      rank = tuple_size(x.shape) - 2
      padding = opts[:padding] || List.duplicate({0, 0}, rank)
      flat = padding |> Enum.reverse() |> Enum.flat_map(&Tuple.to_list/1)
      strides = opts[:strides] || List.duplicate(1, rank)
      ones = List.duplicate(1, rank)
      zeros = List.duplicate(0, rank)
      padded = ExTorch.op("constant_pad_nd", [x, flat, 0.0])

      ExTorch.op("conv#{rank}d", [
        padded,
        values["kernel"],
        values["bias"],
        strides,
        zeros,
        ones,
        groups
      ])
    end)
  end

  # {…, in, out} to {out, in, …}
  defp first_kernel(values, opts) do
    rank = tuple_size(values["kernel"].shape)

    if opts[:channels] == :first do
      values
    else
      order = [rank - 1, rank - 2 | Enum.to_list(0..(rank - 3))]
      %{values | "kernel" => ExTorch.op("permute", [values["kernel"], order])}
    end
  end

  defp channels_first(x, true, fun), do: fun.(x)

  defp channels_first(x, false, fun) do
    spatial = Enum.to_list(1..(tuple_size(x.shape) - 2))
    x = fun.(ExTorch.op("permute", [x, [0, tuple_size(x.shape) - 1 | spatial]]))
    ExTorch.op("permute", [x, [0] ++ Enum.map(spatial, &(&1 + 1)) ++ [1]])
  end

  defp dilate(x, strides) do
    [batch, channels | sizes] = Tuple.to_list(x.shape)
    sizes = Enum.zip_with(sizes, strides, fn size, stride -> (size - 1) * stride + 1 end)
    wide = ExTorch.zeros(List.to_tuple([batch, channels | sizes]))

    {view, _} =
      Enum.reduce(strides, {wide, 2}, fn stride, {view, dim} ->
        {ExTorch.op("slice", [view, dim, 0, 1_000_000, stride]), dim + 1}
      end)

    ExTorch.op("copy_", [view, x])
    wide
  end
end
