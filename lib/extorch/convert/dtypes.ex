defmodule ExTorch.Convert.DTypes do
  @moduledoc false
  # The option :dtype of ExTorch.convert/3: which tensors are converted, and to what.

  alias ExTorch.Checkpoint.{Entry, StateDict}
  alias ExTorch.{DType, Error, Options, Tensor}
  alias ExTorch.Saver.Cast

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

  # Returns the tensors of the items, to be converted when they are written. Names of one tensor stay tied.
  @spec cast([Tensor.t() | struct()], [StateDict.item()], t()) ::
          {:ok, [Tensor.t() | Cast.t() | struct()]} | {:error, Error.t()}
  def cast(tensors, _items, nil), do: {:ok, tensors}

  def cast(tensors, items, dtype) do
    {:ok,
     for {tensor, {name, _ckpt, entry}} <- Enum.zip(tensors, items) do
       case dtype.(name, entry) do
         nil -> tensor
         to when to == entry.dtype -> tensor
         to -> convert(tensor, name, entry, to)
       end
     end}
  rescue
    error in Error -> {:error, error}
  end

  defp convert(tensor, name, entry, to) do
    if DType.supported?(to),
      do: convert_supported(tensor, name, entry, to),
      else: raise(Error.new(:unsupported, "the linked LibTorch does not support the dtype #{to}"))
  end

  defp convert_supported(%Tensor{} = tensor, _name, %{kind: kind}, to)
       when kind in [:tensor, :parameter],
       do: %Cast{tensor: tensor, dtype: to}

  # Sparse and quantized tensors, which are small.
  defp convert_supported(%Tensor{} = tensor, _name, entry, to) do
    converted = Tensor.to(tensor, dtype: to)
    if entry.requires_grad, do: Tensor.requires_grad(converted, true), else: converted
  end

  defp convert_supported(_raw, name, entry, to) do
    raise Error.new(
            :unsupported,
            "#{inspect(name)} cannot be converted to #{to}: the linked LibTorch does not support #{entry.dtype}"
          )
  end
end
