defmodule ExTorch.Source.HTTP.Cache do
  @moduledoc false
  # Blocks of files in a directory, shared by all processes and nodes that use it.
  #
  #   <directory>/<hash of the file>/<number of the block>
  #
  # The hash covers the URL, its validator and its size: a changed file has other blocks. A block is 1 MiB of the file (the
  # last one may be shorter) and the CRC-32 of it. It is written under a temporary name and renamed. After a crash of the
  # machine a block may be incomplete: then its checksum is wrong and it is read again. Failures to write are ignored.

  alias ExTorch.{Error, Source.HTTP}
  alias ExTorch.Source.HTTP.URL

  @block 1024 * 1024
  @touch_seconds 60
  @temporary ".tmp-"
  @temporary_seconds 3600
  @key {__MODULE__, :written}
  # Parameters of presigned URLs: they differ each time.
  @signature ~r/^(x-amz-.*|x-goog-.*|signature|expires|policy|key-pair-id|awsaccesskeyid|googleaccessid|sig|se|sp|sv|sr|st|spr|sks?)$/i

  @type fetch ::
          (non_neg_integer(), pos_integer() -> {:ok, binary()} | {:error, Error.t()})

  # Reads bytes from the cache, and those that it does not have with `fetch`.
  @spec read(HTTP.t(), non_neg_integer(), pos_integer(), fetch()) ::
          {:ok, binary()} | {:error, Error.t()}
  def read(source, offset, length, fetch) do
    case directory(source) do
      nil ->
        fetch.(offset, length)

      directory ->
        blocks = for i <- blocks(offset, length), do: {i, read_block(directory, i, source)}

        with {:ok, parts} <- fill(runs(blocks), directory, source, fetch, []) do
          from = offset - @block * div(offset, @block)
          {:ok, parts |> IO.iodata_to_binary() |> binary_part(from, length)}
        end
    end
  end

  # The ranges that read/4 will fetch for these ranges, if they are read one after another.
  @spec missing(HTTP.t(), [{non_neg_integer(), pos_integer()}]) ::
          [{non_neg_integer(), pos_integer()}]
  def missing(source, ranges) do
    case directory(source) do
      nil ->
        ranges

      directory ->
        {ranges, _seen} =
          Enum.flat_map_reduce(ranges, MapSet.new(), fn {offset, length}, seen ->
            indexes = blocks(offset, length)

            blocks =
              for i <- indexes,
                  do:
                    {i, if(i not in seen and not block?(directory, i, source), do: nil, else: "")}

            missing = for {:missing, first, last} <- runs(blocks), do: span(source, first, last)
            {missing, MapSet.union(seen, MapSet.new(indexes))}
          end)

        ranges
    end
  end

  defp blocks(offset, length), do: div(offset, @block)..div(offset + length - 1, @block)

  # Joins neighboring blocks that are missing: [{:missing, first, last} | binary].
  defp runs(blocks) do
    blocks
    |> Enum.chunk_while(
      nil,
      fn
        {i, nil}, nil -> {:cont, {i, i}}
        {i, nil}, {first, _last} -> {:cont, {first, i}}
        {_i, bytes}, nil -> {:cont, bytes, nil}
        {_i, bytes}, {first, last} -> {:cont, [{:missing, first, last}, bytes], nil}
      end,
      fn
        nil -> {:cont, nil}
        {first, last} -> {:cont, {:missing, first, last}, nil}
      end
    )
    |> List.flatten()
  end

  defp fill([], _directory, _source, _fetch, parts), do: {:ok, Enum.reverse(parts)}

  defp fill([{:missing, first, last} | runs], directory, source, fetch, parts) do
    {offset, length} = span(source, first, last)

    with {:ok, bytes} <- fetch.(offset, length) do
      for i <- first..last do
        from = (i - first) * @block
        write_block(directory, i, binary_part(bytes, from, min(@block, length - from)))
      end

      sweep(source.options, length)
      fill(runs, directory, source, fetch, [bytes | parts])
    end
  end

  defp fill([bytes | runs], directory, source, fetch, parts),
    do: fill(runs, directory, source, fetch, [bytes | parts])

  defp span(source, first, last) do
    offset = first * @block
    {offset, min((last + 1) * @block, source.opened.size) - offset}
  end

  # ---- Blocks ----

  # Returns nil for a file that cannot be identified.
  defp directory(%{opened: %{validator: nil}}), do: nil

  defp directory(%{opened: opened} = source) do
    url = source.target.()
    identity = {URL.origin(url), target(url), opened.validator, opened.size}
    hash = :crypto.hash(:sha256, :erlang.term_to_binary(identity, minor_version: 2))
    Path.join(source.options.cache, Base.encode16(binary_part(hash, 0, 16), case: :lower))
  end

  defp target(url) do
    case String.split(url.target, "?", parts: 2) do
      [path] ->
        path

      [path, query] ->
        kept =
          query
          |> String.split("&")
          |> Enum.reject(&(hd(String.split(&1, "=", parts: 2)) =~ @signature))

        Enum.join([path | kept], "&")
    end
  end

  defp block_size(i, source), do: min(@block, source.opened.size - i * @block)

  defp block?(directory, i, source) do
    match?({:ok, _}, regular(Path.join(directory, Integer.to_string(i)), block_size(i, source)))
  end

  defp read_block(directory, i, source) do
    path = Path.join(directory, Integer.to_string(i))
    size = block_size(i, source)

    with {:ok, modified} <- regular(path, size),
         {:ok, file} <- :file.open(path, [:raw, :read, :binary]) do
      result = :file.read(file, size + 4)
      :file.close(file)

      with {:ok, block} when byte_size(block) == size + 4 <- result,
           bytes = binary_part(block, 0, size),
           true <- binary_part(block, size, 4) == <<:erlang.crc32(bytes)::32>> do
        touch(path, modified)
        bytes
      else
        _ -> nil
      end
    else
      _ -> nil
    end
  end

  # Opening a FIFO would block.
  defp regular(path, size) do
    case :file.read_file_info(path, [:raw, time: :posix]) do
      {:ok, info} when elem(info, 2) == :regular and elem(info, 1) == size + 4 ->
        {:ok, elem(info, 5)}

      _ ->
        :error
    end
  end

  # The time of the last use decides which blocks are removed.
  defp touch(path, modified) do
    now = System.os_time(:second)
    if now - modified > @touch_seconds, do: File.touch(path, now)
  end

  defp write_block(directory, i, bytes) do
    name = @temporary <> Base.encode16(:crypto.strong_rand_bytes(8), case: :lower)
    temporary = Path.join(directory, name)

    with :ok <- File.mkdir_p(directory),
         {:ok, file} <- :file.open(temporary, [:raw, :write, :binary, :exclusive]) do
      written = :file.write(file, [bytes, <<:erlang.crc32(bytes)::32>>])
      closed = :file.close(file)

      if written == :ok and closed == :ok,
        do: :file.rename(temporary, Path.join(directory, Integer.to_string(i))),
        else: :file.delete(temporary)
    end
  end

  # ---- The limit ----

  # Removes blocks about every sixteenth of the limit, and once at the beginning of each process.
  defp sweep(%{cache: cache, cache_bytes: limit}, bytes) do
    written = (Process.get({@key, cache}) || limit) + bytes

    if written >= div(limit, 16) do
      Process.put({@key, cache}, 0)
      remove_oldest(files(cache), limit - div(limit, 16))
    else
      Process.put({@key, cache}, written)
    end
  end

  defp files(cache) do
    now = System.os_time(:second)

    for directory <- list(cache), name <- list(directory), reduce: [] do
      files ->
        case :file.read_file_info(name, [:raw, time: :posix]) do
          {:ok, info} when elem(info, 2) == :regular ->
            abandoned? =
              String.starts_with?(Path.basename(name), @temporary) and
                now - elem(info, 5) > @temporary_seconds

            if abandoned?, do: :file.delete(name)
            [{elem(info, 5), elem(info, 1), name} | files]

          _ ->
            files
        end
    end
  end

  defp list(directory) do
    case :file.list_dir(directory) do
      {:ok, names} -> Enum.map(names, &Path.join(directory, &1))
      {:error, _} -> []
    end
  end

  defp remove_oldest(files, limit) do
    files
    |> Enum.sort(:desc)
    |> Enum.reduce(0, fn {_, size, name}, total ->
      if total + size > limit, do: :file.delete(name)
      total + size
    end)
  end
end
