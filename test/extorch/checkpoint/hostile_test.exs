defmodule ExTorch.CheckpointBadTest do
  # One handcrafted file for every rule: each is an error with its reason, and nothing else happens.
  use ExTorch.Case
  alias ExTorch.Checkpoint
  alias ExTorch.Python.{Global, Object}
  alias ExTorch.Test.{Pickle, Zip}

  import Pickle, only: [text: 1, int: 1, tuple: 1, list: 1, global: 2, reduce: 2, tensor: 1]

  @data <<1.0::float-32-little, 2.0::float-32-little, 3.0::float-32-little, 4.0::float-32-little>>

  defp load(binary, opts \\ []) do
    case ExTorch.load({:binary, binary}, opts) do
      {:ok, object} -> {:ok, object}
      {:error, %Error{} = error} -> {error.reason, error.message}
    end
  end

  defp pickled(body, opts \\ []),
    do: load(Zip.checkpoint(Pickle.make(body), %{"0" => @data}), opts)

  defp raw(pickle, opts \\ []), do: load(Zip.checkpoint(pickle, %{"0" => @data}), opts)

  defp good,
    do: [{"a/data.pkl", Pickle.make(tensor([]))}, {"a/data/0", @data}, {"a/version", "3\n"}]

  test "the honest one loads" do
    assert {:ok, t} = load(Zip.make(good()))
    assert Tensor.to_list(t) == [1.0, 2.0, 3.0, 4.0]
  end

  describe "what is no checkpoint says what it is" do
    for {name, content, reason, words} <- [
          {"empty", "", :truncated, "empty"},
          {"HTML", "\n<!DOCTYPE html><html>", :corrupt, "HTML page"},
          {"git-lfs", "version https://git-lfs.github.com/spec/v1\noid sha256:1", :corrupt,
           "git lfs pull"},
          {"gzip", <<0x1F, 0x8B, 8, 0, 0>>, :truncated, "gzip"},
          {"text", "hello world", :corrupt, "unknown file format"},
          {"empty zip", <<"PK", 5, 6, 0::144>>, :corrupt, "without records"},
          {"one byte", "P", :corrupt, "unknown file format"}
        ] do
      test name do
        assert {unquote(reason), message} = load(unquote(content))
        assert message =~ unquote(words)
      end
    end

    test "a truncated download, with how much is there" do
      whole = Zip.make(good())
      assert {:truncated, message} = load(binary_part(whole, 0, 100))
      assert message =~ "incomplete download" and message =~ "100 bytes"
    end

    test "a zip of something else" do
      assert {:corrupt, message} = load(Zip.make([{"readme.txt", "hi"}]))
      assert message =~ "data.pkl"
    end
  end

  describe "zip" do
    defp changed(index, changes) do
      List.update_at(good(), index, fn {name, data} -> {name, data, changes} end)
      |> Zip.make()
      |> load()
    end

    test "end records that contradict each other or point nowhere" do
      assert {:corrupt, _} = load(Zip.make(good(), end64: [entries: 2]))
      assert {:corrupt, _} = load(Zip.make(good(), end64: [size: 10]))
      assert {:corrupt, _} = load(Zip.make(good(), end64: [at: 3]))
      assert {:corrupt, _} = load(Zip.make(good(), end64: [at: 2 ** 63]))
      assert {:corrupt, _} = load(Zip.make(good(), directory_offset: 5_000_000))
      assert {:corrupt, _} = load(Zip.make(good(), directory_size: 5_000_000))
      assert {:corrupt, _} = load(Zip.make(good(), entries: 60_000))
      assert {:corrupt, _} = load(Zip.make(good(), entries: 2))
      assert {:corrupt, _} = load(Zip.make(good(), entries: 0xFFFF))
    end

    test "two archives in one file" do
      assert {:corrupt, message} = load(Zip.make(good(), tail: Zip.make(good())))

      assert message =~ "outside the file" or message =~ "two end records" or
               message =~ "signature"

      assert {:corrupt, _} = load(Zip.make(good(), tail: <<"PK", 5, 6, 0::144>>))
    end

    test "a checkpoint inside a tensor is fine" do
      inner = Zip.make(good())
      size = byte_size(inner)

      body =
        tensor(class: global("torch", "ByteStorage"), numel: int(size), size: tuple([int(size)]))

      assert {:ok, t} = load(Zip.checkpoint(Pickle.make(body), %{"0" => inner}))
      assert Tensor.to_binary(t) == inner
    end

    test "records that overlap, or quote each other" do
      assert {:corrupt, _} = changed(1, offset: 0)
      assert {:corrupt, _} = changed(1, packed: 5000, size: 5000)
      assert {:corrupt, _} = changed(0, packed: 400, size: 400)
    end

    test "a header that differs from the directory" do
      assert {:corrupt, message} = changed(1, local: [name: "a/data/1"])
      assert message =~ "different name"
      assert {:corrupt, _} = changed(1, local: [method: 8])
      assert {:corrupt, _} = changed(1, local: [flags: 8])
      assert {:corrupt, _} = changed(1, local: [size: 3])
      assert {:corrupt, _} = changed(0, local: [name: "a/data.pkx"])
    end

    test "duplicate names, encryption, odd methods, sizes" do
      assert {:corrupt, message} = load(Zip.make(good() ++ [{"a/data/0", @data}]))
      assert message =~ "duplicate record name"
      assert {:unsupported, message} = changed(1, flags: 1)
      assert message =~ "encrypted"
      assert {:unsupported, message} = changed(1, method: 12, local: [method: 12])
      assert message =~ "method 12"
      assert {:corrupt, _} = changed(1, size: 99)

      assert {:corrupt, _} =
               changed(1, method: 8, size: 1_000_000_000, local: [size: 1_000_000_000])

      assert {:corrupt, _} = changed(1, method: 8)

      assert {:limit, _} =
               changed(0,
                 method: 8,
                 size: 2 ** 30,
                 packed: 2 ** 21,
                 bytes: :binary.copy(<<0>>, 2 ** 21)
               )
    end

    test "names are keys and never paths" do
      evil = [{"a/../../../etc/passwd", "x"}, {"/abs", "y"}, {"a/nul\0name", "z"}]
      assert {:ok, _} = load(Zip.make(good() ++ evil))
      ckpt = Checkpoint.open!({:binary, Zip.make(good() ++ evil)})
      assert Checkpoint.read_record(ckpt, "../../../etc/passwd") == {:ok, "x"}
    end

    test "records that no tensor needs are held to the same rules" do
      evil = fn changes ->
        Checkpoint.open!({:binary, Zip.make(good() ++ [{"a/data/evil", "1234", changes}])})
      end

      assert {:error, %{reason: :unsupported}} =
               Checkpoint.read_storage(
                 evil.(method: 12, size: 9, local: [method: 12, size: 9]),
                 "evil"
               )

      huge = [method: 8, size: 0xFFFFFFFE, local: [method: 8, size: 0xFFFFFFFE]]
      assert {:error, %{reason: :corrupt}} = Checkpoint.read_storage(evil.(huge), "evil")
      assert {:error, %{reason: :corrupt}} = Checkpoint.read_storage(evil.(huge), "evil", 0, 16)
      ckpt = Checkpoint.open!({:binary, Zip.make(good())})
      assert {:error, %{reason: :bad_argument}} = Checkpoint.read_storage(ckpt, "0", 2 ** 64, 1)
    end

    test "records that the tensors need are there, and of the right size" do
      [pickle, _, version] = good()
      assert {:corrupt, message} = load(Zip.make([pickle, version]))
      assert message =~ "data/0"
      assert {:corrupt, _} = load(Zip.make([pickle, {"a/data/0", binary_part(@data, 0, 15)}]))
      assert {:ok, _} = load(Zip.make([pickle, {"a/data/0", @data <> "abc"}]))
      assert {:corrupt, _} = load(Zip.make([pickle, {"a/data/0", @data <> "abcd"}]))
      assert {:corrupt, _} = load(Zip.make(good() ++ [{"a/byteorder", "middle"}]))
    end
  end

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
        assert {reason, _} = raw(<<0x80, 2>> <> broken <> "."), inspect(broken)
        assert {broken, reason} == {broken, :corrupt}
      end

      assert {:ok, nil} =
               raw(<<0x80, 2, "Nr", 0xFFFFFFFF::little-32, "0j", 0xFFFFFFFF::little-32, ".">>)

      assert {:corrupt, _} =
               raw(<<0x80, 2, "Nr", 0xFFFFFFFF::little-32, "0j", 0xFFFFFFFE::little-32, ".">>)
    end

    test "lengths that lie are compared with what is there before anything is allocated" do
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
        assert {:truncated, _} = raw(<<0x80, 4>> <> opcode)
      end

      assert {:truncated, _} = raw(<<0x80, 2, "N">>)
      assert {:truncated, _} = raw("")
      assert {:truncated, _} = raw("cos")
      assert {:corrupt, _} = raw(<<0x80, 4, 0x95, 3::little-64, "X", 4::little-32, "abcd.">>)
    end

    test "wrong types for an instruction" do
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
        assert {:corrupt, _} = pickled(body)
      end

      assert {:corrupt, _} = pickled([global("os", "system"), int(1), "R"])
      assert {:corrupt, _} = raw(<<0x80, 4, "K", 1, "K", 2, 0x93, ".">>)
      assert {:corrupt, _} = raw(<<0x80, 2, 0xFF, ".">>)
      assert {:unsupported, _} = raw(<<0x80, 9, "N.">>)
      assert {:unsupported, _} = raw(<<0x80, 5, 0x97, ".">>)
      assert {:forbidden, _} = raw(<<0x80, 2, 0x82, 1, ".">>)
    end

    test "nothing is resolved or run" do
      marker = Path.join(System.tmp_dir!(), "extorch_owned_#{System.unique_integer([:positive])}")
      evil = reduce(global("os", "system"), [text("touch " <> marker)])

      assert {:ok, %Object{class: %Global{module: "os", name: "system"}, args: {"touch " <> _}}} =
               pickled(evil)

      assert {:forbidden, message} = pickled(evil, strict: true)
      assert message =~ "os.system"
      assert {:ok, %Object{new: true}} = raw("(S'x'\nios\nsystem\n.")
      assert {:ok, %Object{new: true, args: {"x"}}} = raw("(cos\nsystem\nS'x'\no.")
      assert {:forbidden, _} = raw("(S'x'\nios\nsystem\n.", strict: true)

      assert {:ok, %Global{module: "builtins", name: "eval"}} =
               pickled(global("builtins", "eval"))

      refute File.exists?(marker)
    end

    test "bombs of sharing, depth and self-reference" do
      bomb = [
        "]" <> "q\0" | for(i <- 1..60, do: ["]q", <<i>>, "h", <<i - 1>>, "ah", <<i - 1>>, "a"])
      ]

      # every list holds the one before it twice: 2^60 elements
      assert {:limit, message} =
               pickled(bomb ++ ["q", <<200>>, String.duplicate("0", 61), "h", <<200>>])

      assert message =~ "nodes"

      assert {:limit, message} =
               pickled([String.duplicate("]", 5000), String.duplicate("a", 4999)])

      assert message =~ "depth"
      assert {:ok, _} = pickled([String.duplicate("]", 900), String.duplicate("a", 899)])
      assert {:corrupt, message} = pickled("]q\0h\0a")
      assert message =~ "contains itself"
      assert {:corrupt, _} = pickled(["}q\0", text("me"), "h\0s"])

      assert {:limit, _} =
               raw(
                 IO.iodata_to_binary([<<0x80, 2>>, "](", String.duplicate("]", 2_000_000), "e."])
               )

      # a million small things are no bomb
      assert {:ok, list} =
               raw(
                 IO.iodata_to_binary([<<0x80, 2>>, "](", String.duplicate("K\1", 400_000), "e."])
               )

      assert length(list) == 400_000
    end

    test "text" do
      assert {:corrupt, _} = pickled(["X", <<2::little-32, 0xC3, 0x28>>])
      assert {:corrupt, _} = pickled(["X", <<2::little-32, 0xC0, 0x80>>])
      assert {:corrupt, _} = pickled(["X", <<4::little-32, 0xF5, 0x80, 0x80, 0x80>>])

      assert {:ok, %ExTorch.Python.RawText{data: <<0xED, 0xA0, 0x80>>}} =
               pickled(["X", <<3::little-32, 0xED, 0xA0, 0x80>>])

      assert {:ok, "✓"} = pickled(text("✓"))
      assert {:ok, %ExTorch.Python.Bytes{data: <<0xFF>>}} = pickled(<<"U", 1, 0xFF>>)
    end

    test "protocol 0" do
      assert {:ok, [1, true, -5, 2.5, "it's", "ä", 12_345_678_901_234]} =
               raw("(lp0\nI1\naI01\naI-5\naF2.5\naS\"it's\"\naV\\u00e4\naL12345678901234L\na.")

      assert {:ok, %{"a" => nil}} = raw("(dS'a'\nNs.")

      for bad <- ["Ix\n.", "F1..2\n.", "Sx\n.", "S'x\n.", "gx\n.", "g5\n.", "I1", "p-1\n."] do
        {reason, _} = raw(bad)
        assert reason in [:corrupt, :truncated]
      end
    end

    test "unicode lines of any bytes" do
      wide = String.duplicate(<<0xE9>>, 50_000) <> String.duplicate("A", 50_000)
      assert {:ok, text} = raw("V" <> wide <> "\n.")
      assert text == String.duplicate("é", 50_000) <> String.duplicate("A", 50_000)
      assert {:ok, "\\x"} = raw("V\\x\n.")
      assert {:corrupt, _} = raw("V\\u12\n.")
      assert {:ok, "☃é"} = raw("V\\u2603\\u00e9\n.")
    end

    test "small files that describe enormous objects" do
      # copies of a list that is remembered once
      items = ["](", String.duplicate("K\1", 50_000), "eq\0", global("builtins", "set"), "q\1"]

      assert {:limit, _} =
               pickled([
                 items,
                 String.duplicate(
                   "h\1h\0\x850R0" |> String.replace("\x850R", <<0x85, "R">>),
                   50_000
                 ),
                 "0"
               ])

      # a long text, seen again and again
      long = [text(String.duplicate("x", 1_000_000)), "q\0"]
      assert {:limit, _} = pickled(["](", long, String.duplicate("h\0", 300_000), "e"])
      # a long name in front of many tensors
      many = ["](", tensor([]), "q\0", String.duplicate("h\0", 200_000), "e"]
      assert {:limit, _} = pickled(["}", text(String.duplicate("n", 1_000_000)), many, "s"])
      # many tensors at the bottom of a deep well
      deep = [
        String.duplicate("]", 900),
        "](",
        tensor([]),
        "q\0",
        String.duplicate("h\0", 100_000),
        "e",
        String.duplicate("a", 900)
      ]

      assert {:limit, _} = pickled(deep)
      # a key of very many parts
      assert {:limit, _} = pickled(["}(", String.duplicate("K\1", 5000), "t", tensor([]), "s"])
      # one large metadata dict for every tensor
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

      assert {:corrupt, _} = pickled(with_meta)
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
        assert {:ok, ^n} = pickled([<<0x8A, size>>, <<n::little-signed-size(size)-unit(8)>>])
      end
    end
  end

  describe "storages and tensors" do
    test "persistent ids of the wrong type" do
      for id <- [
            int(1),
            text("x"),
            tuple([]),
            tuple([text("module"), int(1), int(2), int(3), int(4)])
          ] do
        assert {:corrupt, _} = pickled([id, "Q"])
      end

      for opts <-
            [
              [class: text("x")],
              [class: global("torch", "Nope")],
              [class: global("os", "FloatStorage")],
              [key: int(0)],
              [location: int(0)]
            ] ++
              [
                [numel: text("4")],
                [numel: int(-1)],
                [numel: int(2 ** 62)],
                [numel: int(5)],
                [numel: int(2)],
                [key: text("1")]
              ] do
        assert {opts, {:corrupt, opts}} ==
                 {opts, {opts |> tensor() |> pickled() |> elem(0), opts}}
      end

      assert {:corrupt, message} =
               pickled(list([tensor([]), tensor(numel: int(3), size: tuple([int(1)]))]))

      assert message =~ "two sizes"
    end

    test "views that leave their storage" do
      for opts <- [
            [offset: int(1)],
            [offset: int(-1)],
            [offset: text("0")],
            [size: tuple([int(5)])],
            [size: tuple([int(-1)])],
            [size: int(4)],
            [size: tuple([text("4")])],
            [stride: tuple([int(2)])],
            [stride: tuple([int(-1)])],
            [stride: tuple([])],
            [stride: tuple([int(1), int(1)])],
            [size: tuple([int(2 ** 40), int(2 ** 40)]), stride: tuple([int(0), int(0)])],
            [size: tuple([int(2 ** 62)]), stride: tuple([int(2 ** 62)])],
            [size: tuple(List.duplicate(int(1), 65)), stride: tuple(List.duplicate(int(1), 65))],
            [storage: int(1)]
          ] do
        assert {opts, :corrupt} == {opts, opts |> tensor() |> pickled() |> elem(0)}
      end

      assert {:limit, _} = pickled(tensor(size: tuple([int(2 ** 50)]), stride: tuple([int(0)])))

      assert {:ok, %{shape: {1_000_000_000}}} =
               pickled(tensor(size: tuple([int(1_000_000_000)]), stride: tuple([int(0)])))

      huge_empty = tuple([int(2 ** 62), int(8), int(0)])

      assert {:corrupt, _} =
               pickled(tensor(size: huge_empty, stride: tuple([int(1), int(1), int(1)])))

      wide_empty = tuple([int(2 ** 40), int(0)])
      assert {:ok, t} = pickled(tensor(size: wide_empty, stride: tuple([int(1), int(1)])))
      assert reason(fn -> Tensor.to_list(t) end) == :limit
      assert {:ok, %{shape: {0}}} = pickled(tensor(offset: int(100), size: tuple([int(0)])))
      assert {:ok, %{shape: {}}} = pickled(tensor(offset: int(3), size: ")", stride: ")"))
    end

    test "stray bytes after a storage that was seen as a wider type" do
      # arange(18, dtype=uint8)[:16].view(float32): 18 bytes for 4 floats
      assert {:ok, t} =
               load(Zip.checkpoint(Pickle.make(tensor([])), %{"0" => @data <> <<16, 17>>}))

      assert Tensor.to_binary(t) == @data
    end

    test "a tensor as a key" do
      assert {:unsupported, _} = pickled(["}", tensor([]), "Ns"])
    end
  end

  describe "strict" do
    test "allows what weights_only allows" do
      for file <-
            Path.wildcard(
              "test/fixtures/*/{state_dict,views,many,dtypes,conj,meta,parameter,list,tensor,nested}.pt"
            ) do
        assert {:ok, _} = ExTorch.load(file, strict: true), file
      end
    end

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
                {"torch", "tensor"}
              ] do
        assert {:forbidden, message} = pickled(global(module, name), strict: true)
        assert message =~ "#{module}.#{name}"
        assert {:ok, _} = pickled(global(module, name))
      end

      for opcode <- ["I1\n.", "S'a'\n.", <<0x8C, 1, "a.">>, <<"C", 1, "a.">>],
          do: assert({:forbidden, _} = raw(<<0x80, 2>> <> opcode, strict: true))

      assert {:ok, _} = raw(<<0x80, 2, "U", 1, "a.">>, strict: true)
    end
  end

  # ---- Sweeps: the C tests do the same under sanitizers, without the terms ----

  @seeds Path.wildcard("test/fixtures/2.14.1/{tensor,list,meta,parameter,conj}.pt")

  for seed <- @seeds do
    test "#{seed} cut at every byte, with every bit turned" do
      data = File.read!(unquote(seed))
      before = Memory.live()

      for cut <- 0..(byte_size(data) - 1),
          do: assert({:error, %Error{}} = ExTorch.load({:binary, binary_part(data, 0, cut)}))

      for at <- 0..(byte_size(data) - 1)//3, bit <- 0..7 do
        case ExTorch.load({:binary, turn(data, at, bit)}, verify: rem(bit, 2) == 0) do
          {:ok, _} -> :ok
          {:error, %Error{message: message}} -> assert message != ""
        end
      end

      assert_live(before)
    end
  end

  test "bytes in the place of a path are told from one, and no error drags them along" do
    bytes = "PK" <> <<3, 4, 0, 255>> <> :binary.copy("a", 5000)
    assert {:error, %Error{reason: :not_found, path: nil} = error} = ExTorch.load(bytes)
    assert Exception.message(error) =~ "{:binary, bytes}"
    assert {:error, %Error{reason: :not_found, path: nil}} = ExTorch.save(%{}, bytes)

    odd = Path.join(System.tmp_dir!(), "no" <> <<255>> <> "such")
    assert {:error, %Error{path: ^odd} = error} = ExTorch.load(odd)
    assert String.valid?(Exception.message(error))
  end
end
