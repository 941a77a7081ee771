defmodule ExTorch.HostileFiles.Texts do
  @moduledoc false
  # Hostile JSON: safetensors files and the indexes of sharded checkpoints.
  import ExTorch.HostileFiles.Entry
  alias ExTorch.Test.{Formats, Pickle, Zip}

  def all, do: safetensors() ++ indexes()

  defp safetensors do
    [
      file("safetensors: many small tensors", 50_000, 10..100_000, [:ok], fn n ->
        entries =
          for i <- 0..(n - 1),
              do: Formats.safetensors_entry("layer#{i}.weight", "F32", "[4]", 16 * i, 16 * i + 16)

        Formats.safetensors("{" <> Enum.join(entries, ",") <> "}", :binary.copy(<<0>>, 16 * n))
      end),
      file("safetensors: many empty tensors", 30_000, 10..40_000, [:ok], &empty_tensors/1),
      # Each has 56 bytes in the file, and a description of a kilobyte.
      file(
        "safetensors: a million empty tensors",
        300_000,
        50_000..1_000_000,
        [:ok, :limit],
        &empty_tensors/1
      ),
      file("safetensors: many empty tensors of 64 dimensions", 5_000, 10..50_000, [:ok], fn n ->
        shape = "[0" <> :binary.copy(",1", 63) <> "]"
        entries = for i <- 1..n, do: Formats.safetensors_entry("#{i}", "F32", shape, 0, 0)
        Formats.safetensors("{" <> Enum.join(entries, ",") <> "}")
      end),
      bad("safetensors: lists in lists", 1_000_000, 10..10_000_000, fn n ->
        ~s({"a":) <> :binary.copy("[", n)
      end),
      bad("safetensors: lists in lists that end", 1_000_000, 2000..10_000_000, fn n ->
        ~s({"a":) <> :binary.copy("[", n) <> :binary.copy("]", n) <> "}"
      end),
      bad("safetensors: objects in objects", 500_000, 10..5_000_000, fn n ->
        :binary.copy(~s({"a":), n)
      end),
      bad("safetensors: empty lists as a shape", 1_000_000, 10..5_000_000, fn n ->
        ~s({"a":{"dtype":"F32","shape":[) <>
          :binary.copy("[],", n) <> ~s(1],"data_offsets":[0,4]}})
      end),
      bad("safetensors: a shape of many ones", 1_000_000, 100..10_000_000, fn n ->
        ~s({"a":{"dtype":"F32","shape":[) <>
          :binary.copy("1,", n) <> ~s(1],"data_offsets":[0,0]}})
      end),
      bad("safetensors: a number beyond floats", 1, 1..1, fn _ ->
        ~s({"a":{"dtype":"F32","shape":[1e999],"data_offsets":[0,4]}})
      end),
      bad("safetensors: a number of many digits", 1_000_000, 30..10_000_000, fn n ->
        ~s({"a":{"dtype":"F32","shape":[) <> :binary.copy("9", n) <> ~s(],"data_offsets":[0,4]}})
      end),
      bad("safetensors: a dtype that is a list", 100_000, 1..1_000_000, fn n ->
        ~s({"a":{"dtype":[) <>
          :binary.copy(~s("F32",), n) <> ~s("F32"],"shape":[1],"data_offsets":[0,4]}})
      end),
      bad("safetensors: a dtype of 1 MB", 1_000_000, 10..10_000_000, fn n ->
        ~s({"a":{"dtype":"#{:binary.copy("F", n)}","shape":[1],"data_offsets":[0,4]}})
      end),
      bad("safetensors: one key again and again", 100_000, 2..1_000_000, fn n ->
        entry = Formats.safetensors_entry("a", "F32", "[0]", 0, 0) <> ","
        "{" <> :binary.copy(entry, n) <> Formats.safetensors_entry("a", "F32", "[0]", 0, 0) <> "}"
      end),
      bad("safetensors: fields again and again", 100_000, 2..1_000_000, fn n ->
        ~s({"a":{) <>
          :binary.copy(~s("dtype":"F32",), n) <> ~s("shape":[0],"data_offsets":[0,0]}})
      end),
      bad(
        "safetensors: unknown fields",
        100_000,
        2..1_000_000,
        fn n ->
          fields = for i <- 1..n, do: ~s("f#{i}":[],)

          ~s({"a":{) <>
            IO.iodata_to_binary(fields) <> ~s("dtype":"F32","shape":[0],"data_offsets":[0,0]}})
        end
      ),
      bad(
        "safetensors: a long name",
        5_000_000,
        10..50_000_000,
        fn n ->
          "{" <> Formats.safetensors_entry(:binary.copy("n", n), "F32", "[0]", 0, 0) <> "}"
        end,
        [:ok]
      ),
      bad(
        "safetensors: a name of escapes",
        500_000,
        10..5_000_000,
        fn n ->
          "{" <> Formats.safetensors_entry(:binary.copy("\\u00e9", n), "F32", "[0]", 0, 0) <> "}"
        end,
        [:ok]
      ),
      bad("safetensors: lone surrogates", 300_000, 10..5_000_000, fn n ->
        "{" <> Formats.safetensors_entry(:binary.copy("\\ud800", n), "F32", "[0]", 0, 0) <> "}"
      end),
      bad(
        "safetensors: long metadata",
        5_000_000,
        10..50_000_000,
        fn n -> ~s({"__metadata__":{"a":"#{:binary.copy("m", n)}"}}) end,
        [:ok]
      ),
      bad(
        "safetensors: metadata of many keys",
        100_000,
        10..1_000_000,
        fn n ->
          fields = for i <- 1..n, do: ~s("k#{i}":"",)
          ~s({"__metadata__":{) <> IO.iodata_to_binary(fields) <> ~s("z":""}})
        end,
        [:ok]
      ),
      bad("safetensors: metadata with one key again and again", 100_000, 10..1_000_000, fn n ->
        ~s({"__metadata__":{) <> :binary.copy(~s("k":"",), n) <> ~s("z":""}})
      end),
      bad(
        "safetensors: spaces",
        5_000_000,
        10..99_000_000,
        fn n -> "{}" <> :binary.copy(" ", n) end,
        [:ok]
      ),
      file(
        "safetensors: a header beyond the file",
        1,
        1..1,
        [:corrupt, :truncated, :limit],
        fn _ -> [<<99_000_000::little-64>>, "{}"] end
      ),
      file(
        "safetensors: a header beyond the limit",
        1,
        1..1,
        [:corrupt, :truncated, :limit],
        fn _ -> [<<0x7FFFFFFFFFFFFFFF::little-64>>, "{}"] end
      ),
      file(
        "safetensors: a tensor beyond the file",
        1,
        1..1,
        [:corrupt, :truncated, :limit],
        fn _ ->
          Formats.safetensors(
            "{" <>
              Formats.safetensors_entry("a", "F32", "[250000000000]", 0, 1_000_000_000_000) <> "}"
          )
        end
      )
    ]
  end

  defp bad(name, n, range, header, expect \\ []) do
    expect =
      if expect == [], do: [:corrupt, :truncated, :limit, :unsupported], else: expect ++ [:limit]

    file(name, n, range, expect, fn n -> Formats.safetensors(header.(n)) end)
  end

  @doc "A safetensors file of n tensors without elements."
  def empty_tensors(n) do
    entries = for i <- 1..n, do: Formats.safetensors_entry("#{i}", "U8", "[0]", 0, 0)
    Formats.safetensors("{" <> Enum.join(entries, ",") <> "}")
  end

  # ---- indexes ----

  # The files of a directory; the first is the index.
  defp indexes do
    shard = fn names ->
      entries =
        names
        |> Enum.with_index()
        |> Enum.map(fn {name, i} ->
          Formats.safetensors_entry(name, "F32", "[1]", 4 * i, 4 * i + 4)
        end)

      Formats.safetensors(
        "{" <> Enum.join(entries, ",") <> "}",
        :binary.copy(<<0>>, 4 * length(names))
      )
    end

    [
      index(
        "index: many names in one shard",
        50_000,
        1..200_000,
        [:ok, :not_found, :corrupt],
        fn n ->
          names = ["w" | Enum.map(1..n, &"w#{&1}")]
          [map(Enum.map(names, &{&1, "s.safetensors"})), {"s.safetensors", shard.(names)}]
        end
      ),
      index(
        "index: names that the shard does not have",
        50_000,
        1..200_000,
        [:corrupt, :not_found],
        fn n ->
          [map(Enum.map(1..n, &{"w#{&1}", "s.safetensors"})), {"s.safetensors", shard.(["w"])}]
        end
      ),
      index(
        "index: many shards that do not exist",
        50_000,
        1..200_000,
        [:not_found, :io, :limit],
        fn n ->
          [map(Enum.map(1..n, &{"w#{&1}", "s#{&1}.safetensors"}))]
        end
      ),
      index("index: one key again and again", 100_000, 2..500_000, [:corrupt, :not_found], fn n ->
        [json(~s({"weight_map":{) <> :binary.copy(~s("w":"s",), n) <> ~s("w":"s"}}))]
      end),
      index("index: long names", 100, 1..500, [:corrupt, :not_found, :limit], fn n ->
        [map(Enum.map(1..n, &{"#{&1}" <> :binary.copy("n", 100_000), "s"}))]
      end),
      index(
        "index: long names of shards",
        100,
        1..500,
        [:corrupt, :not_found, :limit, :io, :bad_argument],
        fn n ->
          [map(Enum.map(1..n, &{"w#{&1}", "#{&1}" <> :binary.copy("n", 100_000)}))]
        end
      ),
      index(
        "index: shards outside the directory",
        100,
        1..10_000,
        [:corrupt, :forbidden, :limit],
        fn n ->
          [map(Enum.map(1..n, &{"w#{&1}", :binary.copy("../", &1) <> "etc/passwd"}))]
        end
      ),
      index("index: lists in lists", 1_000_000, 2000..10_000_000, [:corrupt, :limit], fn n ->
        [json(~s({"weight_map":) <> :binary.copy("[", n))]
      end),
      index("index: empty lists", 1_000_000, 10..5_000_000, [:corrupt, :limit], fn n ->
        [json(~s({"weight_map":{"w":[) <> :binary.copy("[],", n) <> "1]}}")]
      end),
      index(
        "index: metadata of small integers",
        1_000_000,
        10..5_000_000,
        [:not_found, :corrupt, :limit, :ok],
        fn n ->
          [json(~s({"metadata":[) <> :binary.copy("1,", n) <> ~s(1],"weight_map":{"w":"s"}}))]
        end
      ),
      index(
        "index: metadata of empty objects",
        500_000,
        10..5_000_000,
        [:not_found, :corrupt, :limit, :ok],
        fn n ->
          [json(~s({"metadata":[) <> :binary.copy("{},", n) <> ~s(1],"weight_map":{"w":"s"}}))]
        end
      ),
      index(
        "index: a number of many digits",
        1_000_000,
        10..5_000_000,
        [:not_found, :corrupt, :limit],
        fn n ->
          [
            json(
              ~s({"metadata":{"total_size":) <>
                :binary.copy("9", n) <> ~s(},"weight_map":{"w":"s"}})
            )
          ]
        end
      ),
      index(
        "index: many deflated shards",
        100,
        2..500,
        [:corrupt, :limit, :not_found, :ok],
        fn n ->
          pickle =
            Pickle.make([
              "}(",
              Pickle.text("w"),
              Pickle.tensor(),
              Pickle.text("l"),
              "](",
              :binary.copy("}", 100_000),
              "eu"
            ])

          shard =
            Zip.make([
              Zip.deflated({"archive/data.pkl", pickle}),
              {"archive/data/0", <<0::128>>},
              {"archive/version", "3\n"}
            ])

          [
            map(for i <- 1..n, do: {"w#{i}", "s#{i}.bin"})
            | for(i <- 1..n, do: {"s#{i}.bin", shard})
          ]
        end
      ),
      index(
        "index: many links to one shard",
        200,
        2..2000,
        [:ambiguous, :limit],
        fn n ->
          links = for i <- 1..n, do: {"s#{i}", {:link, "s"}}

          [
            map(for i <- 1..n, do: {"w#{i}", "s#{i}"}),
            {"s", shard.(["w" | Enum.map(1..n, &"w#{&1}")])} | links
          ]
        end
      ),
      index("index: many small shards", 3000, 2..5000, [:ok, :limit, :not_found], fn n ->
        [
          map([{"w", "s0"} | for(i <- 1..n, do: {"w#{i}", "s#{i}"})]),
          {"s0", shard.(["w"])}
          | for(i <- 1..n, do: {"s#{i}", shard.(["w#{i}"])})
        ]
      end),
      index("index: itself as shard", 1, 1..1, [:corrupt, :forbidden], fn _ ->
        [map([{"w", "model.safetensors.index.json"}])]
      end),
      index("index: another index as shard", 1, 1..1, [:corrupt, :forbidden, :ambiguous], fn _ ->
        {_, text} = map([{"w", "model.safetensors.index.json"}])
        [map([{"w", "other.safetensors.index.json"}]), {"other.safetensors.index.json", text}]
      end),
      index("index: a shard that is a FIFO", 1, 1..1, [:io, :corrupt, :not_found], fn _ ->
        [map([{"w", "s"}]), {"s", :fifo}]
      end),
      index(
        "index: a shard that is a link to a device",
        1,
        1..1,
        [:io, :corrupt, :not_found],
        fn _ ->
          [map([{"w", "s"}]), {"s", {:link, "/dev/zero"}}]
        end
      ),
      index("index: a FIFO", 1, 1..1, [:io, :corrupt, :not_found], fn _ ->
        [{"model.safetensors.index.json", :fifo}]
      end),
      index("index: a link to a device", 1, 1..1, [:io, :corrupt, :not_found], fn _ ->
        [{"model.safetensors.index.json", {:link, "/dev/zero"}}]
      end),
      index("index: a NUL after the text", 1, 1..1, [:corrupt, :not_found], fn _ ->
        [json(~s({"weight_map":{"w":"s"}}\0{"weight_map":{}}))]
      end),
      index("index: spaces", 5_000_000, 10..50_000_000, [:corrupt, :not_found, :limit], fn n ->
        [json(:binary.copy(" ", n) <> ~s({"weight_map":{"w":"s"}}) <> :binary.copy("\n", n))]
      end),
      index("index: values that are not names", 1000, 1..100_000, [:corrupt], fn n ->
        [json(~s({"weight_map":{) <> Enum.map_join(1..n, ",", &~s("w#{&1}":[#{&1}])) <> "}}")]
      end),
      index(
        "index: names of escapes",
        300_000,
        1..1_000_000,
        [:corrupt, :not_found, :limit, :forbidden, :io],
        fn n ->
          [
            json(
              ~s({"weight_map":{"#{:binary.copy("\\u0000\\n", n)}":"#{:binary.copy("\\u001b", n)}"}})
            )
          ]
        end
      ),
      index("index: no bytes", 1, 1..1, [:corrupt, :truncated], fn _ -> [json("")] end),
      index(
        "index: a bomb as shard",
        30_000_000,
        1_000_000..100_000_000,
        [:corrupt, :limit, :not_found, :unsupported],
        fn n ->
          [map([{"w", "s"}]), {"s", :zlib.gzip(:binary.copy(<<0>>, n))}]
        end
      )
    ]
  end

  defp index(name, n, range, expect, make),
    do: %{file(name, n, range, expect, make) | kind: :index}

  defp json(text), do: {"model.safetensors.index.json", text}

  defp map(pairs),
    do:
      json(
        ~s({"weight_map":{) <>
          Enum.map_join(pairs, ",", fn {k, v} -> ~s("#{k}":"#{v}") end) <> "}}"
      )
end
