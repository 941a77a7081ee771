defmodule ExTorch.HostileFiles.Arrays do
  @moduledoc false
  # Hostile files of numpy: .npy and .npz.
  import ExTorch.HostileFiles.Entry
  alias ExTorch.Test.Zip

  def all, do: texts() ++ shapes() ++ archives()

  @doc "An array. `text` is the dict of its header."
  def npy(text, data \\ <<0::192>>, pad \\ 64) do
    fill = rem(pad - rem(10 + byte_size(text) + 1, pad), pad)
    text = text <> :binary.copy(" ", fill) <> "\n"
    [<<0x93, "NUMPY", 1, 0, byte_size(text)::little-16>>, text, data]
  end

  defp text(descr, shape, order \\ "False"),
    do: "{'descr': #{descr}, 'fortran_order': #{order}, 'shape': #{shape}, }"

  # Version 2 has a length of 32 bits.
  defp long(length, text, data \\ ""),
    do: [<<0x93, "NUMPY", 2, 0, length::little-32>>, text, data]

  defp npy_file(name, n, range, expect, make),
    do: file("npy: " <> name, n, range, expect, make, stream: [:truncated, :corrupt, :limit])

  defp bytes(n), do: :binary.copy(<<0>>, n)

  defp texts do
    [
      npy_file("a header of spaces", 60_000, 100..65_000, [:ok, :corrupt, :limit], fn n ->
        npy(text("'<f4'", "(6,)") <> :binary.copy(" ", n))
      end),
      npy_file("a header length of 4 GB", 1, 1..1, [:limit, :corrupt, :truncated], fn _ ->
        long(0xFFFFFFFF, text("'<f4'", "(6,)"), bytes(24))
      end),
      npy_file(
        "a header of megabytes",
        5_000_000,
        70_000..20_000_000,
        [:limit, :corrupt],
        fn n ->
          long(n, text("'<f4'", "(6,)") <> :binary.copy(" ", n - 60), bytes(24))
        end
      ),
      npy_file("a header length beyond the end", 1, 1..1, [:truncated, :corrupt], fn _ ->
        <<0x93, "NUMPY", 1, 0, 0xFFFF::little-16, "{'descr': '<f4'">>
      end),
      npy_file("nested tuples", 30_000, 10..32_000, [:corrupt], fn n ->
        npy(text("'<f4'", :binary.copy("(", n) <> :binary.copy(")", n)))
      end),
      npy_file("nested lists as a dtype", 30_000, 10..32_000, [:unsupported, :corrupt], fn n ->
        npy(text(:binary.copy("[", n) <> :binary.copy("]", n), "(6,)"))
      end),
      npy_file("nested dicts", 10_000, 10..10_000, [:corrupt], fn n ->
        npy(:binary.copy("{'a': ", n) <> "1" <> :binary.copy("}", n))
      end),
      npy_file("an unclosed string", 60_000, 10..65_000, [:corrupt, :unsupported], fn n ->
        npy("{'descr': '" <> :binary.copy("<", n))
      end),
      npy_file("bytes that are not ASCII", 20_000, 10..30_000, [:corrupt], fn n ->
        npy("{'" <> :binary.copy("ü", n) <> "': 1}")
      end),
      npy_file("bytes that are not UTF-8", 60_000, 10..65_000, [:corrupt], fn n ->
        npy(:binary.copy(<<0xFF>>, n))
      end),
      npy_file("zeros instead of a text", 60_000, 10..65_000, [:corrupt], fn n ->
        npy(bytes(n))
      end),
      npy_file("the same key again and again", 2000, 2..3000, [:ok, :corrupt], fn n ->
        npy(
          "{" <> :binary.copy("'shape': (6,), ", n) <> "'descr': '<f4', 'fortran_order': False}"
        )
      end),
      npy_file("two dtypes", 2, 2..2, [:corrupt], fn _ ->
        npy("{'descr': '<f4', 'descr': '<f8', 'fortran_order': False, 'shape': (3,)}")
      end),
      npy_file("unknown keys", 4000, 1..5000, [:ok, :corrupt], fn n ->
        more = for i <- 1..n, into: "", do: "'k#{i}': 1, "
        npy("{" <> more <> "'descr': '<f4', 'fortran_order': False, 'shape': (6,)}")
      end),
      npy_file("a key is missing", 1, 1..1, [:corrupt], fn _ ->
        npy("{'descr': '<f4', 'shape': (6,)}")
      end),
      npy_file("no dict", 1, 1..1, [:corrupt], fn _ -> npy("__import__('os').system('id')") end),
      npy_file("a call as a shape", 1, 1..1, [:corrupt], fn _ ->
        npy(text("'<f4'", "tuple(range(9))"))
      end),
      npy_file("an unknown version", 200, 4..255, [:unsupported, :corrupt], fn n ->
        [<<0x93, "NUMPY", n, 0, 10::little-32>>, "{}        ", bytes(24)]
      end),
      npy_file("objects, as a pickle", 1000, 1..100_000, [:unsupported], fn n ->
        npy(text("'|O'", "(2,)"), ["\x80\x03cposix\nsystem\n", bytes(n)])
      end),
      npy_file("a structured dtype", 1000, 1..2500, [:unsupported], fn n ->
        npy(text("[" <> Enum.map_join(1..n, ", ", &"('f#{&1}', '<f4')") <> "]", "(1,)"))
      end),
      npy_file("strings", 100, 1..1000, [:unsupported], fn n -> npy(text("'<U#{n}'", "(1,)")) end),
      npy_file("a long dtype", 60_000, 10..65_000, [:unsupported, :corrupt], fn n ->
        npy(text("'" <> :binary.copy("x", n) <> "'", "(1,)"))
      end)
    ]
  end

  defp shapes do
    [
      npy_file("a shape of 2^62 elements", 1, 1..1, [:truncated, :corrupt, :limit], fn _ ->
        npy(text("'<f4'", "(#{2 ** 31}, #{2 ** 31})"))
      end),
      npy_file("a shape that overflows 64 bits", 1, 1..1, [:corrupt, :limit], fn _ ->
        npy(text("'<f4'", "(#{2 ** 32}, #{2 ** 32}, 16)"))
      end),
      npy_file("a shape whose bytes overflow", 1, 1..1, [:corrupt, :limit], fn _ ->
        npy(text("'<c16'", "(#{2 ** 60},)"))
      end),
      npy_file("a size beyond 64 bits", 100, 20..30_000, [:corrupt, :limit], fn n ->
        npy(text("'<f4'", "(#{:binary.copy("9", n)},)"))
      end),
      npy_file("a negative size", 1, 1..1, [:corrupt], fn _ -> npy(text("'<f4'", "(-6,)")) end),
      npy_file("two negative sizes", 1, 1..1, [:corrupt], fn _ ->
        npy(text("'<f4'", "(-2, -3)"))
      end),
      npy_file(
        "empty with huge sizes",
        1,
        1..1,
        [:ok, :corrupt, :limit],
        fn _ -> npy(text("'<f4'", "(0, #{2 ** 62}, #{2 ** 62})"), "") end
      ),
      npy_file("empty with one huge size", 1, 1..1, [:ok, :limit], fn _ ->
        npy(text("'<f4'", "(#{2 ** 40}, 0)"), "")
      end),
      npy_file("many dimensions", 10_000, 70..15_000, [:unsupported, :corrupt, :limit], fn n ->
        npy(text("'<f4'", "(" <> :binary.copy("1, ", n) <> ")"), <<0::32>>)
      end),
      npy_file(
        "fewer elements than the shape",
        1_000_000,
        10..10_000_000,
        [:truncated, :corrupt],
        fn n ->
          npy(text("'<f8'", "(#{n},)"), bytes(24))
        end
      ),
      npy_file("more elements than the shape", 1_000_000, 1..10_000_000, [:ok, :corrupt], fn n ->
        npy(text("'<f4'", "(6,)"), bytes(24 + n))
      end),
      npy_file("a boolean of 255", 1000, 1..100_000, [:ok], fn n ->
        npy(text("'|b1'", "(#{n},)"), :binary.copy(<<255>>, n))
      end)
    ]
  end

  defp npz(name, n, range, expect, make),
    do:
      file("npz: " <> name, n, range, expect, fn n -> make.(n) |> Zip.make() end,
        stream: [:ok, :unsupported, :corrupt, :truncated, :limit]
      )

  defp array(text, data \\ <<0::192>>), do: IO.iodata_to_binary(npy(text, data))
  defp floats(n), do: array(text("'<f4'", "(#{n},)"), bytes(4 * n))

  defp archives do
    [
      npz("many small arrays", 20_000, 10..60_000, [:ok], fn n ->
        a = floats(1)
        for i <- 1..n, do: {"layer.#{i}.npy", a}
      end),
      npz("zeros", 50_000_000, 1_000_000..200_000_000, [:ok, :limit], fn n ->
        [Zip.deflated({"a.npy", floats(div(n, 4))})]
      end),
      npz("arrays of zeros", 100, 2..300, [:ok, :limit], fn n ->
        one = Zip.deflated({"a.npy", floats(250_000)})
        for i <- 1..n, do: put_elem(one, 0, "a#{i}.npy")
      end),
      npz("a size that the data does not have", 1, 1..1, [:corrupt, :limit, :truncated], fn _ ->
        {name, data, changes} = Zip.deflated({"a.npy", floats(1000)})
        [{name, data, Keyword.merge(changes, size: 2 ** 31, local: [size: 2 ** 31])}]
      end),
      npz(
        "a header of zeros behind the prefix",
        5_000_000,
        1000..50_000_000,
        [:corrupt, :limit],
        fn n ->
          [Zip.deflated({"a.npy", IO.iodata_to_binary(long(n, bytes(n)))})]
        end
      ),
      npz("two arrays with one name", 1000, 2..20_000, [:corrupt], fn n ->
        a = floats(1)
        for _ <- 1..n, do: {"a.npy", a}
      end),
      npz("members that are no arrays", 10_000, 1..50_000, [:ok], fn n ->
        [{"a.npy", floats(6)} | for(i <- 1..n, do: {"note#{i}.txt", "text"})]
      end),
      npz("a member that is no array but has its ending", 1, 1..1, [:corrupt], fn _ ->
        [{"a.npy", floats(6)}, {"b.npy", :binary.copy("text", 100)}]
      end),
      npz("an empty member", 1, 1..1, [:corrupt], fn _ -> [{"a.npy", ""}] end),
      npz("names that leave the folder", 1, 1..1, [:ok, :corrupt], fn _ ->
        [
          {"../../etc/passwd.npy", floats(6)},
          {"/root/x.npy", floats(6)},
          {"..\\x.npy", floats(6)}
        ]
      end),
      npz("names with zeros", 1, 1..1, [:ok, :corrupt], fn _ ->
        [{<<"a", 0, "b.npy">>, floats(6)}, {<<0, ".npy">>, floats(6)}]
      end),
      npz("names that are not UTF-8", 1, 1..1, [:corrupt], fn _ ->
        [{<<255, 254, ".npy">>, floats(6)}]
      end),
      npz("a name that is only an ending", 1, 1..1, [:ok, :corrupt], fn _ ->
        [{".npy", floats(6)}, {"a.npy", floats(6)}]
      end),
      npz("long names", 300, 2..1000, [:ok, :limit], fn n ->
        a = floats(1)
        for i <- 1..n, do: {:binary.copy("n", 60_000) <> "#{i}.npy", a}
      end),
      npz("objects, as a pickle", 1, 1..1, [:unsupported], fn _ ->
        [{"a.npy", floats(6)}, {"b.npy", array(text("'|O'", "()"), "\x80\x03cposix\nsystem\n.")}]
      end),
      npz("an array with a shape beyond its record", 1, 1..1, [:corrupt], fn _ ->
        [{"a.npy", array(text("'<f4'", "(#{2 ** 40},)"))}]
      end),
      npz("an array inside an array", 1, 1..1, [:corrupt], fn _ ->
        [{"a.npy", array(text("'<f4'", "(6,)"), floats(6))}]
      end)
    ]
  end
end
