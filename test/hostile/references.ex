defmodule ExTorch.HostileFiles.References do
  @moduledoc false
  # Pickles that refer to one object again and again, and keys that every tensor below them repeats.
  import ExTorch.HostileFiles.Instructions
  import ExTorch.Test.Pickle
  import ExTorch.Test.Formats, only: [pickled_bytes: 1, numpy_array: 3]

  # See ExTorch.HostileFiles.Catalogue for the elements.
  def all, do: aliases() ++ trees() ++ keys()

  defp aliases do
    [
      {"references to one tensor, two levels", 700, 10, 2000, [:ok, :limit],
       fn tensor, n -> [tensor, keep(0), list(gets(0, n)), keep(1), list(gets(1, n))] end},
      {"references to one tensor, three levels", 100, 10, 300, [:ok, :limit],
       fn tensor, n ->
         [tensor, keep(0), list(gets(0, n)), keep(1), list(gets(1, n)), keep(2), list(gets(2, n))]
       end},
      {"references to one dict of a tensor", 700, 10, 2000, [:ok, :limit],
       fn tensor, n ->
         [dict([{"weight", tensor}]), keep(0), list(gets(0, n)), keep(1), list(gets(1, n))]
       end},
      {"references to one text", 700, 10, 3000, [:ok, :limit],
       fn _, n -> [text(chars(n)), keep(0), list(gets(0, n)), keep(1), list(gets(1, n))] end},
      {"references to a text of 1 MB", 1000, 10, 3000, [:ok, :limit],
       fn _, n -> [text(chars(1_000_000)), keep(0), list(gets(0, n))] end},
      {"references to an integer of many bytes", 1000, 10, 3000, [:ok, :limit],
       fn _, n -> [long(60_000), keep(0), list(gets(0, n))] end},
      {"references to an object with a state", 700, 10, 1500, [:ok, :limit],
       fn _, n ->
         [object([dict([{"a", int(1)}])]), keep(0), list(gets(0, n)), keep(1), list(gets(1, n))]
       end},
      {"references to a global with a long name", 1000, 10, 3000, [:ok, :limit],
       fn _, n -> [global("m", chars(100_000)), keep(0), list(gets(0, n))] end},
      {"references to a NumPy array", 700, 10, 1500, [:ok, :limit],
       fn _, n ->
         [numpy_array([2], "f4", <<0::64>>), keep(0), list(gets(0, n)), keep(1), list(gets(1, n))]
       end},
      {"references to a NumPy scalar", 700, 10, 1500, [:ok, :limit],
       fn _, n -> [numpy_scalar(), keep(0), list(gets(0, n)), keep(1), list(gets(1, n))] end},
      {"references to a set", 700, 10, 1500, [:ok, :limit],
       fn _, n -> [set(ints(3)), keep(0), list(gets(0, n)), keep(1), list(gets(1, n))] end},
      {"references to a device, a dtype and a complex number", 400, 10, 1500, [:ok, :limit],
       fn _, n ->
         leaves = [device("cuda"), global("torch", "float16"), complex()]
         [list(leaves), keep(0), list(gets(0, n)), keep(1), list(gets(1, n))]
       end},
      {"a tensor in a dict of references as value of many keys", 20_000, 10, 60_000,
       [:ok, :limit],
       fn tensor, n -> [tensor, keep(0), "}(", for(i <- 1..n, do: [int(i), get(0)]), "u"] end},
      {"a persistent id that many tensors refer to", 20_000, 10, 40_000, [:ok, :limit],
       fn tensor, n -> [tensor, keep(0), list(gets(0, n))] end}
    ]
  end

  # One object twice in each level: 2^n nodes.
  defp trees do
    for {kind, pair} <- [
          {"lists", fn i -> ["](", get(i), get(i), "e"] end},
          {"tuples", fn i -> [get(i), get(i), <<0x86>>] end},
          {"dicts", fn i -> ["}(", text("a"), get(i), text("b"), get(i), "u"] end},
          {"objects", fn i -> object([tuple([get(i), get(i)])]) end},
          {"frozensets", fn i -> ["(", get(i), tuple([get(i)]), <<0x91>>] end},
          {"arguments", fn i -> [global("m", "f"), tuple([get(i), get(i)]), "R"] end}
        ],
        {leaf, make} <- [{"a tensor", fn tensor -> tensor end}, {"None", fn _ -> "N" end}],
        # Sets of tensors are no dict keys, but tensors as elements of sets are unsupported in the same way.
        expect = if(kind == "frozensets", do: [:limit, :unsupported, :ok], else: [:limit, :ok]) do
      {"#{kind} that double in each level, of #{leaf}", 40, 15, 990, expect,
       fn tensor, n ->
         [make.(tensor), put(0), for(i <- 1..n, do: [pair.(i - 1), put(i)])]
       end}
    end ++
      [
        {"lists that double, as a dict key", 40, 10, 900, [:limit, :ok, :unsupported, :corrupt],
         fn _, n ->
           [
             ["N", keep(0)],
             for(i <- 1..n, do: [get(i - 1), get(i - 1), <<0x86>>, keep(i)]),
             ["}", get(n), "Ns"]
           ]
         end},
        {"nested lists", 100_000, 2000, 1_000_000, [:limit],
         fn _, n -> [copies("]", n), copies("a", n - 1)] end},
        {"nested tuples", 100_000, 2000, 1_000_000, [:limit],
         fn _, n -> [")", copies(<<0x85>>, n)] end},
        {"nested objects", 20_000, 2000, 100_000, [:limit],
         fn _, n ->
           [
             global("m", "C"),
             keep(0),
             gets(0, n),
             ")",
             copies(["R", <<0x85>>], n)
           ]
         end},
        {"a list that contains itself", 3, 1, 100_000, [:ok],
         fn _, n -> ["]", put(0), copies([get(0), "a"], n)] end},
        {"objects that refer to their parent", 300, 1, 400, [:ok],
         fn _, n ->
           [
             object([]),
             put(0),
             dict([{"children", list(for _ <- 1..n, do: object([dict([{"parent", get(0)}])]))}]),
             "b"
           ]
         end}
      ]
  end

  # A key is part of the name and path of every tensor below it.
  defp keys do
    for {kind, key, expect} <- [
          {"bytes", fn n -> pickled_bytes(chars(n)) end, [:ok, :limit]},
          {"text", fn n -> text(chars(n)) end, [:ok, :limit]},
          {"a long integer", fn n -> long(n) end, [:ok, :limit]},
          {"a tuple", fn n -> ["(", copies("N", min(n, 990)), "t"] end, [:ok, :limit]},
          {"a tuple of texts",
           fn n -> ["(", text(chars(n)), put(99), copies(get(99), 100), "t"] end, [:ok, :limit]},
          {"nested tuples", fn n -> ["N", copies(<<0x85>>, min(n, 900))] end, [:ok, :limit]},
          {"a frozenset", fn n -> ["(", ints(min(n, 900)), <<0x91>>] end,
           [:ok, :limit, :unsupported, :corrupt]},
          {"a global", fn n -> global("m", chars(n)) end, [:ok, :limit]},
          {"an object", fn n -> object([text(chars(n))]) end,
           [:ok, :limit, :unsupported, :corrupt]},
          {"a device", fn n -> device(chars(n)) end, [:ok, :limit, :unsupported, :corrupt]},
          {"a complex number", fn _ -> complex() end, [:ok, :limit, :unsupported, :corrupt]}
        ] do
      {"a key that is #{kind}, above many tensors", 1000, 100, 20_000, expect,
       fn tensor, n ->
         [
           [tensor, keep(0), list(gets(0, 250)), keep(1)],
           ["}", key.(n), list(gets(1, 250)), "s"]
         ]
       end}
    end ++
      [
        {"a chain of long keys above many tensors", 900, 10, 980, [:ok, :limit],
         fn tensor, n ->
           [text(chars(500)), keep(0), tensor, keep(1)] ++
             [copies(["}", get(0)], n), list(gets(1, 2000)), copies("s", n)]
         end},
        {"a chain of keys above distinct tensors", 900, 10, 980, [:ok, :limit],
         fn tensor, n ->
           [copies(["}", text("layer")], n), list(copies(tensor, 100)), copies("s", n)]
         end},
        {"a key of 1 MB for each of many tensors", 20, 1, 40, [:ok, :limit],
         fn tensor, n -> ["}(", for(i <- 1..n, do: [text(chars(1_000_000 + i)), tensor]), "u"] end},
        {"one key of 1 MB in each of many dicts", 200, 10, 900, [:ok, :limit],
         fn tensor, n ->
           [text(chars(1_000_000)), keep(0), tensor, keep(1)] ++
             list(copies(["}", get(0), get(1), "s"], n))
         end},
        {"many keys that are the same long text", 2000, 10, 10_000, [:ok, :limit],
         fn tensor, n ->
           [text(chars(10_000)), keep(0), tensor, keep(1)] ++
             ["}(", copies([get(0), get(1)], n), "u"]
         end},
        {"large integers as keys of tensors", 8000, 9, 100_000, [:ok, :limit],
         fn tensor, n ->
           key = fn i -> [<<0x8B, n::little-32>>, copies(<<0x55>>, n - 1), <<i>>] end
           ["}(", for(i <- 1..60, do: [key.(i), tensor]), "u"]
         end},
        {"names of escapes that two tensors have", 10_000, 1, 100_000, [:ok, :limit, :ambiguous],
         fn tensor, n ->
           name = String.duplicate("\e\n\"", n)
           ["}(", text(name <> ".a"), tensor, text(name), "}", text("a"), tensor, "su"]
         end},
        {"a set of long bytes above many tensors", 1000, 100, 10_000,
         [:ok, :limit, :unsupported, :corrupt],
         fn tensor, n ->
           [
             [tensor, keep(0)],
             ["}", tuple([set(pickled_bytes(chars(n)))]), list(gets(0, 20_000)), "s"]
           ]
         end}
      ]
  end
end
