if Code.ensure_loaded?(Axon) do
  defmodule ExTorch.Test.RealAxon do
    @moduledoc false
    # Axon, and what it has no layer for. See ExTorch.Test.AxonModel.

    defdelegate input(name), to: Axon
    defdelegate dense(x, units, opts \\ []), to: Axon
    defdelegate embedding(x, vocabulary, size, opts), to: Axon
    defdelegate conv(x, units, opts), to: Axon
    defdelegate conv_transpose(x, units, opts), to: Axon
    defdelegate depthwise_conv(x, multiplier, opts), to: Axon
    defdelegate layer_norm(x, opts), to: Axon
    defdelegate group_norm(x, groups, opts), to: Axon
    defdelegate batch_norm(x, opts), to: Axon
    defdelegate lstm(x, units, opts), to: Axon
    defdelegate gru(x, units, opts), to: Axon
    defdelegate max_pool(x, opts), to: Axon
    defdelegate flatten(x), to: Axon
    defdelegate relu(x), to: Axon
    defdelegate add(a, b), to: Axon
    defdelegate concatenate(a, b), to: Axon

    def reverse(x), do: Axon.nx(x, &Nx.reverse(&1, axes: [1]))

    def attention(q, k, v, heads) do
      Axon.layer(fn q, k, v, _opts -> attend(q, k, v, heads) end, [q, k, v])
    end

    defp attend(q, k, v, heads) do
      {batch, length, size} = Nx.shape(q)

      [q, k, v] =
        for tensor <- [q, k, v] do
          tensor
          |> Nx.reshape({batch, length, heads, div(size, heads)})
          |> Nx.transpose(axes: [0, 2, 1, 3])
        end

      scores = Nx.dot(q, [3], [0, 1], k, [3], [0, 1])

      weights =
        scores |> Nx.divide(:math.sqrt(div(size, heads))) |> Axon.Activations.softmax(axis: -1)

      mixed = Nx.dot(weights, [3], [0, 1], v, [2], [0, 1])
      mixed |> Nx.transpose(axes: [0, 2, 1, 3]) |> Nx.reshape({batch, length, size})
    end
  end
end
