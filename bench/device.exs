# Is a load to a device as fast as a load to the CPU, if the copy to the device costs as much as the read?
#
# The device is simulated (test/support/simulated_device.cpp): its copies take as long as its bandwidth says, which is set
# to that of the load to the CPU. Without overlap, a load to the device would take twice as long. Its copies overlap with
# reading from LibTorch 2.6 on, which can pin memory for any backend.
Code.require_file("support/data.exs", __DIR__)
Code.require_file("../test/support/simulated_device.ex", __DIR__)
alias Bench.Data
alias ExTorch.Test.SimulatedDevice
alias ExTorch.{Memory, Tensor}

unless SimulatedDevice.available?(), do: raise("the device is not built: make simulated_device")
device = {SimulatedDevice.load!(), 0}

unless SimulatedDevice.pinned?(),
  do: IO.puts("this LibTorch cannot pin memory for the device: no copy overlaps")

path = Path.join(Data.dir(), "device.safetensors")
tensors = for i <- 1..16, into: %{}, do: {"w#{i}", ExTorch.rand({5 * 1024, 1024})}
ExTorch.save!(tensors, path)
size = File.stat!(path).size
SimulatedDevice.set(:capacity, 4 * size)
SimulatedDevice.set(:cache, 1)

# The best of several runs, since both threads of a load need a CPU.
measure = fn load ->
  Enum.min(
    for _ <- 1..12 do
      Memory.collect()
      {us, loaded} = :timer.tc(load)
      for {_, tensor} <- loaded, do: Tensor.release(tensor)
      us / 1000
    end
  )
end

to_cpu = fn -> ExTorch.load!(path) end
to_device = fn -> ExTorch.load!(path, device: device) end
after_loading = fn -> Map.new(to_cpu.(), fn {name, t} -> {name, Tensor.to(t, device)} end) end

measure.(to_device)
cpu = measure.(to_cpu)
SimulatedDevice.set(:bandwidth, round(size / cpu * 1000))
SimulatedDevice.set(:most_pinned, 0)
staged = measure.(to_device)
one_by_one = measure.(after_loading)
SimulatedDevice.set(:bandwidth, 0)

row = fn name, ms ->
  IO.puts(
    "#{String.pad_trailing(name, 44)} #{Float.round(ms, 1)} ms  #{Float.round(ms / cpu, 2)} ×"
  )
end

IO.puts("#{round(size / 1.0e6)} MB, a copy to the device takes #{Float.round(cpu, 1)} ms")
row.("load to the CPU", cpu)
row.("load to the device", staged)
row.("load to the CPU, then copy each tensor", one_by_one)
IO.puts("pinned memory: #{Float.round(SimulatedDevice.get(:most_pinned) / 1.0e6, 1)} MB")
