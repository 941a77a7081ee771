defmodule ExTorch.HostileFiles.Catalogue do
  @moduledoc false
  # All files of the catalogue: the pickles in each container, and the files of the other modules. An element is a map:
  # `name`, `n` (the size, a number whose meaning is the file's own), `range` of sizes, `make` (the function from a size
  # to the bytes, or to the files of a directory), `expect` (the acceptable answers), `stream` (further answers that are
  # acceptable from streams) and `kind`: a :file, an :index (the first file of a directory), or a :folder.
  alias ExTorch.HostileFiles.{Archives, Arrays, Cycles, Fixtures, Folders, Gzips, Machine}
  alias ExTorch.HostileFiles.{Rebuilds, References, Texts, Zips}
  alias ExTorch.Test.{Formats, Pickle, Zip}

  # 16 bytes: four floats, or two int64.
  @storage <<1::little-64, 0::64>>

  @doc "All files. Pickles are in a zip, and in one of the other containers: which one depends on `turn`."
  def all(turn \\ 0) do
    pickles() ++ packed(turn) ++ whole()
  end

  @doc """
  All files and the fixtures of the other tests (`turn` 0), or what differs in a later turn: the pickles in another
  container.
  """
  def turn(0), do: all(0) ++ Fixtures.all()
  def turn(turn), do: packed(turn)

  @doc "The files of the short form, without the other containers of pickles."
  def short, do: pickles() ++ whole()

  defp whole,
    do:
      Zips.all() ++ Archives.all() ++ Gzips.all() ++ Texts.all() ++ Folders.all() ++ Arrays.all()

  @doc "The bytes of a file of the given size, or the files of a directory."
  def bytes(file, n), do: file.make.(n)

  defp pickles, do: for(pickle <- all_pickles(), do: file(pickle, :zip))

  # `{name, size, smallest, largest, expected answers, fn tensor, size -> instructions end}`
  defp all_pickles,
    do:
      for(
        {name, n, low, high, expect, make} <- all_values(),
        do: {name, n, low, high, expect, fn tensor, n -> ["(", make.(tensor, n), "t"] end}
      ) ++ Machine.plain()

  defp all_values, do: References.all() ++ Cycles.all() ++ Machine.all() ++ Rebuilds.all()

  defp packed(turn) do
    for {pickle, i} <- Enum.with_index(all_pickles()),
        do:
          file(
            pickle,
            Enum.at([:deflated, :legacy, :plain, :torch_stream, :gzip], rem(i + turn, 5))
          )
  end

  defp file({name, n, low, high, expect, make}, container) do
    %{
      name: "#{container}: #{name}",
      n: n,
      range: low..high,
      kind: :file,
      gzip: container == :gzip,
      make: fn n -> contain(container, make, n) end,
      # A plain pickle has no storages outside.
      expect:
        if(container == :plain, do: expect ++ [:corrupt], else: expect) ++
          if(container in [:deflated, :gzip], do: [:limit], else: []),
      stream:
        if(container in [:gzip, :deflated, :plain],
          do: [:unsupported, :truncated, :corrupt],
          else: []
        )
    }
  end

  defp contain(:zip, make, n),
    do: Zip.checkpoint(Pickle.make(make.(tensor5(), n)), %{"0" => @storage})

  defp contain(:deflated, make, n) do
    Zip.make([
      Zip.deflated({"archive/data.pkl", Pickle.make(make.(tensor5(), n))}),
      {"archive/data/0", @storage},
      {"archive/version", "3\n"}
    ])
  end

  # Every listed storage of a legacy file must be used.
  defp contain(:legacy, make, n) do
    tensor = Formats.tensor_of(Formats.legacy_storage(numel: 4), 4)
    Formats.legacy([tensor, make.(tensor, n), <<0x86>>], ["0"], [<<4::little-64>>, @storage])
  end

  defp contain(:plain, make, n),
    do: Pickle.make(make.(Formats.numpy_array([2], "f4", <<0::64>>), n))

  defp contain(:torch_stream, make, n) do
    pickle = Pickle.make(make.(tensor5(), n))

    Formats.torch_stream(
      [
        Formats.torch_stream_entry("data.pkl", Pickle.int(byte_size(pickle))),
        Formats.torch_stream_entry("data/0", Pickle.int(16))
      ],
      [pickle, @storage]
    )
  end

  defp contain(:gzip, make, n), do: :zlib.gzip(contain(:zip, make, n))

  defp tensor5, do: Pickle.tensor()
end
