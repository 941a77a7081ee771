defmodule ExTorch.Tensor.Stats do
  @moduledoc false
  # Statistics and a histogram of the values of a tensor. Complex numbers are taken by their absolute value.

  alias ExTorch.{DType, Error, Tensor}
  alias ExTorch.Native.Call
  alias ExTorch.Tensor.{Pieces, Sample}

  # A sparse tensor of more elements is not made dense.
  @max_dense 4 * 1024 * 1024

  @type t :: %{
          numel: non_neg_integer(),
          nan: non_neg_integer(),
          infinite: non_neg_integer(),
          zeros: non_neg_integer(),
          min: float() | nil,
          max: float() | nil,
          mean: float() | nil,
          std: float() | nil
        }

  # min, max, mean and std are those of the finite values; mean and std are nil if they exceed a float64.
  @spec of(Tensor.t()) :: t()
  def of(tensor) do
    zero = %{numel: 0, nan: 0, infinite: 0, zeros: 0, min: nil, max: nil, mean: 0.0, m2: 0.0}
    total = tensor |> pieces() |> Enum.reduce(zero, &merge(&2, summary(&1)))
    {m2, total} = Map.pop!(total, :m2)
    count = finite(total)

    if count == 0 or m2 == :overflow,
      do: Map.merge(total, %{mean: nil, std: nil}),
      else: Map.put(total, :std, :math.sqrt(max(m2 / count, 0.0)))
  end

  # Statistics and the histogram, of all values or of about `limit` of them.
  @spec describe(Tensor.t(), pos_integer() | nil, pos_integer()) :: map()
  def describe(tensor, limit, bins) do
    if Tensor.numel(tensor) > @max_dense and tensor.device != :meta and
         Tensor.strides(tensor) == nil,
       do: raise(Error.new(:unsupported, "a sparse tensor of this size has no statistics"))

    plain = tensor |> Pieces.plain() |> Tensor.to(device: :cpu)
    part = if limit, do: Sample.view(plain, limit), else: plain
    stats = of(part)

    Map.merge(stats, %{
      histogram: histogram(part, stats, bins),
      sampled: stats.numel < Tensor.numel(plain)
    })
  end

  # The counts of NaN and infinite values. Quick for dtypes that have none.
  @spec non_finite(Tensor.t()) :: {nan :: non_neg_integer(), infinite :: non_neg_integer()}
  def non_finite(%{dtype: dtype} = tensor) do
    if DType.kind(dtype) in [:float, :complex] do
      tensor
      |> pieces()
      |> Enum.map(&summary/1)
      |> Enum.reduce({0, 0}, fn piece, {nan, infinite} ->
        {nan + piece.nan, infinite + piece.infinite}
      end)
    else
      {0, 0}
    end
  end

  # Counts of the finite values in `bins` intervals of the same width from min to max.
  @spec histogram(Tensor.t(), t(), pos_integer()) :: [non_neg_integer()]
  def histogram(_tensor, %{min: nil}, bins), do: List.duplicate(0, bins)

  # A single value is in the middle.
  def histogram(_tensor, %{min: same, max: same} = stats, bins),
    do: List.replace_at(List.duplicate(0, bins), div(bins, 2), finite(stats))

  def histogram(tensor, %{min: low, max: high}, bins) do
    tensor
    |> pieces()
    |> Enum.reduce(List.duplicate(0, bins), fn piece, total ->
      counts = Error.unwrap!(Call.tensor_histogram(piece, bins, low, high))
      Enum.zip_with(total, counts, &+/2)
    end)
  end

  defp pieces(tensor), do: tensor |> Pieces.plain() |> Pieces.stream()

  defp summary(piece) do
    {nan, infinite, zeros, finite, min, max, mean, m2} = Error.unwrap!(Call.tensor_summary(piece))

    spread =
      cond do
        finite == 0 -> %{min: nil, max: nil, mean: 0.0, m2: 0.0}
        is_float(mean) and is_float(m2) -> %{min: min, max: max, mean: mean, m2: m2}
        true -> %{min: min, max: max, mean: 0.0, m2: :overflow}
      end

    Map.merge(spread, %{
      numel: nan + infinite + finite,
      nan: nan,
      infinite: infinite,
      zeros: zeros
    })
  end

  defp finite(stats), do: stats.numel - stats.nan - stats.infinite

  defp merge(a, b) do
    {mean, m2} = moments(a, finite(a), b, finite(b))

    %{
      numel: a.numel + b.numel,
      nan: a.nan + b.nan,
      infinite: a.infinite + b.infinite,
      zeros: a.zeros + b.zeros,
      min: pick(a.min, b.min, &min/2),
      max: pick(a.max, b.max, &max/2),
      mean: mean,
      m2: m2
    }
  end

  # The mean, and the sum of the squared distances from it, of both parts (Chan's formula).
  defp moments(_a, 0, b, _), do: {b.mean, b.m2}
  defp moments(a, _, _b, 0), do: {a.mean, a.m2}

  defp moments(%{m2: m2_a} = a, n_a, %{m2: m2_b} = b, n_b)
       when is_float(m2_a) and is_float(m2_b) do
    n = n_a + n_b
    delta = b.mean - a.mean
    {a.mean + delta * n_b / n, m2_a + m2_b + delta * delta * n_a * n_b / n}
  rescue
    ArithmeticError -> {0.0, :overflow}
  end

  defp moments(_a, _n_a, _b, _n_b), do: {0.0, :overflow}

  defp pick(nil, b, _fun), do: b
  defp pick(a, nil, _fun), do: a
  defp pick(a, b, fun), do: fun.(a, b)
end
