defmodule ExTorch.HostileFiles.Cycles do
  @moduledoc false
  # Pickles of containers that contain themselves. A cycle becomes a `%ExTorch.Python.Ref{}`, which has two paths.
  import ExTorch.HostileFiles.Instructions
  import ExTorch.Test.Pickle

  @answers [:ok, :limit, :unsupported, :corrupt]

  # See ExTorch.HostileFiles.Catalogue for the elements.
  def all, do: rings() ++ graphs() ++ keys() ++ objects()

  # Every list refers to others by the memo, also to those whose contents follow later.
  defp lists(n), do: for(i <- 0..n, do: ["]", keep(i)])
  defp extend(i, items), do: [get(i), "(", items, "e0"]

  defp rings do
    [
      {"a ring of lists", 900, 2, 980, [:ok],
       fn _, n -> [lists(n), for(i <- 0..n, do: extend(i, get(rem(i + 1, n + 1)))), "N"] end},
      {"a ring of lists beyond the depth", 100_000, 1100, 300_000, [:limit],
       fn _, n -> [lists(n), for(i <- 0..n, do: extend(i, get(rem(i + 1, n + 1)))), "N"] end},
      {"lists that each refer to all their parents", 300, 2, 900, [:ok, :limit],
       fn _, n -> [lists(n), for(i <- 0..n, do: extend(i, [below(i, n), ups(i)])), "N"] end},
      {"a deep list that refers to its root many times", 100_000, 2, 1_000_000, [:ok, :limit],
       fn _, n ->
         [lists(900), for(i <- 0..899, do: extend(i, get(i + 1))), extend(900, gets(0, n)), "N"]
       end},
      {"a deep list that refers to its middle many times", 100_000, 2, 1_000_000, [:ok, :limit],
       fn _, n ->
         [lists(900), for(i <- 0..899, do: extend(i, get(i + 1))), extend(900, gets(450, n)), "N"]
       end},
      {"a cycle below a long key, many times", 20_000, 2, 100_000, [:ok, :limit],
       fn _, n -> ["]", keep(0), "}", text(chars(50_000)), get(0), "s", extend(0, gets(0, n))] end}
    ]
  end

  defp below(i, n) when i < n, do: get(i + 1)
  defp below(_, _), do: []
  defp ups(i), do: for(j <- 0..i, do: get(j))

  # What the memo aliases inside cycles.
  defp graphs do
    [
      {"lists that all contain each other", 200, 2, 700, [:ok, :limit],
       fn _, n ->
         [lists(n), for(i <- 0..n, do: extend(i, for(j <- 0..n, do: get(j)))), "N"]
       end},
      {"lists that contain the next one twice and the first", 500, 2, 900, [:ok, :limit],
       fn _, n ->
         [
           lists(n),
           for(i <- 0..(n - 1), do: extend(i, [get(i + 1), get(i + 1), get(0)])),
           extend(n, get(0)),
           "N"
         ]
       end},
      {"pairs of lists that contain each other, in levels", 400, 2, 450, [:ok, :limit],
       fn _, n ->
         pair = fn i, more ->
           [extend(2 * i, [get(2 * i + 1), more]), extend(2 * i + 1, get(2 * i))]
         end

         [
           lists(2 * n + 1),
           for(i <- 0..(n - 1), do: pair.(i, [get(2 * i + 2), get(2 * i + 3)])),
           pair.(n, []),
           "N"
         ]
       end},
      {"many lists that contain one ring", 20_000, 2, 100_000, [:ok, :limit],
       fn _, n ->
         ["]", keep(0), "]", keep(1), extend(0, get(1)), extend(1, get(0))] ++
           [list(copies(["]", get(0), "a"], n))]
       end},
      {"many lists that contain one ring far in a list", 30_000, 2, 60_000, [:ok, :limit],
       fn _, n ->
         [
           ["]", keep(0), extend(0, get(0))],
           list([copies("N", n), get(0), copies(["]", get(0), "a"], n)])
         ]
       end},
      {"a tuple of many lists that contain it", 20_000, 2, 60_000, [:ok, :limit],
       fn _, n ->
         [
           ["(", for(i <- 1..n, do: ["]", put(i)]), "t", keep(0)],
           for(i <- 1..n, do: extend(i, get(0))),
           "N"
         ]
       end},
      {"tuples that double, around a list that contains the outermost", 40, 2, 900, [:ok, :limit],
       fn _, n ->
         [
           ["]", keep(0)],
           for(i <- 1..n, do: [get(i - 1), get(i - 1), <<0x86>>, keep(i)]),
           extend(0, get(n))
         ]
       end},
      {"tensors in a graph of cycles", 100, 2, 300, [:ok, :limit],
       fn tensor, n ->
         [
           [lists(n), tensor, keep(n + 1)],
           for(i <- 0..n, do: extend(i, [get(n + 1), for(j <- 0..n, do: get(j))])),
           "N"
         ]
       end}
    ]
  end

  defp keys do
    [
      {"a dict that is in its own key", 1, 1, 900, @answers,
       fn _, n -> ["}", put(0), get(0), copies(<<0x85>>, n), "Ns"] end},
      {"a dict whose key and value are the dict", 1, 1, 1, @answers,
       fn _, _ -> ["}", put(0), get(0), get(0), "s"] end},
      {"a dict with an object as key that has the dict as state", 1000, 1, 20_000, @answers,
       fn _, n ->
         ["}", put(0), "(", copies([global("m", "C"), ")", <<0x81>>, get(0), "b", "N"], n), "u"]
       end},
      {"a set that contains a tuple that contains the set", 100, 1, 1000, @answers,
       fn _, n -> [<<0x8F>>, put(0), "(", copies([get(0), <<0x85>>], n), <<0x90>>] end},
      {"a set that contains an object with the set as state", 100, 1, 1000, @answers,
       fn _, n ->
         [
           <<0x8F>>,
           put(0),
           "(",
           copies([global("m", "C"), ")", <<0x81>>, get(0), "b"], n),
           <<0x90>>
         ]
       end},
      {"a set that contains itself", 1, 1, 1, @answers,
       fn _, _ -> [<<0x8F>>, put(0), "(", get(0), <<0x90>>] end},
      {"a frozenset of a tuple of a list that contains the frozenset", 10, 1, 1000, @answers,
       fn _, n ->
         ["]", keep(0), "(", copies([get(0), <<0x85>>], n), <<0x91>>, keep(1), extend(0, get(1))]
       end},
      {"keys that double, of a list that contains the dict", 40, 1, 900, @answers,
       fn _, n ->
         [
           ["}", keep(0)],
           for(i <- 1..n, do: [get(i - 1), get(i - 1), <<0x86>>, keep(i)]),
           [get(0), get(n), "Ns"]
         ]
       end}
    ]
  end

  defp objects do
    [
      {"an object that is its own state", 1, 1, 1, @answers,
       fn _, _ -> [object([]), put(0), get(0), "b"] end},
      {"objects that are each other's state", 900, 2, 980, @answers,
       fn _, n ->
         [
           for(i <- 0..n, do: [object([]), keep(i)]),
           for(i <- 0..n, do: [get(i), get(rem(i + 1, n + 1)), "b0"]),
           "N"
         ]
       end},
      {"an object whose arguments contain a list that contains it", 1000, 1, 100_000, @answers,
       fn _, n ->
         ["]", keep(0), global("m", "C"), get(0), <<0x85>>, "R", keep(1), extend(0, gets(1, n))]
       end},
      {"a tensor whose hooks contain it", 1000, 1, 50_000, @answers,
       fn _, n ->
         hooks = reduce(global("collections", "OrderedDict"), [])

         [
           [hooks, keep(0)],
           global("torch._utils", "_rebuild_tensor_v2"),
           tuple([storage(), int(0), tuple([int(4)]), tuple([int(1)]), <<0x89>>, get(0)]),
           ["R", keep(1), get(0), "(", for(i <- 1..n, do: [int(i), get(1)]), "u0"]
         ]
       end},
      {"a size that contains itself", 1, 1, 1, @answers,
       fn _, _ ->
         ["]", keep(0), global("torch", "Size"), get(0), <<0x85>>, "R", keep(1)] ++
           extend(0, get(1))
       end},
      {"an OrderedDict of pairs that contain it", 1000, 1, 50_000, @answers,
       fn _, n ->
         ["]", keep(0), global("collections", "OrderedDict"), get(0), <<0x85>>, "R", keep(1)] ++
           extend(0, copies([get(1), get(1), <<0x86>>], n))
       end},
      {"a partial function of itself", 100, 1, 50_000, @answers,
       fn _, n ->
         ["]", keep(0), global("functools", "partial"), get(0), <<0x85>>, "R", keep(1)] ++
           [get(1), tuple([get(1), get(0), copies("N", 2)]), "b0", extend(0, gets(1, n))]
       end}
    ]
  end
end
