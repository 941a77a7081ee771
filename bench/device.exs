# Is a load to a device as fast as a load to the CPU, if the copy to the device costs as much as the read?
#
# The device is simulated (test/support/simulated_device.cpp): its copies take as long as its bandwidth says, which is set
# to that of the load to the CPU. Without overlap, a load to the device would take twice as long. Its copies overlap with
# reading from LibTorch 2.6 on, which can pin memory for any backend.
#
# A load to a device has one reader, so the load to the CPU has one as well. Unlike those of a GPU, the copies of the
# simulated device need a CPU and memory bandwidth: little beside a compressed file, as much as reading itself beside one
# that is not.
for file <- ~w(data measure), do: Code.require_file("support/#{file}.exs", __DIR__)
for file <- ~w(simulated_device zip), do: Code.require_file("../test/support/#{file}.ex", __DIR__)
alias Bench.{Data, Measure}
alias ExTorch.Test.{SimulatedDevice, Zip}
alias ExTorch.{Memory, Tensor}

unless SimulatedDevice.available?(), do: raise("the device is not built: make simulated_device")
device = {SimulatedDevice.load!(), 0}

unless SimulatedDevice.pinned?(),
  do: IO.puts("this LibTorch cannot pin memory for the device: no copy overlaps")

tensors = for i <- 1..16, into: %{}, do: {"w#{i}", ExTorch.arange(4_194_304, dtype: :int32)}

stored = Path.join(Data.dir(), "stored.pt")
compressed = Path.join(Data.dir(), "compressed.pt")
ExTorch.save!(tensors, stored)
records = stored |> File.read!() |> Zip.unzip() |> Enum.map(&Zip.deflated/1)
File.write!(compressed, Zip.make(records))
bytes = 16 * 4 * 4_194_304
SimulatedDevice.set(:capacity, 4 * bytes)
SimulatedDevice.set(:cache, 1)

measure = fn load ->
  times =
    for _ <- 1..11 do
      Memory.collect()
      {us, loaded} = :timer.tc(load)
      for {_, tensor} <- loaded, do: Tensor.release(tensor)
      us / 1000
    end

  Measure.median(times)
end

for {title, path} <- [{"compressed", compressed}, {"not compressed", stored}] do
  to_cpu = fn -> ExTorch.load!(path, readers: 1) end
  to_device = fn -> ExTorch.load!(path, device: device) end
  after_loading = fn -> Map.new(to_cpu.(), fn {name, t} -> {name, Tensor.to(t, device)} end) end

  SimulatedDevice.set(:bandwidth, 0)
  measure.(to_device)
  cpu = measure.(to_cpu)
  SimulatedDevice.set(:bandwidth, round(bytes / cpu * 1000))
  SimulatedDevice.set(:most_pinned, 0)
  row = fn name, ms -> Measure.print(name, ms, "#{Measure.ratio(ms, cpu)} ×") end

  IO.puts("#{round(bytes / 1.0e6)} MB, #{title}, medians of 11")
  row.("load to the CPU, and what a copy to the device takes", cpu)
  row.("load to the device", measure.(to_device))
  row.("load to the CPU, then copy each tensor", measure.(after_loading))
  IO.puts("pinned memory: #{Float.round(SimulatedDevice.get(:most_pinned) / 1.0e6, 1)} MB")
end
