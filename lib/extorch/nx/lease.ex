defmodule ExTorch.Nx.Lease do
  @moduledoc false
  # Keeps a tensor's memory alive for a backend that holds only its address, until the lease is released. The memory is
  # frozen meanwhile.

  alias ExTorch.{Error, Native, Tensor}
  alias ExTorch.Native.Call

  # Leases the memory of a contiguous tensor. Returns its address.
  @spec keep(Tensor.t()) :: non_neg_integer()
  def keep(tensor), do: Error.unwrap!(Call.lease_keep(tensor, Tensor.nbytes(tensor)))

  # The lease of the address belongs to the holder, by which it is found when the address is no longer known.
  @spec hold(non_neg_integer(), term()) :: boolean()
  def hold(address, holder), do: Native.lease_hold(address, holder)

  # Ends the lease of the holder, or else one of memory that contains the address. Returns its holder, or false if there
  # is none.
  @spec release(non_neg_integer() | nil, term()) :: {:ok, holder :: term()} | false
  def release(address, holder), do: Native.lease_release(address, holder)

  # Returns the tensor whose leased memory contains the address, or nil.
  @spec owner(non_neg_integer()) :: Tensor.t() | nil
  def owner(address), do: Error.unwrap!(Call.lease_owner(address))
end
