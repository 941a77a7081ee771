defmodule Bench.Peers do
  @moduledoc false
  # The processes that answer the questions of peers.exs: support/peers.py and the program in bench/peers.

  alias Bench.Measure

  @titles %{
    "torch" => "torch",
    "safetensors" => "safetensors",
    "runai" => "Run:ai",
    "fast" => "fastsafetensors",
    "crate" => "Rust safetensors",
    "candle" => "candle",
    "burn" => "burn"
  }
  @venv "build/bench/venv/bin/python"
  @program "build/bench/peers/release/peers"

  @doc "Starts what is found. Returns a map for each peer."
  def start, do: python() ++ rust()

  defp python do
    python = if File.exists?(@venv), do: Path.expand(@venv), else: Measure.python()

    if python,
      do: peers(System.find_executable(python), [Path.join(__DIR__, "peers.py")]),
      else: []
  end

  defp rust, do: if(File.exists?(@program), do: peers(Path.expand(@program), []), else: [])

  # The first line of a program has the names of its peers, and their versions.
  defp peers(program, args) do
    port = Port.open({:spawn_executable, program}, [:binary, line: 1000, args: args])

    for word <- port |> Measure.line() |> String.split() do
      [name | version] = String.split(word, "=", parts: 2)
      version = List.first(version) || ""
      %{name: name, title: @titles[name], version: version, port: port, program: {program, args}}
    end
  end

  @doc "Starts the program of a peer again, in a new process."
  def fresh(%{name: name, program: {program, args}}),
    do: program |> peers(args) |> Enum.find(&(&1.name == name))

  @doc "Ends the processes."
  def stop(peers), do: for(port <- Enum.uniq_by(peers, & &1.port), do: Port.close(port.port))

  @doc "Lets the peers of a format keep the tensors of a file, to save them."
  def keep(peers, format, path) do
    for peer <- peers, format in formats(peer.name), do: "kept" = request(peer, "keep", path)
  end

  # The package safetensors is given torch's tensors.
  defp formats(name) when name in ["torch", "safetensors"], do: ["pt"]
  defp formats(name) when name in ["crate", "candle"], do: ["st"]
  defp formats(_name), do: []

  @doc "The milliseconds and the KiB of a peer's answer, or nil."
  def ask(peer, question, path) do
    case request(peer, question, path) do
      "none" ->
        nil

      text ->
        [ms, kib] = String.split(text)
        {ms |> Float.parse() |> elem(0), String.to_integer(kib)}
    end
  end

  defp request(peer, question, path) do
    Port.command(peer.port, "#{peer.name} #{question} #{path}\n")
    Measure.line(peer.port)
  end

  @doc """
  The milliseconds of a function here, and by how many KiB the memory of the VM rose at most.

  It runs in a process of its own: the heap of the script has what is saved, which each garbage collection would copy.
  """
  def measure(fun) do
    run = fn ->
      File.write("/proc/self/clear_refs", "5")
      before = Measure.memory_kib("VmRSS")
      ms = Measure.milliseconds(fun)
      {ms, max(Measure.memory_kib("VmHWM") - before, 0)}
    end

    run |> Task.async() |> Task.await(:infinity)
  end
end
