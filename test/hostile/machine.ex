defmodule ExTorch.HostileFiles.Machine do
  @moduledoc false
  # Pickles whose instructions cost more than the byte they take. Also valid ones, which must load.
  import Bitwise
  import ExTorch.HostileFiles.Instructions
  import ExTorch.Test.Pickle

  # See ExTorch.HostileFiles.Catalogue for the elements.
  def all, do: containers() ++ machine()

  defp containers do
    [
      {"a set of many integers", 200_000, 10, 2_000_000, [:ok, :limit],
       fn _, n -> set(ints(n)) end},
      {"a dict of many integers", 200_000, 10, 2_000_000, [:ok, :limit],
       fn _, n -> ["}(", for(i <- 1..n, do: [int(i), "N"]), "u"] end},
      {"a dict of equal keys", 100_000, 10, 4_000_000, [:ok, :limit],
       fn _, n -> ["}(", copies("NN", n), "u"] end},
      {"a set of equal elements", 100_000, 10, 4_000_000, [:ok, :limit],
       fn _, n -> set(copies("N", n)) end},
      {"a dict that is extended one item at a time", 200_000, 10, 1_000_000, [:ok, :limit],
       fn _, n -> ["}", for(i <- 1..n, do: [int(i), "Ns"])] end},
      {"a dict of 33 items one at a time and twice the first", 33, 1, 100, [:ok],
       fn _, n -> ["}", for(i <- 1..n, do: [int(i), "Ns"]), int(1), "Ns"] end},
      {"a list that is extended one item at a time", 200_000, 10, 5_000_000, [:ok, :limit],
       fn _, n -> ["]", copies("Na", n)] end},
      {"many lists that grow in turn", 2000, 10, 4000, [:ok, :limit],
       fn _, n ->
         [
           for(i <- 1..n, do: ["]", keep(i)]),
           for(_ <- 1..8, i <- 1..n, do: [get(i), "Na0"]),
           "N"
         ]
       end},
      {"a tuple of the largest size", 1 <<< 20, 10, (1 <<< 24) - 1, [:ok, :limit],
       fn _, n -> ["(", copies("N", n), "t"] end},
      {"a tuple beyond the largest size", 1 <<< 24, 1 <<< 24, (1 <<< 24) + 1000, [:limit],
       fn _, n -> ["(", copies("N", n), "t"] end},
      {"empty lists", 1_000_000, 10, 10_000_000, [:ok, :limit],
       fn _, n -> list(copies("]", n)) end},
      {"empty dicts", 1_000_000, 10, 10_000_000, [:ok, :limit],
       fn _, n -> list(copies("}", n)) end},
      {"empty tuples", 1_000_000, 10, 10_000_000, [:ok, :limit],
       fn _, n -> list(copies(")", n)) end},
      {"empty sets", 1_000_000, 10, 10_000_000, [:ok, :limit],
       fn _, n -> list(copies(<<0x8F>>, n)) end},
      {"empty frozensets", 500_000, 10, 5_000_000, [:ok, :limit],
       fn _, n -> list(copies(["(", <<0x91>>], n)) end},
      {"small integers", 1_000_000, 10, 10_000_000, [:ok, :limit],
       fn _, n -> list(copies(<<"K", 7>>, n)) end},
      {"empty texts", 500_000, 10, 5_000_000, [:ok, :limit],
       fn _, n -> list(copies(<<0x8C, 0>>, n)) end},
      {"empty bytes", 500_000, 10, 5_000_000, [:ok, :limit],
       fn _, n -> list(copies(<<"C", 0>>, n)) end},
      {"tuples of one", 500_000, 10, 5_000_000, [:ok, :limit],
       fn _, n -> list(copies(<<"N", 0x85>>, n)) end},
      {"lists of one", 500_000, 10, 3_000_000, [:ok, :limit],
       fn _, n -> list(copies("]Na", n)) end},
      {"dicts of one", 500_000, 10, 3_000_000, [:ok, :limit],
       fn _, n -> list(copies("}NNs", n)) end},
      {"sets of one", 300_000, 10, 3_000_000, [:ok, :limit],
       fn _, n -> list(copies([<<0x8F>>, "(N", <<0x90>>], n)) end},
      {"integers of nine bytes", 100_000, 10, 1_000_000, [:ok, :limit],
       fn _, n -> list(copies([<<0x8A, 9>>, <<1::72>>], n)) end}
    ]
  end

  # The pickle machine itself: stack, marks, memo, frames.
  defp machine do
    [
      {"a sparse memo", 1000, 1, 100_000, [:ok],
       fn _, n -> ["N", for(i <- 1..n, do: ["r", <<0xFFFFFFFF - i * 4000::little-32>>])] end},
      {"a memo index of 2^32-1", 1, 1, 1, [:ok],
       fn _, _ -> ["N", "r", <<0xFFFFFFFF::little-32>>] end},
      {"a memo index beyond 64 bits", 1, 1, 1, [:corrupt, :limit, :unsupported],
       fn _, _ -> "Np99999999999999999999999\n" end},
      {"memoized many times", 500_000, 10, 10_000_000, [:ok, :limit],
       fn _, n -> ["N", copies(<<0x94>>, n)] end},
      {"marks", 500_000, 10, 10_000_000, [:ok, :limit],
       fn _, n -> [copies("(", n), copies("1", n), "N"] end},
      {"marks without an end", 500_000, 10, 10_000_000, [:corrupt, :limit],
       fn _, n -> [copies("(", n), "N"] end},
      {"duplicates on the stack", 1_000_000, 10, 10_000_000, [:ok, :limit],
       fn _, n -> ["N", copies("2", n), copies("0", n)] end},
      {"duplicates in a list", 1_000_000, 10, 10_000_000, [:ok, :limit],
       fn _, n -> ["](N", copies("2", n), "e"] end},
      {"values that are dropped at once", 500_000, 10, 5_000_000, [:ok, :limit],
       fn _, n -> [copies("]0", n), "N"] end},
      {"dicts that are dropped at once", 500_000, 10, 5_000_000, [:ok, :limit],
       fn _, n -> [copies("}0", n), "N"] end},
      {"values left on the stack", 500_000, 10, 5_000_000, [:ok, :corrupt, :limit],
       fn _, n -> [copies("N", n), "N"] end},
      {"protocol headers", 300_000, 10, 4_000_000, [:ok, :corrupt, :limit],
       fn _, n -> [copies(<<0x80, 2>>, n), "N"] end},
      {"empty frames", 50_000, 10, 1_000_000, [:ok, :corrupt],
       fn _, n -> [copies(<<0x95, 0::64>>, n), "N"] end},
      {"frames in frames", 20_000, 2, 200_000, [:corrupt, :ok],
       fn _, n -> [for(i <- n..1//-1, do: <<0x95, (i - 1) * 9 + 3::little-64>>), "N"] end},
      {"a frame of 2^63 bytes", 1, 1, 1, [:corrupt, :truncated, :limit],
       fn _, _ -> [<<0x95, 1 <<< 63::little-64>>, "N"] end},
      {"a text of 2^63 bytes", 1, 1, 1, [:corrupt, :truncated, :limit],
       fn _, _ -> [<<0x8D, (1 <<< 63) - 1::little-64>>, "N"] end},
      {"bytes of 2^64-1 bytes", 1, 1, 1, [:corrupt, :truncated, :limit],
       fn _, _ -> [<<0x8E, (1 <<< 64) - 1::little-64>>, "N"] end},
      {"a bytearray of 2^40 bytes", 1, 1, 1, [:corrupt, :truncated, :limit],
       fn _, _ -> [<<0x96, 1 <<< 40::little-64>>, "N"] end},
      {"an integer of 1 MB", 1_000_000, 10, 8_000_000, [:ok, :limit], fn _, n -> long(n) end},
      {"an integer of 100,000 decimal digits", 100_000, 10, 4_000_000,
       [:ok, :limit, :unsupported], fn _, n -> ["L", copies("7", n), "L\n"] end},
      {"an integer of many decimal digits as INT", 100_000, 10, 4_000_000,
       [:ok, :limit, :unsupported, :corrupt], fn _, n -> ["I", copies("7", n), "\n"] end},
      {"many integers of 4,000 digits", 500, 1, 5_000, [:ok, :limit, :unsupported],
       fn _, n -> list(copies(["L", copies("9", 4000), "L\n"], n)) end},
      {"a float of many digits", 1_000_000, 10, 8_000_000, [:ok, :limit, :corrupt],
       fn _, n -> ["F", copies("7", n), "\n"] end},
      {"a text of escapes", 500_000, 10, 5_000_000, [:ok, :limit, :corrupt],
       fn _, n -> ["V", copies("\\u00e9", n), "\n"] end},
      {"a string of escapes", 500_000, 10, 5_000_000, [:ok, :limit, :corrupt],
       fn _, n -> ["S'", copies("\\x41", n), "'\n"] end},
      {"a text with lone surrogates", 300_000, 1, 3_000_000, [:ok, :corrupt],
       fn _, n -> text(IO.iodata_to_binary(copies(<<0xED, 0xA0, 0x80>>, n))) end},
      {"extension codes", 1, 1, 1, [:unsupported, :corrupt, :forbidden, :ok],
       fn _, _ -> <<0x84, 1::little-32>> end},
      {"buffers outside the pickle", 1, 1, 1, [:unsupported, :corrupt, :forbidden],
       fn _, _ -> <<0x97>> end}
    ]
  end

  @doc "Valid pickles, as files have them."
  def plain do
    [
      {"a list of floats", 300_000, 10, 1_000_000, [:ok],
       fn _, n -> list(for i <- 1..n, do: <<"G", i * 0.5::float>>) end},
      {"a list of integers", 300_000, 10, 2_000_000, [:ok],
       fn _, n -> list(for i <- 1..n, do: <<"M", rem(i, 65_536)::little-16>>) end},
      {"a vocabulary", 100_000, 10, 400_000, [:ok],
       fn _, n -> ["}(", for(i <- 1..n, do: [text("token#{i}"), put(i), int(i)]), "u"] end},
      {"many small dicts", 50_000, 10, 200_000, [:ok],
       fn _, n ->
         list(for i <- 1..n, do: dict([{"loss", <<"G", i * 0.1::float>>}, {"step", int(i)}]))
       end},
      {"log lines", 20_000, 10, 100_000, [:ok],
       fn _, n -> list(for i <- 1..n, do: text("epoch #{i}: loss 0.123, accuracy 0.456")) end},
      {"an optimizer's state", 3000, 10, 20_000, [:ok],
       fn tensor, n ->
         state =
           for i <- 1..n,
               do: [
                 int(i),
                 dict([{"step", int(1000)}, {"exp_avg", tensor}, {"exp_avg_sq", tensor}])
               ]

         group =
           dict([{"lr", <<"G", 0.001::float>>}, {"params", list(for i <- 1..n, do: int(i))}])

         ["}(", text("state"), "}(", state, "u", text("param_groups"), list([group]), "u"]
       end},
      {"one tensor under two hundred names", 200, 2, 5000, [:ok],
       fn tensor, n ->
         [
           "}(",
           text("w0"),
           tensor,
           put(0),
           for(i <- 1..n, do: [text("decoder.w#{i}"), get(0)]),
           "u"
         ]
       end}
    ]
  end
end
