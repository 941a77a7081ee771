# What do to_blob and from_blob cost, and does it depend on the size?
#
# The baseline is an empty NIF call that allocates and frees an environment: pinning an owner needs at least that. The
# bytes copied are those that the memory counters and the resident memory of the process show.
Code.require_file("support/empty_call.exs", __DIR__)
alias ExTorch.{Memory, Tensor}
alias ExTorch.Tensor.Blob

defmodule Bench.Blob do
  @calls 20_000

  def nanoseconds(fun) do
    repeat(fun, @calls)
    runs = for _ <- 1..9, do: elem(:timer.tc(fn -> repeat(fun, @calls) end), 0) * 1000 / @calls
    Enum.at(Enum.sort(runs), 4)
  end

  defp repeat(_fun, 0), do: :ok

  defp repeat(fun, n) do
    fun.()
    repeat(fun, n - 1)
  end

  def resident_kib do
    [_, kib] = Regex.run(~r/VmRSS:\s+(\d+) kB/, File.read!("/proc/self/status"))
    String.to_integer(kib)
  end
end

baseline = Bench.Blob.nanoseconds(&Bench.EmptyCall.empty_call/0)

IO.puts(
  "nanoseconds per call, medians of 9 runs of 20,000 calls; in parentheses: relative to the empty call"
)

IO.puts("empty NIF call with an environment: #{round(baseline)}")

for {label, bytes} <- [{"1 KiB", 1024}, {"1 MiB", 1024 ** 2}, {"1 GiB", 1024 ** 3}] do
  tensor = ExTorch.ones({bytes}, dtype: :uint8)
  blob = Blob.to_blob(tensor)
  {live, resident} = {Memory.live().bytes, Bench.Blob.resident_kib()}
  to_blob = Bench.Blob.nanoseconds(fn -> Blob.to_blob(tensor) end)
  from_blob = Bench.Blob.nanoseconds(fn -> Blob.from_blob(blob, validate: false) end)
  validated = Bench.Blob.nanoseconds(fn -> Blob.from_blob(blob) end)
  copied = Memory.live().bytes - live
  grown = max(Bench.Blob.resident_kib() - resident, 0)

  show = fn ns -> String.pad_trailing("#{round(ns)} (#{Float.round(ns / baseline, 1)}x)", 16) end

  IO.puts(
    String.pad_trailing(label, 8) <>
      "to_blob #{show.(to_blob)} from_blob #{show.(from_blob)} with validation #{show.(validated)} " <>
      "copied #{copied} bytes, resident memory +#{grown} KiB"
  )

  Tensor.release(tensor)
  Memory.collect()
end
