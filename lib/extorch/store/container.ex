defmodule ExTorch.Store.Container do
  @moduledoc false
  # Defines to_tensor/1 and from_tensor/2 of ExTorch.Module for values that are not tensors.

  defmacro __using__(_options) do
    quote do
      @spec to_tensor(term()) :: no_return()
      def to_tensor(value), do: ExTorch.Store.Container.raise_error(value)

      @spec from_tensor(term(), term()) :: no_return()
      def from_tensor(value, _tensor), do: ExTorch.Store.Container.raise_error(value)
    end
  end

  @spec raise_error(term()) :: no_return()
  def raise_error(value) do
    raise ExTorch.Error.new(:bad_argument, "expected a tensor, got #{inspect(value, limit: 3)}")
  end
end
