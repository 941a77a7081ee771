defmodule ExTorch.Checkpoint.ProtocolsTest do
  # Files of pickle protocols 0 and 1, whose opcodes are text lines, and safetensors files that other writers make.
  use ExTorch.Case
  alias ExTorch.{Checkpoint, Streaming}
  alias ExTorch.Python.{Bytes, Object}
  alias ExTorch.Test.{FileSource, Formats, Python}

  @script """
  import sys, gzip, pickle, torch, numpy, collections
  dir = sys.argv[1]
  class C:
      pass
  c = C(); c.x = 1
  values = {"big": 2**200, "neg": -2**70, "edge": 2**63, "low": -2**63, "below": -2**63 - 1, "tuple": (1, 2.5, None, True, False),
            "text": "ü\\n\\r\\0\\x1a\\\\u0041 😀 \\\\", "float": [float("inf"), float("-inf"), 0.1, -1e300], "bytes": b"\\0\\xff\\n'",
            "empty": [[], {}, (), "", b""], "ordered": collections.OrderedDict(a=1), "set": {1}, "object": c, "long": "x" * 3_000_000,
            "digits": 7**5000, "ints": [0, 1, 255, 256, 65535, 65536, -1, 2**31, -2**31]}
  tensors = {"w": torch.arange(6.).reshape(2, 3).t(), "i": torch.arange(4), "linear": torch.nn.Linear(2, 1).state_dict()}
  arrays = {"a": numpy.arange(5, dtype=">i2"), "s": numpy.float32(1.5)}
  for protocol in (0, 1):
      name = "%s/%d" % (dir, protocol)
      torch.save({**values, **tensors}, name + ".zip.pt", pickle_protocol=protocol)
      torch.save({**values, **tensors}, name + ".legacy.pt", pickle_protocol=protocol, _use_new_zipfile_serialization=False)
      torch.save([1, 2**80], name + ".plain.pt", pickle_protocol=protocol, _use_new_zipfile_serialization=False)
      pickle.dump({**values, **tensors, **arrays}, open(name + ".pkl", "wb"), protocol)
      for suffix in (".zip.pt", ".legacy.pt", ".pkl"):
          open(name + suffix + ".gz", "wb").write(gzip.compress(open(name + suffix, "rb").read(), 1))
  """

  setup_all do
    dir = Path.join(System.tmp_dir!(), "extorch_protocols_#{System.unique_integer([:positive])}")
    File.mkdir_p!(dir)
    on_exit(fn -> File.rm_rf!(dir) end)
    if Python.torch(), do: Python.run!(@script, [dir])
    {:ok, dir: dir}
  end

  defp stream(path) do
    stream = file_stream(path, 60_000)
    if String.ends_with?(path, ".gz"), do: Streaming.gunzip(stream), else: stream
  end

  defp ways(path) do
    {:ok, streamed, ""} = Streaming.load(stream(path))

    [
      ExTorch.load!(path),
      ExTorch.load!({:binary, File.read!(path)}),
      ExTorch.load!(%FileSource{path: path}),
      streamed
    ]
  end

  for protocol <- [0, 1], suffix <- ~w(zip.pt legacy.pt pkl zip.pt.gz legacy.pt.gz pkl.gz) do
    @tag :python
    test "protocol #{protocol}, #{suffix}", %{dir: dir} do
      path = Path.join(dir, "#{unquote(protocol)}.#{unquote(suffix)}")
      for object <- ways(path), do: check(object)
      ckpt = Checkpoint.open!(path)
      assert "linear.weight" in Checkpoint.keys(ckpt)
      assert Checkpoint.tensor!(ckpt, "i") |> Tensor.to_list() == [0, 1, 2, 3]
      Checkpoint.close(ckpt)
    end
  end

  defp check(object) do
    assert object["big"] == 2 ** 200
    assert object["neg"] == -(2 ** 70)
    assert object["edge"] == 2 ** 63
    assert object["low"] == -(2 ** 63)
    assert object["below"] == -(2 ** 63) - 1
    assert object["digits"] == Integer.pow(7, 5000)
    assert object["ints"] == [0, 1, 255, 256, 65535, 65536, -1, 2 ** 31, -(2 ** 31)]
    assert object["tuple"] == {1, 2.5, nil, true, false}
    assert object["text"] == "ü\n\r\0\x1A\\u0041 😀 \\"
    assert object["float"] == [:infinity, :neg_infinity, 0.1, -1.0e300]
    assert object["bytes"] == %Bytes{data: <<0, 255, "\n'">>}
    assert object["empty"] == [[], %{}, {}, "", %Bytes{data: ""}]
    assert object["ordered"] == %{"a" => 1}
    assert object["set"] == MapSet.new([1])
    assert %Object{state: %{"x" => 1}} = object["object"]
    assert object["long"] == String.duplicate("x", 3_000_000)
    assert Tensor.to_list(object["w"]) == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
    assert Tensor.to_list(object["i"]) == [0, 1, 2, 3]
    if object["a"], do: assert(Tensor.to_list(object["a"]) == [0, 1, 2, 3, 4])
  end

  @tag :python
  test "legacy files without tensors, and strict as weights_only", %{dir: dir} do
    for protocol <- [0, 1] do
      path = Path.join(dir, "#{protocol}.plain.pt")
      assert ExTorch.load!(path) == [1, 2 ** 80]
      assert Checkpoint.metadata(Checkpoint.open!(path)).format == :legacy

      # the magic number is a LONG, which weights_only does not read
      assert {:error, %{reason: :forbidden}} = ExTorch.load(path, strict: true)
    end
  end

  defp load(bytes, opts \\ []), do: ExTorch.load({:binary, IO.iodata_to_binary(bytes)}, opts)

  test "opcodes that Python 2 wrote" do
    assert {:ok, ["a\0b", "\\q", "A7", %Bytes{data: <<0xFF>>}]} =
             load(~S"""
             (lp0
             S'a\x00b'
             aS'\q'
             aS"\1017"
             aS'\xff'
             a.
             """)

    # OBJ and INST; DICT and LIST with their items; POP and DUP
    assert {:ok, {%Object{args: {1}, new: true}, %Object{args: {2}}, %{"k" => [1, 2]}}} =
             load("((cm\nC\nI1\no(I2\nim\nC\n(S'k'\n(I1\nI2\nldt.")

    assert {:ok, [true, false, 1, 0]} = load("(I01\nI00\nI1\nI0\nl.")
    assert {:ok, 5} = load("I5\n.")
    assert {:ok, -123_456_789_012_345_678_901} = load("L-123456789012345678901L\n.")
    assert {:ok, 0} = load(["L", List.duplicate("0", 100_000), "L\n."])
  end

  test "text that is not a number, and integers of too many digits" do
    for text <- ["I\n.", "I1x\n.", "L12\u00e9L\n.", "I--1\n.", "I1_000\n.", "I 1\n."] do
      assert {:error, %{reason: :corrupt, message: message}} = load(["(", text, "l."])
      assert message =~ "decimal integer"
    end

    digits = List.duplicate("9", 1_000_000)

    {time, result} = :timer.tc(fn -> load(["(L", digits, "L\nl."]) end)
    assert {:error, %{reason: :unsupported, message: message}} = result
    assert message =~ "1000000 digits, at most 39000 are supported"
    assert time < 20_000_000

    # the most digits, a megabyte of them
    long = ["L", List.duplicate("9", 20_000), "L\n"]
    {time, result} = :timer.tc(fn -> load(["(", List.duplicate(long, 50), "l."]) end)
    assert {:ok, list} = result
    assert Enum.uniq(list) == [Integer.pow(10, 20_000) - 1]
    assert time < 20_000_000
  end

  test "persistent ids that are text" do
    id = "('storage', <class 'torch.FloatStorage'>, '0', 'cpu', 2, None)"
    tensor = fn id -> Formats.tensor_of(["P", id, "\n"]) end
    data = [<<2::little-64>>, Formats.two_floats()]
    good = Formats.legacy(tensor.(id), ["0"], data)
    assert {:ok, %Tensor{} = loaded} = load(good)
    assert Tensor.to_list(loaded) == [1.0, 2.0]

    view = "('storage', <class 'torch.FloatStorage'>, '0', 'cpu', 2, ('v', 0, 2))"
    assert {:ok, %Tensor{}} = load(Formats.legacy(tensor.(view), ["0"], data))

    for bad <- [
          "",
          "(",
          "()",
          "('storage')",
          "('storage', <class 'torch.FloatStorage'>, '0', 'cpu', 2, None",
          "('storage', <class 'torch.FloatStorage'>, '0', 'cpu', 2, None) ",
          "('storage', <class 'FloatStorage'>, '0', 'cpu', 2, None)",
          "('storage', <class 'torch.FloatStorage'>, '\\x30', 'cpu', 2, None)",
          "('storage', <class 'torch.FloatStorage'>, '0', 'cpu', -2, None)",
          "('storage', <class 'torch.FloatStorage'>, '0', 'cpu', 99999999999999999999, None)",
          "('storage', <class 'torch.FloatStorage'>, '0', 'cpu', 2, ((((('v', 0, 2))))))",
          <<"('storage', <class 'torch.FloatStorage'>, '", 0xFF, "', 'cpu', 2, None)">>
        ] do
      assert {:error, %{reason: :corrupt}} = load(Formats.legacy(tensor.(bad), ["0"], data))
    end
  end

  # ---- safetensors ----

  defp safetensors(json, data \\ <<1.5::float-32-little>>), do: Formats.safetensors(json, data)
  defp entry, do: Formats.safetensors_entry("w", "F32", "[1]", 0, 4)

  test "safetensors with null as metadata, white space, and a length that looks like text" do
    # 60 is `<`, 0x8b1f the magic of gzip, 0x80 and ( the first bytes of pickles
    lengths = [60, 60 + 256, 0x8B1F, 0x0280, 0x0480, ?( + 256, ?] + 0x7100, 559_903]
    padded = for n <- lengths, do: {String.pad_trailing("{#{entry()}}", n), n}
    before = for n <- [66, 200, 3000, 316], do: {String.pad_leading("{#{entry()}}", n), n}

    others = [
      {~s({"__metadata__":null,#{entry()}}), nil},
      {~s({#{entry()},"__metadata__": null}), nil},
      {~s( \t\r\n{ #{entry()}}), nil}
    ]

    for {json, n} <- padded ++ before ++ others, n == nil or n == byte_size(json) do
      file = safetensors(json)
      {:ok, streamed, ""} = Streaming.load(chunks(file, [1, 7, 100]))
      gzip = :zlib.gzip(file)

      for object <- [
            ExTorch.load!({:binary, file}),
            streamed,
            ExTorch.load!({:binary, gzip}),
            ExTorch.load!({:binary, file}, strict: true)
          ] do
        assert %{"w" => tensor} = object
        assert Tensor.to_list(tensor) == [1.5]
      end

      ckpt = Checkpoint.open!({:binary, file})
      assert %{format: :safetensors, metadata: metadata} = Checkpoint.metadata(ckpt)
      assert metadata in [nil, %{}]
    end

    for json <- [
          ~s({"__metadata__":null,"__metadata__":null}),
          ~s({"__metadata__":nul}),
          ~s({"__metadata__":[]}),
          ~s({"__metadata__":{"a":null}})
        ] do
      assert {:error, %{reason: :corrupt}} = load(safetensors(json, ""))
    end
  end

  # ---- Downloads that went wrong ----

  test "a reply instead of a file is quoted" do
    for {reply, expected} <- [
          {~s({"error":"Access to model x/y is restricted"}),
           ~s(JSON, not a checkpoint: "{"error":"Access to model)},
          {"Access to model x/y is restricted.\n",
           ~s(text, not a checkpoint: "Access to model x/y)},
          {"could not resolve host\n", ~s("could not resolve host)},
          {"(no such file)", ~s("(no such f)},
          {"<html><title>Sign in</title>", ~s(HTML page, not a checkpoint: "Sign in")},
          {"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS pointer"},
          {"--b\r\nContent-Disposition: form-data; name=\"f\"\r\n\r\nPK\x03\x04" <> <<0::8000>>,
           "multipart body"}
        ] do
      assert {:error, %{reason: :corrupt, message: message}} = load(reply)
      assert message =~ expected
      assert {:error, %{reason: :corrupt, message: message}} = load(:zlib.gzip(reply))
      assert message =~ expected

      for sizes <- [[1], [4], [1000]] do
        assert {:error, %{reason: :corrupt, message: message}} =
                 Streaming.load(chunks(reply, sizes))

        assert message =~ expected
      end
    end

    # control characters are escaped
    assert {:error, %{message: message}} = load("line one\nline two\e[0m and more")
    refute message =~ "\e"

    assert {:error, %{reason: :unsupported, message: message}} = Streaming.load([:zlib.gzip("x")])

    assert message =~ "ExTorch.Streaming.gunzip/1"
  end
end
