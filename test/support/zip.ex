defmodule ExTorch.Test.Zip do
  @moduledoc false
  # Writes zip files in which every field can be changed.

  @doc """
  A zip file. Records are `{name, data}` or `{name, data, changes}`. The changes of a record are `:method`, `:flags`,
  `:crc`, `:size`, `:packed` and `:offset` (in the central directory), `:local` (a keyword list of the same for the
  local header) and `:bytes` (the bytes to store instead of the data). Options: `:align`, `:tail` (bytes after the end),
  `:entries`, `:directory_size`, `:directory_offset`, `:end64`.
  """
  def make(records, opts \\ []) do
    {body, central} =
      Enum.reduce(records, {<<>>, []}, fn record, {body, central} ->
        {name, data, changes} = normal(record)
        offset = byte_size(body)
        {local, directory} = record(name, data, changes, offset, opts[:align])
        {body <> local, [directory | central]}
      end)

    directory = central |> Enum.reverse() |> IO.iodata_to_binary()
    count = opts[:entries] || length(records)
    size = opts[:directory_size] || byte_size(directory)
    at = opts[:directory_offset] || byte_size(body)

    end64 =
      if opts[:end64] do
        wide =
          Keyword.merge(
            [entries: count, size: size, offset: at, at: byte_size(body) + byte_size(directory)],
            opts[:end64]
          )

        entries = wide[:entries]

        <<"PK", 6, 6, 44::little-64, 0::16, 0::16, 0::32, 0::32, entries::little-64,
          entries::little-64, wide[:size]::little-64, wide[:offset]::little-64, "PK", 6, 7, 0::32,
          wide[:at]::little-64, 1::little-32>>
      else
        <<>>
      end

    body <>
      directory <>
      end64 <>
      <<"PK", 5, 6, 0::16, 0::16, count::little-16, count::little-16, size::little-32,
        at::little-32,
        0::16>> <>
      (opts[:tail] || <<>>)
  end

  @doc "A checkpoint with a pickle and storages `%{\"0\" => bytes}`. The option `:more` is a list of further records."
  def checkpoint(pickle, storages \\ %{}, opts \\ []) do
    more = Keyword.get(opts, :more, [])

    make(
      [{"archive/data.pkl", pickle}] ++
        for({key, bytes} <- storages, do: {"archive/data/" <> key, bytes}) ++
        more ++ [{"archive/version", "3\n"}],
      Keyword.put_new(opts, :align, 64)
    )
  end

  @doc "The contents of a zip file as records for make/2."
  def unzip(zip) do
    {:ok, files} = :zip.unzip(zip, [:memory])
    for {name, data} <- files, do: {to_string(name), data}
  end

  @doc "The record with its data deflated."
  def deflated({name, data}), do: {name, data, method: 8, bytes: deflate(data)}

  @doc "The record deflated and with its sizes only after the data, as programs write it that cannot seek."
  def with_descriptor({name, data}) do
    packed = deflate(data)
    size = byte_size(packed)

    descriptor =
      <<"PK", 7, 8, :erlang.crc32(data)::little-32, size::little-32, byte_size(data)::little-32>>

    {name, data,
     method: 8,
     flags: 8,
     bytes: packed <> descriptor,
     packed: size,
     local: [crc: 0, size: 0, packed: 0]}
  end

  defp deflate(data) do
    z = :zlib.open()
    :zlib.deflateInit(z, :default, :deflated, -15, 8, :default)
    packed = z |> :zlib.deflate(data, :finish) |> IO.iodata_to_binary()
    :zlib.close(z)
    packed
  end

  defp normal({name, data}), do: {name, data, []}
  defp normal(record), do: record

  defp record(name, data, changes, offset, align) do
    stored = changes[:bytes] || data

    base = [
      method: 0,
      flags: 0,
      crc: :erlang.crc32(data),
      size: byte_size(data),
      packed: byte_size(stored),
      offset: offset,
      name: name
    ]

    central = Keyword.merge(base, Keyword.drop(changes, [:local, :bytes]))

    local =
      base
      |> Keyword.merge(Keyword.take(changes, [:method, :flags]))
      |> Keyword.merge(changes[:local] || [])

    pad = if align, do: rem(align - rem(offset + 30 + byte_size(local[:name]) + 4, align), align)
    extra = if pad, do: <<"FB", pad::little-16, String.duplicate("Z", pad)::binary>>, else: <<>>

    {<<"PK", 3, 4, 20::little-16, local[:flags]::little-16, local[:method]::little-16, 0::32,
       local[:crc]::little-32, local[:packed]::little-32, local[:size]::little-32,
       byte_size(local[:name])::little-16, byte_size(extra)::little-16, local[:name]::binary,
       extra::binary, stored::binary>>,
     <<"PK", 1, 2, 20::little-16, 20::little-16, central[:flags]::little-16,
       central[:method]::little-16, 0::32, central[:crc]::little-32, central[:packed]::little-32,
       central[:size]::little-32, byte_size(central[:name])::little-16, 0::16, 0::16, 0::16,
       0::16, 0::32, central[:offset]::little-32, central[:name]::binary>>}
  end

  @doc "The records in the central directory of a zip file, with the offset of their data."
  def records(zip) do
    {at, _} = zip |> :binary.matches(<<"PK", 5, 6>>) |> List.last()
    <<"PK", 5, 6, _::64, size::little-32, offset::little-32, _::binary>> = from(zip, at)
    zip |> binary_part(offset, size) |> entries(zip)
  end

  defp entries(<<>>, _zip), do: []

  defp entries(
         <<"PK", 1, 2, made::little-16, needed::little-16, flags::little-16, method::little-16,
           _time::32, crc::little-32, _packed::little-32, size::little-32, name_size::little-16,
           extra::little-16, comment::little-16, _::64, header::little-32,
           name::binary-size(name_size), _::binary-size(extra), _::binary-size(comment),
           rest::binary>>,
         zip
       ) do
    <<"PK", 3, 4, _::binary-22, local_name::little-16, local_extra::little-16, _::binary>> =
      from(zip, header)

    entry = %{
      name: name,
      version: {made, needed},
      flags: flags,
      method: method,
      crc: crc,
      size: size,
      data: header + 30 + local_name + local_extra
    }

    [entry | entries(rest, zip)]
  end

  defp from(binary, at), do: binary_part(binary, at, byte_size(binary) - at)
end
