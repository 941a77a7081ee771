defmodule ExTorch.Store.Fit do
  @moduledoc false
  # Compares tensors with what a module expects, before and after they are read, and makes leaves of the module of them.

  alias ExTorch.{Error, Tensor}
  alias ExTorch.Store.{Adapter, ApplyResult, Options}

  @type target :: ExTorch.Module.target()
  @type mismatch :: {:mismatch, String.t(), %{shape: tuple(), dtype: atom()}}

  # ---- Before reading ----

  # The adapters are run on a meta tensor to determine the resulting shape and dtype. Returns whether one guesses.
  @spec check(ExTorch.Checkpoint.Entry.t(), target(), Options.t()) ::
          {:ok, boolean()} | mismatch()
  def check(entry, target, %{adapters: []} = options) do
    with :ok <- compare(entry.shape, entry.dtype, target, options), do: {:ok, false}
  end

  def check(entry, target, options) do
    case adapt_meta(entry, target, options.adapters) do
      {:ok, {%{shape: shape, dtype: dtype}, ambiguous}} ->
        with :ok <- compare(shape, dtype, target, options), do: {:ok, ambiguous}

      :unknown ->
        {:ok, false}
    end
  end

  defp adapt_meta(entry, target, adapters) do
    {:ok, Adapter.adapt(adapters, entry, meta(entry), target)}
  rescue
    # The adapter needs the values: the tensor is checked after reading.
    _ -> :unknown
  end

  # Returns a tensor of this shape and dtype without values.
  @spec meta(%{:shape => tuple(), :dtype => atom(), optional(atom()) => term()}) :: Tensor.t()
  def meta(%{shape: shape, dtype: dtype}), do: ExTorch.empty(shape, dtype: dtype, device: :meta)

  @spec compare(tuple(), atom(), target(), Options.t()) :: :ok | mismatch()
  def compare(shape, dtype, target, options) do
    shape_fits =
      shape == target.shape or (not options.validate and broadcasts?(shape, target.shape))

    dtype_fits = dtype == target.dtype or not options.validate

    if shape_fits and dtype_fits do
      :ok
    else
      found = %{shape: shape, dtype: dtype}
      key = if shape_fits, do: :dtype, else: :shape

      message =
        "expected #{key} #{inspect(Map.get(target, key))}, got #{inspect(found[key])}" <>
          if(shape_fits, do: " (use ExTorch.Store.Adapter.Cast to convert)", else: "")

      {:mismatch, message, found}
    end
  end

  # Returns true if the shape can be broadcast to the other: dimensions of size 1 are repeated, leading dimensions
  # added.
  defp broadcasts?(from, to) do
    {from, to} = {Tuple.to_list(from), Tuple.to_list(to)}

    length(from) <= length(to) and
      Enum.zip(Enum.reverse(from), Enum.reverse(to))
      |> Enum.all?(fn {a, b} -> a == b or a == 1 end)
  end

  @spec failure(String.t(), mismatch() | {:error, Error.t()}, target()) :: ApplyResult.failure()
  def failure(name, {:mismatch, message, found}, target),
    do: failure(name, :bad_argument, message, target, found)

  def failure(name, {:error, error}, target),
    do: failure(name, error.reason, error.message, target, nil)

  defp failure(name, reason, message, target, found) do
    %{
      name: name,
      reason: reason,
      message: message,
      expected: Map.take(target, [:shape, :dtype]),
      found: found
    }
  end

  # ---- After reading ----

  # Converts a tensor of the file to a leaf of the module. Returns also whether an adapter guessed.
  @spec fit(Tensor.t(), ExTorch.Checkpoint.Entry.t(), term(), target(), Options.t()) ::
          {:ok, term(), boolean()} | mismatch() | {:error, Error.t()}
  def fit(%{shape: shape, dtype: dtype, device: device} = tensor, _entry, leaf, target, options)
      when is_struct(leaf, Tensor) and leaf.device == device and options.adapters == [] and
             target.shape == shape and target.dtype == dtype,
      do: {:ok, tensor, false}

  def fit(tensor, entry, leaf, target, options) do
    {tensor, ambiguous} = Adapter.adapt(options.adapters, entry, tensor, target)
    with {:ok, value} <- to_leaf(tensor, leaf, target, options), do: {:ok, value, ambiguous}
  rescue
    error in Error -> {:error, error}
  end

  # Converts a tensor in the layout of the module.
  @spec to_leaf(Tensor.t(), term(), target(), Options.t()) :: {:ok, term()} | mismatch()
  def to_leaf(tensor, leaf, target, options) do
    with :ok <- compare(tensor.shape, tensor.dtype, target, options),
         do: {:ok, ExTorch.Module.from_tensor(leaf, tensor |> cast(target) |> expand(target))}
  end

  defp cast(%{dtype: dtype} = tensor, %{dtype: dtype}), do: tensor
  defp cast(tensor, target), do: Tensor.to(tensor, dtype: target.dtype)

  defp expand(%{shape: shape} = tensor, %{shape: shape}), do: tensor

  defp expand(tensor, target) do
    ExTorch.op("expand", [tensor, Tuple.to_list(target.shape)]) |> ExTorch.Tensor.contiguous()
  end
end
