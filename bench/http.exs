# How fast does a checkpoint of 2 GB arrive from a web server, compared with curl, and what does it cost?
#
# nginx serves the file on the loopback interface. curl discards what it receives. Each load runs in a fresh VM.
Code.require_file("support/data.exs", __DIR__)
Code.require_file("support/measure.exs", __DIR__)
Code.require_file("../test/support/nginx.ex", __DIR__)
alias Bench.{Data, Measure}
alias ExTorch.Test.Nginx

unless Nginx.available?() and System.find_executable("curl") do
  IO.puts("nginx or curl was not found")
  System.halt(0)
end

dir = Data.dir()
path = Data.write(Path.join(dir, "llm.pt"), Data.llm_sizes(), 2, "HalfStorage")
size = File.stat!(path).size
server = Nginx.start(Path.join(dir, "nginx"), "location / { root #{dir}; }")
url = Nginx.url(server, "/llm.pt")

curl = fn ->
  {speed, 0} = System.cmd("curl", ["-s", "-o", "/dev/null", "-w", "%{speed_download}", url])
  {speed, _} = Float.parse(speed)
  size / speed * 1000
end

load_code =
  Measure.memory_code() <>
    """
    [url] = System.argv()
    ExTorch.info()
    before = memory_kib.("VmRSS")
    {time, object} = :timer.tc(fn -> ExTorch.load!(url) end)
    peak = memory_kib.("VmHWM")
    291 = map_size(object)
    IO.puts(Enum.join([time / 1000, (peak - before) * 1024], " "))
    """

runs =
  for _ <- 1..5 do
    curl_ms = curl.()
    [ms, bytes] = Measure.elixir(load_code, [url])
    {curl_ms, String.to_float(ms), String.to_integer(bytes)}
  end

{curls, loads, peaks} =
  {Enum.map(runs, &elem(&1, 0)), Enum.map(runs, &elem(&1, 1)), Enum.map(runs, &elem(&1, 2))}

Measure.print_runs("curl, #{div(size, 1_000_000)} MB", curls)
ratio = Measure.ratio(Measure.median(curls), Measure.median(loads))
Measure.print_runs("ExTorch.load", loads, "#{ratio} of the speed of curl")
IO.puts("peak memory beyond the file's size: #{div(Enum.max(peaks) - size, 1024 * 1024)} MiB")

Nginx.clear_log(server)
ms = Measure.milliseconds(fn -> ExTorch.Checkpoint.open!(url) end)
opened = Nginx.log(server)

Measure.print(
  "open",
  ms,
  "#{length(opened)} requests, #{Enum.sum(for r <- opened, do: r.bytes)} bytes"
)

ckpt = ExTorch.Checkpoint.open!(url)
Nginx.clear_log(server)
entry = ExTorch.Checkpoint.entry!(ckpt, Data.name(5))
ms = Measure.milliseconds(fn -> ExTorch.Checkpoint.tensor!(ckpt, entry.name) end)
read = Nginx.log(server)
bytes = Enum.sum(for r <- read, do: r.bytes)

Measure.print(
  "one tensor",
  ms,
  "#{length(read)} requests, #{bytes - entry.nbytes} bytes more than it has"
)

Nginx.stop(server)
