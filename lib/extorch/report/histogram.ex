defmodule ExTorch.Report.Histogram do
  @moduledoc false
  # Statistics and histograms as pages and notebooks draw them.

  alias ExTorch.Tensor
  alias ExTorch.Tensor.Stats

  @bins 24
  @digits List.to_tuple(Enum.concat([?A..?Z, ?a..?z, ?0..?9, [?+, ?/]]))

  @spec bins() :: pos_integer()
  def bins, do: @bins

  @spec of(Tensor.t()) :: {Stats.t(), [non_neg_integer()]}
  def of(tensor) do
    stats = Stats.of(tensor)
    {stats, Stats.histogram(tensor, stats, @bins)}
  end

  # A digit of base 64 for each interval, relative to the highest. Only an empty one has the digit of 0.
  @spec encode([non_neg_integer()]) :: binary()
  def encode(counts) do
    most = Enum.max([1 | counts])
    for count <- counts, into: "", do: <<elem(@digits, div(count * 63 + most - 1, most))>>
  end
end
