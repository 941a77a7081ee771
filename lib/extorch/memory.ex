defmodule ExTorch.Memory do
  @moduledoc """
  Native memory: how much is live, how much may be, and how it comes back.

  The BEAM's collector does not see native memory: a tensor of 64 MiB is a few words on a process's heap. Left alone, a
  process that makes and drops tensors would fill the machine before its next collection. So ExTorch keeps three things:

    * *counters*: `live/0`, exact, since all CPU memory of LibTorch passes through them;
    * *collection by bytes*: when a process has taken `collect_after` native bytes since it was last collected for them,
      its garbage is collected. A process with a large heap is given more bytes between two collections, so that
      collecting stays a small part of its work;
    * a *budget*: a call that would exceed it collects the garbage of its process, waits for what is being freed, tries
      again, and then fails with `:limit` instead of taking the machine down.

  Memory is freed on a thread of its own, never on a scheduler. `ExTorch.Tensor.release/1` gives it back at once. Up to
  32 MiB that were just freed stay with the process for about a second, beside the counters, for the next tensor of that
  size: clearing fresh memory takes longer than filling it.
  """

  alias ExTorch.{Config, Error, Native}

  @key :extorch_native_bytes

  # A collection touches the heap once; with so many native bytes per heap byte between two of them its cost is lost in
  # the cost of filling those bytes.
  @bytes_per_heap_byte 8
  @wait_milliseconds 2_000
  @rounds 16

  @type live :: %{
          tensors: non_neg_integer(),
          bytes: non_neg_integer(),
          mapped: non_neg_integer(),
          threads: non_neg_integer()
        }

  @doc """
  What is live in the node: tensors, bytes of memory ExTorch allocated, bytes of mapped files, and threads that work for
  a caller.

      iex> before = ExTorch.Memory.live()
      iex> t = ExTorch.zeros({1024}, dtype: :float64)
      iex> ExTorch.Memory.live().bytes - before.bytes
      8192
      iex> ExTorch.Tensor.release(t)
      :ok
  """
  @spec live() :: live()
  def live, do: Native.memory_live()

  @doc "The budget of native bytes (`ExTorch.Config`)."
  @spec budget() :: non_neg_integer() | :infinity
  def budget, do: Native.memory_budget()

  @doc "Changes the budget of the running node."
  @spec set_budget(non_neg_integer() | :infinity) :: :ok
  def set_budget(bytes) when bytes == :infinity or (is_integer(bytes) and bytes >= 0) do
    Native.memory_set_budget(bytes)
  end

  @doc """
  Collects the calling process's garbage and waits until the native memory it held is free. For tests and benchmarks;
  in ordinary code memory looks after itself.
  """
  @spec collect() :: :ok
  def collect, do: collect(@rounds)

  # One round frees the garbage itself; more of them what it owned in turn.
  defp collect(rounds) do
    mark = collect_begin()
    :erlang.garbage_collect()
    collect_wait(mark, rounds)
    Process.put(@key, {0, threshold()})
    :ok
  end

  defp collect_begin, do: Native.memory_collect_begin()

  defp collect_wait(mark, rounds),
    do: Native.memory_collect_wait(mark, rounds, @wait_milliseconds)

  # Runs a NIF that may allocate: accounts for what it took, and tries again after a collection where that may help.
  @doc false
  @spec run((() -> Native.result(value))) :: {:ok, value} | {:error, ExTorch.Error.t()}
        when value: term()
  def run(nif) do
    case account(nif.()) do
      {:collect, _} -> run_again(nif)
      other -> other
    end
  end

  # Accounts for what a NIF took, and leaves the rest to the caller.
  @doc false
  @spec account(Native.result(value)) ::
          {:ok, value} | {:collect, ExTorch.Error.t()} | {:error, ExTorch.Error.t()}
        when value: term()
  def account({:ok, value, taken}), do: took(taken, value)
  def account(other), do: other

  @doc false
  @spec run!((() -> Native.result(value))) :: value when value: term()
  def run!(nif), do: Error.bang!(run(nif))

  defp run_again(nif) do
    collect()

    case account(nif.()) do
      {:collect, error} -> {:error, error}
      other -> other
    end
  end

  defp took(0, value), do: {:ok, value}

  defp took(taken, value) do
    {total, threshold} = Process.get(@key) || {0, threshold()}

    if total + taken < threshold do
      Process.put(@key, {total + taken, threshold})
    else
      collect(1)
    end

    {:ok, value}
  end

  defp threshold do
    {:total_heap_size, words} = Process.info(self(), :total_heap_size)
    by_heap = words * :erlang.system_info(:wordsize) * @bytes_per_heap_byte
    max(Config.collect_after(), by_heap) |> min_budget(budget())
  end

  defp min_budget(bytes, :infinity), do: bytes
  defp min_budget(bytes, budget), do: min(bytes, div(budget, 4))
end
