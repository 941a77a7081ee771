defmodule ExTorch.FormatsTest do
  # Every format and kind of tensor beyond torch.save's zip: files of test/fixtures/more, compared with the descriptions
  # that torch wrote.
  use ExTorch.Case
  alias ExTorch.Checkpoint
  alias ExTorch.Python.{Global, NumpyScalar, Object, TensorSubclass}
  alias ExTorch.Test.Fixtures

  @more "test/fixtures/more"

  defp check(ckpt, expected) do
    tensors = Enum.filter(expected, &(&1["kind"] == "tensor"))

    for item <- tensors do
      entry = Checkpoint.entry!(ckpt, item["path"])

      Fixtures.assert_tensor(item, entry, Checkpoint.tensor!(ckpt, item["path"]))
      # NumPy and torch use different strides for empty arrays.
      assert Tuple.to_list(entry.strides) == item["strides"] or 0 in item["shape"]
    end

    tensors
  end

  for {file, format} <- [
        {"legacy_views.pt", :legacy},
        {"python2.pt", :legacy},
        {"oldest.pt", :legacy},
        {"tar.pt", :tar},
        {"numpy.pt", :zip},
        {"numpy0.pkl", :pickle},
        {"numpy2.pkl", :pickle},
        {"numpy2.2.pkl", :pickle},
        {"numpy4.pkl", :pickle},
        {"numpy5.pkl", :pickle},
        {"state0.pkl", :pickle},
        {"state2.pkl", :pickle},
        {"state3.pkl", :pickle},
        {"state4.pkl", :pickle},
        {"state5.pkl", :pickle}
      ] do
    test "#{file} is read like torch reads it" do
      expected = Fixtures.description("#{@more}/#{unquote(file)}")

      for source <- Fixtures.sources("#{@more}/#{unquote(file)}") do
        ckpt = Checkpoint.open!(source)
        assert Checkpoint.metadata(ckpt).format == unquote(format)
        tensors = check(ckpt, expected)
        assert Checkpoint.keys(ckpt) == Enum.map(tensors, &Enum.join(&1["path"], "."))
        object = ExTorch.load!(source)

        for %{"path" => [key], "bytes" => bytes} <- tensors do
          assert Base.encode16(Tensor.to_binary(object[key]), case: :lower) == bytes
        end

        Checkpoint.close(ckpt)
      end
    end
  end

  test "views of a storage share its memory" do
    object = ExTorch.load!("#{@more}/legacy_views.pt")
    ExTorch.op("fill_", [object["part"], 9.0])
    assert 9.0 in List.flatten(Tensor.to_list(object["whole"]))
  end

  test "NumPy arrays without a torch dtype become inert objects" do
    for file <- ~w(numpy.pt numpy0.pkl numpy4.pkl numpy5.pkl) do
      object = ExTorch.load!("#{@more}/#{file}")
      assert object["float"] == %NumpyScalar{dtype: :float64, value: 2.5}
      assert object["int"] == %NumpyScalar{dtype: :int16, value: -3}
      assert object["swapped"] == %NumpyScalar{dtype: :float32, value: 1.5}
      assert %Object{class: %Global{module: "numpy" <> _}} = object["text"]
      assert %Object{class: %Global{name: "_reconstruct"}, state: state} = object["objects"]
      assert [1, nil] in Tuple.to_list(state)
      assert %Tensor{shape: {0, 4}} = object["none"]
    end
  end

  test "several checkpoints in one file, each at its offset" do
    file = "#{@more}/several.pt"

    for source <- Fixtures.sources(file) do
      last =
        Enum.reduce(0..2, 0, fn i, offset ->
          ckpt = Checkpoint.open!(source, offset: offset)
          check(ckpt, Fixtures.description("#{@more}/several.#{i}"))
          assert {:ok, _} = ExTorch.load(source, offset: offset)
          Checkpoint.metadata(ckpt).next_offset
        end)

      assert last == nil
    end

    assert {:error, %{reason: :bad_argument}} = ExTorch.load(file, offset: File.stat!(file).size)

    assert {:error, %{reason: :unsupported, message: message}} =
             ExTorch.load({:binary, "x" <> File.read!("test/fixtures/2.14.1/many.pt")}, offset: 1)

    assert message =~ "only supported at offset 0"
    assert reason(fn -> ExTorch.load(file, offset: -1) end) == :bad_argument
  end

  test "several streaming checkpoints and pickles in one file" do
    stream = File.read!("test/fixtures/2.14.1/tensor.stream")
    pickle = File.read!("#{@more}/state4.pkl")
    both = {:binary, stream <> pickle <> stream}
    first = Checkpoint.open!(both)
    assert Checkpoint.metadata(first).next_offset == byte_size(stream)
    second = Checkpoint.open!(both, offset: byte_size(stream))
    assert Checkpoint.metadata(second).format == :pickle
    check(second, Fixtures.description("#{@more}/state4.pkl"))
    third = Checkpoint.open!(both, offset: Checkpoint.metadata(second).next_offset)
    assert %{format: :streaming, next_offset: nil} = Checkpoint.metadata(third)
    assert Tensor.equal?(Checkpoint.tensor!(first, []), Checkpoint.tensor!(third, []))
  end

  test "a pickled nn.Module: parameters and buffers have the names of the state dict" do
    for source <- Fixtures.sources("#{@more}/module.pt") do
      ckpt = Checkpoint.open!(source)
      # named_parameters are dotted names already
      expected =
        for item <- Fixtures.description("#{@more}/module.pt"),
            do: Map.update!(item, "path", &String.split(hd(&1), "."))

      tensors = check(ckpt, expected)

      assert Enum.sort(Checkpoint.keys(ckpt)) ==
               Enum.sort(Enum.map(tensors, &Enum.join(&1["path"], ".")))

      assert %Object{class: %Global{name: "Sequential"}, new: true} = ExTorch.load!(source)
    end
  end

  test "tensor subclasses and tensors with attributes" do
    file = "#{@more}/attributes.pt"
    ckpt = Checkpoint.open!(file)
    assert Checkpoint.keys(ckpt) == ["tensor", "parameter", "marked", "marked.extra"]
    assert Checkpoint.entry!(ckpt, "parameter").requires_grad
    object = ExTorch.load!(file)

    assert %TensorSubclass{
             class: %Global{module: "torch", name: "Tensor"},
             state: %{"note" => "attribute"}
           } = object["tensor"]

    assert Tensor.to_list(object["tensor"].tensor) == [0.0, 1.0, 2.0, 3.0]

    assert %TensorSubclass{class: %Global{name: "Parameter"}, state: %{"tag" => 5}} =
             object["parameter"]

    assert %TensorSubclass{class: %Global{name: "Marked"}, state: %{"extra" => extra}} =
             object["marked"]

    assert Tensor.to_list(extra) == [0.0, 0.0]
  end

  test "nested tensors" do
    object = ExTorch.load!("#{@more}/nested_tensor.pt")
    assert [a, b] = ExTorch.Python.unnest(object["n"])
    assert Tensor.to_list(a) == [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    assert Tensor.to_list(b) == [[0.0, 0.0, 0.0]]
    assert reason(fn -> ExTorch.Python.unnest(5) end) == :bad_argument

    # Files may have anything in these places.
    {buffer, sizes, strides, offsets} = object["n"].args
    many = ExTorch.op("expand", [ExTorch.tensor([[1]]), [100_000_000, 1]])

    for {args, expected} <- [
          {{buffer, ExTorch.tensor(3), strides, offsets}, :corrupt},
          {{buffer, sizes, strides, ExTorch.tensor([0.5, 1.0])}, :corrupt},
          {{buffer, sizes, ExTorch.tensor([1, 2]), offsets}, :corrupt},
          {{buffer, sizes, "abc", nil}, :corrupt},
          {{buffer, [[1, :x], [2]], strides, offsets}, :corrupt},
          {{buffer, many, strides, offsets}, :limit}
        ] do
      assert reason(fn -> ExTorch.Python.unnest(%{object["n"] | args: args}) end) == expected
    end
  end

  test "sparse layouts" do
    dense = [
      [1.0, 0.0, 2.0, 0.0],
      [0.0, 3.0, 0.0, 0.0],
      [0.0, 0.0, 0.0, 4.0],
      [5.0, 0.0, 0.0, 0.0]
    ]

    object = ExTorch.load!("#{@more}/layouts.pt")

    for {name, tensor} <- object do
      assert Tensor.to_list(tensor) == dense, name
    end

    assert map_size(object) == 4
    ckpt = Checkpoint.open!("#{@more}/layouts.pt")

    assert Enum.map(Checkpoint.entries(ckpt), & &1.kind) == [
             :sparse_csc,
             :sparse_bsr,
             :sparse_bsc,
             :sparse_coo
           ]
  end

  describe "archives of TorchScript and C++" do
    test "tensors have dotted names" do
      for version <- ~w(1.13.0a0 2.6.0 2.14.1) do
        ckpt = Checkpoint.open!("test/fixtures/#{version}/script.pt")
        expected = Fixtures.description("test/fixtures/#{version}/script.pt")

        for item <- expected,
            do:
              assert(
                Checkpoint.entry!(ckpt, hd(item["path"])).shape == List.to_tuple(item["shape"])
              )

        for %{"path" => [name], "bytes" => bytes} <- expected do
          assert Base.encode16(Tensor.to_binary(Checkpoint.tensor!(ckpt, name)), case: :lower) ==
                   bytes
        end

        assert %{format: :torchscript, producer: "torch.jit.save" <> _} =
                 Checkpoint.metadata(ckpt)
      end
    end

    test "constants have the names that the code uses" do
      ckpt = Checkpoint.open!("#{@more}/constant.pt")
      assert Checkpoint.keys(ckpt) == ["weight", "CONSTANTS.c0"]
      assert Tensor.to_list(Checkpoint.tensor!(ckpt, "CONSTANTS.c0")) == [1.5, 2.5]
      assert %Object{state: %{"weight" => %Tensor{}}} = ExTorch.load!("#{@more}/constant.pt")
    end

    test "files of torch::save" do
      assert Tensor.to_list(ExTorch.load!("#{@more}/cpp_tensor.pt").state["0"]) == [
               [0.0, 1.0, 2.0],
               [3.0, 4.0, 5.0]
             ]

      list = Checkpoint.open!("#{@more}/cpp_list.pt")
      assert Checkpoint.keys(list) == ["0", "1"]
      assert Tensor.to_list(Checkpoint.tensor!(list, "1")) == [0, 1, 2]
      named = ExTorch.load!("#{@more}/cpp_named.pt").state
      assert named["epoch"] == 7
      assert Tensor.to_list(named["weight"]) == [[0.5, 0.5], [0.5, 0.5]]
      assert Tensor.to_list(named["steps"]) == [0, 1]
      assert Checkpoint.keys(Checkpoint.open!("#{@more}/cpp_module.pt")) == ["0.weight", "0.bias"]
    end
  end

  test "a gzip file of each format" do
    for {name, plain} <- [
          {"state_dict.pt", "state_dict.pt"},
          {"state_dict.legacy.pt", "state_dict.legacy.pt"},
          {"state_dict.stream", "state_dict.stream"},
          {"dtypes.safetensors", "dtypes.safetensors"}
        ],
        source <- Fixtures.sources("#{@more}/#{name}.gz"),
        opts <- [[], [verify: true]] do
      plain = Checkpoint.open!("test/fixtures/2.14.1/#{plain}")
      ckpt = Checkpoint.open!(source, opts)
      assert Checkpoint.keys(ckpt) == Checkpoint.keys(plain)
      assert Checkpoint.metadata(ckpt).compression == :gzip
      object = ExTorch.load!(source, opts)

      for entry <- Checkpoint.entries(plain), ExTorch.DType.supported?(entry.dtype) do
        assert Tensor.equal?(
                 Checkpoint.tensor!(ckpt, entry.name),
                 Checkpoint.tensor!(plain, entry.name)
               ) or
                 entry.dtype in [:float64, :float32, :float16, :bfloat16, :complex64] or
                 entry.dtype |> to_string() |> String.starts_with?("float8")

        assert Tensor.to_binary(object[entry.name]) ==
                 Tensor.to_binary(Checkpoint.tensor!(plain, entry.name))
      end
    end
  end

  test "several gzip members are decompressed as one file" do
    whole = File.read!("test/fixtures/2.14.1/many.pt")
    {a, b} = String.split_at(whole |> Base.encode16(), 2000)
    gzip = :zlib.gzip(Base.decode16!(a)) <> :zlib.gzip(Base.decode16!(b))
    assert map_size(ExTorch.load!({:binary, gzip})) == 25
  end

  test "safetensors: metadata and every dtype" do
    ckpt = Checkpoint.open!("test/fixtures/2.14.1/dtypes.safetensors")

    assert %{
             format: :safetensors,
             metadata: %{"format" => "pt", "note" => "ünïcode"},
             producer: "safetensors"
           } = Checkpoint.metadata(ckpt)

    assert :float8_e8m0fnu in Enum.map(Checkpoint.entries(ckpt), & &1.dtype)
    assert {:ok, bytes} = Checkpoint.read_storage(ckpt, "int64")
    assert bytes == Tensor.to_binary(Checkpoint.tensor!(ckpt, "int64"))
    assert Checkpoint.has_storage?(ckpt, "int64")
  end

  test "safetensors: dtypes smaller than a byte are packed" do
    header = fn dtype, shape, size ->
      json = ~s({"t":{"dtype":"#{dtype}","shape":#{inspect(shape)},"data_offsets":[0,#{size}]}})
      <<byte_size(json)::little-64, json::binary>> <> :binary.copy(<<7>>, size)
    end

    assert %{dtype: :float4_e2m1fn_x2, shape: {3, 2}} =
             Checkpoint.entry!(Checkpoint.open!({:binary, header.("F4", [3, 4], 6)}), "t")

    assert %{dtype: :float6_e2m3fn_x4, shape: {2, 3}} =
             Checkpoint.entry!(Checkpoint.open!({:binary, header.("F6_E2M3", [2, 4], 6)}), "t")

    assert %ExTorch.Python.RawTensor{dtype: :float6_e3m2fn_x4, shape: {3}, data: <<7, 7, 7>>} =
             ExTorch.load!({:binary, header.("F6_E3M2", [2, 2], 3)})["t"]
  end

  test "storages are read by their keys in every format" do
    for {file, key} <- [{"legacy_views.pt", "a"}, {"tar.pt", "2"}, {"numpy.pt", "inline/0"}] do
      for source <- Fixtures.sources("#{@more}/#{file}") do
        ckpt = Checkpoint.open!(source)
        assert Checkpoint.has_storage?(ckpt, key)
        %{nbytes: size} = Enum.find(Checkpoint.storages(ckpt), &(&1.key == key))
        assert {:ok, bytes} = Checkpoint.read_storage(ckpt, key)
        assert byte_size(bytes) == size
        assert {:ok, part} = Checkpoint.read_storage(ckpt, "data/" <> key, 4, 3)
        assert part == binary_part(bytes, 4, 3)
        assert {:error, %{reason: :not_found}} = Checkpoint.read_storage(ckpt, "no such")
      end
    end
  end

  test "strict agrees with torch's weights_only on every fixture" do
    %{"files" => answers} = Fixtures.weights_only()
    assert map_size(answers) > 90

    for {file, loads} <- answers do
      case ExTorch.load("test/fixtures/" <> file, strict: true) do
        {:ok, _} -> assert loads, file
        {:error, error} -> assert {file, loads, error.reason} == {file, false, :forbidden}
      end
    end
  end

  test "the producer in the metadata" do
    for {file, producer} <- [
          {"2.14.1/many.pt", "torch.save 2.7 or newer"},
          {"2.6.0/many.pt", "torch.save 2.1 to 2.6"},
          {"1.13.0a0/many.pt", "torch.save 1.6 to 2.0"},
          {"2.14.1/many.legacy.pt", "torch.save 0.1.10 to 1.5, or newer in the legacy format"},
          {"2.14.1/tensor.stream", "torch.distributed"},
          {"more/tar.pt", "torch.save before 0.1.10"},
          {"more/state0.pkl", "Python's pickle"}
        ] do
      assert Checkpoint.metadata(Checkpoint.open!("test/fixtures/" <> file)).producer == producer
    end
  end
end
