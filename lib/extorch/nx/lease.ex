defmodule ExTorch.Nx.Lease do
  @moduledoc false
  # Keeps a tensor's memory alive for a backend that holds only its address, until the lease is released.

  alias ExTorch.{Memory, Native, Tensor}

  # Returns the address of the memory.
  @spec keep(Tensor.t()) :: non_neg_integer()
  def keep(tensor), do: Memory.run!(fn -> Native.lease_keep(tensor) end)

  # Ends one lease of the address. Returns false if there is none.
  @spec release(non_neg_integer()) :: boolean()
  def release(address), do: Native.lease_release(address)
end
