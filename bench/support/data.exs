defmodule Bench.Data do
  @moduledoc false
  # Checkpoint files for the benchmarks, written without Python.

  @doc "A directory for the files of a run, in /dev/shm when it has 6 GiB of room. It is removed at the end."
  def dir do
    base =
      if File.dir?("/dev/shm") and free("/dev/shm") > 6 * 1024 ** 3,
        do: "/dev/shm",
        else: System.tmp_dir!()

    dir = Path.join(base, "extorch_bench_#{System.pid()}")
    File.mkdir_p!(dir)
    System.at_exit(fn _status -> File.rm_rf!(dir) end)
    dir
  end

  defp free(dir) do
    {text, 0} = System.cmd("df", ["--output=avail", "-B1", dir])
    text |> String.split() |> List.last() |> String.to_integer()
  end

  @doc "The sizes of 291 tensors like those of a language model: 2.0 GB of float16."
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

  def llm_sizes_total, do: 2 * Enum.sum(llm_sizes())

  @doc "The name of the tensor with this number."
  def name(i), do: "layers.#{div(i, 9)}.block.#{rem(i, 9)}.weight"

  @doc "Writes a zip checkpoint of one-dimensional tensors with the given numbers of elements."
  def write(path, sizes, item_size \\ 4, class \\ "FloatStorage") do
    File.rm(path)
    {:ok, file} = File.open(path, [:write, :raw, :binary, :delayed_write])
    pickle = pickle(sizes, class)
    block = block()

    records =
      [{"archive/data.pkl", byte_size(pickle), [pickle]}] ++
        for(
          {size, i} <- Enum.with_index(sizes),
          do: {"archive/data/#{i}", size * item_size, blocks(block, size * item_size)}
        ) ++
        [{"archive/version", 2, ["3\n"]}]

    {central, size} =
      Enum.reduce(records, {[], 0}, fn {name, bytes, data}, {central, at} ->
        padding = rem(64 - rem(at + 30 + byte_size(name) + 4, 64), 64)
        crc = Enum.reduce(data, 0, fn piece, crc -> :erlang.crc32(crc, piece) end)

        :ok =
          :file.write(file, [
            <<"PK", 3, 4, 0::16, 0x0808::little-16, 0::16, 0::32, 0::96,
              byte_size(name)::little-16, padding + 4::little-16>>,
            name,
            <<"FB", padding::little-16>>,
            String.duplicate("Z", padding),
            data,
            <<"PK", 7, 8, crc::little-32, bytes::little-32, bytes::little-32>>
          ])

        entry =
          <<"PK", 1, 2, 0::32, 0x0808::little-16, 0::16, 0::32, crc::little-32, bytes::little-32,
            bytes::little-32, byte_size(name)::little-16, 0::96, at::little-32, name::binary>>

        {[entry | central], at + 30 + byte_size(name) + 4 + padding + bytes + 16}
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

  @doc "Writes the same tensors as a legacy file."
  def write_legacy(path, sizes, item_size \\ 4, class \\ "FloatStorage") do
    File.rm(path)
    {:ok, file} = File.open(path, [:write, :raw, :binary, :delayed_write])
    block = block()
    keys = for i <- 0..(length(sizes) - 1), do: text("#{i}")

    :ok =
      :file.write(file, [
        <<0x80, 2, 0x8A, 10, 0x6C, 0xFC, 0x9C, 0x46, 0xF9, 0x20, 0x6A, 0xA8, 0x50, 0x19, ".">>,
        <<0x80, 2, "M", 1001::little-16, ".">>,
        [<<0x80, 2>>, "}(", text("protocol_version"), <<"M", 1001::little-16>>]
        |> Kernel.++([text("little_endian"), <<0x88>>, "u."]),
        pickle(sizes, class, "N"),
        [<<0x80, 2>>, "](", keys, "e."]
      ])

    for size <- sizes,
        do: :ok = :file.write(file, [<<size::little-64>>, blocks(block, size * item_size)])

    :ok = File.close(file)
    path
  end

  @doc "Writes float32 tensors of 64 elements as a safetensors file."
  def write_safetensors(path, count) do
    json =
      Enum.map_join(0..(count - 1), ",", fn i ->
        ~s("#{name(i)}":{"dtype":"F32","shape":[64],"data_offsets":[#{256 * i},#{256 * (i + 1)}]})
      end)

    json = "{" <> json <> "}"
    json = json <> String.duplicate(" ", rem(8 - rem(byte_size(json), 8), 8))
    data = :binary.copy(<<1.5::float-32-little>>, 64 * count)
    File.write!(path, [<<byte_size(json)::little-64>>, json, data])
    path
  end

  defp block, do: :binary.copy(<<1.5::float-32-little>>, 1024 * 1024)

  defp blocks(block, bytes) do
    List.duplicate(block, div(bytes, byte_size(block))) ++
      [binary_part(block, 0, rem(bytes, byte_size(block)))]
  end

  defp text(string), do: <<"X", byte_size(string)::little-32, string::binary>>

  # `view` is the sixth element of a legacy file's persistent ids.
  defp pickle(sizes, class, view \\ []) do
    tensors =
      for {size, i} <- Enum.with_index(sizes) do
        [
          text(name(i)),
          "ctorch._utils\n_rebuild_tensor_v2\n((",
          text("storage"),
          "ctorch\n#{class}\n",
          text("#{i}"),
          text("cpu"),
          <<"J", size::little-32>>,
          view,
          "tQK\0",
          <<"J", size::little-32, 0x85, "K", 1, 0x85, 0x89>>,
          "ccollections\nOrderedDict\n)RtR"
        ]
      end

    IO.iodata_to_binary([<<0x80, 2>>, "}(", tensors, "u."])
  end
end
