defmodule Bench.Measure do
  @moduledoc false
  # Timing, memory, and the processes that the benchmarks compare with.

  # ---- Times ----

  def milliseconds(fun) do
    {time, _} = :timer.tc(fun)
    time / 1000
  end

  @doc "The median time of several runs, with a garbage collection after each."
  def median_time(runs, fun), do: runs |> times(fun) |> median()

  @doc "The best time of several runs, for peers that report their best as well."
  def best_time(runs, fun), do: runs |> times(fun) |> Enum.min()

  defp times(runs, fun) do
    for _ <- 1..runs do
      time = milliseconds(fun)
      ExTorch.Memory.collect()
      time
    end
  end

  def median(list), do: list |> Enum.sort() |> Enum.at(div(length(list), 2))

  @doc "The memory of this process in KiB: now (VmRSS), or its peak (VmHWM). 0 where the system does not tell."
  def memory_kib(field) do
    with {:ok, status} <- File.read("/proc/self/status"),
         [_, kib] <- Regex.run(~r/#{field}:\s+(\d+) kB/, status) do
      String.to_integer(kib)
    else
      _ -> 0
    end
  end

  @doc "The ratio of two times with two digits."
  def ratio(a, b), do: Float.round(a / b, 2)

  # ---- Output ----

  def print(label, ms, note \\ "") do
    IO.puts(
      String.pad_trailing(label, 52) <>
        String.pad_leading("#{Float.round(ms * 1.0, 2)} ms", 14) <> "  " <> note
    )
  end

  @doc "Prints the median of several runs, and each of them in parentheses."
  def print_runs(label, runs, note \\ ""),
    do: print(label, median(runs), "#{note} (#{Enum.map_join(runs, ", ", &round/1)})")

  @doc "Prints the runs of ExTorch with their ratio to a plain loop, and those of torch, if there are any, with theirs to ExTorch."
  def print_comparison(label, runs, torch_label, torch_runs, loop_ms) do
    print_runs(label, runs, "#{ratio(median(runs), loop_ms)} times the loop")

    if torch_runs != [] do
      note = "#{ratio(median(torch_runs), median(runs))} times ExTorch"
      print_runs(torch_label, torch_runs, note)
    end
  end

  @doc "Prints the gaps of the tickers that ran beside ExTorch and beside what it is compared with."
  def print_gaps(gaps, baseline, label \\ "beside the plain loop in another process") do
    IO.puts(
      "99.9th percentile of the gaps between ticks of a 1 ms timer: #{summary(gaps)}; " <>
        "#{label}: #{summary(baseline)}"
    )
  end

  defp summary(list),
    do: "#{Float.round(median(list), 2)} ms (#{Enum.map_join(list, ", ", &Float.round(&1, 1))})"

  # ---- Other processes ----

  @doc "Runs a script in a fresh VM that has ExTorch in its code path. Returns what it prints, split at white space."
  def elixir(script, args) do
    {text, 0} = System.cmd("elixir", elixir_args(script, args))
    String.split(text)
  end

  def elixir_args(script, args) do
    paths = for dir <- :code.get_path(), to_string(dir) =~ "extorch", do: ["-pa", to_string(dir)]
    List.flatten(paths) ++ ["-e", script | args]
  end

  @doc """
  Code for a fresh VM. `memory_kib.("VmRSS")` is the memory of the process in KiB now, `memory_kib.("VmHWM")` its peak.
  """
  def memory_code do
    """
    memory_kib = fn name ->
      [_, kib] = Regex.run(~r/\#{name}:\\s+(\\d+) kB/, File.read!("/proc/self/status"))
      String.to_integer(kib)
    end
    """
  end

  @doc """
  Code for a fresh VM: starts a process with a timer of one millisecond. `gap.()` stops it and returns the 99.9th
  percentile of the time between two of its ticks, in milliseconds.
  """
  def ticker_code do
    """
    parent = self()

    ticker =
      spawn_link(fn ->
        loop = fn loop, last, gaps ->
          receive do
            :stop -> send(parent, {:gaps, Enum.sort(gaps)})
          after
            1 ->
              now = System.monotonic_time(:microsecond)
              loop.(loop, now, [now - last | gaps])
          end
        end

        loop.(loop, System.monotonic_time(:microsecond), [])
      end)

    gap = fn ->
      send(ticker, :stop)
      gaps = receive do {:gaps, gaps} -> gaps end
      Enum.at(gaps, trunc(length(gaps) * 0.999)) / 1000
    end
    """
  end

  @doc "Compiles limits.c into the directory. Returns the path of the program."
  def limits(dir), do: compile(dir, "limits")

  @doc "Compiles a program of this folder into the directory. Returns its path."
  def compile(dir, name) do
    program = Path.join(dir, name)
    source = Path.join(__DIR__, "#{name}.c")
    {_, 0} = System.cmd(System.get_env("CC", "cc"), ["-O2", "-pthread", "-o", program, source])
    program
  end

  @doc "Arguments of limits.c: touches and frees 3 GB. limits.c explains why."
  def touch_memory, do: ["-3000000000"]

  @doc "The same after a pause."
  def pause_and_touch_memory, do: touch_memory() ++ [pause()]

  @doc "Seconds after which a virtual machine has returned freed memory to its host."
  def pause, do: "12"

  @doc """
  Runs a plain loop of limits.c in another OS process. Returns its milliseconds, and the gap of a ticker in this VM
  meanwhile, which shows how much the machine itself disturbs a timer.
  """
  def plain_loop(program, args) do
    port =
      Port.open({:spawn_executable, program}, [:binary, :exit_status, line: 1000, args: args])

    "ready" = line(port)
    {gap, _} = Code.eval_string(ticker_code() <> "\ngap")
    Port.command(port, "\n")
    ms = port |> line() |> String.to_float()
    gap = gap.()

    receive do
      {^port, {:exit_status, 0}} -> {ms, gap}
    end
  end

  @doc "The next line that a port prints."
  def line(port) do
    receive do
      {^port, {:data, {:eol, line}}} -> line
    after
      120_000 -> raise "no output from #{inspect(port)} for two minutes"
    end
  end

  @doc """
  Touches memory and frees it, in this process: a virtual machine is slow to back memory that was never used.
  """
  def touch(bytes) do
    ExTorch.Tensor.release(ExTorch.ones({bytes}, dtype: :uint8))
    ExTorch.Memory.collect()
  end

  # ---- Python ----

  @doc "A Python that has torch, or nil."
  def python do
    [System.get_env("EXTORCH_PYTHON"), "/usr/bin/python3", "python3"]
    |> Enum.filter(&(&1 && System.find_executable(&1)))
    |> Enum.find(&match?({_, 0}, System.cmd(&1, ["-c", "import torch"], stderr_to_stdout: true)))
  end

  @doc "Runs a script in a fresh Python and returns its output; nil without a Python that has torch."
  def python(script, args \\ []) do
    if python = python() do
      {output, 0} = System.cmd(python, ["-c", script | args])
      String.trim(output)
    end
  end

  @doc "The same for a script that prints milliseconds."
  def python_ms(script, args) do
    text = python(script, args)
    text && String.to_float(text)
  end
end
