if Code.ensure_loaded?(Nx) do
  defmodule ExTorch.Nx.BackendTest do
    # Backends without shared memory: EXLA is used in the same way, through binaries.
    use ExTorch.Case
    alias ExTorch.Test.CopyingBackend

    @moduletag :nx
    @moduletag :tmp_dir
    @backend {CopyingBackend, client: :host}

    test "tensors are copied in both directions" do
      for t <- [
            Tensor.reshape(ExTorch.arange(6, dtype: :float32), {2, 3}),
            Tensor.transpose(Tensor.reshape(ExTorch.arange(6), {2, 3})),
            ExTorch.ones({2}, dtype: :bfloat16),
            ExTorch.tensor(true),
            ExTorch.tensor(2.5)
          ],
          lease <- [true, false] do
        nx = ExTorch.Nx.to_nx(t, backend: @backend, lease: lease)
        assert %Nx.Tensor{data: %CopyingBackend{bytes: bytes}} = nx
        assert bytes == Tensor.to_binary(Tensor.contiguous(t))
        refute ExTorch.Nx.release(nx)
        back = ExTorch.Nx.from_nx(nx)
        assert {back.shape, Tensor.to_binary(back)} == {t.shape, bytes}
      end

      assert Memory.leases() == []
    end

    test "the tensor can be written afterwards, and the Nx tensor does not change" do
      t = ExTorch.ones({1000})
      nx = ExTorch.Nx.to_nx(t, backend: @backend)
      :erlang.garbage_collect()
      Memory.collect()
      ExTorch.op("zero_", [t])
      assert Tensor.to_list(ExTorch.sum(ExTorch.Nx.from_nx(nx))) == 1000.0
      # its memory is that of a binary
      assert reason(fn -> ExTorch.op("zero_", [ExTorch.Nx.from_nx(nx)]) end) == :frozen
    end

    test "files, checkpoints and lazy tensors", %{tmp_dir: dir} do
      path = Path.join(dir, "model.safetensors")
      t = Tensor.reshape(ExTorch.arange(6, dtype: :float32), {2, 3})
      ExTorch.save!(%{"w" => t}, path)

      for opts <- [[], [mmap: false]] do
        nx = ExTorch.load!(path, [as: :nx, backend: @backend] ++ opts)["w"]
        assert %CopyingBackend{} = nx.data
        lazy = ExTorch.Nx.read!(path, opts)
        nx = Nx.with_default_backend(@backend, fn -> Nx.to_tensor(lazy["w"]) end)
        assert %CopyingBackend{} = nx.data
        assert Nx.to_binary(nx) == Tensor.to_binary(t)
        assert %{"w" => %{data: %CopyingBackend{}}} = ExTorch.Nx.to_nx(lazy, backend: @backend)
      end

      module = %{w: ExTorch.Nx.to_nx(ExTorch.zeros({2, 3}), backend: @backend, names: [:a, :b])}
      store = ExTorch.Store.PyTorch.new(path)
      assert {:ok, %{module: %{w: w}}} = ExTorch.Store.apply_to(store, module)
      assert %{data: %CopyingBackend{}, names: [:a, :b]} = w
      assert Nx.to_binary(w) == Tensor.to_binary(t)
    end

    test "what is not a backend is an error before anything is read", %{tmp_dir: dir} do
      path = Path.join(dir, "none.pt")
      ckpt = ExTorch.Checkpoint.open!({:binary, saved(%{"w" => ExTorch.ones({2})})})

      for backend <- [
            Missing.Backend,
            {Missing.Backend, []},
            Enum,
            {CopyingBackend, 5},
            "x",
            true
          ],
          call <- [
            &ExTorch.Nx.to_nx(ExTorch.ones({2}), backend: &1),
            &ExTorch.load(path, as: :nx, backend: &1),
            &ExTorch.Checkpoint.tensor(ckpt, "w", as: :nx, backend: &1)
          ] do
        assert %Error{reason: :bad_argument, message: message} = catch_error(call.(backend))
        assert message =~ "expected :backend to be a backend of Nx"
      end
    end
  end
end
