if Code.ensure_loaded?(Nx) do
  defmodule ExTorch.NxTest do
    use ExTorch.Case
    @moduletag :nx

    @backends [
      Nx.BinaryBackend | if(Code.ensure_loaded?(Torchx.Backend), do: [Torchx.Backend], else: [])
    ]
    IO.puts("Nx was found: its tests run with #{inspect(@backends)}")

    for backend <- @backends do
      test "#{inspect(backend)}: every dtype that both support is converted in both directions" do
        for dtype <- ExTorch.DType.names(),
            type = ExTorch.DType.to_nx(dtype),
            ExTorch.DType.supported?(dtype) do
          t =
            Tensor.clone(
              Tensor.from_binary(
                :binary.copy(<<1>>, 6 * ExTorch.DType.size(dtype)),
                {2, 3},
                dtype
              )
            )

          case nx(t, unquote(backend)) do
            :unsupported ->
              :ok

            nx ->
              assert {nx.type, nx.shape} == {type, {2, 3}}
              assert Nx.to_binary(nx) == Tensor.to_binary(t)
              back = ExTorch.Nx.from_nx(nx)
              assert Tensor.to_binary(back) == Tensor.to_binary(t)
              assert back.shape == {2, 3}
              if dtype != :bool, do: assert(back.dtype == dtype)
              Tensor.release(back)
              ExTorch.Nx.release(nx)
          end
        end
      end

      test "#{inspect(backend)}: memory is shared if the backend supports it" do
        t = ExTorch.arange(1000, dtype: :float32)
        nx = ExTorch.Nx.to_nx(t, backend: unquote(backend))
        assert Blob.to_blob(ExTorch.Nx.from_nx(nx)).ptr == Blob.to_blob(t).ptr
        assert Nx.to_flat_list(nx) == Tensor.to_list(t)
        transposed = Tensor.transpose(Tensor.reshape(t, {10, 100}))
        copied = ExTorch.Nx.to_nx(transposed, backend: unquote(backend))
        assert Nx.to_flat_list(copied) == List.flatten(Tensor.to_list(transposed))
        ExTorch.Nx.release(copied)
        ExTorch.Nx.release(nx)
      end

      @tag :tmp_dir
      test "#{inspect(backend)}: a store loads Nx tensors with their backend and names",
           %{tmp_dir: dir} do
        path = Path.join(dir, "nx.pt")

        :ok =
          ExTorch.save(%{"w" => ExTorch.tensor([[1.0, 2.0]]), "b" => ExTorch.tensor([3])}, path)

        module = %{
          w: Nx.broadcast(Nx.tensor(0.0, backend: unquote(backend)), {1, 2}, names: [:in, :out]),
          b: [Nx.tensor([0], type: :s64, backend: unquote(backend))]
        }

        store = ExTorch.Store.PyTorch.new(path, remap: [{"^b$", "b.0"}], overwrite: true)

        assert {:ok, %{module: %{w: w, b: [b]}, missing: []}} =
                 ExTorch.Store.apply_to(store, module)

        assert %{data: %unquote(backend){}, names: [:in, :out], shape: {1, 2}} = w
        assert Nx.to_flat_list(w) ++ Nx.to_flat_list(b) == [1.0, 2.0, 3]
        assert :ok = ExTorch.Store.collect_from(store, %{w: w})
        assert Tensor.to_list(ExTorch.load!(path)["w"]) == [[1.0, 2.0]]
        File.rm!(path)
        Enum.each([w, b], &ExTorch.Nx.release/1)
      end

      test "#{inspect(backend)}: an Nx tensor is kept alive by its ExTorch tensor" do
        parent = self()

        task =
          Task.async(fn ->
            t = ExTorch.Nx.from_nx(Nx.iota({100}, type: :f32, backend: unquote(backend)))
            :erlang.garbage_collect()
            send(parent, :made)
            Tensor.to_list(t)
          end)

        assert Task.await(task) == Enum.map(0..99, &(&1 * 1.0))
      end
    end

    # Some backends lack some types.
    defp nx(t, backend) do
      ExTorch.Nx.to_nx(t, backend: backend)
    rescue
      ArgumentError -> :unsupported
      FunctionClauseError -> :unsupported
    end

    test "a lease keeps the memory alive until it is released" do
      if Torchx.Backend in @backends do
        t = ExTorch.ones({1000})
        nx = ExTorch.Nx.to_nx(t, backend: Torchx.Backend)
        Tensor.release(t)
        Memory.collect()
        assert Nx.to_number(Nx.sum(nx)) == 1000.0
        assert ExTorch.Nx.release(nx)
        refute ExTorch.Nx.release(nx)
        t = ExTorch.ones({10})
        copy = ExTorch.Nx.to_nx(t, backend: Torchx.Backend, lease: false)
        refute ExTorch.Nx.release(copy)
      else
        refute ExTorch.Nx.release(Nx.tensor([1], backend: Nx.BinaryBackend))
      end
    end

    test "names, containers, vectorized axes, scalars and empty tensors" do
      t = ExTorch.ones({2, 3})
      assert ExTorch.Nx.to_nx(t, names: [:x, nil]).names == [:x, nil]
      nested = %{"a" => [t, {t, 5}], b: "text"}
      nx = ExTorch.Nx.to_nx(nested, backend: Nx.BinaryBackend)
      assert %{"a" => [%Nx.Tensor{}, {%Nx.Tensor{}, 5}], b: "text"} = nx
      assert %{"a" => [%Tensor{}, {%Tensor{}, 5}]} = ExTorch.Nx.from_nx(nx)

      assert ExTorch.Nx.from_nx(Nx.vectorize(Nx.iota({2, 3}, backend: Nx.BinaryBackend), :v)).shape ==
               {2, 3}

      assert Nx.to_number(ExTorch.Nx.to_nx(ExTorch.tensor(5), backend: Nx.BinaryBackend)) == 5
      assert Tensor.to_list(ExTorch.Nx.from_nx(Nx.tensor(2.5, backend: Nx.BinaryBackend))) == 2.5
    end

    test "a dtype that Nx does not support is an error" do
      assert reason(fn -> ExTorch.Nx.to_nx(ExTorch.zeros({1}, dtype: :complex32)) end) ==
               :unsupported

      assert reason(fn -> ExTorch.Nx.to_nx(ExTorch.zeros({1}), bakend: 1) end) == :bad_argument
    end

    test "memory of BinaryBackend is frozen" do
      t = ExTorch.Nx.from_nx(Nx.iota({100}, backend: Nx.BinaryBackend))
      assert reason(fn -> ExTorch.op("add_", [t, 1]) end) == :frozen
    end
  end
end
