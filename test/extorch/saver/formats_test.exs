defmodule ExTorch.Saver.FormatsTest do
  # The layout of the files, and the terms that each format can represent.
  use ExTorch.Case
  alias ExTorch.{Checkpoint, DType}
  alias ExTorch.Test.Python, as: Torch
  alias ExTorch.Test.Zip
  import ExTorch.Test.Terms, only: [plain: 1]

  @moduletag :tmp_dir

  test "records have the same order and alignment as those of torch", %{tmp_dir: dir} do
    for name <- ~w(state_dict many tensor nested list) do
      file = "test/fixtures/2.14.1/#{name}.pt"
      path = Path.join(dir, "#{name}.pt")
      :ok = ExTorch.save(ExTorch.load!(file, ordered: true), path)
      theirs = Zip.records(File.read!(file))
      ours = Zip.records(File.read!(path))
      assert Enum.map(ours, & &1.name) == Enum.map(theirs, & &1.name)

      for {a, b} <- Enum.zip(ours, theirs) do
        assert {a.flags, a.method, a.version, rem(a.data, 64)} ==
                 {b.flags, b.method, b.version, 0}

        if a.name =~ "/data/", do: assert({a.size, a.crc} == {b.size, b.crc})
      end
    end
  end

  test "terms without tensors, and empty records", %{tmp_dir: dir} do
    path = Path.join(dir, "x.pt")
    :ok = ExTorch.save(%{}, path)
    assert ExTorch.load!(path) == %{}
    :ok = ExTorch.save(ExTorch.zeros({0}), path)

    assert %{flags: 0x0800, size: 0} =
             Enum.find(Zip.records(File.read!(path)), &(&1.name == "x/data/0"))

    assert ExTorch.load!(path).shape == {0}
  end

  test "a long pickle, with and without tensors, as a file and as a stream", %{tmp_dir: dir} do
    words = Enum.map(1..30_000, &"word #{&1}")
    tensors = %{"large" => ExTorch.full({300_000}, 1.5), "small" => ExTorch.full({3}, 2.5)}

    for format <- [:zip, :legacy, :streaming],
        term <- [words, %{"words" => words, "at" => tensors}] do
      path = Path.join(dir, "long.#{format}")
      assert :ok = ExTorch.save(term, path, format: format)
      file = File.read!(path)

      for bytes <- [
            file | Enum.map([1000, 70_000, 10_000_000], &saved(term, format: format, chunk: &1))
          ] do
        # the root directory of a zip file is the name of the file
        if format != :zip, do: assert(bytes == file)
        assert plain(ExTorch.load!({:binary, bytes})) == plain(term)
      end

      if Torch.torch() && format != :streaming do
        length =
          "import sys, torch\nx = torch.load(sys.argv[1])\nprint(len(x if isinstance(x, list) else x['words']))"

        assert Torch.run!(length, [path]) =~ "30000"
      end
    end
  end

  describe "safetensors" do
    test "files are aligned, have metadata, and are read by ExTorch and Python", %{tmp_dir: dir} do
      path = Path.join(dir, "x.safetensors")

      term =
        for dtype <- DType.names(),
            DType.supported?(dtype),
            DType.kind(dtype) not in [:quant, :bits],
            dtype not in [:complex32, :complex128],
            into: %{} do
          bytes =
            if dtype == :bool,
              do: <<0, 1>>,
              else: for(i <- 1..(2 * DType.size(dtype)), into: <<>>, do: <<i>>)

          {"t.#{dtype}", Tensor.from_binary(bytes, {2}, dtype)}
        end

      term =
        Map.merge(term, %{
          "quote\" \\ \n ü" => ExTorch.tensor([[1, 2], [3, 4]]) |> Tensor.transpose(),
          atom: ExTorch.tensor(1.5)
        })

      assert ExTorch.save(term, path, metadata: %{format: "pt", note: "ü\"\n"}) == :ok
      ckpt = Checkpoint.open!(path)
      assert Checkpoint.metadata(ckpt).metadata == %{"format" => "pt", "note" => "ü\"\n"}
      order = Enum.map(Checkpoint.entries(ckpt), &{-DType.size(&1.dtype), &1.name})
      assert order == Enum.sort(order)
      loaded = ExTorch.load!(path)

      for {name, tensor} <- term,
          do: assert(Tensor.to_binary(loaded[to_string(name)]) == Tensor.to_binary(tensor))

      <<size::little-64, _::binary>> = File.read!(path)
      assert rem(8 + size, 64) == 0

      script = """
      import sys
      try: from safetensors import safe_open
      except ImportError: print("none"); sys.exit()
      with safe_open(sys.argv[1], "pt") as f:
          assert f.metadata() == {"format": "pt", "note": "ü\\"\\n"}, f.metadata()
          assert f.get_tensor("quote\\" \\\\ \\n ü").tolist() == [[1, 3], [2, 4]]
          for k in f.keys(): f.get_tensor(k)
      print("read")
      """

      # older versions of the package do not support all of them
      known =
        for {name, t} <- term,
            t.dtype in [:float32, :float16, :bfloat16, :int64, :int8, :bool],
            into: %{},
            do: {name, t}

      :ok = ExTorch.save(known, path, metadata: %{format: "pt", note: "ü\"\n"})
      if Torch.torch(), do: assert(Torch.run!(script, [path]) =~ ~r/read|none/)
    end

    test "terms that the format cannot represent", %{tmp_dir: dir} do
      path = Path.join(dir, "x.safetensors")
      tensor = ExTorch.tensor([1.0, 2.0])

      for {term, reason, words} <- [
            {%{"a" => tensor, "b" => tensor}, :bad_argument, "share memory"},
            {%{"a" => tensor, "b" => Tensor.slice(tensor, [1])}, :bad_argument, "a and b"},
            {%{"a" => 5}, :bad_argument, ~s(term["a"])},
            {%{"a" => %{"b" => tensor}}, :bad_argument, ~s(term["a"])},
            {%{5 => tensor}, :bad_argument, "names and tensors"},
            {[1], :bad_argument, "names and tensors"},
            {tensor, :bad_argument, "names and tensors"},
            {%{"__metadata__" => tensor}, :bad_argument, "__metadata__"},
            {%{"a" => ExTorch.op("to_sparse", [tensor])}, :unsupported, "sparse"},
            {%{"a" => ExTorch.zeros({1}, dtype: :complex128)}, :unsupported, "complex128"},
            {[{"a", tensor}, {"a", ExTorch.tensor(1)}], :bad_argument, "name"}
          ] do
        assert {:error, %Error{reason: ^reason, message: message}} = ExTorch.save(term, path)
        assert message =~ words
      end

      assert ExTorch.save(%{"a" => tensor, "b" => tensor}, path, duplicate: true) == :ok
      assert Tensor.to_list(ExTorch.load!(path)["b"]) == [1.0, 2.0]
    end
  end
end
