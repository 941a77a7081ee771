defmodule ExTorch.HostileFiles.Archives do
  @moduledoc false
  # Hostile legacy, tar and streaming files. Also valid ones with many tensors, which must load.
  import ExTorch.HostileFiles.Entry
  import ExTorch.Test.Pickle
  alias ExTorch.HostileFiles.Instructions
  alias ExTorch.Test.{Formats, Hostile}

  def all, do: legacies() ++ tars() ++ streams()

  # ---- legacy ----

  defp legacies do
    one = fn -> Formats.legacy_storage() end

    [
      file("legacy: many small tensors", 30_000, 10..100_000, [:ok], fn n ->
        tensors =
          for i <- 1..n,
              do: {"layer#{i}.weight", Formats.tensor_of(Formats.legacy_storage(key: "#{i}"))}

        Formats.legacy(
          dict(tensors),
          Enum.map(1..n, &"#{&1}"),
          :binary.copy(<<2::little-64, Formats.two_floats()::binary>>, n)
        )
      end),
      file("legacy: a key list of one key", 300_000, 10..3_000_000, [:corrupt, :limit], fn n ->
        [
          legacy_head(Formats.tensor_of(one.())),
          make(list([text("0"), "q", <<0>>, :binary.copy(<<"h", 0>>, n)])),
          <<2::little-64>>,
          Formats.two_floats()
        ]
      end),
      file(
        "legacy: a key list of long keys",
        1000,
        10..5000,
        [:corrupt, :limit, :truncated],
        fn n ->
          [
            legacy_head(Formats.tensor_of(one.())),
            make(
              list([text(:binary.copy("k", 100_000)), "q", <<0>>, :binary.copy(<<"h", 0>>, n)])
            )
          ]
        end
      ),
      file("legacy: a key list of None", 1_000_000, 10..10_000_000, [:corrupt, :limit], fn n ->
        [legacy_head("N"), make(["](", :binary.copy("N", n), "e"])]
      end),
      file("legacy: views of one storage", 20_000, 10..50_000, [:ok, :corrupt], fn n ->
        tensors =
          for i <- 1..n,
              do:
                Formats.tensor_of(
                  Formats.legacy_storage(view: Formats.legacy_view(start: rem(i, 2), count: 1)),
                  1
                )

        Formats.legacy(list(tensors), ["0"], [<<2::little-64>>, Formats.two_floats()])
      end),
      file(
        "legacy: system information of references",
        2000,
        10..5000,
        [:ok, :limit, :corrupt],
        fn n ->
          system = Instructions.levels("N", n)

          Formats.legacy(
            Formats.tensor_of(one.()),
            ["0"],
            [<<2::little-64>>, Formats.two_floats()],
            system: system
          )
        end
      ),
      file("legacy: many checkpoints in one file", 3000, 2..20_000, [:ok], fn n ->
        checkpoint =
          IO.iodata_to_binary(
            Formats.legacy(Formats.tensor_of(one.()), ["0"], [
              <<2::little-64>>,
              Formats.two_floats()
            ])
          )

        :binary.copy(checkpoint, n)
      end),
      file("legacy: elements beyond the file", 1, 1..1, [:corrupt, :truncated, :limit], fn _ ->
        n = 250_000_000_000

        Formats.legacy(Formats.tensor_of(Formats.legacy_storage(numel: n), n), ["0"], [
          <<n::little-64>>,
          Formats.two_floats()
        ])
      end)
    ]
  end

  defp legacy_head(object),
    do: [
      Formats.legacy_magic(),
      make(int(1001)),
      make(dict([{"protocol_version", int(1001)}])),
      make(object)
    ]

  # ---- tar ----

  defp tars do
    class = global("torch", "FloatStorage")

    [
      tar("tar: many members", 20_000, 10..100_000, [:ok], fn n ->
        Formats.tar(first: :binary.copy(member("x", ""), n))
      end),
      tar("tar: members with one name", 20_000, 2..50_000, [:corrupt, :ok], fn n ->
        Formats.tar(last: :binary.copy(member("pickle", make("N")), n))
      end),
      tar("tar: long names", 200, 2..1000, [:ok, :corrupt, :unsupported, :limit], fn n ->
        Formats.tar(
          first: :binary.copy(member("././@LongLink", :binary.copy("n", 100_000), type: "L"), n)
        )
      end),
      tar("tar: pax headers", 200, 2..1000, [:ok, :corrupt, :unsupported, :limit], fn n ->
        record = "100012 path=" <> :binary.copy("p", 99_999) <> "\n"
        Formats.tar(first: :binary.copy(member("PaxHeader", record, type: "x"), n))
      end),
      tar("tar: links", 1000, 2..10_000, [:ok, :corrupt, :unsupported], fn n ->
        Formats.tar(first: :binary.copy(member("storages", "", type: "2"), n))
      end),
      tar("tar: sparse members", 1000, 2..10_000, [:ok, :corrupt, :unsupported], fn n ->
        Formats.tar(first: :binary.copy(member("x", "", type: "S"), n))
      end),
      tar("tar: a member beyond the file", 1, 1..1, [:corrupt, :truncated], fn _ ->
        Formats.tar(first: Formats.tar_member("x", "", size: 8_000_000_000))
      end),
      tar("tar: 2^62 storages", 1, 1..1, [:corrupt, :truncated, :limit], fn _ ->
        Formats.tar(storages: [make(int(4_611_686_018_427_387_904))])
      end),
      tar("tar: 2^62 tensors", 1, 1..1, [:corrupt, :truncated, :limit], fn _ ->
        Formats.tar(tensors: [make(int(4_611_686_018_427_387_904))])
      end),
      tar("tar: many tensors of one storage", 20_000, 10..100_000, [:ok], fn n ->
        one = fn i ->
          [
            make(tuple([int(i + 1), int(1), global("torch", "FloatTensor")])),
            <<1::little-32, 0::32, 2::little-64, 1::little-64, 0::64>>
          ]
        end

        Formats.tar(tensors: [make(int(n)), Enum.map(1..n, one)])
      end),
      tar(
        "tar: tensors with 2^31 dimensions",
        1,
        1..1,
        [:corrupt, :truncated, :limit, :unsupported],
        fn _ ->
          Formats.tar(
            tensors: [
              make(int(1)),
              make(tuple([int(2), int(1), global("torch", "FloatTensor")])),
              <<0x7FFFFFFF::little-32, 0::32>>
            ]
          )
        end
      ),
      tar("tar: many empty storages", 20_000, 10..100_000, [:ok, :corrupt], fn n ->
        one = fn i -> [make(tuple([int(i + 1), text("cpu"), class])), <<0::64>>] end

        first = [
          make(tuple([int(1), text("cpu"), class])),
          <<2::little-64>>,
          Formats.two_floats()
        ]

        Formats.tar(
          storages: [make(int(n + 1)), first, Enum.map(1..n, &one.(&1 + 10)), make(list([]))]
        )
      end),
      tar("tar: views of references", 2000, 10..5000, [:ok, :corrupt, :limit], fn n ->
        Formats.tar(
          views:
            list([
              tuple([int(7), int(1), int(0), int(2)]),
              "q",
              <<0>>,
              :binary.copy(<<"h", 0>>, n)
            ])
        )
      end),
      tar("tar: a pickle of references", 700, 10..2000, [:ok, :limit], fn n ->
        Formats.tar(pickle: make(Instructions.levels([text("2"), "Q"], n)))
      end)
    ]
  end

  defp tar(name, n, range, expect, make),
    do: file(name, n, range, expect, make, stream: [:unsupported, :corrupt, :truncated, :limit])

  defp member(name, data, opts \\ []),
    do: IO.iodata_to_binary(Formats.tar_member(name, data, opts))

  # ---- streaming ----

  defp streams do
    pickle = make(tensor())

    entries = [
      Formats.torch_stream_entry("data.pkl", int(byte_size(pickle))),
      Formats.torch_stream_entry("data/0", int(16))
    ]

    [
      file("streaming: many small tensors", 20_000, 10..100_000, [:ok], fn n ->
        pickle = make(dict(for i <- 1..n, do: {"layer#{i}.weight", tensor(key: text("#{i}"))}))
        storages = for i <- 1..n, do: Formats.torch_stream_entry("data/#{i}", int(16))

        Formats.torch_stream(
          [Formats.torch_stream_entry("data.pkl", int(byte_size(pickle))) | storages],
          [pickle, :binary.copy(Hostile.four_floats(), n)]
        )
      end),
      file(
        "streaming: one record again and again",
        50_000,
        10..200_000,
        [:corrupt, :limit],
        fn n ->
          again = [
            Formats.torch_stream_entry("x", int(0)),
            "q",
            <<0>>,
            :binary.copy(<<"h", 0>>, n)
          ]

          Formats.torch_stream(entries ++ [again], [pickle, Hostile.four_floats()])
        end
      ),
      file(
        "streaming: records with one long name",
        1000,
        10..5000,
        [:corrupt, :limit, :ok],
        fn n ->
          name = [text(:binary.copy("n", 100_000)), "q", <<0>>, "0"]

          entry = [
            global("torch.distributed._serialization", "_Entry"),
            ")",
            <<0x81>>,
            "}(",
            text("key"),
            "h",
            <<0>>,
            text("is_storage"),
            <<0x89>>,
            text("length"),
            int(0),
            "u",
            "b"
          ]

          [
            make([name, list(entries ++ [:binary.copy(IO.iodata_to_binary(entry), n)])]),
            pickle,
            Hostile.four_floats()
          ]
        end
      ),
      file(
        "streaming: records that sum up to more than 2^64",
        1,
        1..1,
        [:corrupt, :truncated, :limit],
        fn _ ->
          Formats.torch_stream(
            entries ++
              for(i <- 1..5, do: Formats.torch_stream_entry("x#{i}", int(0x7FFFFFFFFFFFFFFF))),
            [pickle, Hostile.four_floats()]
          )
        end
      ),
      file("streaming: a list of None", 1_000_000, 10..5_000_000, [:corrupt, :limit, :ok], fn n ->
        make(["](", :binary.copy("N", n), "e"])
      end)
    ]
  end
end
