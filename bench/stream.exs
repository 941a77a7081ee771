# How fast are 2 GB sent over loopback TCP between two OS processes, and how much memory do both ends need?
#
# Compared with a plain gen_tcp loop that sends the same memory in the same chunks and discards what it receives, and
# with Python's _streaming_save and _streaming_load.
Code.require_file("support/data.exs", __DIR__)
Code.require_file("support/measure.exs", __DIR__)
alias Bench.{Data, Measure}

# Two fresh VMs: the receiver listens and prints its port, the sender connects.
common =
  Measure.memory_code() <>
    """
    [mode, limits | args] = System.argv()
    {send_bytes, receive_bytes} = {1024 * 1024, 256 * 1024}
    sizes = #{inspect(Data.llm_sizes(), limit: :infinity)}
    total = 2 * Enum.sum(sizes)
    ExTorch.info()
    options = [:binary, active: false, nodelay: true]
    """

receiver =
  common <>
    """
    {:ok, listen} = :gen_tcp.listen(0, options)
    {:ok, port} = :inet.port(listen)
    IO.puts(port)
    {:ok, socket} = :gen_tcp.accept(listen)
    System.cmd(limits, args)
    before = memory_kib.("VmRSS")
    :ok = :gen_tcp.send(socket, "go")
    loop = fn
      _loop, 0 -> 0
      loop, remaining ->
        {:ok, data} = :gen_tcp.recv(socket, min(remaining, receive_bytes))
        loop.(loop, remaining - byte_size(data))
    end
    start = System.monotonic_time(:microsecond)
    result =
      case mode do
        "plain" -> loop.(loop, total)
        _ ->
          {:ok, object, ""} = ExTorch.Streaming.recv(socket, chunk: receive_bytes)
          291 = map_size(object)
          object
      end
    time = (System.monotonic_time(:microsecond) - start) / 1000
    peak = memory_kib.("VmHWM")
    :ok = :gen_tcp.send(socket, "ok")
    # `result` is used once more, so that it is not collected before the peak is read.
    IO.puts(Enum.join([time, (peak - before) / 1024, result == nil], " "))
    """

sender =
  common <>
    """
    [port] = args
    object =
      for {size, i} <- Enum.with_index(sizes), into: %{},
        do: {"layer.\#{i}", ExTorch.op("aten::full", [[size], 1.5], dtype: :float16)}
    chunks =
      for {_, tensor} <- object, mode == "plain", binary = ExTorch.Tensor.to_binary(tensor),
          at <- 0..(byte_size(binary) - 1)//send_bytes,
        do: binary_part(binary, at, min(send_bytes, byte_size(binary) - at))
    {:ok, socket} = :gen_tcp.connect({127, 0, 0, 1}, String.to_integer(port), options)
    {:ok, "go"} = :gen_tcp.recv(socket, 2)
    File.write("/proc/self/clear_refs", "5")
    before = memory_kib.("VmRSS")
    case mode do
      "plain" -> Enum.each(chunks, &(:ok = :gen_tcp.send(socket, &1)))
      format -> :ok = ExTorch.Streaming.send(object, socket, format: String.to_existing_atom(format), chunk: send_bytes)
    end
    {:ok, "ok"} = :gen_tcp.recv(socket, 2)
    IO.puts((memory_kib.("VmHWM") - before) / 1024)
    """

dir = Data.dir()
limits = Measure.limits(dir)

start = fn script, args ->
  Port.open({:spawn_executable, System.find_executable("elixir")}, [
    :binary,
    {:line, 1000},
    args: Measure.elixir_args(script, args)
  ])
end

run = fn mode ->
  receiving = start.(receiver, [mode, limits | Measure.touch_memory()])
  sending = start.(sender, [mode, limits, Measure.line(receiving)])
  [ms, received_mib, _] = String.split(Measure.line(receiving))
  {String.to_float(ms), String.to_float(received_mib), String.to_float(Measure.line(sending))}
end

python_stream = """
import os, socket, sys, time, torch
from torch.distributed._serialization import _streaming_load, _streaming_save
sizes = eval(sys.argv[1])
listen = socket.create_server(("127.0.0.1", 0))
if os.fork() == 0:
    state = {f"layer.{i}": torch.full([n], 1.5, dtype=torch.float16) for i, n in enumerate(sizes)}
    s = socket.create_connection(listen.getsockname())
    f = s.makefile("wb", buffering=1 << 20)
    s.recv(2)
    _streaming_save(state, f)
    f.flush()
    os._exit(0)
s, _ = listen.accept()
f = s.makefile("rb", buffering=1 << 20)
s.send(b"go")
t = time.perf_counter()
x = _streaming_load(f)
print((time.perf_counter() - t) * 1000)
"""

total = Data.llm_sizes_total()
rate = fn ms -> "#{Float.round(total / ms / 1.0e6, 2)} GB/s" end
formats = ["streaming", "zip", "safetensors"]

# The modes alternate.
rounds = for _ <- 1..5, do: Map.new(["plain" | formats], &{&1, run.(&1)})
ms = fn mode -> Measure.median(for round <- rounds, do: elem(round[mode], 0)) end
most = fn mode, i -> Enum.max(for round <- rounds, do: elem(round[mode], i)) end

IO.puts(
  "#{Float.round(total / 1.0e9, 2)} GB, 291 tensors, sent in chunks of 1 MiB and received in chunks of 256 KiB, " <>
    "medians of 5 pairs of processes"
)

Measure.print("plain gen_tcp loop", ms.("plain"), rate.(ms.("plain")))

for format <- formats do
  ratio = Measure.ratio(ms.("plain"), ms.(format))
  note = "#{rate.(ms.(format))}, #{ratio} of the loop's rate"
  Measure.print("send and recv, #{format}", ms.(format), note)

  IO.puts(
    "  peak memory: the tensors and #{Float.round(most.(format, 1) - total / 1024 / 1024, 1)} MiB in the receiver, " <>
      "the tensors and #{Float.round(most.(format, 2), 1)} MiB in the sender"
  )
end

import_streaming = ["-c", "import torch.distributed._serialization"]
python = Measure.python()

if python && match?({_, 0}, System.cmd(python, import_streaming, stderr_to_stdout: true)) do
  sizes = inspect(Data.llm_sizes(), limit: :infinity)
  runs = for _ <- 1..3, do: Measure.python_ms(python_stream, [sizes])
  median = Measure.median(runs)
  Measure.print("Python's _streaming_save and _streaming_load", median, rate.(median))
end

File.rm_rf!(dir)
