# What one process of lifetimes.exs does, and how the state of the node is compared.

defmodule Lifetimes.State do
  # What the node holds outside Erlang's heaps.
  def now(dir) do
    Map.merge(ExTorch.Memory.live(), %{
      fds: length(File.ls!("/proc/self/fd")),
      maps: count(File.read!("/proc/self/maps"), dir),
      os_threads: length(File.ls!("/proc/self/task")),
      files: dir |> File.ls!() |> Enum.sort()
    })
  end

  defp count(text, part), do: length(String.split(text, part)) - 1

  # Waits until the state is as expected. Returns the differences that are left.
  def wait(expected, dir, milliseconds) do
    ExTorch.Memory.collect()
    left = for {key, value} <- now(dir), Map.fetch!(expected, key) != value, do: {key, value}

    cond do
      left == [] ->
        []

      milliseconds <= 0 ->
        for {key, value} <- left, do: {key, Map.fetch!(expected, key), value}

      true ->
        Process.sleep(50)
        wait(expected, dir, milliseconds - 50)
    end
  end

  def rss do
    [_, kb] = Regex.run(~r/VmRSS:\s+(\d+) kB/, File.read!("/proc/self/status"))
    String.to_integer(kb) * 1024
  end
end

defmodule Lifetimes.Source do
  @behaviour ExTorch.Source
  defstruct [:path, :file]
  def size(source), do: {:ok, File.stat!(source.path).size}

  def read_at(source, offset, length) do
    with {:ok, file} <- :file.open(source.path, [:read, :raw, :binary]) do
      try do
        :file.pread(file, offset, length)
      after
        :file.close(file)
      end
    end
  end

  def close(_source), do: :ok
end

defmodule Lifetimes.Worker do
  # One process: does random actions with the things that it has made or received.
  alias ExTorch.{Archive, Checkpoint, Streaming, Tensor}
  alias ExTorch.Tensor.Blob

  @formats [:zip, :legacy, :streaming, :safetensors]
  @actions [
    :create,
    :compute,
    :release,
    :binary,
    :blob,
    :load,
    :load_damaged,
    :load_source,
    :open,
    :read,
    :close,
    :stream,
    :feed,
    :feed,
    :tensors,
    :save,
    :save_stream,
    :archive,
    :give,
    :give,
    :give,
    :collect
  ]

  def actions, do: Enum.uniq(@actions)

  def run(context, seed, count) do
    :rand.seed(:exsss, seed)
    Enum.reduce(1..count, [], fn _, things -> act(context, things, Enum.random(@actions)) end)
  end

  def act(context, things, action) do
    :counters.add(context.counters, 1, 1)
    things = things |> receive_things() |> Enum.take(12)

    try do
      do_act(action, context, things)
    rescue
      error in ExTorch.Error ->
        expected!(error, action)
        :counters.add(context.counters, 2, 1)
        things
    end
  end

  # Reasons that damaged data, released things and old loaders may have.
  @reasons [
             :released,
             :stale,
             :busy,
             :frozen,
             :corrupt,
             :truncated,
             :limit,
             :unsupported,
             :forbidden
           ] ++
             [:stopping, :closed, :not_found, :ambiguous]
  defp expected!(%{reason: reason}, _action) when reason in @reasons, do: :ok
  defp expected!(error, action), do: exit({:unexpected, action, error})

  defp receive_things(things) do
    receive do
      {:thing, thing} -> receive_things([thing | things])
    after
      0 -> things
    end
  end

  defp pick(things, kind) do
    case Enum.filter(things, &(elem(&1, 0) == kind)) do
      [] -> nil
      list -> list |> Enum.random() |> elem(1)
    end
  end

  defp file(context), do: Enum.random(context.files)

  # The tensors of all files: "t3" is filled with 3.0.
  defp check!(%{} = term) do
    for {"t" <> i = name, %Tensor{} = tensor} <- term, :rand.uniform(4) == 1 do
      value = ExTorch.op("select", [tensor, 0, 0]) |> Tensor.to_list()
      unless value == String.to_integer(i) * 1.0, do: exit({:unexpected, name, value})
    end

    term
  end

  defp do_act(:create, _context, things) do
    n = Enum.random([1, 100, 10_000, 1_000_000])
    [{:tensor, ExTorch.op("full", [[n], 2.0])} | things]
  end

  defp do_act(:compute, _context, things) do
    a = pick(things, :tensor) || ExTorch.zeros({1000})
    [{:tensor, ExTorch.add(a, a)}, {:tensor, ExTorch.op("slice", [a, 0, 0, 10])} | things]
  end

  defp do_act(:release, _context, things) do
    if t = pick(things, :tensor), do: Tensor.release(t)
    things
  end

  defp do_act(:binary, _context, things) do
    binary = Tensor.to_binary(pick(things, :tensor) || ExTorch.zeros({5000}))
    shared = Tensor.from_binary(binary, {div(byte_size(binary), 4)}, :float32)
    [{:binary, binary}, {:tensor, shared} | things]
  end

  defp do_act(:blob, _context, things) do
    blob = Blob.to_blob(pick(things, :tensor) || ExTorch.zeros({5000}))
    [{:blob, blob}, {:tensor, Blob.from_blob(blob)} | things]
  end

  defp do_act(:load, context, things) do
    opts = Enum.random([[], [verify: true], [mmap: true], [only: ~r/[1-3]$/]])
    term = check!(ExTorch.load!(file(context), opts))
    [{:tensor, term |> Map.values() |> Enum.random()} | things]
  end

  defp do_act(:load_damaged, context, things) do
    bytes = File.read!(file(context))
    at = :rand.uniform(min(byte_size(bytes), Enum.random([2_000, 10_000_000]))) - 1
    part = binary_part(bytes, 0, at)
    rest = binary_part(bytes, at + 1, byte_size(bytes) - at - 1)
    damaged = Enum.random([part, part <> <<:rand.uniform(256) - 1>> <> rest])
    with {:error, error} <- ExTorch.load({:binary, damaged}), do: expected!(error, :load_damaged)
    with {:error, error} <- Streaming.load([damaged]), do: expected!(error, :load_damaged)
    things
  end

  defp do_act(:load_source, context, things) do
    term = ExTorch.load!(%{__struct__: Lifetimes.Source, path: file(context), file: nil})
    [{:tensor, check!(term)["t1"]} | things]
  end

  defp do_act(:open, context, things),
    do: [{:ckpt, Checkpoint.open!(file(context), mmap: Enum.random([true, false]))} | things]

  defp do_act(:read, context, things) do
    ckpt = pick(things, :ckpt) || Checkpoint.open!(file(context))
    [{:tensor, Checkpoint.tensor!(ckpt, "t#{:rand.uniform(8)}")} | things]
  end

  defp do_act(:close, _context, things) do
    if ckpt = pick(things, :ckpt), do: Checkpoint.close(ckpt)
    things
  end

  defp do_act(:stream, context, things) do
    size = Enum.random([1000, 50_000, 1_000_000])
    {:ok, term, ""} = context |> file() |> chunks(size) |> Streaming.load()
    check!(term)
    things
  end

  # A loader together with the bytes that it has not got yet.
  defp do_act(:feed, context, things) do
    {loader, bytes} = pick(things, :loader) || {Streaming.loader(), File.read!(file(context))}
    size = min(byte_size(bytes), Enum.random([1, 1000, 300_000, 2_000_000]))

    case Streaming.feed(loader, binary_part(bytes, 0, size)) do
      {:more, loader} ->
        [{:loader, {loader, binary_part(bytes, size, byte_size(bytes) - size)}} | things]

      {:done, term, ""} ->
        check!(term)
        things

      {:error, error} ->
        raise error
    end
  end

  defp do_act(:tensors, context, things) do
    taken =
      context
      |> file()
      |> chunks(100_000)
      |> Streaming.tensors()
      |> Enum.take(:rand.uniform(9) - 1)

    Enum.map(taken, fn {_name, tensor} -> {:tensor, tensor} end) ++ things
  end

  defp do_act(:save, context, things) do
    path = Path.join(context.dir, "saved#{:rand.uniform(5)}.pt")

    ExTorch.save!(some_tensors(things), path,
      format: Enum.random(@formats),
      fsync: false,
      duplicate: true
    )

    things
  end

  defp do_act(:save_stream, _context, things) do
    chunks =
      Streaming.save(some_tensors(things),
        format: Enum.random(@formats),
        chunk: 10_000,
        duplicate: true
      )

    [{:binary, Enum.take(chunks, :rand.uniform(50))} | things]
  end

  defp do_act(:archive, context, things) do
    tensors = [ExTorch.zeros({1000}), ExTorch.ones({1000})]
    path = Path.join(context.dir, "saved#{:rand.uniform(5)}.archive")
    Archive.save!(tensors, path)
    [tensor | _] = Archive.load!(path, as: :list)
    [{:tensor, tensor} | things]
  end

  defp do_act(:give, context, things) do
    peers = :ets.lookup(context.peers, :rand.uniform(context.width))
    for {_, pid} <- peers, thing <- Enum.take_random(things, 2), do: send(pid, {:thing, thing})
    things
  end

  defp do_act(:collect, _context, _things) do
    :erlang.garbage_collect()
    []
  end

  defp some_tensors(things) do
    tensors = for {:tensor, %Tensor{} = tensor} <- things, do: tensor
    for {tensor, i} <- Enum.with_index(Enum.take(tensors, 5)), into: %{}, do: {"x#{i}", tensor}
  end

  defp chunks(path, size) do
    bytes = File.read!(path)

    Stream.unfold(0, fn
      at when at >= byte_size(bytes) -> nil
      at -> {binary_part(bytes, at, min(size, byte_size(bytes) - at)), at + size}
    end)
  end
end
