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
        nx = ExTorch.Nx.to_nx(t, backend: unquote(backend), lease: true)
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

    defp arange(shape),
      do: Tensor.reshape(ExTorch.arange(Tuple.product(shape), dtype: :float32), shape)

    # Some backends lack some types.
    defp nx(t, backend) do
      ExTorch.Nx.to_nx(t, backend: backend)
    rescue
      error in ExTorch.Error -> error.reason
    end

    test "without a lease there is nothing to release, and nothing is leased" do
      for backend <- @backends do
        before = Memory.live().leased
        nx = ExTorch.Nx.to_nx(ExTorch.ones({10}), backend: backend)
        refute ExTorch.Nx.release(nx)
        assert Nx.to_number(Nx.sum(nx)) == 10.0
        assert Memory.live().leased == before
      end
    end

    if Torchx.Backend in @backends do
      defp leased(t_or_container),
        do: ExTorch.Nx.to_nx(t_or_container, backend: Torchx.Backend, lease: true)

      defp pointer(nx), do: Torchx.Backend.to_pointer(nx, mode: :local).address

      test "Torchx: a copy shares no memory with the tensor, which can still be written" do
        t = ExTorch.ones({1000})
        nx = ExTorch.Nx.to_nx(t, backend: Torchx.Backend)
        refute pointer(nx) == Blob.to_blob(t).ptr
        Memory.collect()
        ExTorch.op("zero_", [t])
        assert Nx.to_number(Nx.sum(nx)) == 1000.0
      end

      test "Torchx: a lease keeps the memory alive and frozen until it is released" do
        t = ExTorch.ones({1000})
        nx = leased(t)
        assert pointer(nx) == Blob.to_blob(t).ptr
        assert reason(fn -> ExTorch.op("zero_", [t]) end) == :frozen
        assert [%{bytes: 4000, dtype: :float32, shape: {1000}}] = Memory.leases()
        assert Memory.live().leased == 4000
        other = ExTorch.Nx.from_nx(nx)
        Tensor.release(t)
        Memory.collect()
        assert Nx.to_number(Nx.sum(nx)) == 1000.0
        assert ExTorch.Nx.release(nx)
        refute ExTorch.Nx.release(nx)
        assert Memory.leases() == []
        Memory.collect()
        assert Tensor.to_list(ExTorch.sum(other)) == 1000.0
        # used by mistake
        assert_raise RuntimeError, fn -> Nx.to_number(Nx.sum(nx)) end
      end

      test "Torchx: a lease is released by a view, after deallocation, and in containers" do
        t = arange({4, 5})

        for view <- [
              &Nx.transpose/1,
              &Nx.transpose(Nx.reshape(&1, {2, 2, 5}), axes: [2, 0, 1]),
              &Nx.reshape(&1, {20}),
              &Nx.squeeze(Nx.new_axis(&1, 0)),
              &Nx.vectorize(&1, :x)
            ] do
          nx = leased(t)
          assert ExTorch.Nx.release(view.(nx))
          refute ExTorch.Nx.release(nx)
        end

        nx = leased(t)
        :ok = Nx.backend_deallocate(nx)
        assert ExTorch.Nx.release(nx)
        refute ExTorch.Nx.release(nx)

        container = %{"a" => leased(t), b: [{leased(ExTorch.ones({3})), "text"}, 5]}
        assert length(Memory.leases()) == 2
        assert ExTorch.Nx.release(container)
        refute ExTorch.Nx.release(container)
        assert Memory.leases() == []
      end

      test "Torchx: leases of the same tensor, of overlapping ones, of scalars, conj and neg views" do
        t = arange({3, 4})
        part = ExTorch.op("narrow", [t, 0, 1, 2])
        %{"a" => a, "b" => b, "c" => c} = container = leased(%{"a" => t, "b" => t, "c" => part})
        assert length(Memory.leases()) == 3
        assert ExTorch.Nx.release(a)
        refute ExTorch.Nx.release(a)
        assert Nx.to_number(Nx.sum(b)) == 66.0
        assert Nx.to_number(Nx.sum(c)) == 60.0
        assert reason(fn -> ExTorch.op("zero_", [t]) end) == :frozen
        assert ExTorch.Nx.release(container)
        assert Memory.leases() == []
        ExTorch.op("zero_", [t])

        scalar = leased(ExTorch.tensor(2.5))
        assert {scalar.shape, Nx.to_number(scalar)} == {{}, 2.5}
        assert ExTorch.Nx.release(scalar)
        assert reason(fn -> leased(ExTorch.zeros({0, 3})) end) == :unsupported

        complex = ExTorch.op("complex", [ExTorch.ones({2}), ExTorch.ones({2})])
        conj = ExTorch.op("conj", [complex])

        for view <- [conj, ExTorch.op("imag", [conj]), ExTorch.op("expand", [t, [2, 3, 4]])] do
          nx = leased(view)
          copy = ExTorch.Nx.to_nx(view, backend: Nx.BinaryBackend)
          assert Nx.to_binary(nx) == Nx.to_binary(copy)
          assert ExTorch.Nx.release(nx)
        end

        assert reason(fn ->
                 ExTorch.Nx.to_nx(t, names: [:a], backend: Torchx.Backend, lease: true)
               end) ==
                 :bad_argument

        assert Memory.leases() == []
      end

      test "Torchx: every order in which both libraries drop shared memory" do
        for first <- [:deallocate, :transfer, :collect], size <- [4, 100_000] do
          nx = Nx.iota({size}, type: :f32, backend: Torchx.Backend)
          expected = Nx.to_number(Nx.sum(nx))
          t = ExTorch.Nx.from_nx(nx)
          slice = ExTorch.op("narrow", [t, 0, 0, 2])

          case first do
            :deallocate -> Nx.backend_deallocate(nx)
            :transfer -> Nx.backend_transfer(nx, Nx.BinaryBackend)
            :collect -> :erlang.garbage_collect()
          end

          # what was freed would be used again
          for _ <- 1..20, do: Nx.broadcast(Nx.tensor(7.0, backend: Torchx.Backend), {size})
          assert Tensor.to_list(ExTorch.sum(t)) == expected
          assert reason(fn -> ExTorch.op("zero_", [t]) end) == :frozen
          Tensor.release(t)
          Memory.collect()
          assert Tensor.to_list(slice) == [0.0, 1.0]
        end
      end

      test "Torchx: from_nx of a view leaves the Nx tensor as it is" do
        nx = Nx.iota({4, 5}, type: :f32, backend: Torchx.Backend)
        t = ExTorch.Nx.from_nx(nx)
        assert Blob.to_blob(t).ptr == pointer(nx)

        assert Tensor.to_list(ExTorch.Nx.from_nx(Nx.transpose(nx))) ==
                 Nx.to_list(Nx.transpose(nx))

        assert Tensor.to_list(ExTorch.Nx.from_nx(nx[2])) == Nx.to_list(nx[2])
        scalar = ExTorch.Nx.from_nx(Nx.tensor(5, backend: Torchx.Backend))
        assert {scalar.shape, Tensor.to_list(scalar)} == {{}, 5}
      end

      test "Torchx: unsigned types that it stores as wider ones" do
        for dtype <- [:uint16, :uint32, :uint64], ExTorch.DType.supported?(dtype) do
          t =
            Tensor.from_binary(
              :binary.copy(<<200>>, 24),
              {24 |> div(ExTorch.DType.size(dtype))},
              dtype
            )

          for lease <- [true, false] do
            nx = ExTorch.Nx.to_nx(t, backend: Torchx.Backend, lease: lease)
            assert Nx.to_binary(nx) == Tensor.to_binary(t)
            assert Tensor.to_binary(ExTorch.Nx.from_nx(nx)) == Tensor.to_binary(t)
            ExTorch.Nx.release(nx)
          end
        end

        assert Memory.leases() == []
      end
    end

    test "tensors without elements are errors with their names, which do not fail a container" do
      empty = ExTorch.zeros({0, 3})
      assert reason(fn -> ExTorch.Nx.to_nx(empty) end) == :unsupported

      assert %{"a" => %Nx.Tensor{}, "m" => [%ExTorch.Error{reason: :unsupported} = error]} =
               ExTorch.Nx.to_nx(%{"a" => ExTorch.ones({2}), "m" => [empty]})

      assert error.message =~ ~s(the tensor "m.0" has the shape {0, 3})
      assert reason(fn -> Nx.add(empty, 1) end) == :unsupported
    end

    test "a tensor that Nx cannot have is an error with its name" do
      sparse = ExTorch.op("to_sparse", [ExTorch.ones({2, 2})])
      assert %{message: message} = catch_error(ExTorch.Nx.to_nx(%{"m" => [sparse]}))
      assert message =~ ~s(the tensor "m.0": cannot convert a sparse)
      complex = ExTorch.zeros({1}, dtype: :complex32)
      assert %{message: message} = catch_error(ExTorch.Nx.to_nx(%{"c" => complex}))
      assert message =~ ~s(the dtype complex32 of the tensor "c")
    end

    test "types of Nx that LibTorch does not have are errors" do
      for type <- [{:u, 2}, {:u, 4}, {:s, 2}, {:s, 4}] do
        nx = Nx.tensor([1, 0], type: type, backend: Nx.BinaryBackend)
        assert reason(fn -> ExTorch.Nx.from_nx(nx) end) == :unsupported
      end
    end

    # ---- Lazy ----

    test "Nx takes tensors as they are" do
      t = ExTorch.tensor([[1.0, 2.0], [3.0, 4.0]])
      assert Nx.to_list(Nx.add(t, 1)) == [[2.0, 3.0], [4.0, 5.0]]
      assert Nx.to_list(Nx.to_tensor(t)) == Tensor.to_list(t)
      assert Nx.shape(Nx.stack([t, t])) == {2, 2, 2}
      assert Nx.to_number(Nx.Defn.jit(&Nx.sum/1).(t)) == 10.0

      assert Nx.to_list(Nx.Defn.jit(fn %{a: a, b: {b}} -> Nx.dot(a, b) end).(%{a: t, b: {t}})) ==
               [[7.0, 10.0], [15.0, 22.0]]

      batch = Nx.Batch.concatenate([t, t])
      assert batch.size == 4
      serving = Nx.Serving.jit(&Nx.multiply(&1, 2))

      assert Nx.to_list(Nx.Serving.run(serving, batch)) == [
               [2.0, 4.0],
               [6.0, 8.0],
               [2.0, 4.0],
               [6.0, 8.0]
             ]
    end

    @tag :tmp_dir
    test "read! returns lazy tensors of any format, with the options of a state dict", %{
      tmp_dir: dir
    } do
      weights = %{
        "m.w" => arange({3, 4}),
        "m.b" => ExTorch.ones({3}),
        "m.e" => ExTorch.zeros({0})
      }

      for name <- ["w.pt", "w.safetensors", "w.npz"], mmap <- [true, false] do
        path = Path.join(dir, name)
        :ok = ExTorch.save(weights, path)
        lazy = ExTorch.Nx.read!(path, mmap: mmap)
        assert Map.keys(lazy) == Map.keys(weights)

        for key <- ["m.w", "m.b"],
            do: assert(Nx.to_list(Nx.to_tensor(lazy[key])) == Tensor.to_list(weights[key]))

        assert inspect(lazy["m.w"]) =~ ~r/LazyTensor<m.w: .*\[3\]\[4\], /
        assert Nx.to_list(Nx.add(lazy["m.b"], 1)) == [2.0, 2.0, 2.0]

        assert %ExTorch.Error{reason: :unsupported, message: message} =
                 catch_error(Nx.to_tensor(lazy["m.e"]))

        assert message =~ "m.e"
        assert Map.keys(ExTorch.Nx.read!(path, top_level_key: "m", only: {:prefix, "w"})) == ["w"]
      end

      index = Path.join(dir, "sharded/model.safetensors.index.json")
      File.mkdir_p!(Path.dirname(index))
      :ok = ExTorch.convert(Path.join(dir, "w.safetensors"), index, max_shard_size: 40)
      sharded = ExTorch.Nx.read!(Path.dirname(index), only: ["m.w", "m.b"])
      assert Nx.to_list(Nx.to_tensor(sharded["m.w"])) == Tensor.to_list(weights["m.w"])
      assert reason(fn -> ExTorch.Nx.read!(Path.join(dir, "none.pt")) end) == :not_found
      assert reason(fn -> ExTorch.Nx.read!(index, onli: 1) end) == :bad_argument
    end

    for backend <- @backends do
      @tag :tmp_dir
      test "#{inspect(backend)}: load and Checkpoint.tensor return Nx tensors", %{tmp_dir: dir} do
        path = Path.join(dir, "model.pt")
        t = arange({3, 4})

        :ok =
          ExTorch.save(
            %{
              "model" => %{"w" => t, "t" => Tensor.transpose(t)},
              "list" => [t, 5],
              "empty" => ExTorch.zeros({0})
            },
            path
          )

        for opts <- [[], [mmap: true], [mmap: false], [ordered: true]] do
          {:ok, loaded} = ExTorch.load(path, [as: :nx, backend: unquote(backend)] ++ opts)
          get = fn key -> if opts[:ordered], do: Map.new(loaded.pairs)[key], else: loaded[key] end
          model = if opts[:ordered], do: Map.new(get.("model").pairs), else: get.("model")
          assert %Nx.Tensor{data: %unquote(backend){}} = model["w"]
          assert Nx.to_list(model["w"]) == Tensor.to_list(t)
          assert Nx.to_list(model["t"]) == Tensor.to_list(Tensor.transpose(t))
          assert [%Nx.Tensor{}, 5] = get.("list")
          assert %ExTorch.Error{reason: :unsupported} = get.("empty")
        end

        ckpt = ExTorch.Checkpoint.open!(path, mmap: true)
        nx = ExTorch.Checkpoint.tensor!(ckpt, "model.w", as: :nx, backend: {unquote(backend), []})
        assert %Nx.Tensor{data: %unquote(backend){}, shape: {3, 4}} = nx

        assert {:error, %{reason: :unsupported, path: ^path}} =
                 ExTorch.Checkpoint.tensor(ckpt, "empty", as: :nx)

        assert {:error, %{reason: :not_found}} = ExTorch.Checkpoint.tensor(ckpt, "none", as: :nx)
      end
    end

    @tag :tmp_dir
    test "a mapped file is not copied to BinaryBackend, and stays open while Nx needs it", %{
      tmp_dir: dir
    } do
      path = Path.join(dir, "model.safetensors")
      :ok = ExTorch.save(%{"w" => ExTorch.ones({1_000_000})}, path)
      before = Memory.live().bytes
      nx = ExTorch.load!(path, as: :nx, mmap: true, backend: Nx.BinaryBackend)["w"]
      lazy = Nx.to_tensor(ExTorch.Nx.read!(path)["w"])
      Memory.collect()
      assert Memory.live().bytes - before < 1_000_000
      assert Nx.to_number(Nx.sum(nx)) == 1_000_000.0
      assert Nx.to_binary(lazy) == Nx.to_binary(nx)
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

    test "what is converted already stays as it is" do
      nx = Nx.tensor([1, 2], backend: Nx.BinaryBackend)
      t = ExTorch.ones({2})
      container = %{nx: nx, t: t, c: Complex.new(1.0, 2.0), n: [nil, 1.5, ~D[2024-01-01]]}
      assert %{nx: ^nx, t: %Nx.Tensor{}, c: complex, n: n} = ExTorch.Nx.to_nx(container)
      assert {complex, n} == {container.c, container.n}
      assert %{nx: %Tensor{}, t: ^t, c: ^complex, n: ^n} = ExTorch.Nx.from_nx(container)
      refute ExTorch.Nx.release(container)
    end

    test "templates have no values" do
      assert reason(fn -> ExTorch.Nx.from_nx([Nx.template({2}, :f32)]) end) == :bad_argument
    end

    test "names that do not fit are errors with the name of the tensor" do
      t = ExTorch.ones({2})
      assert reason(fn -> ExTorch.Nx.to_nx(t, names: :x) end) == :bad_argument
      assert reason(fn -> ExTorch.Nx.to_nx(t, names: [:x, :y]) end) == :bad_argument
      assert %Error{message: message} = catch_error(ExTorch.Nx.to_nx(%{"m" => [t]}, names: []))
      assert message =~ ~s(the tensor "m.0" of the shape {2})
    end

    @tag :tmp_dir
    test "stores: templates, vectorized axes, and types that LibTorch does not have", %{
      tmp_dir: dir
    } do
      path = Path.join(dir, "w.pt")
      t = arange({3, 4})
      ExTorch.save!(%{"w" => t, "v" => t, "u" => t}, path)

      module = %{
        w: Nx.template({3, 4}, :f32, names: [:a, nil]),
        v: Nx.vectorize(Nx.iota({3, 4}, type: :f32, backend: Nx.BinaryBackend), :batch),
        u: Nx.iota({3, 4}, type: :u4, backend: Nx.BinaryBackend)
      }

      store = ExTorch.Store.PyTorch.new(path, allow_partial: true, overwrite: true)
      assert {:ok, %{module: result, errors: [error]}} = ExTorch.Store.apply_to(store, module)
      assert %{name: "u", message: message} = error
      assert message =~ "{:u, 4}"
      assert result.u == module.u
      assert {result.w.names, Nx.to_list(result.w)} == {[:a, nil], Tensor.to_list(t)}
      assert {result.v.vectorized_axes, result.v.shape} == {[batch: 3], {4}}
      assert Nx.to_list(Nx.devectorize(result.v)) == Tensor.to_list(t)

      assert {:error, %{reason: :unsupported, message: message}} =
               ExTorch.Store.collect_from(store, result)

      assert message =~ ~s(the tensor "u")
      assert :ok = ExTorch.Store.collect_from(store, Map.delete(result, :u))
      assert Tensor.equal?(ExTorch.load!(path)["v"], t)

      assert {:error, %{reason: :bad_argument, message: message}} =
               ExTorch.Store.collect_from(store, %{w: module.w})

      assert message =~ ~s(the tensor "w")
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
