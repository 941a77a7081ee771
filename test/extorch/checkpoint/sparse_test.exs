defmodule ExTorch.Checkpoint.SparseTest do
  use ExTorch.Case
  alias ExTorch.Checkpoint
  alias ExTorch.Test.{FileSource, Pickle, Zip}

  test "valid sparse tensors" do
    for version <- ~w(1.13.0a0 2.6.0 2.14.1),
        suffix <- ~w(pt legacy.pt),
        opts <- [[], [mmap: true], [verify: true]] do
      file = "test/fixtures/#{version}/sparse.#{suffix}"
      ckpt = Checkpoint.open!(file, opts)
      loaded = ExTorch.load!(file, opts)
      assert Checkpoint.keys(ckpt) == ["coo", "csr"]
      eye = for i <- 0..2, do: for(j <- 0..2, do: if(i == j, do: 1.0, else: 0.0))

      for {name, kind} <- [{"coo", :sparse_coo}, {"csr", :sparse_csr}] do
        assert %{kind: ^kind, shape: {3, 3}, dtype: :float32, strides: nil, device: "cpu"} =
                 Checkpoint.entry!(ckpt, name)

        for tensor <- [loaded[name], Checkpoint.tensor!(ckpt, name)] do
          assert Tensor.strides(tensor) == nil
          assert Tensor.to_list(tensor) == eye
        end
      end
    end
  end

  test "tensors of several storages come from a source as well, with few reads" do
    for name <- ~w(sparse.pt sparse.legacy.pt), opts <- [[], [verify: true]] do
      file = "test/fixtures/2.6.0/#{name}"
      source = %FileSource{path: file, log: self()}
      ckpt = Checkpoint.open!(source, opts)
      reads()

      for {name, expected} <- ExTorch.load!(file) do
        assert Tensor.to_list(Checkpoint.tensor!(ckpt, name)) == Tensor.to_list(expected)
        # the storages of one tensor are neighbors in the file
        assert length(reads()) == 1
      end

      streamed = Map.new(Checkpoint.stream(ckpt))
      loaded = ExTorch.load!(%FileSource{path: file}, opts)

      for {name, expected} <- ExTorch.load!(file),
          tensors <- [streamed, loaded],
          do: assert(Tensor.to_list(tensors[name]) == Tensor.to_list(expected))

      Checkpoint.close(ckpt)
    end
  end

  defp reads do
    receive do
      {:read, offset, size} -> [{offset, size} | reads()]
    after
      0 -> []
    end
  end

  test "sparse tensors with indices outside the shape are refused" do
    indices =
      Pickle.tensor(
        key: Pickle.text("0"),
        class: Pickle.global("torch", "LongStorage"),
        numel: Pickle.int(2),
        size: Pickle.tuple([Pickle.int(1), Pickle.int(2)]),
        stride: Pickle.tuple([Pickle.int(2), Pickle.int(1)])
      )

    values =
      Pickle.tensor(
        key: Pickle.text("1"),
        numel: Pickle.int(2),
        size: Pickle.tuple([Pickle.int(2)])
      )

    layout =
      Pickle.reduce(Pickle.global("torch.serialization", "_get_layout"), [
        Pickle.text("torch.sparse_coo")
      ])

    sparse = fn parts ->
      Pickle.make(
        Pickle.reduce(Pickle.global("torch._utils", "_rebuild_sparse_tensor"), [
          layout,
          Pickle.tuple(parts)
        ])
      )
    end

    size = Pickle.tuple([Pickle.int(4)])

    data = fn a, b ->
      %{
        "0" => <<a::little-64, b::little-64>>,
        "1" => <<1.0::float-32-little, 2.0::float-32-little>>
      }
    end

    assert {:ok, t} =
             ExTorch.load(
               {:binary, Zip.checkpoint(sparse.([indices, values, size]), data.(1, 3))}
             )

    assert Tensor.to_list(t) == [0.0, 1.0, 0.0, 2.0]

    for bad <- [data.(0, 4), data.(0, -1), data.(0, 2 ** 40)] do
      assert {:error, %{reason: :corrupt}} =
               ExTorch.load({:binary, Zip.checkpoint(sparse.([indices, values, size]), bad)})
    end

    for parts <- [[indices, size], [indices, Pickle.int(1), size], [indices, values]] do
      assert {:error, %{reason: :corrupt}} =
               ExTorch.load({:binary, Zip.checkpoint(sparse.(parts), data.(0, 1))})
    end
  end
end
