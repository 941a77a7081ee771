defmodule ExTorch.HostileFiles.Gate do
  @moduledoc false
  alias ExTorch.HostileFiles.Calls

  # Gives files to a separate VM (ExTorch.HostileFiles.Child) and judges what it measured. A VM that uses too much
  # memory or time is ended, and another one takes its place. So is a VM that keeps memory after a call: the next call
  # could use it unseen.

  @mib 1_048_576
  @memory 64 * @mib
  @message 8192
  @kill_bytes 1536 * @mib
  @kill_ms 15_000
  @wait_ms 300_000

  @kept 16 * @mib

  defstruct [:port, :pid]

  @doc """
  Runs the calls on a file. Returns for each call `{call, measured, failures}`, and the gate.

  A call that begins with another one which failed is not made: it would fail in the same way.
  """
  def run(gate, file, calls) do
    {results, {gate, _failed}} =
      Enum.flat_map_reduce(calls, {gate, []}, fn call, {gate, failed} ->
        if Calls.begins_with(call) in failed do
          {[], {gate, failed}}
        else
          {measured, failures, gate} = measure(gate, file, call)
          failed = if measured.answer == :ok, do: failed, else: [call | failed]
          {[{call, measured, failures}], {gate, failed}}
        end
      end)

    {results, gate}
  end

  # A call that takes too long is repeated, in case the machine was busy.
  defp measure(gate, file, call) do
    {measured, gate} = request(gate, file, call)

    if measured.ms > time_limit(file, measured) and not is_map_key(measured, :gone) do
      {again, gate} = request(gate, file, call)
      again = %{again | ms: min(again.ms, measured.ms), peak: max(again.peak, measured.peak)}
      {again, failures(file, call, again), gate}
    else
      {measured, failures(file, call, measured), gate}
    end
  end

  @doc "The kinds of failures of a call: `:dead`, `:exception`, `:answer`, `:message`, `:memory`, `:time`, `:leak`."
  def failures(file, call, m) do
    [
      dead: m.answer == :dead,
      memory: m.answer == {:killed, :memory} or m.peak > memory_limit(file, m),
      time: m.answer == {:killed, :time} or m.ms > time_limit(file, m),
      exception: exception?(m.answer),
      answer: not expected?(file, call, m.answer),
      message: match?({:error, _, size, _} when size > @message, m.answer),
      leak: m.leak != nil
    ]
    |> Enum.filter(&elem(&1, 1))
    |> Enum.map(&elem(&1, 0))
  end

  def memory_limit(file, m), do: @memory + 16 * file.bytes + m.own
  def time_limit(file, m), do: file.slack * (1_000 + div(file.bytes + m.own, 100_000))

  defp exception?(:dead), do: false
  defp exception?({:killed, _}), do: false
  defp exception?(answer), do: answer != :ok and not match?({:error, _, _, _}, answer)

  defp expected?(file, call, :ok), do: :ok in accepted(file, call)
  defp expected?(file, call, {:error, reason, _, _}), do: reason in accepted(file, call)
  # Counted as another kind of failure.
  defp expected?(_file, _call, _answer), do: true

  # What torch's weights_only refuses is forbidden; tar files, gzip files and indexes cannot be read as streams.
  defp accepted(file, call) do
    file.expect ++ more(call, file)
  end

  defp more({:gunzip, _, _}, %{gzip: false}), do: [:corrupt, :truncated]

  defp more({:gunzip_tensors, _, _}, %{gzip: false}), do: [:corrupt, :truncated]

  defp more({call, _, opts}, file)
       when call in [:stream, :stream_tensors, :gunzip, :gunzip_tensors] do
    strict(opts) ++
      selected(opts) ++
      Map.get(file, :stream, []) ++
      if(call in [:stream_tensors, :gunzip_tensors], do: [:ok], else: [])
  end

  # A filter may select nothing.
  defp more({:only, _, opts}, _file), do: [:not_found | strict(opts)]
  defp more({:load_index, opts}, _file), do: [:corrupt | strict(opts) ++ selected(opts)]

  defp more({:missing, _, _}, _file), do: [:not_found, :ambiguous]

  # A module of two tensors does not fit the file.
  defp more({:store_auto, _, _}, _file), do: [:not_found, :ambiguous, :bad_argument, :corrupt]
  # Not all that can be read can be written.
  defp more({:save, _, _}, _file), do: [:bad_argument, :unsupported, :limit]

  defp more({_, _, opts}, _file), do: strict(opts)
  defp more(_call, _file), do: []

  defp selected(opts), do: if(opts[:only], do: [:not_found], else: [])
  defp strict(opts), do: if(opts[:strict], do: [:forbidden], else: [])

  # ---- The VM ----

  defp request(%{port: nil}, file, call), do: start() |> request(file, call)

  defp request(gate, file, call) do
    none = %{own: 0}
    limits = {memory_limit(file, none), time_limit(file, none)}
    Port.command(gate.port, :erlang.term_to_binary({file.path, call, limits}))
    measured = await(gate, cpu_ms(gate.pid), System.monotonic_time(:millisecond))
    used_up? = is_map_key(measured, :gone) or measured.leak != nil or measured.kept > @kept
    {measured, if(used_up?, do: stop(gate), else: gate)}
  end

  # The time is that of the VM, which gets little of it if the machine is busy.
  defp await(gate, cpu, started) do
    port = gate.port

    receive do
      {^port, {:data, data}} -> :erlang.binary_to_term(data)
      {^port, {:exit_status, _}} -> gone(:dead, 0)
    after
      20 ->
        rss = rss(gate.pid)

        cond do
          rss > @kill_bytes -> kill(gate, :memory, rss)
          cpu_ms(gate.pid) - cpu > @kill_ms -> kill(gate, :time, rss)
          System.monotonic_time(:millisecond) - started > @wait_ms -> kill(gate, :time, rss)
          true -> await(gate, cpu, started)
        end
    end
  end

  defp gone(answer, peak),
    do: %{
      answer: answer,
      peak: peak,
      kept: 0,
      ms: 0,
      wall: 0,
      own: 0,
      leak: nil,
      gone: true
    }

  defp kill(gate, why, rss) do
    System.cmd("kill", ["-9", gate.pid])
    ms = if why == :time, do: @kill_ms, else: 0
    %{gone({:killed, why}, rss) | ms: ms}
  end

  defp start do
    script = "ExTorch.HostileFiles.Child.main()"

    port =
      Port.open({:spawn_executable, System.find_executable("elixir")}, [
        :binary,
        :nouse_stdio,
        :exit_status,
        packet: 4,
        # Otherwise glibc keeps blocks of up to 32 MiB that were freed, and the VM its last ten carriers.
        env: [{~c"MALLOC_MMAP_THRESHOLD_", ~c"131072"}, {~c"ELIXIR_ERL_OPTIONS", ~c"+MMmcs 0"}],
        args: ExTorch.Test.VM.args(script, [])
      ])

    receive do
      {^port, {:data, data}} ->
        {:ready, pid} = :erlang.binary_to_term(data)
        %__MODULE__{port: port, pid: pid}

      {^port, {:exit_status, status}} ->
        raise "the VM did not start: exit status #{status}"
    end
  end

  @doc "Ends the VM."
  def stop(%{port: nil} = gate), do: gate

  def stop(gate) do
    # Closing the port ends the VM. It may be inside a call.
    if Port.info(gate.port), do: Port.close(gate.port)
    System.cmd("kill", ["-9", gate.pid], stderr_to_stdout: true)
    flush(gate.port)
    %__MODULE__{}
  end

  defp flush(port) do
    receive do
      {^port, _} -> flush(port)
    after
      0 -> :ok
    end
  end

  defp rss(pid) do
    case File.read("/proc/#{pid}/statm") do
      {:ok, text} -> (text |> String.split() |> Enum.at(1) |> String.to_integer()) * 4096
      _ -> 0
    end
  end

  # The fields after the name: state, and eleven others before utime and stime, in hundredths of a second.
  defp cpu_ms(pid) do
    with {:ok, text} <- File.read("/proc/#{pid}/stat") do
      fields = text |> String.split(") ") |> List.last() |> String.split()
      [user, system] = fields |> Enum.slice(11, 2) |> Enum.map(&String.to_integer/1)
      10 * (user + system)
    else
      _ -> 0
    end
  end

  # ---- Text ----

  @doc "A line for each kind of failure and answer, with the call that used the most memory."
  def describe(results, file) do
    for {_, [{call, m, failures} | _] = group} <- group(results) do
      others = for {other, _, _} <- group, other != call, do: inspect(other)

      "#{Enum.join(failures, ",")} | #{file.name} (n=#{file.n}, #{file.bytes} B) | #{answer(m.answer)} | " <>
        "peak #{div(m.peak, @mib)} of #{div(memory_limit(file, m), @mib)} MiB | #{m.ms} of #{time_limit(file, m)} ms | " <>
        Enum.join([inspect(call) | others], " ") <>
        if(m.leak, do: " | left #{inspect(m.leak)}", else: "")
    end
  end

  defp group(results) do
    results
    |> Enum.reject(fn {_, _, failures} -> failures == [] end)
    |> Enum.sort_by(fn {_, m, _} -> -m.peak end)
    |> Enum.group_by(fn {_, m, failures} ->
      {failures, m.answer |> answer() |> String.slice(0, 12)}
    end)
  end

  defp answer({:error, reason, size, text}),
    do: ":#{reason} (#{size} B) #{inspect(String.slice(text, 0, 90))}"

  defp answer(other), do: inspect(other)
end
