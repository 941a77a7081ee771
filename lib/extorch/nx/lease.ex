defmodule ExTorch.Nx.Lease do
  @moduledoc false
  # Keeps a tensor's memory alive for a backend that holds only its address, until the lease is released.

  alias ExTorch.{Error, Native, Tensor}
  alias ExTorch.Native.Call

  # Returns the address of the memory.
  @spec keep(Tensor.t()) :: non_neg_integer()
  def keep(tensor), do: Error.unwrap!(Call.lease_keep(tensor))

  # Ends one lease of the address. Returns false if there is none.
  @spec release(non_neg_integer()) :: boolean()
  def release(address), do: Native.lease_release(address)
end
