defmodule ExTorch.HostileFiles.Zips do
  @moduledoc false
  # Hostile zip files. Also valid ones with many tensors or records, which must load.
  import ExTorch.HostileFiles.Entry
  import ExTorch.Test.Pickle
  alias ExTorch.HostileFiles.Instructions
  alias ExTorch.Test.{Hostile, Zip}

  def all, do: zips() ++ bombs()

  defp zips do
    [
      file("zip: many small tensors", 30_000, 10..100_000, [:ok], &many_tensors/1),
      file("zip: many unused records", 50_000, 10..60_000, [:ok], fn n ->
        valid(for i <- 1..n, do: {"a/extra/#{i}", ""})
      end),
      file(
        "zip: records without a name",
        50_000,
        2..60_000,
        [:corrupt],
        fn n ->
          valid(for _ <- 1..n, do: {"", ""})
        end,
        stream: [:ok]
      ),
      file(
        "zip: records with one name",
        50_000,
        2..60_000,
        [:corrupt],
        fn n ->
          valid(for _ <- 1..n, do: {"a/x", ""})
        end,
        stream: [:ok]
      ),
      file(
        "zip: false descriptors in a record whose size follows it",
        100_000,
        10..1_000_000,
        [:ok],
        fn n ->
          data = :binary.copy(<<"PK", 7, 8, 0::32, 5::little-32, 5::little-32>>, n)
          size = byte_size(data)

          descriptor =
            <<"PK", 7, 8, :erlang.crc32(data)::little-32, size::little-32, size::little-32>>

          valid([
            {"a/.data/x", data,
             flags: 8,
             bytes: data <> descriptor,
             packed: size,
             local: [crc: 0, size: 0, packed: 0]}
          ])
        end,
        stream: [:unsupported, :corrupt, :limit]
      ),
      file("zip: records with long names", 300, 2..2000, [:ok, :corrupt, :limit], fn n ->
        valid(for i <- 1..n, do: {"a/" <> :binary.copy("n", 60_000) <> "#{i}", ""})
      end),
      file(
        "zip: long names in the central directory of one record",
        300,
        2..2000,
        [:corrupt],
        fn n ->
          valid(
            for i <- 1..n,
                do:
                  {"a/" <> :binary.copy("n", 60_000) <> "#{i}", "", offset: 0, local: [name: "x"]}
          )
        end,
        stream: [:ok]
      ),
      file(
        "zip: records that overlap",
        20_000,
        2..60_000,
        [:corrupt],
        fn n ->
          valid(for i <- 1..n, do: {"a/x#{i}", "", offset: 0})
        end,
        stream: [:ok]
      ),
      file(
        "zip: an end record again and again",
        100_000,
        10..1_000_000,
        [:ok, :corrupt, :truncated],
        fn n ->
          [valid([]), :binary.copy(<<"PK", 5, 6, 0::144>>, n)]
        end
      ),
      file("zip: a comment of end records", 2900, 10..2900, [:ok, :corrupt, :truncated], fn n ->
        zip = valid([])
        comment = :binary.copy(<<"PK", 5, 6, 0::144>>, n)
        [binary_part(zip, 0, byte_size(zip) - 2), <<byte_size(comment)::little-16>>, comment]
      end),
      file(
        "zip: signatures of local headers before the data",
        200_000,
        10..2_000_000,
        [:ok, :corrupt, :truncated],
        fn n ->
          [:binary.copy(<<"PK", 3, 4>>, n), valid([])]
        end,
        stream: [:unsupported, :ok, :corrupt, :truncated]
      ),
      file(
        "zip: 2^32 entries of 64 bits",
        1,
        1..1,
        [:corrupt, :truncated, :limit],
        fn _ ->
          Zip.make(Hostile.valid_records(), end64: [entries: 0xFFFFFFFFFF], entries: 0xFFFF)
        end,
        stream: [:ok]
      ),
      file("zip: views of a storage with another byte order", 200, 2..500, [:ok, :limit], fn n ->
        numel = 100_000
        tensors = for _ <- 1..n, do: tensor(numel: int(numel), size: tuple([int(numel)]))

        Zip.make([
          {"a/data.pkl", make(list(tensors))},
          {"a/byteorder", "big"},
          {"a/data/0", :binary.copy(<<0>>, 4 * numel)},
          {"a/version", "3\n"}
        ])
      end),
      file("zip: a zip in a zip", 1000, 2..60_000, [:ok, :corrupt], fn n ->
        inner = valid(for i <- 1..n, do: {"a/#{i}", ""})
        valid([{"a/extra/inner.pt", inner}])
      end),
      file("zip: a zip of zips of zips", 20, 2..60, [:ok, :corrupt], fn n ->
        Enum.reduce(1..n, valid([]), fn _, zip -> valid([{"a/extra/inner.pt", zip}]) end)
      end),
      file("zip: TorchScript with many code files", 10_000, 10..50_000, [:ok], fn n ->
        code =
          for i <- 1..n,
              do:
                Zip.deflated(
                  {"a/code/__torch__/m#{i}.py", :binary.copy("op_version_set = 1\n", 50)}
                )

        Zip.make(
          [{"a/data/0", Hostile.four_floats()}, {"a/data.pkl", make(tensor())}] ++
            code ++ [{"a/constants.pkl", make(")")}, {"a/version", "3\n"}]
        )
      end),
      file("zip: constants of references", 700, 10..2000, [:ok, :limit], fn n ->
        constants = make(Instructions.levels(tensor(), n))

        Zip.make([
          {"a/data/0", Hostile.four_floats()},
          {"a/data.pkl", make(tensor())},
          {"a/constants/0", Hostile.four_floats()},
          {"a/constants.pkl", constants},
          {"a/version", "3\n"}
        ])
      end),
      file("zip: a record of many extra fields", 16_000, 10..16_000, [:ok, :corrupt], fn n ->
        # The extra field of the local header is a run of empty blocks.
        name = "a/data.pkl"
        data = make("N")
        extra = :binary.copy(<<9, 9, 0, 0>>, n)

        local =
          <<"PK", 3, 4, 20::little-16, 0::16, 0::16, 0::32, :erlang.crc32(data)::little-32,
            byte_size(data)::little-32, byte_size(data)::little-32, byte_size(name)::little-16,
            byte_size(extra)::little-16>> <> name <> extra <> data

        central =
          <<"PK", 1, 2, 20::little-16, 20::little-16, 0::16, 0::16, 0::32,
            :erlang.crc32(data)::little-32, byte_size(data)::little-32,
            byte_size(data)::little-32, byte_size(name)::little-16, byte_size(extra)::little-16,
            0::16, 0::16, 0::16, 0::32, 0::32>> <> name <> extra

        [
          local,
          central,
          <<"PK", 5, 6, 0::32, 1::little-16, 1::little-16, byte_size(central)::little-32,
            byte_size(local)::little-32, 0::16>>
        ]
      end)
    ]
  end

  # Records that unpack to far more than they are.
  defp bombs do
    records = [
      {"data.pkl", fn n -> make([<<0x8E, n::little-64>>, :binary.copy(<<0>>, n)]) end,
       [:limit, :ok]},
      {"data.pkl of None", fn n -> make(["(", :binary.copy("N", min(n, 16_000_000)), "t"]) end,
       [:limit, :ok]},
      {"data.pkl of empty lists", fn n -> make(["](", :binary.copy("]", n), "e"]) end,
       [:limit, :ok]},
      {"data.pkl of spare instructions",
       fn n -> make([:binary.copy(<<0x80, 2>>, div(n, 2)), "N"]) end, [:limit, :ok, :corrupt]}
    ]

    for {name, data, expect} <- records do
      file(
        "zip: bomb in #{name}",
        30_000_000,
        1_000_000..100_000_000,
        expect,
        fn n ->
          Zip.make([Zip.deflated({"a/data.pkl", data.(n)}), {"a/version", "3\n"}])
        end,
        stream: [:unsupported, :limit]
      )
    end ++
      for record <-
            ~w(version byteorder .format_version .storage_alignment .data/serialization_id extra/notes.txt) do
        file(
          "zip: bomb in #{record}",
          50_000_000,
          1_000_000..200_000_000,
          [:ok, :limit, :corrupt, :unsupported],
          fn n ->
            records =
              for {name, _} = kept <- Hostile.valid_records(), name != "a/" <> record, do: kept

            Zip.make(records ++ [Zip.deflated({"a/" <> record, :binary.copy("3", n)})])
          end
        )
      end ++
      [
        file(
          "zip: bomb in data/0, all of it one tensor",
          50_000_000,
          1_000_000..200_000_000,
          [:ok, :limit],
          fn n ->
            n = div(n, 4)
            pickle = make(tensor(numel: int(n), size: tuple([int(n)])))

            Zip.make([
              {"a/data.pkl", pickle},
              Zip.deflated({"a/data/0", :binary.copy(<<0>>, 4 * n)}),
              {"a/version", "3\n"}
            ])
          end,
          stream: [:unsupported]
        ),
        file(
          "zip: bomb in data/0, four elements used",
          50_000_000,
          1_000_000..200_000_000,
          [:ok, :limit],
          fn n ->
            n = div(n, 4)
            pickle = make(tensor(numel: int(n)))

            Zip.make([
              {"a/data.pkl", pickle},
              Zip.deflated({"a/data/0", :binary.copy(<<0>>, 4 * n)}),
              {"a/version", "3\n"}
            ])
          end,
          stream: [:unsupported]
        ),
        file(
          "zip: a hundred bombs",
          100,
          2..200,
          [:ok, :limit],
          fn n ->
            storage = Zip.deflated({"", :binary.copy(<<0>>, 4_000_000)})
            tensors = for i <- 1..n, do: tensor(key: text("#{i}"), numel: int(1_000_000))
            storages = for i <- 1..n, do: put_elem(storage, 0, "a/data/#{i}")
            Zip.make([{"a/data.pkl", make(list(tensors))}] ++ storages ++ [{"a/version", "3\n"}])
          end,
          stream: [:unsupported]
        ),
        file(
          "zip: a size that is a lie",
          1,
          1..1,
          [:corrupt, :truncated, :limit],
          fn _ ->
            Zip.make([
              {"a/data.pkl", make("N"),
               method: 8, bytes: <<3, 0>>, size: 0xFFFFFFF0, local: [size: 0xFFFFFFF0]},
              {"a/version", "3\n"}
            ])
          end,
          stream: [:unsupported]
        )
      ]
  end

  @doc "A valid zip file with further records."
  def valid(more), do: Zip.make(Hostile.valid_records() ++ more)

  @doc "A zip file of n tensors with a storage each."
  def many_tensors(n) do
    tensors = for i <- 1..n, do: {"layer#{i}.weight", tensor(key: text("#{i}"))}

    Zip.make(
      [{"a/data.pkl", make(dict(tensors))}] ++
        for(i <- 1..n, do: {"a/data/#{i}", Hostile.four_floats()}) ++ [{"a/version", "3\n"}],
      end64: [entries: n + 2],
      entries: min(n + 2, 0xFFFF)
    )
  end
end
