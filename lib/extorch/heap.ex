defmodule ExTorch.Heap do
  @moduledoc false
  # Room on the heap of the calling process for terms that a NIF makes.
  #
  # If the heap has no room, the VM keeps the terms of a NIF in fragments and copies all of them when the NIF returns. It also
  # collects garbage if the resources among them exceed the limit of the process for binaries. For the terms of thousands of
  # tensors, both take longer than making them.

  # The number of words comes from a file, and the VM ends if it cannot allocate a heap.
  @least 32 * 1024
  @most 8 * 1024 * 1024

  # Calls the function with room for about this many words, at most 64 MiB. The settings are restored. The heap stays until a
  # garbage collection shrinks it. Processes that limit their heap, or have a larger one already, are left as they are.
  @spec with_room(non_neg_integer(), (() -> result)) :: result when result: term()
  def with_room(words, fun) when words < @least, do: fun.()

  def with_room(words, fun) do
    words = min(words, @most)
    info = Process.info(self(), [:heap_size, :garbage_collection])
    settings = info[:garbage_collection]

    if settings[:max_heap_size].size == 0 and info[:heap_size] < words do
      grown(words, Keyword.take(settings, [:min_heap_size, :min_bin_vheap_size]), fun)
    else
      fun.()
    end
  end

  defp grown(words, settings, fun) do
    for {flag, value} <- settings, do: Process.flag(flag, max(words, value))
    :erlang.garbage_collect(self(), type: :minor)
    fun.()
  after
    for {flag, value} <- settings, do: Process.flag(flag, value)
  end
end
