defmodule ExTorch.Test.Formats do
  @moduledoc false
  # Writes files of the formats beside zip, valid ones and others. All functions return iodata.
  alias ExTorch.Test.Pickle
  import Pickle, only: [text: 1, int: 1, tuple: 1, list: 1, dict: 1, global: 2, reduce: 2]

  @two_floats <<1.0::float-32-little, 2.0::float-32-little>>

  @doc "The bytes of the storages that legacy_storage/1 and tar/1 refer to by default."
  def two_floats, do: @two_floats

  # ---- safetensors ----

  def safetensors(json, data \\ <<>>),
    do: <<byte_size(json)::little-64, json::binary, data::binary>>

  @doc "A tensor in the header of a safetensors file. `shape` is a JSON text."
  def safetensors_entry(name, dtype, shape, from, to),
    do: ~s("#{name}":{"dtype":"#{dtype}","shape":#{shape},"data_offsets":[#{from},#{to}]})

  # ---- legacy ----

  @doc "The pickle of the magic number, with which a legacy file begins."
  def legacy_magic,
    do: <<0x80, 2, 0x8A, 10, 0x6C, 0xFC, 0x9C, 0x46, 0xF9, 0x20, 0x6A, 0xA8, 0x50, 0x19, ".">>

  @doc "A legacy file. Options: `:protocol` (a number), `:system` (the body of the third pickle)."
  def legacy(object, keys, data, opts \\ []) do
    [
      legacy_magic(),
      Pickle.make(int(opts[:protocol] || 1001)),
      Pickle.make(opts[:system] || dict([{"protocol_version", int(1001)}])),
      Pickle.make(object),
      Pickle.make(list(Enum.map(keys, &text/1))),
      data
    ]
  end

  @doc "The persistent id of a float32 storage. Options: `:key`, `:numel`, `:view`."
  def legacy_storage(opts \\ []) do
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

  def legacy_view(opts), do: tuple([text("v"), int(opts[:start]), int(opts[:count])])

  def tensor_of(storage, size \\ 2) do
    reduce(global("torch._utils", "_rebuild_tensor_v2"), [
      storage,
      int(0),
      tuple([int(size)]),
      tuple([int(1)]),
      <<0x89>>,
      reduce(global("collections", "OrderedDict"), [])
    ])
  end

  # ---- torch_stream ----

  def torch_stream(entries, data), do: [Pickle.make(list(entries)), data]

  @doc "An entry of the list of records. `length` is a pickled value."
  def torch_stream_entry(key, length) do
    [
      global("torch.distributed._serialization", "_Entry"),
      ")",
      <<0x81>>,
      dict([{"key", text(key)}, {"is_storage", <<0x89>>}, {"length", length}]),
      "b"
    ]
  end

  # ---- tar ----

  @doc """
  A tar file with a storage of two floats and a tensor of it. Options replace parts of it: `:storages`, `:views`,
  `:tensors`, `:size` (of the tensor), `:pickle`, `:without` (the name of a member), `:first` and `:last` (further
  members).
  """
  def tar(parts \\ []) do
    storages =
      parts[:storages] ||
        [
          Pickle.make(int(1)),
          Pickle.make(tuple([int(1), text("cpu"), global("torch", "FloatStorage")])),
          <<2::little-64>>,
          @two_floats,
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
          do: tar_member(name, IO.iodata_to_binary(data))

    [parts[:first] || [], members, parts[:last] || [], :binary.copy(<<0>>, 1024)]
  end

  @doc "A member of a tar file. Options: `:type`, `:size` (in the header), `:damaged` (a wrong checksum)."
  def tar_member(name, data, opts \\ []) do
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

  # ---- Pickled values ----

  def pickled_bytes(data), do: ["B", <<byte_size(data)::little-32>>, data]

  def numpy_dtype(code) do
    [
      reduce(global("numpy", "dtype"), [text(code), int(0), int(1)]),
      tuple([int(3), text("<"), "N"]),
      "b"
    ]
  end

  def numpy_array(shape, code, data) do
    [
      reduce(global("numpy.core.multiarray", "_reconstruct"), [
        global("numpy", "ndarray"),
        tuple([int(0)]),
        pickled_bytes("b")
      ]),
      tuple([
        int(1),
        tuple(Enum.map(shape, &int/1)),
        numpy_dtype(code),
        <<0x89>>,
        pickled_bytes(data)
      ]),
      "b"
    ]
  end
end
