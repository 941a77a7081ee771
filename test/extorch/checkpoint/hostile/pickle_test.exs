defmodule ExTorch.Checkpoint.Hostile.PickleTest do
  # Pickles that are malformed, forbidden or describe enormous objects.
  use ExTorch.Case
  alias ExTorch.Python.{Global, Object}
  alias ExTorch.Test.{Fixtures, Hostile, Pickle}
  import Hostile, only: [load_body: 1, load_body: 2, load_pickle: 1, load_pickle: 2]
  import Pickle, only: [text: 1, int: 1, tuple: 1, global: 2, reduce: 2, tensor: 1]

  describe "pickle" do
    test "stack, marks and memo" do
      for broken <- [
            "t",
            "R",
            "a",
            "s",
            "0",
            "2",
            "1",
            "(a",
            "e",
            "u",
            "(",
            "h\0",
            "j\0\0\0\0",
            "q\0",
            "}(K\1u",
            ")b",
            "NNb",
            "(b",
            "]K\1K\2",
            ""
          ] do
        assert {reason, _} = load_pickle(<<0x80, 2>> <> broken <> "."), inspect(broken)
        assert {broken, reason} == {broken, :corrupt}
      end

      assert {:ok, nil} =
               load_pickle(
                 <<0x80, 2, "Nr", 0xFFFFFFFF::little-32, "0j", 0xFFFFFFFF::little-32, ".">>
               )

      assert {:corrupt, _} =
               load_pickle(
                 <<0x80, 2, "Nr", 0xFFFFFFFF::little-32, "0j", 0xFFFFFFFE::little-32, ".">>
               )
    end

    test "wrong lengths are detected before anything is allocated" do
      for opcode <-
            [
              <<"X", 0xFFFFFFFF::32>>,
              <<"B", 0x7FFFFFFF::little-32>>,
              <<0x8E, 2 ** 62::little-64>>,
              <<0x8D, 2 ** 63::little-64>>
            ] ++
              [
                <<0x96, 2 ** 40::little-64>>,
                <<0x8B, 0x7FFFFFFF::little-32>>,
                <<0x95, 2 ** 40::little-64>>,
                <<"U", 255>>,
                <<0x8A, 200>>,
                "G123"
              ] do
        assert {:truncated, _} = load_pickle(<<0x80, 4>> <> opcode)
      end

      assert {:truncated, _} = load_pickle(<<0x80, 2, "N">>)
      assert {:truncated, _} = load_pickle("")
      assert {:truncated, _} = load_pickle("cos")

      assert {:corrupt, _} =
               load_pickle(<<0x80, 4, 0x95, 3::little-64, "X", 4::little-32, "abcd.">>)
    end

    test "wrong operand types of an opcode" do
      for body <- [
            [int(1), text("k"), "Ns"],
            ["N", int(1), "a"],
            ["N(", int(1), "e"],
            [text("x"), "}b"],
            ["(K\1u"],
            ["](K\1K\2u"],
            ["}(K\1e"],
            [<<0x8F>>, "N", "a"]
          ] do
        assert {:corrupt, _} = load_body(body)
      end

      assert {:corrupt, _} = load_body([global("os", "system"), int(1), "R"])
      assert {:corrupt, _} = load_pickle(<<0x80, 4, "K", 1, "K", 2, 0x93, ".">>)
      assert {:corrupt, _} = load_pickle(<<0x80, 2, 0xFF, ".">>)
      assert {:unsupported, _} = load_pickle(<<0x80, 9, "N.">>)
      assert {:unsupported, _} = load_pickle(<<0x80, 5, 0x97, ".">>)
      assert {:forbidden, _} = load_pickle(<<0x80, 2, 0x82, 1, ".">>)
    end

    test "nothing is imported or called" do
      marker = Path.join(System.tmp_dir!(), "extorch_owned_#{System.unique_integer([:positive])}")
      evil = reduce(global("os", "system"), [text("touch " <> marker)])

      assert {:ok, %Object{class: %Global{module: "os", name: "system"}, args: {"touch " <> _}}} =
               load_body(evil)

      assert {:forbidden, message} = load_body(evil, strict: true)
      assert message =~ "os.system"
      assert {:ok, %Object{new: true}} = load_pickle("(S'x'\nios\nsystem\n.")
      assert {:ok, %Object{new: true, args: {"x"}}} = load_pickle("(cos\nsystem\nS'x'\no.")
      assert {:forbidden, _} = load_pickle("(S'x'\nios\nsystem\n.", strict: true)

      assert {:ok, %Global{module: "builtins", name: "eval"}} =
               load_body(global("builtins", "eval"))

      refute File.exists?(marker)
    end

    test "excessive sharing, depth and self-reference" do
      bomb = [
        "]" <> "q\0" | for(i <- 1..60, do: ["]q", <<i>>, "h", <<i - 1>>, "ah", <<i - 1>>, "a"])
      ]

      # every list contains the previous one twice: 2^60 elements
      assert {:limit, message} =
               load_body(bomb ++ ["q", <<200>>, String.duplicate("0", 61), "h", <<200>>])

      assert message =~ "limits: [memory: n]"

      assert {:limit, message} =
               load_body([String.duplicate("]", 5000), String.duplicate("a", 4999)])

      assert message =~ "depth"
      assert {:ok, _} = load_body([String.duplicate("]", 900), String.duplicate("a", 899)])
      assert {:ok, [%ExTorch.Python.Ref{up: 1}]} = load_body("]q\0h\0a")

      assert {:ok, %{"me" => %ExTorch.Python.Ref{up: 1}}} =
               load_body(["}q\0", text("me"), "h\0s"])

      assert {:limit, _} =
               load_pickle(
                 IO.iodata_to_binary([<<0x80, 2>>, "](", String.duplicate("]", 2_000_000), "e."])
               )

      # a million small objects are allowed
      assert {:ok, list} =
               load_pickle(
                 IO.iodata_to_binary([<<0x80, 2>>, "](", String.duplicate("K\1", 400_000), "e."])
               )

      assert length(list) == 400_000
    end

    test "strings" do
      assert {:corrupt, _} = load_body(["X", <<2::little-32, 0xC3, 0x28>>])
      assert {:corrupt, _} = load_body(["X", <<2::little-32, 0xC0, 0x80>>])
      assert {:corrupt, _} = load_body(["X", <<4::little-32, 0xF5, 0x80, 0x80, 0x80>>])

      assert {:ok, %ExTorch.Python.RawText{data: <<0xED, 0xA0, 0x80>>}} =
               load_body(["X", <<3::little-32, 0xED, 0xA0, 0x80>>])

      assert {:ok, "✓"} = load_body(text("✓"))
      assert {:ok, %ExTorch.Python.Bytes{data: <<0xFF>>}} = load_body(<<"U", 1, 0xFF>>)
    end

    test "protocol 0" do
      assert {:ok, [1, true, -5, 2.5, "it's", "ä", 12_345_678_901_234]} =
               load_pickle(
                 "(lp0\nI1\naI01\naI-5\naF2.5\naS\"it's\"\naV\\u00e4\naL12345678901234L\na."
               )

      assert {:ok, %{"a" => nil}} = load_pickle("(dS'a'\nNs.")

      for bad <- ["Ix\n.", "F1..2\n.", "Sx\n.", "S'x\n.", "gx\n.", "g5\n.", "I1", "p-1\n."] do
        {reason, _} = load_pickle(bad)
        assert reason in [:corrupt, :truncated]
      end
    end

    test "UNICODE lines with arbitrary bytes" do
      wide = String.duplicate(<<0xE9>>, 50_000) <> String.duplicate("A", 50_000)
      assert {:ok, text} = load_pickle("V" <> wide <> "\n.")
      assert text == String.duplicate("é", 50_000) <> String.duplicate("A", 50_000)
      assert {:ok, "\\x"} = load_pickle("V\\x\n.")
      assert {:corrupt, _} = load_pickle("V\\u12\n.")
      assert {:ok, "☃é"} = load_pickle("V\\u2603\\u00e9\n.")
    end

    test "small files that describe enormous objects" do
      # many references to one memoized list
      items = ["](", String.duplicate("K\1", 50_000), "eq\0", global("builtins", "set"), "q\1"]

      assert {:limit, _} =
               load_body([
                 items,
                 String.duplicate(
                   "h\1h\0\x850R0" |> String.replace("\x850R", <<0x85, "R">>),
                   50_000
                 ),
                 "0"
               ])

      # many references to one long string
      long = [text(String.duplicate("x", 1_000_000)), "q\0"]
      assert {:limit, _} = load_body(["](", long, String.duplicate("h\0", 300_000), "e"])
      # many tensors below one long key
      many = ["](", tensor([]), "q\0", String.duplicate("h\0", 200_000), "e"]
      assert {:limit, _} = load_body(["}", text(String.duplicate("n", 1_000_000)), many, "s"])
      # many tensors at a great depth
      deep = [
        String.duplicate("]", 900),
        "](",
        tensor([]),
        "q\0",
        String.duplicate("h\0", 100_000),
        "e",
        String.duplicate("a", 900)
      ]

      assert {:limit, _} = load_body(deep)
      # a key of very many nodes
      assert {:limit, _} = load_body(["}(", String.duplicate("K\1", 5000), "t", tensor([]), "s"])
      # one large metadata dict that all tensors share
      meta = ["}(", for(i <- 1..100, do: [text("k#{i}"), "N"]), "u"]

      with_meta =
        reduce(global("torch._utils", "_rebuild_tensor_v2"), [
          Pickle.storage([]),
          int(0),
          tuple([int(4)]),
          tuple([int(1)]),
          <<0x89>>,
          "N",
          meta
        ])

      assert {:corrupt, _} = load_body(with_meta)
    end

    test "integers of any size" do
      for n <- [
            0,
            -1,
            127,
            128,
            -128,
            -129,
            255,
            256,
            2 ** 31,
            -(2 ** 31),
            2 ** 63 - 1,
            -(2 ** 63),
            2 ** 63,
            -(2 ** 63) - 1,
            2 ** 64,
            2 ** 1000,
            -(2 ** 1000),
            -(2 ** 72)
          ] do
        size = n |> abs() |> Integer.digits(256) |> length() |> Kernel.+(1)
        assert {:ok, ^n} = load_body([<<0x8A, size>>, <<n::little-signed-size(size)-unit(8)>>])
      end
    end
  end

  describe "strict" do
    test "accepts what weights_only accepts" do
      for file <-
            Path.wildcard(
              "test/fixtures/*/{state_dict,views,many,dtypes,conj,meta,parameter,list,tensor,nested}.pt"
            ) do
        assert {:ok, _} = ExTorch.load(file, strict: true), file
      end
    end

    test "accepts the globals that weights_only accepts" do
      %{"globals" => globals} = Fixtures.weights_only()
      assert length(globals) > 130

      for global <- globals do
        {module, "." <> name} = String.split_at(global, -String.length(last(global)) - 1)
        assert {:ok, _} = load_body(global(module, name), strict: true), global
      end
    end

    defp last(global), do: global |> String.split(".") |> List.last()

    test "refuses the rest" do
      for {module, name} <-
            [
              {"numpy", "ndarray"},
              {"argparse", "Namespace"},
              {"torch", "load"},
              {"torch.nn", "Linear"},
              {"builtins", "frozenset"}
            ] ++
              [
                {"torch.hub", "load"},
                {"collections", "deque"},
                {"torch._utils", "_rebuild_sparse_csr_tensor"},
                # torch 2.15 does not allow it any more
                {"torch._utils", "_rebuild_nested_tensor"},
                {"torch.tensor", "_rebuild_from_type_v2"},
                {"torch", "UntypedStorage"},
                {"torch.cuda", "QInt8Storage"},
                {"torch", "OtherTensor"},
                {"torch.sparse", "BoolTensor"},
                {"torch", "tensor"}
              ] do
        assert {:forbidden, message} = load_body(global(module, name), strict: true)
        assert message =~ "#{module}.#{name}"
        assert {:ok, _} = load_body(global(module, name))
      end

      for opcode <- ["I1\n.", "S'a'\n.", <<0x8C, 1, "a.">>, <<"C", 1, "a.">>],
          do: assert({:forbidden, _} = load_pickle(<<0x80, 2>> <> opcode, strict: true))

      assert {:ok, _} = load_pickle(<<0x80, 2, "U", 1, "a.">>, strict: true)
    end
  end
end
