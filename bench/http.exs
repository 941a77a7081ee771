# How fast does a checkpoint of 2 GB arrive from a web server, compared with curl, and what does it cost?
#
# nginx serves the file on the loopback interface. curl discards what it receives, or writes it to a file in memory; a loop
# in C with two connections keeps it, in new memory, as a load does. Each load runs in a fresh VM.
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

curl = fn target ->
  {speed, 0} = System.cmd("curl", ["-s", "-o", target, "-w", "%{speed_download}", url])
  {speed, _} = Float.parse(speed)
  size / speed * 1000
end

limits = Measure.limits(dir)
receive_program = Measure.compile(dir, "receive")
touch = fn -> {_, 0} = System.cmd(limits, Measure.touch_memory()) end

loop = fn ->
  args = [server.port, "/llm.pt", size, 2] |> Enum.map(&to_string/1)
  {ms, 0} = System.cmd(receive_program, args)
  ms |> String.trim() |> String.to_float()
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
    curl_ms = curl.("/dev/null")
    file_ms = curl.(Path.join(dir, "curl.out"))
    File.rm!(Path.join(dir, "curl.out"))
    touch.()
    loop_ms = loop.()
    touch.()
    [ms, bytes] = Measure.elixir(load_code, [url])

    %{
      curl: curl_ms,
      file: file_ms,
      loop: loop_ms,
      load: String.to_float(ms),
      peak: String.to_integer(bytes)
    }
  end

[curls, files, loops, loads, peaks] =
  for key <- [:curl, :file, :loop, :load, :peak], do: Enum.map(runs, &Map.fetch!(&1, key))

speed = fn other, label ->
  "#{Measure.ratio(Measure.median(other), Measure.median(loads))} of the speed of #{label}"
end

Measure.print_runs("curl, #{div(size, 1_000_000)} MB", curls)
Measure.print_runs("curl into a file", files)
Measure.print_runs("a loop in C that keeps it", loops)

Measure.print_runs(
  "ExTorch.load",
  loads,
  "#{speed.(curls, "curl")}, #{speed.(files, "curl into a file")}, #{speed.(loops, "the loop")}"
)

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
