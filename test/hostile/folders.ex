defmodule ExTorch.HostileFiles.Folders do
  @moduledoc false
  # Folders of torch.distributed.checkpoint: the pickle .metadata says which part of which file is which chunk.
  import Bitwise
  import ExTorch.HostileFiles.{Entry, Instructions}
  import ExTorch.Test.Pickle
  alias ExTorch.Test.Zip

  @refused [:corrupt, :limit, :truncated]
  # The fault is in a part or in the paths: names and shapes can be read.
  @late [:ok | @refused]

  # See ExTorch.HostileFiles.Catalogue for the elements.
  def all, do: valid() ++ chunks() ++ places() ++ files() ++ objects()

  # ---- Pickles ----

  @package "torch.distributed.checkpoint.metadata"

  defp new(class, state), do: [global(@package, class), ")", <<0x81>>, state, "b"]
  defp new(class), do: [global(@package, class), ")", <<0x81>>]
  defp dims(list), do: reduce(global("torch", "Size"), [tuple(Enum.map(list, &int/1))])

  defp chunk(from, sizes),
    do: new("ChunkStorageMetadata", dict([{"offsets", dims(from)}, {"sizes", dims(sizes)}]))

  defp properties do
    layout = reduce(global("torch.serialization", "_get_layout"), [text("torch.strided")])
    new("TensorProperties", tuple([global("torch", "float32"), layout, <<0x89>>, "N", <<0x89>>]))
  end

  defp tensor_of(shape, chunks),
    do:
      new(
        "TensorStorageMetadata",
        dict([{"properties", properties()}, {"size", shape}, {"chunks", list(chunks)}])
      )

  defp index(name, from),
    do: new("MetadataIndex", dict([{"fqn", text(name)}, {"offset", from}, {"index", "N"}]))

  defp info(file, offset, length) do
    state =
      dict([
        {"relative_path", text(file)},
        {"offset", integer(offset)},
        {"length", integer(length)}
      ])

    [global("torch.distributed.checkpoint.filesystem", "_StorageInfo"), ")", <<0x81>>, state, "b"]
  end

  defp integer(value) when value in -0x8000000000000000..0x7FFFFFFFFFFFFFFF, do: int(value)
  defp integer(value), do: [<<0x8A, 17>>, <<value::little-signed-136>>]

  # `described` and `places` are pickled pairs, `paths` pairs of a name and a pickled tuple.
  defp metadata(described, places, paths \\ []) do
    state =
      dict([
        {"state_dict_metadata", ["}(", described, "u"]},
        {"planner_data", dict(paths)},
        {"storage_data", ["}(", places, "u"]}
      ])

    {".metadata", make(new("Metadata", state))}
  end

  # ---- Parts ----

  # A file of torch.save with a tensor of so many floats; `numel` floats are in the storage.
  defp part(shape, numel \\ nil) do
    numel = numel || Enum.product(shape)

    strides =
      shape |> Enum.reverse() |> Enum.map_reduce(1, &{&2, &2 * &1}) |> elem(0) |> Enum.reverse()

    pickle =
      tensor(
        numel: int(numel),
        size: tuple(Enum.map(shape, &int/1)),
        stride: tuple(Enum.map(strides, &int/1))
      )

    Zip.checkpoint(make(pickle), %{"0" => :binary.copy(<<0>>, 4 * numel)})
  end

  defp folder(name, n, range, expect, make),
    do: %{file("folder: " <> name, n, range, expect, make) | kind: :folder}

  # One tensor of n chunks of one element, each in a part of its own, or all in one part.
  defp row(n, place) do
    described = [text("t"), tensor_of(dims([n]), for(i <- 0..(n - 1), do: chunk([i], [1])))]
    places = for i <- 0..(n - 1), do: [index("t", dims([i])), place.(i)]
    metadata(described, places)
  end

  defp valid do
    one = part([1])
    size = byte_size(one)

    [
      folder("a tensor of many chunks", 3000, 2..10_000, [:ok], fn n ->
        [row(n, &info("a", &1 * size, size)), {"a", :binary.copy(one, n)}]
      end),
      folder("many tensors", 3000, 2..10_000, [:ok], fn n ->
        described = for i <- 1..n, do: [text("t#{i}"), tensor_of(dims([1]), chunk([0], [1]))]
        places = for i <- 1..n, do: [index("t#{i}", dims([0])), info("a", (i - 1) * size, size)]
        [metadata(described, places), {"a", :binary.copy(one, n)}]
      end),
      folder("a tensor of chunks in two dimensions", 50, 2..100, [:ok], fn n ->
        cells = for i <- 0..(n - 1), j <- 0..(n - 1), do: [i, j]
        part = part([1, 1])
        size = byte_size(part)

        described = [
          text("t"),
          tensor_of(dims([n, n]), for(cell <- cells, do: chunk(cell, [1, 1])))
        ]

        places =
          for {cell, i} <- Enum.with_index(cells),
              do: [index("t", dims(cell)), info("a", i * size, size)]

        [metadata(described, places), {"a", :binary.copy(part, n * n)}]
      end),
      folder("many values", 3000, 2..10_000, [:ok], fn n ->
        value = make(int(7))
        size = byte_size(value)
        described = for i <- 1..n, do: [text("v#{i}"), new("BytesStorageMetadata")]
        places = for i <- 1..n, do: [index("v#{i}", "N"), info("a", (i - 1) * size, size)]
        [metadata(described, places), {"a", :binary.copy(value, n)}]
      end)
    ]
  end

  # The plan of a tensor.
  defp chunks do
    [
      refused("overlapping chunks", 2, fn n ->
        plan([4], for(i <- 0..n, do: {[i], [2]}))
      end),
      refused("many overlapping chunks", 3000, fn n ->
        plan([2 * n], for(i <- 0..(n - 1), do: {[i], [2]}))
      end),
      refused("overlapping chunks in three dimensions", 10, fn n ->
        plan([n, n, 2 * n], for(i <- 0..(n - 1), j <- 0..(n - 1), do: {[i, j, j], [1, 1, 2 * n]}))
      end),
      refused("a chunk outside the tensor", 1, fn _ -> plan([4], [{[2], [4]}]) end),
      refused("a chunk of another rank", 1, fn _ -> plan([4], [{[0, 0], [2, 2]}]) end),
      refused("negative offsets", 1, fn _ -> plan([4], [{[-4], [8]}]) end),
      refused("negative sizes", 1, fn _ -> plan([-4], [{[0], [-4]}]) end),
      refused("a huge shape without chunks", 1, fn _ -> plan([1 <<< 61], []) end),
      refused("a huge shape with a huge chunk", 1, fn _ ->
        plan([1 <<< 61], [{[0], [1 <<< 61]}])
      end),
      refused("64 huge dimensions", 1000, fn n ->
        shape = List.duplicate(1 <<< 62, 64)
        described = [tensor_of(dims(shape), []), keep(0)]

        [
          metadata([text("a"), described, for(i <- 1..n, do: [text("t#{i}"), get(0)])], []),
          {"a", ""}
        ]
      end),
      refused("65 dimensions", 1, fn _ -> plan(List.duplicate(1, 65), []) end),
      folder("a huge dimension beside one of zero", 1, 1..1, [:ok | @refused], fn _ ->
        plan([1 <<< 60, 0], [{[0, 0], [1 <<< 60, 0]}])
      end),
      # Each refers to one object, in two bytes.
      folder(
        "many empty chunks that are one object",
        300_000,
        2..2_000_000,
        [:ok | @refused],
        fn n ->
          shape = List.duplicate(0, 64)
          empty = [chunk(shape, shape), keep(0)]
          described = [text("t"), tensor_of(dims(shape), [empty, gets(0, n)])]
          part = part([0])

          [
            metadata(described, [index("t", dims(shape)), info("a", 0, byte_size(part))]),
            {"a", part}
          ]
        end
      ),
      refused("many tensors with one list of many chunks", 2000, fn n ->
        described = [tensor_of(dims([0]), [chunk([0], [0]), keep(0), gets(0, n)]), keep(1)]
        names = for i <- 1..n, do: [text("t#{i}"), get(1)]
        places = for i <- 1..n, do: [index("t#{i}", dims([0])), info("a", 0, 1)]
        [metadata([text("t0"), described, names], places), {"a", "a"}]
      end),
      refused("many objects with one state of many fields", 3000, fn n ->
        fields = [
          ["}(", for(i <- 1..n, do: [text("f#{i}"), "N"])],
          [text("fqn"), text("t"), text("offset"), "N", "u", keep(0)]
        ]

        first = [new("MetadataIndex"), fields, "b", info("a", 0, 1)]
        more = for _ <- 2..n, do: [new("MetadataIndex"), get(0), "b", info("a", 0, 1)]
        [metadata([], [first, more]), {"a", "a"}]
      end),
      folder("chunks that split 30 dimensions", 30, 5..60, [:ok | @refused], fn n ->
        # Each chunk is what remains of the tensor after a cut in half.
        shape = List.duplicate(2, n)

        boxes =
          for d <- 0..(n - 1),
              do:
                {List.replace_at(List.duplicate(0, n), d, 1),
                 List.duplicate(1, d + 1) ++ List.duplicate(2, n - d - 1)}

        plan(shape, boxes)
      end)
    ]
  end

  defp late(name, n, make), do: folder(name, n, n..n, @late, make)
  defp refused(name, n, make), do: folder(name, n, max(1, div(n, 10))..(2 * n), @refused, make)

  # All chunks are in a part that has enough bytes by its length.
  defp plan(shape, chunks) do
    described = [
      text("t"),
      tensor_of(dims(shape), for({from, sizes} <- chunks, do: chunk(from, sizes)))
    ]

    part = part([4])
    places = for {from, _} <- chunks, do: [index("t", dims(from)), info("a", 0, byte_size(part))]
    [metadata(described, places), {"a", part}]
  end

  # The places of parts.
  defp places do
    one = part([1])
    # One element of a storage of a megabyte.
    large = part([1], 250_000)

    [
      refused("many chunks that are one part", 3000, fn n ->
        [row(n, fn _ -> info("a", 0, byte_size(one)) end), {"a", one}]
      end),
      refused("many chunks that are one large part", 1000, fn n ->
        [row(n, fn _ -> info("a", 0, byte_size(large)) end), {"a", large}]
      end),
      refused("many links to one large part", 500, fn n ->
        links = for i <- 0..(n - 1), do: {"a#{i}", {:link, "a"}}
        [row(n, &info("a#{&1}", 0, byte_size(large))), {"a", large} | links]
      end),
      refused("a part beyond the file", 1, fn _ ->
        [row(1, fn _ -> info("a", 1, byte_size(one)) end), {"a", one}]
      end),
      refused("a part at 2^63", 1, fn _ ->
        [row(1, fn _ -> info("a", (1 <<< 63) - 1, 900) end), {"a", one}]
      end),
      refused("a part at 2^130", 1, fn _ ->
        [row(1, fn _ -> info("a", 1 <<< 130, 900) end), {"a", one}]
      end),
      refused("a negative place", 1, fn _ ->
        [row(1, fn _ -> info("a", -1, 900) end), {"a", one}]
      end),
      late("a part of .metadata itself", 1, fn _ ->
        [row(1, fn _ -> info(".metadata", 0, 100) end)]
      end),
      late("a part of another shape", 1, fn _ ->
        part = part([2])
        [row(1, fn _ -> info("a", 0, byte_size(part)) end), {"a", part}]
      end),
      refused("a part that is an expanded element", 100_000_000, fn n ->
        view = tensor(numel: int(1), size: tuple([int(n)]), stride: tuple([int(0)]))
        part = Zip.checkpoint(make(view), %{"0" => <<0::32>>})
        described = [text("t"), tensor_of(dims([n]), chunk([0], [n]))]
        [metadata(described, [index("t", dims([0])), info("a", 0, byte_size(part))]), {"a", part}]
      end),
      folder("parts that are deflated lists", 300, 2..2000, [:ok | @refused], fn n ->
        pickle = make(list(copies("}", 300_000)))
        value = Zip.make([Zip.deflated({"archive/data.pkl", pickle}), {"archive/version", "3\n"}])
        size = byte_size(value)
        described = for i <- 1..n, do: [text("v#{i}"), new("BytesStorageMetadata")]
        places = for i <- 1..n, do: [index("v#{i}", "N"), info("a", (i - 1) * size, size)]
        [metadata(described, places), {"a", :binary.copy(value, n)}]
      end),
      folder("a part that is a bomb", 30_000_000, 1_000..60_000_000, @late, fn n ->
        bomb = :zlib.gzip(:binary.copy(<<0>>, n))
        [row(1, fn _ -> info("a", 0, byte_size(bomb)) end), {"a", bomb}]
      end)
    ]
  end

  defp files do
    names = [
      {"in the parent", "../a"},
      {"absolute", "/etc/passwd"},
      {"in a directory", "b/a"},
      {"empty", ""},
      {"of dots", ".."},
      {"with a NUL", "a\0b"},
      {"of escapes", "\e[31m\n"},
      {"very long", String.duplicate("n", 100_000)}
    ]

    special = [
      {"a link to a device", {:link, "/dev/zero"}},
      {"a link to itself", {:link, "a"}},
      {"a link to a directory", {:link, "/etc"}},
      {"a link to nothing", {:link, "nothing"}},
      {"a FIFO", :fifo}
    ]

    for {text, name} <- names do
      folder("a file #{text}", 1, 1..1, [:forbidden, :not_found, :io | @refused], fn _ ->
        [row(1, fn _ -> info(name, 0, 100) end), {"a", "a"}]
      end)
    end ++
      for {text, file} <- special do
        folder("a file that is #{text}", 1, 1..1, [:not_found, :io | @refused], fn _ ->
          [row(1, fn _ -> info("a", 0, 100) end), {"a", file}]
        end)
      end ++
      for {text, file} <- special do
        folder(
          ".metadata that is #{text}",
          1,
          1..1,
          [:not_found, :io, :unsupported | @refused],
          fn _ ->
            [{".metadata", if(file == {:link, "a"}, do: {:link, ".metadata"}, else: file)}]
          end
        )
      end ++
      [
        folder(".metadata that is a bomb", 30_000_000, 1_000..60_000_000, @refused, fn n ->
          [{".metadata", :zlib.gzip(:binary.copy(<<0>>, n))}]
        end),
        folder("many files that do not exist", 3000, 1..20_000, [:not_found], fn n ->
          [row(n, &info("a#{&1}", 0, 4))]
        end)
      ]
  end

  # The object that is built of the paths.
  defp objects do
    [
      paths("a path of many elements", 100_000, @refused, fn n -> [tuple(copies("K\0", n))] end),
      paths("a deep path", 900, [:ok | @refused], fn n -> [tuple(copies("K\0", n))] end),
      paths("paths with a common beginning", 900, [:ok | @refused], fn n ->
        for i <- 1..500, do: tuple([copies("K\0", n), int(i - 1)])
      end),
      paths("lists with one late element", 3000, @late, fn n ->
        for i <- 1..n, do: tuple([text("l#{i}"), int(1000)])
      end),
      paths("a list with an element at 2^62", 1, @late, fn _ -> [tuple([int(1 <<< 62)])] end),
      paths("paths that contradict each other", 1, @late, fn _ ->
        [tuple([text("a")]), tuple([text("a"), text("b")])]
      end),
      paths("one path for all", 2000, @late, fn n ->
        [[tuple(text("a")), keep(7)] | List.duplicate(get(7), n)]
      end),
      paths("a path that is no tuple", 1, @refused, fn _ -> [list([])] end),
      folder("long names", 50, 1..200, [:ok | @refused], fn n ->
        name = fn i -> "#{i}" <> chars(100_000) end
        value = make(int(7))
        described = for i <- 1..n, do: [text(name.(i)), new("BytesStorageMetadata")]
        places = for i <- 1..n, do: [index(name.(i), "N"), info("a", 0, byte_size(value))]
        [metadata(described, places), {"a", :binary.copy(value, n)}]
      end),
      folder("a long name without a place", 1_000_000, 1..5_000_000, @refused, fn n ->
        [metadata([text(chars(n)), new("BytesStorageMetadata")], [])]
      end),
      folder("an object of another class", 1, 1..1, @refused, fn _ ->
        [{".metadata", make(new("Other"))}]
      end),
      folder("a cycle instead of a description", 1, 1..1, @refused, fn _ ->
        [
          {".metadata",
           make([new("Metadata"), put(0), dict([{"state_dict_metadata", get(0)}]), "b"])}
        ]
      end)
    ]
  end

  # One value for each path.
  defp paths(name, n, expect, make) do
    folder(name, n, max(1, div(n, 2))..n, expect, fn n ->
      value = make(int(7))
      size = byte_size(value)
      paths = Enum.with_index(make.(n))
      described = for {_, i} <- paths, do: [text("v#{i}"), new("BytesStorageMetadata")]
      places = for {_, i} <- paths, do: [index("v#{i}", "N"), info("a", i * size, size)]

      [
        metadata(described, places, for({path, i} <- paths, do: {"v#{i}", path})),
        {"a", :binary.copy(value, length(paths))}
      ]
    end)
  end
end
