defmodule ExTorch.Tensor.Stats do
  @moduledoc false
  # Statistics and a histogram of the values of a tensor. Complex numbers are taken by their absolute value.

  alias ExTorch.{DType, Error, Tensor}
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
    total = tensor |> pieces() |> Enum.reduce(zero, &merge(&2, piece(&1)))
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
      |> Pieces.plain()
      |> Pieces.stream()
      |> Enum.reduce({0, 0}, fn x, {nan, infinite} ->
        if all_finite?(x),
          do: {nan, infinite},
          else: {nan + count("isnan", Pieces.wide(x)), infinite + count("isinf", Pieces.wide(x))}
      end)
    else
      {0, 0}
    end
  end

  defp all_finite?(x) do
    x = if x.dtype in [:float64, :float32, :float16, :bfloat16], do: x, else: Pieces.wide(x)
    Tensor.to_list(ExTorch.all(ExTorch.op("isfinite", [x])))
  end

  # Counts of the finite values in `bins` intervals of the same width from min to max.
  @spec histogram(Tensor.t(), t(), pos_integer()) :: [non_neg_integer()]
  def histogram(_tensor, %{min: nil}, bins), do: List.duplicate(0, bins)

  # A single value is in the middle.
  def histogram(_tensor, %{min: same, max: same} = stats, bins),
    do: List.replace_at(List.duplicate(0, bins), div(bins, 2), finite(stats))

  def histogram(tensor, %{min: low, max: high} = stats, bins) do
    finite = if stats.nan + stats.infinite == 0, do: & &1, else: &finite_values/1
    # The width of an interval must be a float64, too.
    scale = if max(-low, high) > 1.0e300, do: 1.0e-10, else: 1.0
    scaled = if scale == 1.0, do: & &1, else: &ExTorch.mul(&1, scale)

    tensor
    |> pieces()
    |> Stream.map(&ExTorch.op("histc", [scaled.(finite.(&1)), bins, low * scale, high * scale]))
    |> Enum.reduce(List.duplicate(0, bins), fn counts, total ->
      Enum.zip_with(total, Tensor.to_list(counts), &(&1 + round(&2)))
    end)
  end

  defp pieces(tensor) do
    tensor
    |> Pieces.plain()
    |> Pieces.stream()
    |> Stream.map(fn x ->
      wide = Pieces.wide(x)
      if wide.dtype == :complex128, do: ExTorch.abs(wide), else: wide
    end)
  end

  defp finite_values(x), do: ExTorch.op("masked_select", [x, ExTorch.op("isfinite", [x])])

  # Most tensors have only finite values: these take the fewest operators.
  defp piece(x) do
    finite? = all_finite?(x)
    values = if finite?, do: x, else: finite_values(x)
    numel = Tensor.numel(x)

    Map.merge(spread(values), %{
      numel: numel,
      nan: if(finite?, do: 0, else: count("isnan", x)),
      infinite: if(finite?, do: 0, else: count("isinf", x)),
      zeros: numel - Tensor.to_list(ExTorch.op("count_nonzero", [x]))
    })
  end

  defp spread(%{shape: {0}}), do: %{min: nil, max: nil, mean: 0.0, m2: 0.0}

  defp spread(values) do
    {variance, mean} = ExTorch.op("var_mean", [values, false])
    {min, max} = ExTorch.op("aminmax", [values])
    [variance, mean, min, max] = Enum.map([variance, mean, min, max], &Tensor.to_list/1)
    count = Tensor.numel(values)

    # The largest float64 is 1.8e308.
    if is_float(variance) and is_float(mean) and variance < 1.0e308 / count,
      do: %{min: min, max: max, mean: mean, m2: variance * count},
      else: %{min: min, max: max, mean: 0.0, m2: :overflow}
  end

  defp count(op, x), do: Tensor.to_list(ExTorch.sum(ExTorch.op(op, [x])))
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
