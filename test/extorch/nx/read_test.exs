if Code.ensure_loaded?(Nx) do
  defmodule ExTorch.Nx.ReadTest do
    # ExTorch.Nx.read!/2 of shards and over HTTP, and what Nx, Axon and Bumblebee do with its tensors.
    use ExTorch.Case, async: false
    alias ExTorch.Test.Nginx

    @moduletag :nx
    @moduletag :tmp_dir

    defp weights do
      %{
        "encoder.weight" => Tensor.reshape(ExTorch.arange(12, dtype: :float32), {3, 4}),
        "encoder.bias" => ExTorch.ones({3}),
        "scale" => ExTorch.tensor(2.5),
        "half" => ExTorch.ones({2, 2}, dtype: :bfloat16),
        "steps" => ExTorch.tensor([1, 2, 3])
      }
    end

    defp assert_same(lazy, weights) do
      assert Enum.sort(Map.keys(lazy)) == Enum.sort(Map.keys(weights))

      for {name, t} <- weights do
        nx = Nx.to_tensor(lazy[name])
        assert {nx.shape, Nx.to_binary(nx)} == {t.shape, Tensor.to_binary(t)}
      end
    end

    # A directory with shards of each format, and an index of each.
    defp sharded(dir) do
      for {format, index} <- [safetensors: "model.safetensors", bin: "pytorch_model.bin"] do
        directory = Path.join(dir, "#{format}")
        File.mkdir_p!(directory)
        source = Path.join(dir, "one.safetensors")
        ExTorch.save!(weights(), source)
        index = Path.join(directory, index <> ".index.json")
        :ok = ExTorch.convert(source, index, max_shard_size: 50)
        assert length(File.ls!(directory)) > 2
        index
      end
    end

    test "shards: an index, its directory, one shard after another", %{tmp_dir: dir} do
      for index <- sharded(dir), mmap <- [true, false] do
        assert_same(ExTorch.Nx.read!(index, mmap: mmap), weights())
        assert_same(ExTorch.Nx.read!(Path.dirname(index), mmap: mmap), weights())

        # as Bumblebee does
        shards = Path.wildcard(Path.join(Path.dirname(index), "*-of-*"))
        parts = Enum.map(shards, &ExTorch.Nx.read!(&1, mmap: mmap))
        assert_same(Enum.reduce(parts, &Map.merge/2), weights())

        assert Map.keys(ExTorch.Nx.read!(index, only: ["scale"])) == ["scale"]
        assert reason(fn -> ExTorch.Nx.read!(index, only: ["none"]) end) == :not_found
      end
    end

    test "shards stay open while one of their tensors exists", %{tmp_dir: dir} do
      [index | _] = sharded(dir)

      lazy = Map.take(ExTorch.Nx.read!(index), ["steps", "encoder.weight"])
      File.rm_rf!(Path.dirname(index))
      Memory.collect()
      assert_same(lazy, Map.take(weights(), ["steps", "encoder.weight"]))
    end

    test "tied weights are read whatever names they have", %{tmp_dir: dir} do
      path = Path.join(dir, "tied.bin")
      t = ExTorch.ones({4, 2})
      ExTorch.save!(%{"embed" => t, "head" => t, "part" => ExTorch.op("t", [t])}, path)

      for mmap <- [true, false] do
        lazy = ExTorch.Nx.read!(path, mmap: mmap)
        assert Nx.to_number(Nx.sum(Nx.add(lazy["embed"], lazy["head"]))) == 16.0
        assert Nx.shape(Nx.to_tensor(lazy["part"])) == {2, 4}
      end
    end

    describe "HTTP" do
      @describetag :nginx

      setup %{tmp_dir: dir} do
        www = Path.join(dir, "www")
        File.mkdir_p!(www)

        for name <- ["model.pt", "model.safetensors"],
            do: ExTorch.save!(weights(), "#{www}/#{name}")

        sharded(www)

        server =
          Nginx.start(Path.join(dir, "nginx"), """
          root #{www};
          location /org/model/resolve/main/ { alias #{www}/; }
          """)

        on_exit(fn -> Nginx.stop(server) end)
        %{server: server}
      end

      test "files", %{server: server} do
        for name <- ["model.pt", "model.safetensors"] do
          lazy = ExTorch.Nx.read!(Nginx.url(server, "/" <> name))
          assert_same(lazy, weights())
        end

        assert reason(fn -> ExTorch.Nx.read!(Nginx.url(server, "/none.pt")) end) == :not_found
      end

      test "only what is used is transferred", %{server: server, tmp_dir: dir} do
        big = %{"small" => ExTorch.ones({3}), "big" => ExTorch.ones({4_000_000})}
        ExTorch.save!(big, Path.join(dir, "www/big.safetensors"))
        lazy = ExTorch.Nx.read!(Nginx.url(server, "/big.safetensors"))
        assert Nx.to_number(Nx.sum(lazy["small"])) == 3.0
        assert Enum.sum(for r <- Nginx.log(server), do: r.bytes) < 4_000_000
        assert Nx.to_number(Nx.sum(lazy["big"])) == 4_000_000.0
      end

      test "shards", %{server: server} do
        for index <- [
              "/safetensors/model.safetensors.index.json",
              "/bin/pytorch_model.bin.index.json"
            ] do
          assert_same(ExTorch.Nx.read!(Nginx.url(server, index)), weights())
        end

        hub =
          ExTorch.Source.HTTP.hub("org/model", "safetensors/model.safetensors.index.json",
            endpoint: Nginx.url(server, "")
          )

        assert_same(
          ExTorch.Nx.read!(hub, only: ["scale", "steps"]),
          Map.take(weights(), ["scale", "steps"])
        )
      end

      test "a server that is gone is an error", %{server: server, tmp_dir: dir} do
        ExTorch.save!(%{"w" => ExTorch.ones({4_000_000})}, Path.join(dir, "www/w.safetensors"))
        url = Nginx.url(server, "/w.safetensors")
        lazy = ExTorch.Nx.read!(ExTorch.Source.HTTP.new(url, retries: 0, timeout: 2_000))
        Nginx.stop(server)
        assert wait_until(fn -> reason(fn -> Nx.to_tensor(lazy["w"]) end) == :io end)
      end
    end

    test "Nx takes lazy tensors as they are", %{tmp_dir: dir} do
      path = Path.join(dir, "w.pt")
      ExTorch.save!(weights(), path)

      for mmap <- [true, false] do
        %{"encoder.weight" => w, "encoder.bias" => b, "scale" => scale, "steps" => steps} =
          ExTorch.Nx.read!(path, mmap: mmap)

        assert Nx.to_number(Nx.sum(Nx.multiply(w, scale))) == 165.0
        assert Nx.shape(Nx.stack([w, w])) == {2, 3, 4}
        assert Nx.shape(Nx.concatenate([w, w])) == {6, 4}
        assert Nx.to_number(scale) == 2.5
        assert Nx.to_list(steps) == [1, 2, 3]
        assert Nx.to_number(Nx.Defn.jit(&Nx.sum(&1["w"])).(%{"w" => w, "b" => b})) == 66.0
        assert {sum, _} = Nx.Defn.value_and_grad(w, &Nx.sum/1)
        assert Nx.to_number(sum) == 66.0

        serving = Nx.Serving.jit(fn %{x: x} -> Nx.sum(x, axes: [1, 2]) end)
        batch = Nx.Batch.stack([%{x: w}, %{x: w}])
        assert Nx.to_list(Nx.Serving.run(serving, batch)) == [66.0, 66.0]
        {first, rest} = Nx.Batch.split(Nx.Batch.concatenate([w]), 2)
        assert {first.size, rest.size} == {2, 1}
        serving = Nx.Serving.jit(&Nx.sum(&1, axes: [1]))
        assert Nx.to_list(Nx.Serving.run(serving, rest)) == [38.0]
        assert Nx.to_list(Nx.Serving.run(serving, Nx.Batch.pad(first, 1))) == [6.0, 22.0]
      end
    end

    test "a process of Nx.Serving batches lazy tensors of several callers", %{tmp_dir: dir} do
      path = Path.join(dir, "w.pt")
      ExTorch.save!(weights(), path)
      lazy = ExTorch.Nx.read!(path)
      serving = Nx.Serving.jit(&Nx.sum(&1, axes: [1]))
      start_supervised!({Nx.Serving, serving: serving, name: __MODULE__, batch_size: 6})

      run = fn _ ->
        batch = Nx.Batch.concatenate([lazy["encoder.weight"]])
        Nx.to_list(Nx.Serving.batched_run(__MODULE__, batch))
      end

      results = 1..4 |> Task.async_stream(run) |> Enum.map(&elem(&1, 1))
      assert Enum.uniq(results) == [[6.0, 22.0, 38.0]]
    end

    test "maps of lazy tensors are converted, applied and saved", %{tmp_dir: dir} do
      path = Path.join(dir, "w.pt")
      ExTorch.save!(weights(), path)
      lazy = ExTorch.Nx.read!(path)
      assert_same(ExTorch.Nx.to_nx(lazy, backend: Nx.BinaryBackend), weights())
      copy = Path.join(dir, "copy.pt")
      :ok = ExTorch.Store.collect_from(ExTorch.Store.PyTorch.new(copy), lazy)
      assert {:ok, %{equal: equal}} = ExTorch.diff(path, copy)
      assert length(equal) == map_size(weights())

      assert {:ok, %{module: module, missing: [], unused: []}} =
               ExTorch.Store.apply_to(ExTorch.Store.PyTorch.new(path), lazy)

      assert_same(module, weights())
    end

    if Code.ensure_loaded?(Axon) do
      test "Axon: lazy inputs", %{tmp_dir: dir} do
        path = Path.join(dir, "w.pt")
        ExTorch.save!(weights(), path)
        %{"encoder.weight" => x} = ExTorch.Nx.read!(path)
        model = Axon.input("x", shape: {nil, 4}) |> Axon.dense(2, name: "fc")
        {init, predict} = Axon.build(model)
        state = init.(%{"x" => x}, Axon.ModelState.empty())
        expected = Nx.to_list(predict.(state, Nx.to_tensor(x)))
        assert Nx.to_list(predict.(state, %{"x" => x})) == expected
        assert Nx.to_list(predict.(state, x)) == expected
        assert Nx.to_list(Axon.predict(model, state, x)) == expected
      end
    end

    if Code.ensure_loaded?(Bumblebee) do
      @config ~s({"architectures": ["BertModel"], "model_type": "bert", "vocab_size": 11, "hidden_size": 4, ) <>
                ~s("num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8, ) <>
                ~s("max_position_embeddings": 7, "type_vocab_size": 2})

      defp bert(directory, index, size) do
        linear = fn name, rows, columns ->
          [{"#{name}.weight", {rows, columns}}, {"#{name}.bias", {rows}}]
        end

        norm = fn name -> [{"#{name}.LayerNorm.weight", {4}}, {"#{name}.LayerNorm.bias", {4}}] end
        layer = "encoder.layer.0"

        shapes =
          List.flatten([
            {"embeddings.word_embeddings.weight", {11, 4}},
            {"embeddings.position_embeddings.weight", {7, 4}},
            {"embeddings.token_type_embeddings.weight", {2, 4}},
            norm.("embeddings"),
            for(
              part <- ~w(query key value),
              do: linear.("#{layer}.attention.self.#{part}", 4, 4)
            ),
            linear.("#{layer}.attention.output.dense", 4, 4),
            norm.("#{layer}.attention.output"),
            linear.("#{layer}.intermediate.dense", 8, 4),
            linear.("#{layer}.output.dense", 4, 8),
            norm.("#{layer}.output"),
            linear.("pooler.dense", 4, 4)
          ])

        File.mkdir_p!(directory)
        File.write!(Path.join(directory, "config.json"), @config)
        weights = Map.new(shapes, fn {name, shape} -> {name, ExTorch.randn(shape)} end)
        one = Path.join(directory, "model.safetensors")
        ExTorch.save!(weights, one)

        if size do
          :ok = ExTorch.convert(one, Path.join(directory, index), max_shard_size: size)
          File.rm!(one)
        end

        weights
      end

      defp load_model(directory, opts) do
        {:ok, %{params: params}} =
          Bumblebee.load_model({:local, directory}, [backend: Nx.BinaryBackend] ++ opts)

        params.data
      end

      test "Bumblebee: one file, shards, and a reader that reads over HTTP", %{tmp_dir: dir} do
        one = Path.join(dir, "www")
        bert(one, nil, nil)
        expected = load_model(one, [])
        ours = [safetensors_reader: &ExTorch.Nx.read!/1]
        assert load_model(one, ours) == expected

        shards = Path.join(dir, "shards")
        bert(shards, "model.safetensors.index.json", 300)
        assert length(Path.wildcard(Path.join(shards, "*-of-*"))) > 2
        assert load_model(shards, ours) == load_model(shards, [])

        if Nginx.available?() do
          server = Nginx.start(Path.join(dir, "nginx"), "root #{one};")
          on_exit(fn -> Nginx.stop(server) end)
          url = Nginx.url(server, "/model.safetensors")
          reader = fn _path -> ExTorch.Nx.read!(url) end
          assert load_model(one, safetensors_reader: reader) == expected
        end
      end
    end
  end
end
