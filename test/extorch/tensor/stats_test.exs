defmodule ExTorch.Tensor.StatsTest do
  use ExTorch.Case

  test "of every kind of value" do
    stats = Tensor.stats(ExTorch.tensor([[1, 2], [3, 0]]), bins: 3)
    assert %{numel: 4, zeros: 1, nan: 0, infinite: 0, max: 3.0, mean: 1.5} = stats
    assert stats.min == 0
    assert_in_delta stats.std, :math.sqrt(1.25), 1.0e-12
    assert stats.histogram == [1, 1, 2]
    refute stats.sampled

    special = Tensor.stats(ExTorch.tensor([:nan, :infinity, :neg_infinity, -2.0]))
    assert %{nan: 1, infinite: 2, min: -2.0, max: -2.0} = special
    assert special.std == 0
    assert Enum.sum(special.histogram) == 1 and length(special.histogram) == 24

    assert %{numel: 0, min: nil, mean: nil, std: nil} = Tensor.stats(ExTorch.zeros({0, 3}))
    assert %{min: nil, nan: 1} = Tensor.stats(ExTorch.tensor(:nan))
    assert %{max: 1.0, zeros: 1} = Tensor.stats(ExTorch.tensor([true, false]))
    complex = Tensor.stats(ExTorch.tensor([%ExTorch.Python.Complex{re: 3.0, im: 4.0}]))
    assert complex.max == 5.0
    assert Tensor.stats(ExTorch.op("to_sparse", [ExTorch.ones({2, 2})])).mean == 1.0
  end

  test "of a sample" do
    large = Tensor.reshape(ExTorch.arange(200_000), {100, 2000})
    stats = Tensor.stats(large, sample: 10_000)
    assert stats.sampled and stats.numel in 5_000..20_000
    assert Enum.sum(stats.histogram) == stats.numel
    refute Tensor.stats(large).sampled
    assert Tensor.stats(large).max == 199_999.0
  end

  test "refusals" do
    assert reason(fn -> Tensor.stats("x") end) == :bad_argument
    assert reason(fn -> Tensor.stats(ExTorch.ones({1}), bins: 0) end) == :bad_argument
    assert reason(fn -> Tensor.stats(ExTorch.ones({1}), sample: -1) end) == :bad_argument
    assert reason(fn -> Tensor.stats(ExTorch.ones({1}), of: 1) end) == :bad_argument
    assert reason(fn -> Tensor.stats(ExTorch.ones({3}, device: :meta)) end) == :bad_argument
    indices = ExTorch.tensor([[1], [1]])
    args = [indices, ExTorch.tensor([1.0]), [100_000, 100_000]]
    huge = ExTorch.op("sparse_coo_tensor.indices_size", args, dtype: :float32)
    assert reason(fn -> Tensor.stats(huge) end) == :unsupported
  end
end
