# What does handing memory over cost, and does it depend on the size?
#
# to_blob and from_blob beside an empty NIF call with an environment (allocated and freed), which is the least that
# pinning an owner can cost. Bytes copied are what the counters and the process's memory say.
Code.require_file("empty_call.exs", __DIR__)
alias ExTorch.{Memory, Tensor}
alias ExTorch.Tensor.Blob

measure = fn fun ->
  loop = fn loop, n ->
    if n > 0,
      do:
        (
          fun.()
          loop.(loop, n - 1)
        )
  end

  loop.(loop, 20_000)
  runs = for _ <- 1..9, do: elem(:timer.tc(fn -> loop.(loop, 20_000) end), 0) / 20
  Enum.at(Enum.sort(runs), 4)
end

rss = fn ->
  [_, kb] = Regex.run(~r/VmRSS:\s+(\d+) kB/, File.read!("/proc/self/status"))
  String.to_integer(kb)
end

empty = measure.(fn -> Bench.EmptyCall.empty_call() end)
IO.puts("nanoseconds a call, medians of 9 runs of 20,000; in brackets times the empty call")
IO.puts("empty NIF call with an environment: #{round(empty)}")

for {label, bytes} <- [{"1 KiB", 1024}, {"1 MiB", 1024 ** 2}, {"1 GiB", 1024 ** 3}] do
  tensor = ExTorch.ones({bytes}, dtype: :uint8)
  blob = Blob.to_blob(tensor)
  {live, before} = {Memory.live().bytes, rss.()}
  to = measure.(fn -> Blob.to_blob(tensor) end)
  from = measure.(fn -> Blob.from_blob(blob, validate: false) end)
  checked = measure.(fn -> Blob.from_blob(blob) end)
  copied = Memory.live().bytes - live

  show = fn ns -> String.pad_trailing("#{round(ns)} (#{Float.round(ns / empty, 1)}x)", 16) end

  IO.puts(
    String.pad_trailing(label, 8) <>
      "to_blob #{show.(to)} from_blob #{show.(from)} with the probe #{show.(checked)} " <>
      "copied #{copied} bytes, RSS +#{max(rss.() - before, 0)} KiB"
  )

  Tensor.release(tensor)
  Memory.collect()
end
