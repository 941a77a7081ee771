defmodule ExTorch.FormatsBadTest do
  # One handcrafted file for every rule of the formats beyond zip: each is an error with its reason, and nothing else.
  use ExTorch.Case
  alias ExTorch.Test.{FileSource, Pickle}

  import Pickle, only: [text: 1, int: 1, tuple: 1, list: 1, dict: 1, global: 2, reduce: 2]

  defp load(binary, opts \\ []) do
    case ExTorch.load({:binary, IO.iodata_to_binary(binary)}, opts) do
      {:ok, object} -> {:ok, object}
      {:error, %Error{} = error} -> {error.reason, error.message}
    end
  end

  # ---- safetensors ----

  defp safetensors(json, data \\ <<>>),
    do: <<byte_size(json)::little-64, json::binary, data::binary>>

  defp tensor(name, dtype, shape, from, to),
    do: ~s("#{name}":{"dtype":"#{dtype}","shape":#{shape},"data_offsets":[#{from},#{to}]})

  @four <<1.0::float-32-little, 2.0::float-32-little>>

  test "an honest safetensors file" do
    assert {:ok, %{"a" => a}} =
             load(safetensors("{" <> tensor("a", "F32", "[2]", 0, 8) <> "}", @four))

    assert Tensor.to_list(a) == [1.0, 2.0]
    assert {:ok, map} = load(safetensors("{}"))
    assert map == %{}
    # padded, escaped, metadata
    json =
      ~s( { "__metadata__" : {"a\\u00e9":"\\ud83d\\ude00"} , "x\\n" : {"shape":[],"data_offsets":[0,1],"dtype":"U8"} }   )

    ckpt = ExTorch.Checkpoint.open!({:binary, safetensors(String.trim_leading(json), <<7>>)})
    assert ExTorch.Checkpoint.metadata(ckpt).metadata == %{"aé" => "😀"}
    assert Tensor.to_list(ExTorch.Checkpoint.tensor!(ckpt, "x\n")) == 7
  end

  for {name, json, data, reason, words} <- [
        {"two names",
         ~s({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}),
         "ab", :corrupt, "twice"},
        {"a gap", ~s({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}), "ab", :corrupt,
         "between"},
        {"an overlap",
         ~s({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}),
         "abc", :corrupt, "overlap"},
        {"bytes after the end", ~s({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}), "ab",
         :corrupt, "end at byte"},
        {"a tensor past the end", ~s({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}), "ab",
         :truncated, "incomplete download"},
        {"a shape that does not fit", ~s({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,2]}}),
         "ab", :corrupt, "fit"},
        {"a shape that overflows",
         ~s({"a":{"dtype":"F32","shape":[4611686018427387904,4611686018427387904],"data_offsets":[0,2]}}),
         "ab", :corrupt, "overflow"},
        {"a negative size", ~s({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,2]}}), "ab",
         :corrupt, "negative"},
        {"offsets backwards", ~s({"a":{"dtype":"U8","shape":[0],"data_offsets":[2,0]}}), "ab",
         :corrupt, "range"},
        {"one offset", ~s({"a":{"dtype":"U8","shape":[0],"data_offsets":[2]}}), "ab", :corrupt,
         "JSON"},
        {"an unknown dtype", ~s({"a":{"dtype":"F7","shape":[2],"data_offsets":[0,2]}}), "ab",
         :corrupt, "dtype"},
        {"an unknown field", ~s({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2],"x":1}}),
         "ab", :corrupt, "field"},
        {"a field twice", ~s({"a":{"dtype":"U8","dtype":"U8","shape":[2],"data_offsets":[0,2]}}),
         "ab", :corrupt, "duplicate key"},
        {"a field missing", ~s({"a":{"dtype":"U8","shape":[2]}}), "ab", :corrupt,
         "missing field"},
        {"metadata twice", ~s({"__metadata__":{},"__metadata__":{}}), "", :corrupt,
         "duplicate key"},
        {"metadata of numbers", ~s({"__metadata__":{"a":1}}), "", :corrupt, "string"},
        {"metadata with a key twice", ~s({"__metadata__":{"a":"1","a":"2"}}), "", :corrupt,
         "duplicate key"},
        {"an integer past 64 bits",
         ~s({"a":{"dtype":"U8","shape":[99999999999999999999],"data_offsets":[0,2]}}), "ab",
         :corrupt, "64 bits"},
        {"a fraction", ~s({"a":{"dtype":"U8","shape":[2.0],"data_offsets":[0,2]}}), "ab",
         :corrupt, "fraction"},
        {"a leading zero", ~s({"a":{"dtype":"U8","shape":[02],"data_offsets":[0,2]}}), "ab",
         :corrupt, "begins with 0"},
        {"a trailing comma", ~s({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},}), "ab",
         :corrupt, "comma"},
        {"something after the object", ~s({} x), "", :corrupt, "follows"},
        {"bad UTF-8",
         <<"{\"", 0xFF, "\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}">>, "ab",
         :corrupt, "UTF-8"},
        {"a lone surrogate", ~s({"\\ud800":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}),
         "ab", :corrupt, "escape"},
        {"a control character", <<"{\"a", 1, "\":{}}">>, "", :corrupt, "control"},
        {"an unknown escape", ~S({"\x":{}}), "", :corrupt, "escape"},
        {"no end", ~s({"a), "", :corrupt, "end"},
        {"no end after a backslash", ~S({"a\\), "", :corrupt, "end"},
        {"more than 64 dimensions",
         ~s({"a":{"dtype":"U8","shape":[#{Enum.map_join(1..65, ",", fn _ -> "1" end)}],"data_offsets":[0,1]}}),
         "a", :corrupt, "64"}
      ] do
    test "safetensors: #{name}" do
      assert {unquote(reason), message} = load(safetensors(unquote(json), unquote(data)))
      assert message =~ unquote(words)
    end
  end

  test "safetensors: lengths that lie" do
    assert {:limit, message} = load([<<200_000_000::little-64>>, "{", String.duplicate(" ", 50)])
    assert message =~ "100000000"
    assert {:truncated, message} = load([<<1000::little-64>>, "{", String.duplicate(" ", 50)])
    assert message =~ "incomplete download"
  end

  # ---- legacy ----

  @magic <<0x80, 2, 0x8A, 10, 0x6C, 0xFC, 0x9C, 0x46, 0xF9, 0x20, 0x6A, 0xA8, 0x50, 0x19, ".">>

  defp storage(opts \\ []) do
    [
      tuple([
        text("storage"),
        global("torch", "FloatStorage"),
        text(opts[:key] || "0"),
        text("cpu"),
        int(opts[:numel] || 2),
        opts[:view] || "N"
      ]),
      "Q"
    ]
  end

  defp view(opts), do: tuple([text("v"), int(opts[:start]), int(opts[:count])])

  defp tensor_of(storage, size \\ 2),
    do:
      reduce(global("torch._utils", "_rebuild_tensor_v2"), [
        storage,
        int(0),
        tuple([int(size)]),
        tuple([int(1)]),
        <<0x89>>,
        reduce(global("collections", "OrderedDict"), [])
      ])

  defp legacy(object, keys, data, opts \\ []) do
    [
      @magic,
      Pickle.make(int(opts[:protocol] || 1001)),
      Pickle.make(opts[:system] || dict([{"protocol_version", int(1001)}])),
      Pickle.make(object),
      Pickle.make(list(Enum.map(keys, &text/1))),
      data
    ]
  end

  test "an honest legacy file" do
    assert {:ok, tensor} = load(legacy(tensor_of(storage()), ["0"], [<<2::little-64>>, @four]))
    assert Tensor.to_list(tensor) == [1.0, 2.0]
  end

  test "legacy: the byte storage that is seen as a wider type has stray bytes" do
    object = tuple([tensor_of(storage()), tensor_of(storage(key: "1"))])
    data = [<<2::little-64>>, @four, "xy", <<2::little-64>>, @four]
    assert {:ok, {a, b}} = load(legacy(object, ["0", "1"], data))
    assert Tensor.to_list(a) == Tensor.to_list(b)
  end

  test "legacy: what is wrong" do
    good = [<<2::little-64>>, @four]

    assert {:corrupt, message} =
             load(legacy(tensor_of(storage()), ["0"], [<<3::little-64>>, @four, @four]))

    assert message =~ "number of elements of a storage differs"

    assert {:truncated, _} =
             load(legacy(tensor_of(storage()), ["0"], [<<2::little-64>>, "1234567"]))

    assert {:truncated, _} = load(legacy(tensor_of(storage()), ["0"], ["123"]))
    assert {:corrupt, message} = load(legacy(tensor_of(storage()), [], good))
    assert message =~ "number of listed storages differs"
    assert {:corrupt, message} = load(legacy(tensor_of(storage()), ["1"], good))
    assert message =~ "not used by any tensor"
    object = tuple([tensor_of(storage()), tensor_of(storage(key: "1"))])
    assert {:corrupt, message} = load(legacy(object, ["0", "0"], [good, good]))
    assert message =~ "duplicate storage key"

    assert {:unsupported, message} =
             load(legacy(tensor_of(storage()), ["0"], good, protocol: 1002))

    assert message =~ "1001"
    assert {:corrupt, _} = load(legacy(tensor_of(storage()), ["0"], good, system: int(1)))
    assert {:corrupt, _} = load([@magic, Pickle.make(int(1001)), Pickle.make(dict([])), "\xff"])
    assert {:truncated, _} = load([@magic, Pickle.make(int(1001))])

    assert {:limit, message} =
             load(legacy(tensor_of(storage()), ["0"], good), limits: [pickle_bytes: 50])

    assert message =~ "pickle_bytes"
  end

  test "legacy: views of a storage" do
    data = [<<4::little-64>>, @four, @four]
    part = fn opts -> tensor_of(storage(numel: 4, view: view(opts)), opts[:size] || 2) end
    assert {:ok, tensor} = load(legacy(part.(start: 1, count: 2), ["0"], data))
    assert Tensor.to_list(tensor) == [2.0, 1.0]
    assert {:corrupt, message} = load(legacy(part.(start: 3, count: 2), ["0"], data))
    assert message =~ "past its storage"
    assert {:corrupt, _} = load(legacy(part.(start: -1, count: 2), ["0"], data))
    assert {:corrupt, message} = load(legacy(part.(start: 1, count: 2, size: 3), ["0"], data))
    assert message =~ "past the end"

    assert {:corrupt, _} =
             load(legacy(tensor_of(storage(numel: 4, view: tuple([text("v")]))), ["0"], data))
  end

  # ---- the streaming format ----

  defp entry(key, length),
    do: [
      global("torch.distributed._serialization", "_Entry"),
      ")",
      <<0x81>>,
      dict([{"key", text(key)}, {"is_storage", <<0x89>>}, {"length", length}]),
      "b"
    ]

  defp stream(entries, data), do: [Pickle.make(list(entries)), data]

  test "streams: what is wrong" do
    pickle = IO.iodata_to_binary(Pickle.make(int(5)))
    size = byte_size(pickle)
    assert {:ok, 5} = load(stream([entry("data.pkl", int(size))], pickle))
    assert {:truncated, message} = load(stream([entry("data.pkl", int(size + 1))], pickle))
    assert message =~ "truncated"
    assert {:corrupt, _} = load(stream([entry("data.pkl", int(-1))], pickle))
    assert {:corrupt, _} = load(stream([entry("data.pkl", text("x"))], pickle))
    two = [entry("data.pkl", int(size)), entry("data.pkl", int(0))]
    assert {:corrupt, message} = load(stream(two, pickle))
    assert message =~ "duplicate record name"
    assert {:corrupt, message} = load(stream([entry("other", int(size))], pickle))
    assert message =~ "data.pkl"
    assert {:corrupt, message} = load(stream([entry("data.pkl", int(size)), int(3)], pickle))
    assert message =~ "class _Entry"
    assert {:truncated, _} = load(stream([entry("data.pkl", int(2 ** 62))], pickle))
  end

  # ---- tar ----

  defp member(name, data, opts \\ []) do
    type = opts[:type] || "0"
    size = :io_lib.format("~11.8.0b ", [opts[:size] || byte_size(data)])

    header =
      IO.iodata_to_binary([
        String.pad_trailing(name, 100, <<0>>),
        "0000644 0000000 0000000 ",
        size,
        "00000000000 ",
        "        ",
        type,
        String.duplicate(<<0>>, 100),
        "ustar",
        <<0>>,
        "00",
        String.duplicate(<<0>>, 247)
      ])

    sum = for <<byte <- header>>, reduce: 0, do: (sum -> sum + byte)
    sum = if opts[:damaged], do: sum + 1, else: sum
    checksum = IO.iodata_to_binary([:io_lib.format("~6.8.0b", [sum]), <<0, 32>>])
    <<before::binary-148, _::binary-8, rest::binary>> = header
    padding = rem(512 - rem(byte_size(data), 512), 512)
    [before, checksum, rest, data, :binary.copy(<<0>>, padding)]
  end

  defp tar(parts \\ []) do
    storages =
      parts[:storages] ||
        [
          Pickle.make(int(1)),
          Pickle.make(tuple([int(1), text("cpu"), global("torch", "FloatStorage")])),
          <<2::little-64>>,
          @four,
          Pickle.make(parts[:views] || list([]))
        ]

    tensors =
      parts[:tensors] ||
        [
          Pickle.make(int(1)),
          Pickle.make(tuple([int(2), int(1), global("torch", "FloatTensor")])),
          <<1::little-32, 0::32, parts[:size] || 2::little-64, 1::little-64, 0::little-64>>
        ]

    pickle = parts[:pickle] || Pickle.make([text("2"), "Q"])

    members =
      for {name, data} <- [{"storages", storages}, {"tensors", tensors}, {"pickle", pickle}],
          name != parts[:without],
          do: member(name, IO.iodata_to_binary(data))

    [parts[:first] || [], members, parts[:last] || [], :binary.copy(<<0>>, 1024)]
  end

  test "an honest tar" do
    assert {:ok, tensor} = load(tar())
    assert Tensor.to_list(tensor) == [1.0, 2.0]
    assert {:ok, _} = load(tar(first: member("./sys_info", "x")))
    assert {:forbidden, _} = load(tar(), strict: true)
  end

  test "tar: what is wrong" do
    for part <- ~w(storages tensors pickle) do
      assert {:corrupt, message} = load(tar(without: part))
      assert message =~ "is missing"
    end

    assert {:corrupt, message} = load(tar(last: member("pickle", "x")))
    assert message =~ "duplicate member"

    assert {:corrupt, message} =
             load(tar(without: "pickle", last: member("pickle", "", type: "2")))

    assert message =~ "link"
    assert {:corrupt, message} = load(tar(first: member("x", "x", damaged: true)))
    assert message =~ "checksum"
    assert {:truncated, _} = load(tar(last: member("x", "", size: 10_000_000)))
    assert {:corrupt, message} = load(tar(size: 3))
    assert message =~ "past the end"
    assert {:corrupt, _} = load(tar(size: -1))
    assert {:corrupt, message} = load(tar(pickle: Pickle.make([text("9"), "Q"])))
    assert message =~ "not the key"
    assert {:corrupt, _} = load(tar(views: list([tuple([int(3), int(1), int(1), int(2)])])))
    assert {:corrupt, _} = load(tar(views: list([tuple([int(3), int(7), int(0), int(1)])])))
    assert {:ok, _} = load(tar(views: list([tuple([int(3), int(1), int(1), int(1)])])))
    assert {:corrupt, _} = load(tar(storages: [Pickle.make(int(2 ** 40))]))
    assert {:corrupt, _} = load(tar(storages: [Pickle.make(int(-1))]))

    head = Pickle.make(tuple([int(1), text("cpu"), global("torch", "FloatStorage")]))
    assert {:corrupt, _} = load(tar(storages: [Pickle.make(int(1)), head, <<-1::64>>]))

    assert {:corrupt, _} =
             load(tar(storages: [Pickle.make(int(1)), head, <<1000::little-64>>, @four]))

    assert {:truncated, _} = load(tar(tensors: [Pickle.make(int(1))]))
  end

  # ---- pickles, numpy, saves within ----

  defp bytes(data), do: ["B", <<byte_size(data)::little-32>>, data]

  defp numpy_dtype(code),
    do: [
      reduce(global("numpy", "dtype"), [text(code), int(0), int(1)]),
      tuple([int(3), text("<"), "N"]),
      "b"
    ]

  defp array(shape, code, data),
    do: [
      reduce(global("numpy.core.multiarray", "_reconstruct"), [
        global("numpy", "ndarray"),
        tuple([int(0)]),
        bytes("b")
      ]),
      tuple([int(1), tuple(Enum.map(shape, &int/1)), numpy_dtype(code), <<0x89>>, bytes(data)]),
      "b"
    ]

  test "numpy arrays that do not fit" do
    assert {:ok, tensor} = load(Pickle.make(array([2], "f4", @four)))
    assert Tensor.to_list(tensor) == [1.0, 2.0]
    assert {:corrupt, message} = load(Pickle.make(array([3], "f4", @four)))
    assert message =~ "fit"
    assert {:corrupt, _} = load(Pickle.make(array([-2], "f4", @four)))
    assert {:corrupt, _} = load(Pickle.make(array([2 ** 40, 2 ** 40], "f4", @four)))
    assert {:corrupt, _} = load(Pickle.make(array(List.duplicate(1, 65), "u1", "x")))

    assert {:ok, %ExTorch.Python.Object{}} =
             load(Pickle.make(array([1], "f16", String.duplicate("x", 16))))

    scalar = reduce(global("numpy.core.multiarray", "scalar"), [numpy_dtype("f4"), bytes("xyz")])
    assert {:corrupt, _} = load(Pickle.make(scalar))
  end

  test "a save inside a pickle that is broken" do
    inside = fn save ->
      Pickle.make(
        reduce(global("torch.storage", "_load_from_bytes"), [bytes(IO.iodata_to_binary(save))])
      )
    end

    assert {:ok, %ExTorch.Python.Storage{numel: 2}} =
             load(inside.(legacy(storage(), ["0"], [<<2::little-64>>, @four])))

    assert {:corrupt, _} = load(inside.(legacy(storage(), ["0"], [<<3::little-64>>, @four])))
    assert {:corrupt, _} = load(inside.(legacy(storage(), [], [<<2::little-64>>, @four])))
    assert {:corrupt, _} = load(inside.(legacy(storage(), ["1"], [<<2::little-64>>, @four])))
    assert {:corrupt, _} = load(inside.(legacy(storage(), ["0"], [<<2::little-64>>, "short"])))
    assert {:truncated, _} = load(inside.([@magic, Pickle.make(int(1001))]))

    again =
      legacy(
        reduce(global("torch.storage", "_load_from_bytes"), [
          bytes(IO.iodata_to_binary(legacy(storage(), ["0"], [])))
        ]),
        [],
        []
      )

    assert {:corrupt, message} = load(inside.(again))
    assert message =~ "inside"
    assert {:ok, %ExTorch.Python.Object{}} = load(inside.("something else"))
    assert {:forbidden, _} = load(inside.("something else"), strict: true)
  end

  test "plain pickles: what is wrong" do
    assert {:truncated, message} = load(<<0x80, 2, "X", 100::little-32, "short">>)
    assert message =~ "incomplete download"
    assert {:corrupt, message} = load(<<0x80, 2, 0xFF, ".">>)
    assert message =~ "not a valid pickle"
    assert {:corrupt, message} = load(Pickle.make([text("0"), "Q"]))
    assert message =~ "outside"
    # the bytes of arrays are not what the limit is for
    big = Pickle.make(array([100_000], "u1", String.duplicate("x", 100_000)))
    assert {:ok, _} = load(big, limits: [pickle_bytes: 1000])

    assert {:limit, _} =
             load(Pickle.make(list(List.duplicate(int(5), 1000))), limits: [pickle_bytes: 1000])

    assert {:corrupt, _} = load("(this is a text in brackets)")
  end

  test "gzips: what is wrong" do
    whole = :zlib.gzip(File.read!("test/fixtures/2.14.1/many.pt"))
    assert {:ok, _} = load(whole)
    assert {reason, message} = load(binary_part(whole, 0, 500))
    assert reason in [:truncated, :corrupt] and message =~ "gzip"
    assert {reason, _} = load(turn(whole, 300, 1))
    assert reason in [:truncated, :corrupt]
    assert {:unsupported, _} = load(:zlib.gzip(whole))
    assert {:corrupt, _} = load(:zlib.gzip("<html>"))
    assert {:truncated, _} = load(<<0x1F, 0x8B, 8, 0, 0>>)
    # a bomb: 100 MB of zeros in 100 KB, and no checkpoint
    assert {:corrupt, _} = load(:zlib.gzip(:binary.copy(<<0>>, 100_000_000)))
  end

  test "parts of no length" do
    assert {:corrupt, _} = load([<<0::64>>, "{}"])
    assert {:corrupt, _} = load([<<0::64>>, "{"])
    assert {:corrupt, _} = load(["PK", 3, 4, <<0::512>>, "PK", 5, 6, <<0::144>>])
    assert {:truncated, _} = load(tar(tensors: []))
    assert {:truncated, _} = load(tar(pickle: []))
  end

  defmodule Liar do
    @behaviour ExTorch.Source
    defstruct []
    @impl true
    def size(_), do: {:ok, 2 ** 63}
    @impl true
    def read_at(_, _, n), do: {:ok, :binary.copy(<<0>>, n)}
    @impl true
    def close(_), do: :ok
  end

  test "a source that claims to be longer than anything" do
    assert {:error, %Error{reason: :limit}} = ExTorch.load(%Liar{})
  end

  test "what is seen many times counts many times" do
    name = String.duplicate("m", 1_000_000)
    global = [text(name), text("x"), <<0x93, "q", 0>>, "0"]
    again = List.duplicate(["h", 0], 600)
    assert {:limit, _} = load(Pickle.make([global, "](", again, "e"]))
    long = [text(name), "q", 0, "0"]
    assert {:limit, _} = load(Pickle.make([long, "](", List.duplicate(["h", 0], 2000), "e"]))
    save = IO.iodata_to_binary(legacy(storage(), ["0"], [<<2::little-64>>, @four]))
    call = [global("torch.storage", "_load_from_bytes"), "q", 1, "0", bytes(save), "q", 0, "0"]

    assert {:corrupt, message} =
             load(Pickle.make([call, "](", List.duplicate(["h", 1, "h", 0, 0x85, "R"], 50), "e"]))

    assert message =~ "more than once"
  end

  test "a legacy file with a numpy array in it" do
    object = dict([{"t", tensor_of(storage())}, {"n", array([2], "f4", @four)}])
    assert {:ok, %{"t" => t, "n" => n}} = load(legacy(object, ["0"], [<<2::little-64>>, @four]))
    assert Tensor.to_list(t) == Tensor.to_list(n)
  end

  test "sources that give too little say so" do
    for file <-
          ~w(2.14.1/many.legacy.pt 2.14.1/dtypes.safetensors 2.14.1/views.stream more/tar.pt more/state4.pkl) do
      path = Path.join(System.tmp_dir!(), "extorch_cut_#{System.unique_integer([:positive])}")
      data = File.read!("test/fixtures/" <> file)
      File.write!(path, binary_part(data, 0, div(byte_size(data), 4)))
      assert {:error, %Error{reason: reason}} = ExTorch.load(%FileSource{path: path})
      assert reason in [:truncated, :corrupt]
      assert {:error, %Error{path: ^path}} = ExTorch.load(path)
      File.rm!(path)
    end
  end
end
