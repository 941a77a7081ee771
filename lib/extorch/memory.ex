defmodule ExTorch.Memory do
  @moduledoc """
  Accounting and limits of native memory.

  The garbage collector of the BEAM does not know about native memory: a tensor of 64 MiB is a few words on the heap of
  a process. A process that creates and drops tensors could use up all memory before its next garbage collection.
  ExTorch prevents this in three ways:

    * *Counters*: `live/0` returns the exact amount of native memory in use. All CPU memory of LibTorch is counted.
    * *Collection by native bytes*: when a process has allocated `collect_after` native bytes (`ExTorch.Config`) since
      its last such collection, it is garbage collected. Processes with a large heap may allocate more, so that garbage
      collection remains a small part of their work.
    * A *budget*: a call that would exceed it runs a garbage collection of its process, waits until the memory is freed
      and tries again. If that does not help, the call fails with `:limit`.

  Memory of devices other than the CPU (`ExTorch.Device`) is counted apart, and each device has a budget of its own, which
  is unlimited by default: see `live/1` and `set_budget/2`. It counts the storages of tensors; what an operator allocates
  while it runs, and what the backend keeps in its caches, is not in it.

  Memory is freed by a separate thread, never on a scheduler. `ExTorch.Tensor.release/1` gives it back without waiting for
  a garbage collection. Up to 32 MiB of recently freed memory is kept for about a second, to be reused for the next tensor
  of the same size, and up to 48 MiB of what opening, loading and saving needed on the side for about three seconds. These are
  not counted.
  """

  alias ExTorch.{Config, Device, Native}

  defguardp is_budget(bytes)
            when bytes == :infinity or (is_integer(bytes) and bytes in 0..0x7FFFFFFFFFFFFFFF)

  @key :extorch_native_bytes

  # The cost of a collection is proportional to the heap. It is negligible compared with the cost of writing this many
  # native bytes per byte of heap between two collections.
  @bytes_per_heap_byte 8
  @wait_ms 2_000
  @rounds 16

  @type live :: %{
          tensors: non_neg_integer(),
          bytes: non_neg_integer(),
          device: non_neg_integer(),
          mapped: non_neg_integer(),
          leased: non_neg_integer(),
          threads: non_neg_integer()
        }

  @doc """
  Returns the native resources in use by the node: the number of tensors, the bytes that ExTorch allocated, the bytes of
  tensors on devices other than the CPU, the bytes of mapped files, the bytes that are leased (`leases/0`) and the threads that work for a caller.

      iex> before = ExTorch.Memory.live()
      iex> t = ExTorch.zeros({1024}, dtype: :float64)
      iex> ExTorch.Memory.live().bytes - before.bytes
      8192
      iex> ExTorch.Tensor.release(t)
      :ok
  """
  @spec live() :: live()
  def live, do: Native.memory_live()

  @doc """
  Returns the bytes that tensors hold on a device; on the CPU, all bytes that ExTorch allocated.

      iex> ExTorch.Memory.live(:cpu) == ExTorch.Memory.live().bytes
      true
      iex> ExTorch.Memory.live(:meta)
      0
  """
  @spec live(ExTorch.Device.input()) :: non_neg_integer()
  def live(device) do
    case Device.check!(device) do
      :cpu -> live().bytes
      device -> device_live(device)
    end
  end

  defp device_live(device), do: Native.memory_device_live(device)

  @typedoc "Memory that a backend of Nx uses by its address."
  @type lease :: %{
          bytes: pos_integer(),
          dtype: ExTorch.DType.dtype(),
          ptr: pos_integer(),
          shape: tuple()
        }

  @doc """
  Returns the leases of `ExTorch.Nx.to_nx/2` that have not been released, the oldest first.

  Leased memory is kept until `ExTorch.Nx.release/1`: a lease that was forgotten stays in this list.

      iex> ExTorch.Memory.leases()
      []
  """
  @spec leases() :: [lease()]
  def leases, do: Native.memory_leases()

  @doc """
  Returns the budget of native bytes. See `ExTorch.Config`.

      iex> budget = ExTorch.Memory.budget()
      iex> budget == :infinity or budget > 0
      true
  """
  @spec budget() :: non_neg_integer() | :infinity
  def budget, do: Native.memory_budget()

  @doc """
  Returns the budget of a device.

      iex> ExTorch.Memory.budget(:cpu) == ExTorch.Memory.budget()
      true
      iex> ExTorch.Memory.budget({:cuda, 0})
      :infinity
  """
  @spec budget(ExTorch.Device.input()) :: non_neg_integer() | :infinity
  def budget(device) do
    case Device.check!(device) do
      :cpu -> budget()
      device -> device_budget(device)
    end
  end

  defp device_budget(device), do: Native.memory_device_budget(device)

  @doc """
  Sets the budget of native bytes of the running node.

      iex> budget = ExTorch.Memory.budget()
      iex> ExTorch.Memory.set_budget(8 * 1024 ** 3)
      :ok
      iex> ExTorch.Memory.set_budget(budget)
      :ok
  """
  @spec set_budget(non_neg_integer() | :infinity) :: :ok
  def set_budget(bytes) when is_budget(bytes), do: Native.memory_set_budget(bytes)
  def set_budget(other), do: invalid_budget!(other)

  @doc """
  Sets the budget of a device. A call that would exceed it runs a garbage collection of its process, waits until the
  memory is freed and tries again, or fails with `:limit`.

      iex> ExTorch.Memory.set_budget({:cuda, 0}, 16 * 1024 ** 3)
      iex> ExTorch.Memory.budget({:cuda, 0})
      17179869184
      iex> ExTorch.Memory.set_budget({:cuda, 0}, :infinity)
      :ok
  """
  @spec set_budget(ExTorch.Device.input(), non_neg_integer() | :infinity) :: :ok
  def set_budget(device, bytes) when is_budget(bytes) do
    case Device.check!(device) do
      :cpu -> set_budget(bytes)
      device -> set_device_budget(device, bytes)
    end
  end

  def set_budget(_device, other), do: invalid_budget!(other)

  defp set_device_budget(device, bytes), do: Native.memory_set_device_budget(device, bytes)

  @spec invalid_budget!(term()) :: no_return()
  defp invalid_budget!(other),
    do: ExTorch.Options.expected!("a number of bytes below 2 ** 63 or :infinity", other)

  @doc """
  Sets what may run in the background of the running node: `true`, `false`, or a list as in `ExTorch.Config`.

      iex> ExTorch.Memory.set_background([:checksum])
      :ok
      iex> ExTorch.Memory.set_background(true)
      :ok
  """
  @spec set_background(boolean() | [Config.background_use()]) :: :ok
  def set_background(uses), do: Native.memory_set_background(Config.background(uses))

  @doc """
  Garbage collects the calling process and waits until its unused native memory is freed.

  This is intended for tests and benchmarks. Other code does not need to call it.

      iex> ExTorch.Memory.collect()
      :ok
  """
  @spec collect() :: :ok
  def collect, do: collect(@rounds)

  # The first round frees the resources that were garbage. The others free the resources that these kept alive.
  defp collect(rounds) do
    mark = collect_begin()
    :erlang.garbage_collect()
    collect_wait(mark, rounds)
    Process.put(@key, {0, threshold()})
    :ok
  end

  defp collect_begin, do: Native.memory_collect_begin()
  defp collect_wait(mark, rounds), do: Native.memory_collect_wait(mark, rounds, @wait_ms)

  # Accounts for the bytes that a NIF allocated. ExTorch.Native.Call, or another caller, handles {:collect, error}.
  @doc false
  @spec account(Native.result(value)) ::
          {:ok, value} | {:collect, ExTorch.Error.t()} | {:error, ExTorch.Error.t()}
        when value: term()
  def account({:ok, value, bytes}) do
    count(bytes)
    {:ok, value}
  end

  def account(other), do: other

  defp count(0), do: :ok

  defp count(bytes) do
    {total, threshold} = Process.get(@key) || {0, threshold()}

    if total + bytes < threshold do
      Process.put(@key, {total + bytes, threshold})
    else
      collect(1)
    end
  end

  defp threshold do
    {:total_heap_size, words} = Process.info(self(), :total_heap_size)
    by_heap = words * :erlang.system_info(:wordsize) * @bytes_per_heap_byte
    max(Config.collect_after(), by_heap) |> min_budget(budget())
  end

  defp min_budget(bytes, :infinity), do: bytes
  defp min_budget(bytes, budget), do: min(bytes, div(budget, 4))
end
