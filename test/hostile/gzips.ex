defmodule ExTorch.HostileFiles.Gzips do
  @moduledoc false
  # Hostile gzip files.
  import ExTorch.HostileFiles.Entry
  import ExTorch.HostileFiles.Zips, only: [valid: 1]
  import ExTorch.Test.Pickle
  alias ExTorch.Test.Zip

  def all, do: gzips()

  defp gzips do
    [
      gzip("gzip: a tensor of zeros", 50_000_000, 1_000_000..300_000_000, [:ok, :limit], fn n ->
        n = div(n, 4)

        :zlib.gzip(
          Zip.checkpoint(make(tensor(numel: int(n), size: tuple([int(n)]))), %{
            "0" => :binary.copy(<<0>>, 4 * n)
          })
        )
      end),
      gzip(
        "gzip: four elements of a storage of zeros",
        100_000_000,
        1_000_000..300_000_000,
        [:ok, :limit],
        fn n ->
          :zlib.gzip(
            Zip.checkpoint(make(tensor(numel: int(div(n, 4)))), %{
              "0" => :binary.copy(<<0>>, 4 * div(n, 4))
            })
          )
        end
      ),
      gzip("gzip: zeros", 100_000_000, 1_000_000..400_000_000, [:corrupt, :limit], fn n ->
        :zlib.gzip(:binary.copy(<<0>>, n))
      end),
      gzip(
        "gzip: a plain pickle of zeros",
        30_000_000,
        1_000_000..60_000_000,
        [:ok, :limit],
        fn n ->
          :zlib.gzip(make([<<0x8E, n::little-64>>, :binary.copy(<<0>>, n)]))
        end
      ),
      gzip(
        "gzip: a plain pickle of empty lists",
        10_000_000,
        1_000_000..60_000_000,
        [:ok, :limit],
        fn n ->
          :zlib.gzip(make(["](", :binary.copy("]", n), "e"]))
        end
      ),
      gzip(
        "gzip: a safetensors header of spaces",
        50_000_000,
        1_000_000..99_000_000,
        [:ok, :limit, :corrupt],
        fn n ->
          :zlib.gzip([<<n::little-64>>, "{}", :binary.copy(" ", n - 2)])
        end
      ),
      gzip("gzip: empty safetensors tensors", 100_000, 1_000..1_000_000, [:ok, :limit], fn n ->
        :zlib.gzip(ExTorch.HostileFiles.Texts.empty_tensors(n))
      end),
      gzip("gzip: in gzip", 10_000_000, 1_000..300_000_000, [:unsupported, :limit], fn n ->
        :zlib.gzip(:zlib.gzip(:binary.copy(<<0>>, n)))
      end),
      gzip(
        "gzip: empty members",
        50_000,
        2..1_000_000,
        [:corrupt, :truncated, :unsupported, :limit],
        fn n ->
          :binary.copy(:zlib.gzip(""), n)
        end
      ),
      gzip("gzip: empty members before a checkpoint", 50_000, 2..1_000_000, [:ok, :limit], fn n ->
        [:binary.copy(:zlib.gzip(""), n), :zlib.gzip(valid([]))]
      end),
      gzip("gzip: members of one byte", 20_000, 2..100_000, [:ok], fn n ->
        zip = valid([{"a/extra/x", :binary.copy("x", n)}])
        for <<byte <- zip>>, do: :zlib.gzip(<<byte>>)
      end),
      gzip("gzip: members of zeros", 100, 2..300, [:corrupt, :limit], fn n ->
        :binary.copy(:zlib.gzip(:binary.copy(<<0>>, 1_000_000)), n)
      end),
      gzip("gzip: text after the end", 1000, 1..1_000_000, [:corrupt, :truncated, :ok], fn n ->
        [:zlib.gzip(valid([])), :binary.copy("x", n)]
      end),
      gzip("gzip: a size of 4 GiB in its last bytes", 1, 1..1, [:corrupt, :truncated], fn _ ->
        zip = :zlib.gzip(:rand.bytes(100))
        [binary_part(zip, 0, byte_size(zip) - 4), <<0xFFFFFFFF::32>>]
      end),
      gzip(
        "gzip: a size of 4 GiB in the last bytes of a large file",
        5_000_000,
        1..8_000_000,
        [:corrupt, :truncated, :limit],
        fn n ->
          zip = :zlib.gzip(:rand.bytes(n))
          [binary_part(zip, 0, byte_size(zip) - 4), <<0xFFFFFFFF::32>>]
        end
      ),
      gzip(
        "gzip: a long name in its header",
        1_000_000,
        10..10_000_000,
        [:ok, :corrupt, :limit],
        fn n ->
          <<head::binary-3, _flags, rest::binary-6, data::binary>> = :zlib.gzip(valid([]))
          [head, 8, rest, :binary.copy("n", n), 0, data]
        end
      )
    ]
  end

  defp gzip(name, n, range, expect, make),
    do:
      file(name, n, range, expect, make,
        gzip: true,
        stream: [:unsupported, :corrupt, :truncated, :limit]
      )
end
