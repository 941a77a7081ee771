defmodule ExTorch.Test.Zoo do
  @moduledoc false
  # The models of test/fixtures/zoo.py for Axon. `axon` is Axon, or ExTorch.Test.AxonModel.

  @doc "The models: {name of the file, options of the adapter, how the channels of input and output are moved}."
  def all do
    for name <- ~w(mlp lightning square lstm lstm_deep gru gru_both_ways attention) do
      {name, :first, options(name)}
    end ++
      for name <- ~w(conv depthwise transposed conv1d flat), order <- [:first, :last] do
        {name, order, []}
      end
  end

  # The first layer of the MLP has no name, so that Axon names it.
  defp options(name) when name in ["mlp", "lightning"], do: [layers: %{"dense_0" => "fc1"}]
  defp options("lstm_deep"), do: [layers: %{"rnn_0" => "rnn.l0", "rnn_1" => "rnn.l1"}]

  defp options("gru_both_ways"),
    do: [layers: %{"forward" => "rnn", "backward" => "rnn.l0_reverse"}]

  defp options("attention"), do: [fused: true]
  defp options(_name), do: []

  def file(name), do: "test/fixtures/zoo/#{name}.pt"

  def model(name, axon, order) when name in ["mlp", "lightning"] and order == :first do
    axon.input("x")
    |> axon.dense(8)
    |> axon.layer_norm(name: "norm")
    |> axon.relu()
    |> axon.dense(3, use_bias: false, name: "fc2")
  end

  def model("conv", axon, order) do
    axon.input("x")
    |> axon.conv(4,
      kernel_size: {3, 2},
      strides: [2, 2],
      padding: [{1, 1}, {1, 1}],
      channels: order,
      name: "conv"
    )
    |> axon.batch_norm(channel_index: channel_index(order), name: "bn")
    |> axon.relu()
    |> axon.conv(6, kernel_size: {2, 2}, feature_group_size: 2, channels: order, name: "grouped")
  end

  def model("flat", axon, order) do
    axon.input("x")
    |> axon.conv(3, kernel_size: {3, 3}, channels: order, name: "conv")
    |> axon.relu()
    |> axon.max_pool(kernel_size: {2, 2}, strides: [2, 2], channels: order)
    |> axon.flatten()
    |> axon.batch_norm(name: "bn")
    |> axon.dense(4, name: "fc")
  end

  def model("depthwise", axon, order) do
    axon.input("x")
    |> axon.depthwise_conv(2,
      kernel_size: {3, 3},
      use_bias: false,
      channels: order,
      name: "depthwise"
    )
    |> axon.conv(8, kernel_size: {1, 1}, channels: order, name: "pointwise")
  end

  # PyTorch's padding p is k - 1 - p on each side of the input.
  def model("transposed", axon, order) do
    axon.input("x")
    |> axon.conv_transpose(3,
      kernel_size: {3, 3},
      strides: [2, 2],
      padding: [{1, 1}, {1, 1}],
      channels: order,
      name: "up"
    )
    |> axon.relu()
    |> axon.conv_transpose(2, kernel_size: {2, 2}, channels: order, name: "last")
  end

  def model("conv1d", axon, order) do
    axon.input("x")
    |> axon.conv(6, kernel_size: {3}, channels: order, name: "conv")
    |> axon.group_norm(2, channel_index: channel_index(order), name: "norm")
    |> axon.conv_transpose(6, kernel_size: {3}, channels: order, name: "up")
  end

  def model("square", axon, _order) do
    axon.input("x") |> axon.embedding(8, 8, name: "tokens") |> axon.dense(8, name: "proj")
  end

  def model("lstm", axon, _order) do
    {states, _} = axon.input("x") |> axon.lstm(6, name: "rnn", recurrent_initializer: :zeros)
    axon.dense(states, 2, name: "fc")
  end

  def model("lstm_deep", axon, _order) do
    options = [use_bias: false, recurrent_initializer: :zeros]
    {states, _} = axon.input("x") |> axon.lstm(6, [name: "rnn_0"] ++ options)
    {states, _} = axon.lstm(states, 6, [name: "rnn_1"] ++ options)
    axon.dense(states, 2, name: "fc")
  end

  def model("gru", axon, _order) do
    {states, _} = axon.input("x") |> axon.gru(6, name: "rnn", recurrent_initializer: :zeros)
    axon.dense(states, 2, name: "fc")
  end

  def model("gru_both_ways", axon, _order) do
    x = axon.input("x")
    {forward, _} = axon.gru(x, 6, name: "forward", recurrent_initializer: :zeros)

    {backward, _} =
      x |> axon.reverse() |> axon.gru(6, name: "backward", recurrent_initializer: :zeros)

    axon.concatenate(forward, axon.reverse(backward)) |> axon.dense(2, name: "fc")
  end

  def model("attention", axon, _order) do
    x = axon.input("x")
    [q, k, v] = for part <- ~w(query key value), do: axon.dense(x, 8, name: "attn.#{part}")
    mixed = q |> axon.attention(k, v, 2) |> axon.dense(8, name: "attn.output")
    x |> axon.add(mixed) |> axon.layer_norm(name: "norm")
  end

  defp channel_index(:first), do: 1
  defp channel_index(:last), do: -1

  @doc "Moves the channels of a tensor of PyTorch to where the model has them."
  def to_order(tensor, order) when order == :first or tuple_size(tensor.shape) < 3, do: tensor

  def to_order(tensor, :last) do
    rank = tuple_size(tensor.shape)

    ExTorch.op("permute", [tensor, [0] ++ Enum.to_list(2..(rank - 1)) ++ [1]])
    |> ExTorch.Tensor.contiguous()
  end
end
