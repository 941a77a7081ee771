# Loads, saves and streams while calls of extorch.so fail. Runs in a VM with preload.c, see faults.exs.
#
# arguments: a directory, seconds, a seed. Prints one line, and exits with status 1 after the first violation.
defmodule Faults do
  alias ExTorch.{Checkpoint, Error, Memory, Streaming, Tensor}
  alias ExTorch.Test.FileSource

  @classes [memory: 1, read: 2, write: 4, sync: 8, rename: 16, map: 32, thread: 64, open: 128]
  # ENOMEM, EIO, ENOSPC, EMFILE; EINTR is retried.
  @errors [memory: [12], read: [5, 4], write: [5, 28, 4], sync: [5], rename: [5, 28]] ++
            [map: [12], thread: [11], open: [5, 24, 13]]
  @eintr 4
  @formats [:zip, :legacy, :streaming, :safetensors]

  # ---- Control of the preloaded library ----

  defp control(fail_at, repeat, class, error) do
    numbers = for n <- [fail_at, repeat, @classes[class], error, 0, 0], do: <<n::little-64>>
    with_file(&(:ok = :file.pwrite(&1, 0, numbers)))
  end

  defp no_faults, do: control(0, 0, :memory, 0)

  defp failed do
    {:ok, <<failed::little-64>>} = with_file(&:file.pread(&1, 40, 8))
    failed
  end

  defp with_file(fun) do
    {:ok, io} = :file.open(System.fetch_env!("EXTORCH_FAULTS"), [:read, :write, :raw, :binary])
    result = fun.(io)
    :ok = :file.close(io)
    result
  end

  # ---- What is done ----

  def term do
    %{
      "small" => ExTorch.tensor([1.0, 2.0, 3.0]),
      "nested" => [%{"ids" => ExTorch.arange(1000)}, ExTorch.ones({3, 4}, dtype: :float64)],
      "large" => ExTorch.full({800, 1000}, 7.0),
      "text" => "a text",
      "numbers" => Enum.to_list(1..50)
    }
  end

  defp flat, do: %{"a" => ExTorch.arange(1000), "b" => ExTorch.full({800, 1000}, 7.0)}

  # name => function that returns {:ok, comparable} | {:error, error}
  defp scenarios(dir) do
    files =
      for name <- ~w(zip.pt legacy.pt streaming.pt flat.safetensors), do: Path.join(dir, name)

    loads =
      for file <- files,
          {kind, opts} <- [load: [], verify: [verify: true], mmap: [mmap: true]],
          do: {{kind, Path.basename(file)}, fn -> load(file, opts) end}

    lazy =
      for file <- files,
          mmap <- [false, true],
          do: {{:lazy, mmap, Path.basename(file)}, fn -> lazy(file, mmap: mmap) end}

    sources =
      for file <- files,
          do: {{:source, Path.basename(file)}, fn -> load(%FileSource{path: file}, []) end}

    streams = for file <- files, do: {{:stream, Path.basename(file)}, fn -> stream(file) end}

    fixtures =
      for file <- ~w(more/tar.pt more/numpy.pt more/sparse.pt 2.14.1/script.pt),
          file = Path.join("test/fixtures", file),
          File.exists?(file),
          do: {{:fixture, file}, fn -> load(file, []) end}

    saves =
      for format <- @formats,
          do: {{:save, format}, fn -> save(target(dir, format), format) end}

    emits =
      for format <- [:zip, :streaming, :safetensors],
          do: {{:emit, format}, fn -> emit(format) end}

    loads ++ lazy ++ sources ++ streams ++ fixtures ++ saves ++ emits
  end

  defp load(source, opts) do
    with {:ok, term} <- ExTorch.load(source, opts), do: {:ok, digest(term)}
  end

  defp lazy(file, opts) do
    with {:ok, ckpt} <- Checkpoint.open(file, opts) do
      result =
        Enum.reduce_while(Checkpoint.keys(ckpt), {:ok, []}, fn name, {:ok, all} ->
          case Checkpoint.tensor(ckpt, name) do
            {:ok, tensor} -> {:cont, {:ok, [{name, digest(tensor)} | all]}}
            {:error, _} = error -> {:halt, error}
          end
        end)

      Checkpoint.close(ckpt)
      result
    end
  end

  defp stream(file) do
    case Streaming.load(ExTorch.Case.chunks(File.read!(file), [10_000])) do
      {:ok, term, _rest} -> {:ok, digest(term)}
      {:error, _} = error -> error
    end
  end

  defp save(path, format) do
    with :ok <- ExTorch.save(value(format), path, format: format), do: {:ok, :saved}
  end

  defp value(:safetensors), do: flat()
  defp value(_format), do: term()

  # The target holds the old or the new value, whatever happened.
  defp check_target(dir, format, result) do
    path = target(dir, format)
    {found, new} = {digest(ExTorch.load!(path, verify: true)), digest(value(format))}

    complete? =
      match?({:ok, _}, result) or elem(result, 1).message =~ "the file was saved completely"

    if found != if(complete?, do: new, else: digest(old_value(format))) do
      fail("after #{inspect(result)} the target holds another value")
    end

    write_old(dir, format)
  end

  defp target(dir, format), do: Path.join(dir, "target.#{format}")
  defp old_value(:safetensors), do: %{}
  defp old_value(_format), do: "the old value"

  defp write_old(dir, format),
    do: :ok = ExTorch.save(old_value(format), target(dir, format), format: format)

  defp emit(format) do
    value = if format == :safetensors, do: flat(), else: term()

    {:ok,
     value
     |> Streaming.save(format: format)
     |> Enum.into([])
     |> IO.iodata_to_binary()
     |> :erlang.md5()}
  end

  # A value that can be compared, without native memory.
  defp digest(%Tensor{} = tensor) do
    if Tensor.strides(tensor), do: :erlang.md5(Tensor.to_binary(tensor)), else: inspect(tensor)
  end

  defp digest(%struct{} = value), do: {struct, value |> Map.from_struct() |> digest()}
  defp digest(map) when is_map(map), do: Map.new(map, fn {k, v} -> {digest(k), digest(v)} end)
  defp digest(list) when is_list(list), do: Enum.map(list, &digest/1)
  defp digest(tuple) when is_tuple(tuple), do: tuple |> Tuple.to_list() |> digest()
  defp digest(other), do: other

  # ---- One call with a fault ----

  # In a process of its own, so that nothing stays on a heap. {:ok, value} | {:error, error}
  defp run(fun) do
    Task.async(fn ->
      try do
        fun.()
      rescue
        error in Error -> {:error, error}
      end
    end)
    |> Task.await(60_000)
  end

  defp fail(message), do: throw({:violation, message})

  defp check(name, class, error, fail_at, expected, result, before, dir) do
    what = "#{inspect(name)}, #{class} #{error} at call #{fail_at}"

    case result do
      ^expected -> :ok
      {:error, %Error{message: message}} when message != "" -> :ok
      other -> fail("#{what}: unexpected result #{inspect(other, limit: 5)}")
    end

    if error == @eintr and result != expected,
      do: fail("#{what}: EINTR was not retried: #{inspect(result)}")

    settled?(before, 200) ||
      fail("#{what}: leaked #{inspect(Memory.live())}, before #{inspect(before)}")

    left = for file <- File.ls!(dir), String.starts_with?(file, ".extorch"), do: file
    if left != [], do: fail("#{what}: temporary files are left: #{inspect(left)}")
  end

  defp settled?(before, tries) do
    Memory.collect()

    cond do
      Memory.live() == before -> true
      tries == 0 -> false
      true -> Process.sleep(10) && settled?(before, tries - 1)
    end
  end

  defp descriptors, do: length(File.ls!("/proc/self/fd"))

  # Fails the calls of one class one after the other until no call fails, or the time is over.
  defp sweep(name, fun, class, error, repeat, stride, dir, deadline) do
    no_faults()
    before = Memory.live()
    expected = run(fun)

    unless match?({:ok, _}, expected),
      do: fail("#{inspect(name)} fails without a fault: #{inspect(expected)}")

    settled?(before, 200) || fail("#{inspect(name)} leaks without a fault")
    if match?({:save, _}, name), do: write_old(dir, elem(name, 1))
    open = descriptors()

    injected =
      Enum.reduce_while(Stream.iterate(1, &(&1 + stride)), 0, fn fail_at, injected ->
        control(fail_at, repeat, class, error)
        result = run(fun)
        failed = failed()
        no_faults()
        check(name, class, error, fail_at, expected, result, before, dir)
        if match?({:save, _}, name), do: check_target(dir, elem(name, 1), result)
        if failed == 0 or over?(deadline), do: {:halt, injected}, else: {:cont, injected + failed}
      end)

    settled?(before, 200) || fail("#{inspect(name)} leaks")
    if descriptors() > open + 2, do: fail("#{inspect(name)}: descriptors leak")
    injected
  end

  defp over?(deadline), do: System.monotonic_time(:millisecond) > deadline

  # ---- The whole run ----

  def main([dir, seconds, seed]) do
    :rand.seed(:exsss, String.to_integer(seed))
    deadline = System.monotonic_time(:millisecond) + 1000 * String.to_integer(seconds)
    prepare(dir)
    scenarios = scenarios(dir)

    pairs =
      Enum.shuffle(
        for {name, fun} <- scenarios,
            {class, errors} <- @errors,
            error <- errors,
            do: {name, fun, class, error}
      )

    {injected, sweeps} = rounds(pairs, dir, deadline, {0, 0})
    IO.puts("faults #{injected} sweeps #{sweeps} of #{length(pairs)}")
  catch
    {:violation, message} ->
      IO.puts("violation: #{message}")
      System.halt(1)
  end

  # Every pair once with many calls skipped, then again with all of them.
  defp rounds(pairs, dir, deadline, total) do
    Enum.reduce_while(Stream.cycle([11, 3, 1]), total, fn stride, total ->
      total =
        Enum.reduce_while(pairs, total, fn {name, fun, class, error}, {injected, sweeps} ->
          repeat = if error == @eintr, do: 3, else: Enum.random([1, 1, 1_000_000])
          count = sweep(name, fun, class, error, repeat, stride, dir, deadline)
          total = {injected + count, sweeps + 1}

          if over?(deadline),
            do: {:halt, total},
            else: {:cont, total}
        end)

      if over?(deadline), do: {:halt, total}, else: {:cont, total}
    end)
  end

  defp prepare(dir) do
    for {file, format} <- [{"zip.pt", :zip}, {"legacy.pt", :legacy}, {"streaming.pt", :streaming}],
        do: :ok = ExTorch.save(term(), Path.join(dir, file), format: format)

    :ok = ExTorch.save(flat(), Path.join(dir, "flat.safetensors"))
    for format <- @formats, do: write_old(dir, format)
    Memory.collect()
  end
end

Faults.main(System.argv())
