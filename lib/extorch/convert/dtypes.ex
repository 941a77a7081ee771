defmodule ExTorch.Convert.DTypes do
  @moduledoc false
  # The option :dtype of ExTorch.convert/3: which tensors are converted, and to what.

  alias ExTorch.Checkpoint.{Entry, StateDict}
  alias ExTorch.{DType, Error, Options, Tensor}

  @type t :: (String.t(), Entry.t() -> DType.dtype() | nil) | nil

  # Returns the option as a function of the name and the entry.
  @spec check!(term()) :: t()
  def check!(nil), do: nil
  def check!(fun) when is_function(fun, 2), do: fn name, entry -> result!(fun.(name, entry)) end
  def check!(fun) when is_function(fun, 1), do: fn name, _entry -> result!(fun.(name)) end

  def check!(map) when is_map(map) and not is_struct(map) do
    map = Map.new(map, fn {from, to} -> {DType.normalize!(from), DType.normalize!(to)} end)
    fn _name, entry -> map[entry.dtype] end
  end

  def check!(dtype) do
    to = DType.normalize!(dtype)

    if DType.kind(to) != :float do
      raise Error.new(
              :bad_argument,
              "expected :dtype to be the dtype of floats, got #{inspect(to)}; " <>
                "use a map such as %{float32: #{inspect(to)}} to convert to other dtypes"
            )
    end

    fn _name, entry -> if DType.kind(entry.dtype) == :float, do: to end
  end

  defp result!(nil), do: nil

  defp result!(dtype) do
    case DType.normalize(dtype) do
      {:ok, dtype} -> dtype
      _ -> Options.invalid!(:dtype, "a function that returns a dtype or nil", dtype)
    end
  end

  # Returns the tensors of the items, converted. Names of one tensor stay tied.
  @spec cast([Tensor.t() | struct()], [StateDict.item()], t()) ::
          {:ok, [Tensor.t() | struct()]} | {:error, Error.t()}
  def cast(tensors, _items, nil), do: {:ok, tensors}

  def cast(tensors, items, dtype) do
    {cast, _seen} =
      Enum.map_reduce(Enum.zip(tensors, items), %{}, fn {tensor, {name, ckpt, entry}}, seen ->
        to = dtype.(name, entry)
        view = {ckpt.resource, entry.storage, entry.offset, entry.shape, entry.strides, to}

        cond do
          to in [nil, entry.dtype] -> {tensor, seen}
          is_map_key(seen, view) and entry.storage != nil -> {seen[view], seen}
          true -> tensor |> convert(name, entry, to) |> then(&{&1, Map.put(seen, view, &1)})
        end
      end)

    {:ok, cast}
  rescue
    error in Error -> {:error, error}
  end

  defp convert(%Tensor{} = tensor, _name, entry, to) do
    converted = Tensor.to(tensor, dtype: to)
    if entry.requires_grad, do: Tensor.requires_grad(converted, true), else: converted
  end

  defp convert(_raw, name, entry, to) do
    raise Error.new(
            :unsupported,
            "#{inspect(name)} cannot be converted to #{to}: the linked LibTorch does not support #{entry.dtype}"
          )
  end
end
