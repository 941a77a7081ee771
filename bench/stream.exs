# How fast do 2 GB go over loopback TCP between two OS processes, against a plain gen_tcp loop that sends the same memory
# in the same chunks and drops what it receives, and against Python's _streaming_save and _streaming_load? How much memory
# do both ends take?
Code.require_file("data.exs", __DIR__)
alias Bench.Data

# Two fresh VMs: one listens and says where, the other connects.
common = """
[mode, limits | args] = System.argv()
{sent, received} = {1024 * 1024, 256 * 1024}
sizes = #{inspect(Data.llm_sizes(), limit: :infinity)}
total = 2 * Enum.sum(sizes)
rss = fn name -> [_, kb] = Regex.run(~r/\#{name}:\\s+(\\d+) kB/, File.read!("/proc/self/status")); String.to_integer(kb) / 1024 end
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
    System.cmd(limits, ["-3000000000"])
    base = rss.("VmRSS")
    :ok = :gen_tcp.send(socket, "go")
    loop = fn
      _loop, 0 -> 0
      loop, left ->
        {:ok, data} = :gen_tcp.recv(socket, min(left, received))
        loop.(loop, left - byte_size(data))
    end
    start = System.monotonic_time(:microsecond)
    got =
      case mode do
        "plain" -> loop.(loop, total)
        _ ->
          {:ok, object, ""} = ExTorch.Streaming.recv(socket, chunk: received)
          291 = map_size(object)
          object
      end
    time = (System.monotonic_time(:microsecond) - start) / 1000
    peak = rss.("VmHWM")
    :ok = :gen_tcp.send(socket, "ok")
    IO.puts(Enum.join([time, peak - base, got == nil], " "))
    """

sender =
  common <>
    """
    [port] = args
    object =
      for {size, i} <- Enum.with_index(sizes), into: %{},
        do: {"layer.\#{i}", ExTorch.op("aten::full", [[size], 1.5], dtype: :float16)}
    pieces =
      for {_, tensor} <- object, mode == "plain", binary = ExTorch.Tensor.to_binary(tensor),
          at <- 0..(byte_size(binary) - 1)//sent,
        do: binary_part(binary, at, min(sent, byte_size(binary) - at))
    {:ok, socket} = :gen_tcp.connect({127, 0, 0, 1}, String.to_integer(port), options)
    {:ok, "go"} = :gen_tcp.recv(socket, 2)
    File.write("/proc/self/clear_refs", "5")
    base = rss.("VmRSS")
    case mode do
      "plain" -> Enum.each(pieces, &(:ok = :gen_tcp.send(socket, &1)))
      format -> :ok = ExTorch.Streaming.send(object, socket, format: String.to_existing_atom(format), chunk: sent)
    end
    {:ok, "ok"} = :gen_tcp.recv(socket, 2)
    IO.puts(rss.("VmHWM") - base)
    """

limits = Path.join(Data.dir(), "limits")
cc = System.get_env("CC", "cc")
{_, 0} = System.cmd(cc, ["-O2", "-o", limits, Path.join(__DIR__, "limits.c")])

paths =
  Enum.flat_map(:code.get_path(), fn dir ->
    if to_string(dir) =~ "extorch", do: ["-pa", to_string(dir)], else: []
  end)

open = fn script, args ->
  Port.open({:spawn_executable, System.find_executable("elixir")}, [
    :binary,
    {:line, 1000},
    args: paths ++ ["-e", script | args]
  ])
end

line = fn port ->
  receive do
    {^port, {:data, {:eol, text}}} -> text
  after
    120_000 -> raise "no answer"
  end
end

run = fn mode ->
  to = open.(receiver, [mode, limits])
  port = line.(to)
  from = open.(sender, [mode, limits, port])
  [time, memory, _] = String.split(line.(to))
  extra = line.(from)
  {String.to_float(time), String.to_float(memory), String.to_float(extra)}
end

python = """
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

total = 2 * Enum.sum(Data.llm_sizes())
rate = fn ms -> "#{Float.round(total / ms / 1.0e6, 2)} GB/s" end
modes = ["plain", "streaming", "zip", "safetensors"]
# The sides take turns.
rounds = for _ <- 1..5, do: Map.new(modes, &{&1, run.(&1)})
time = fn mode -> Data.middle(Enum.map(rounds, fn round -> elem(round[mode], 0) end)) end

IO.puts(
  "#{Float.round(total / 1.0e9, 2)} GB, 291 tensors, sent in 1 MiB and received in 256 KiB, medians of 5 pairs of processes"
)

Data.show("plain gen_tcp loop", time.("plain"), rate.(time.("plain")))

for mode <- tl(modes) do
  ratio = Float.round(time.("plain") / time.(mode), 2)
  Data.show("send and recv, #{mode}", time.(mode), "#{rate.(time.(mode))}, #{ratio} of the loop")
  received = rounds |> Enum.map(fn round -> elem(round[mode], 1) end) |> Enum.max()
  sent = rounds |> Enum.map(fn round -> elem(round[mode], 2) end) |> Enum.max()

  IO.puts(
    "  memory: the payload and #{Float.round(received - total / 1024 / 1024, 1)} MiB in the receiver, " <>
      "#{Float.round(sent, 1)} MiB in the sender"
  )
end

has = "import torch.distributed._serialization"

if Data.python() && match?({_, 0}, System.cmd(Data.python(), ["-c", has], stderr_to_stdout: true)) do
  times =
    for _ <- 1..3,
        do:
          Data.python(python, [inspect(Data.llm_sizes(), limit: :infinity)]) |> String.to_float()

  Data.show("Python's _streaming_save and _load", Data.middle(times), rate.(Data.middle(times)))
end

File.rm_rf!(Data.dir())
