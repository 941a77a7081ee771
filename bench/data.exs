defmodule Bench.Data do
  @moduledoc false
  # What the checkpoint benchmarks share: files they make themselves, and Python's torch beside them.

  @doc "A folder for the run's files, on a tmpfs where there is one with room."
  def dir do
    base =
      if File.dir?("/dev/shm") and free("/dev/shm") > 6 * 1024 ** 3,
        do: "/dev/shm",
        else: System.tmp_dir!()

    dir = Path.join(base, "extorch_bench")
    File.mkdir_p!(dir)
    dir
  end

  defp free(dir) do
    {text, 0} = System.cmd("df", ["--output=avail", "-B1", dir])
    text |> String.split() |> List.last() |> String.to_integer()
  end

  def python do
    [System.get_env("EXTORCH_PYTHON"), "/usr/bin/python3", "python3"]
    |> Enum.filter(&(&1 && System.find_executable(&1)))
    |> Enum.find(&match?({_, 0}, System.cmd(&1, ["-c", "import torch"], stderr_to_stdout: true)))
  end

  @doc "Runs a script in a fresh Python; nil without one."
  def python(script, args \\ []) do
    if python = python() do
      {output, 0} = System.cmd(python, ["-c", script | args])
      String.trim(output)
    end
  end

  @doc "A zip checkpoint of float tensors, `shapes` elements each, written here without Python."
  def write(path, sizes, item \\ 4, class \\ "FloatStorage") do
    File.rm(path)
    {:ok, file} = File.open(path, [:write, :raw, :binary, :delayed_write])
    pickle = pickle(sizes, class)
    block = :binary.copy(<<1.5::float-32-little>>, 1024 * 1024)

    records =
      [{"archive/data.pkl", byte_size(pickle), [pickle]}] ++
        for(
          {size, i} <- Enum.with_index(sizes),
          do: {"archive/data/#{i}", size * item, blocks(block, size * item)}
        ) ++
        [{"archive/version", 2, ["3\n"]}]

    {central, size} =
      Enum.reduce(records, {[], 0}, fn {name, bytes, data}, {central, at} ->
        pad = rem(64 - rem(at + 30 + byte_size(name) + 4, 64), 64)
        crc = Enum.reduce(data, 0, fn piece, crc -> :erlang.crc32(crc, piece) end)

        :ok =
          :file.write(file, [
            <<"PK", 3, 4, 0::16, 0x0808::little-16, 0::16, 0::32, 0::96,
              byte_size(name)::little-16, pad + 4::little-16>>,
            name,
            <<"FB", pad::little-16>>,
            String.duplicate("Z", pad),
            data,
            <<"PK", 7, 8, crc::little-32, bytes::little-32, bytes::little-32>>
          ])

        entry =
          <<"PK", 1, 2, 0::32, 0x0808::little-16, 0::16, 0::32, crc::little-32, bytes::little-32,
            bytes::little-32, byte_size(name)::little-16, 0::96, at::little-32, name::binary>>

        {[entry | central], at + 30 + byte_size(name) + 4 + pad + bytes + 16}
      end)

    directory = central |> Enum.reverse() |> IO.iodata_to_binary()
    count = length(records)

    :ok =
      :file.write(file, [
        directory,
        <<"PK", 6, 6, 44::little-64, 0::96, count::little-64, count::little-64,
          byte_size(directory)::little-64, size::little-64>>,
        <<"PK", 6, 7, 0::32, size + byte_size(directory)::little-64, 1::little-32>>,
        <<"PK", 5, 6, 0::32, min(count, 0xFFFF)::little-16, min(count, 0xFFFF)::little-16,
          byte_size(directory)::little-32, size::little-32, 0::16>>
      ])

    :ok = File.close(file)
    path
  end

  defp blocks(block, bytes) do
    List.duplicate(block, div(bytes, byte_size(block))) ++
      [binary_part(block, 0, rem(bytes, byte_size(block)))]
  end

  defp pickle(sizes, class, more \\ []) do
    text = fn s -> <<"X", byte_size(s)::little-32, s::binary>> end

    tensors =
      for {size, i} <- Enum.with_index(sizes) do
        [
          text.("layers.#{div(i, 9)}.block.#{rem(i, 9)}.weight"),
          "ctorch._utils\n_rebuild_tensor_v2\n((",
          text.("storage"),
          "ctorch\n#{class}\n",
          text.("#{i}"),
          text.("cpu"),
          <<"J", size::little-32>>,
          more,
          "tQK\0",
          <<"J", size::little-32, 0x85, "K", 1, 0x85, 0x89>>,
          "ccollections\nOrderedDict\n)RtR"
        ]
      end

    IO.iodata_to_binary([<<0x80, 2>>, "}(", tensors, "u."])
  end

  @doc "The same as a legacy file."
  def write_legacy(path, sizes, item \\ 4, class \\ "FloatStorage") do
    File.rm(path)
    {:ok, file} = File.open(path, [:write, :raw, :binary, :delayed_write])
    block = :binary.copy(<<1.5::float-32-little>>, 1024 * 1024)
    text = fn s -> <<"X", byte_size(s)::little-32, s::binary>> end
    keys = for i <- 0..(length(sizes) - 1), do: text.("#{i}")

    :ok =
      :file.write(file, [
        <<0x80, 2, 0x8A, 10, 0x6C, 0xFC, 0x9C, 0x46, 0xF9, 0x20, 0x6A, 0xA8, 0x50, 0x19, ".">>,
        <<0x80, 2, "M", 1001::little-16, ".">>,
        [<<0x80, 2>>, "}(", text.("protocol_version"), <<"M", 1001::little-16>>, "u."],
        pickle(sizes, class, "N"),
        [<<0x80, 2>>, "](", keys, "e."]
      ])

    for size <- sizes,
        do: :ok = :file.write(file, [<<size::little-64>>, blocks(block, size * item)])

    :ok = File.close(file)
    path
  end

  @doc "291 tensors, 2.0 GB of float16, like a language model."
  def llm_sizes do
    block = [
      4_194_304,
      4_194_304,
      4_194_304,
      4_194_304,
      11_272_192,
      11_272_192,
      11_272_192,
      2048,
      2048
    ]

    (List.duplicate(block, 19) |> List.flatten()) ++ List.duplicate(2048, 118) ++ [2048, 2048]
  end

  @doc """
  Code for a VM of its own: starts a process that wants to run every millisecond; `worst.()` then gives the milliseconds
  that 99.9 % of its gaps are below.
  """
  def ticker do
    """
    me = self()

    ticker =
      spawn_link(fn ->
        loop = fn loop, last, gaps ->
          receive do
            :stop -> send(me, {:gaps, Enum.sort(gaps)})
          after
            1 ->
              now = System.monotonic_time(:microsecond)
              loop.(loop, now, [now - last | gaps])
          end
        end

        loop.(loop, System.monotonic_time(:microsecond), [])
      end)

    worst = fn ->
      send(ticker, :stop)
      gaps = receive do {:gaps, gaps} -> gaps end
      Enum.at(gaps, trunc(length(gaps) * 0.999)) / 1000
    end
    """
  end

  @doc """
  Runs a plain loop (limits.c) in an OS process of its own: its milliseconds, and those that 99.9 % of the gaps of a ticker
  in this VM are below meanwhile. Whatever disturbs the ticker then is the machine's doing.
  """
  def limit(program, args) do
    port =
      Port.open({:spawn_executable, program}, [:binary, :exit_status, line: 1000, args: args])

    "ready" = line(port)
    {worst, _} = Code.eval_string(ticker() <> "\nworst")
    Port.command(port, "\n")
    ms = port |> line() |> String.to_float()
    worst = worst.()

    receive do
      {^port, {:exit_status, 0}} -> {ms, worst}
    end
  end

  defp line(port) do
    receive do
      {^port, {:data, {:eol, line}}} -> line
    end
  end

  def milliseconds(fun) do
    {time, _} = :timer.tc(fun)
    time / 1000
  end

  @doc "Touches memory and gives it back: a virtual machine is slow to back what was never used."
  def warm(bytes) do
    ExTorch.Tensor.release(ExTorch.ones({bytes}, dtype: :uint8))
    ExTorch.Memory.collect()
  end

  @doc "Seconds after which a virtual machine is done with handing freed memory to its host (see limits.c)."
  def rest, do: "12"

  @doc "The median of several runs, each with the garbage of the one before it gone."
  def median(runs, fun), do: runs |> times(fun) |> middle()

  def middle(list), do: list |> Enum.sort() |> Enum.at(div(length(list), 2))

  @doc "The best of several runs, for a peer that tells its best as well."
  def best(runs, fun), do: runs |> times(fun) |> Enum.min()

  defp times(runs, fun) do
    for _ <- 1..runs do
      time = milliseconds(fun)
      ExTorch.Memory.collect()
      time
    end
  end

  @doc "The median of several runs, and each of them."
  def show_runs(label, runs, note \\ ""),
    do: show(label, middle(runs), "#{note} (#{Enum.map_join(runs, ", ", &round/1)})")

  @doc "What the tickers of several runs saw, beside ours and beside the plain loops."
  def show_ticker(worst, calm) do
    IO.puts(
      "a 1 ms ticker beside it: 99.9 % of its gaps below #{Float.round(middle(worst), 2)} ms (#{each(worst)}); " <>
        "beside the plain loop in another process #{Float.round(middle(calm), 2)} ms (#{each(calm)})"
    )
  end

  defp each(list), do: Enum.map_join(list, ", ", &Float.round(&1, 1))

  def show(label, ms, note \\ ""),
    do:
      IO.puts(
        String.pad_trailing(label, 52) <>
          String.pad_leading("#{Float.round(ms * 1.0, 2)} ms", 14) <> "  " <> note
      )
end
