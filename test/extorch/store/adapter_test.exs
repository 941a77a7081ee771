defmodule ExTorch.Store.AdapterTest do
  use ExTorch.Case
  alias ExTorch.Store
  alias ExTorch.Store.{Adapter, PyTorch}
  alias ExTorch.Test.Python, as: Torch

  @moduletag :tmp_dir

  setup %{tmp_dir: dir}, do: {:ok, path: Path.join(dir, "model.pt")}

  defp zeros(shape, opts \\ []), do: ExTorch.zeros(shape, opts)
  defp ones(shape, opts), do: ExTorch.ones(shape, opts)
  defp list(tensor), do: Tensor.to_list(tensor)

  test "names are split at their last dot, however many they have" do
    dots = String.duplicate(".", 1_000_000)
    {:reductions, before} = Process.info(self(), :reductions)

    for adapter <- [Adapter.PyTorchToAxon, Adapter.AxonToPyTorch] do
      assert adapter.rename("w", %{}, []) == "w"
      assert adapter.rename("a.b.bias", %{}, []) == "a.b.bias"
      assert adapter.rename(dots, %{}, []) == dots
    end

    {:reductions, now} = Process.info(self(), :reductions)
    assert now - before < 1_000_000
  end

  @tag :torch
  test "Cast, Half and functions", %{path: path} do
    :ok =
      ExTorch.save(
        %{"w" => ones({2}, dtype: :float64), "norm.w" => ones({2}, dtype: :float64)},
        path
      )

    module = %{"w" => zeros({2}), "norm.w" => zeros({2})}
    assert {:ok, result} = Store.apply_to(PyTorch.new(path, adapters: [Adapter.Cast]), module)
    assert result.module["w"].dtype == :float32
    half = PyTorch.new(path, adapters: [Adapter.Half, {Adapter.Cast, []}])
    assert {:ok, _} = Store.apply_to(half, module)

    double = fn _entry, tensor, target ->
      ExTorch.mul(ExTorch.Tensor.to(tensor, dtype: target.dtype), 2.0)
    end

    assert {:ok, result} = Store.apply_to(PyTorch.new(path, adapters: [double]), module)
    assert list(result.module["w"]) == [2.0, 2.0]
    :ok = Store.collect_from(PyTorch.new(path, overwrite: true, adapters: [Adapter.Half]), module)
    assert %{"w" => %{dtype: :float16}, "norm.w" => %{dtype: :float32}} = ExTorch.load!(path)

    # the result of a function that needs values is checked after reading
    peek = fn _entry, tensor, _target ->
      if Enum.sum(list(tensor)) >= 0, do: ExTorch.Tensor.to(tensor, dtype: :float32), else: tensor
    end

    assert {:ok, _} = Store.apply_to(PyTorch.new(path, adapters: [peek]), module)
  end

  test "square weights that are laid out by their names are ambiguous", %{path: path} do
    file = %{
      "tokens.weight" => ones({4, 4}, []),
      "embedding.weight" => ones({3, 3}, []),
      "proj.weight" => ones({4, 4}, []),
      "wide.weight" => ones({2, 4}, []),
      "table.weight" => ones({5, 2}, []),
      "one.weight" => ones({1, 1}, []),
      "conv.weight" => ones({4, 2, 3, 3}, []),
      "first.weight" => ones({4, 2, 3, 3}, []),
      "up.weight" => ones({2, 2, 3, 3}, []),
      "bias" => ones({4}, [])
    }

    :ok = ExTorch.save(file, path)

    module = %{
      "tokens" => %{"kernel" => zeros({4, 4})},
      "embedding" => %{"kernel" => zeros({3, 3})},
      "proj" => %{"kernel" => zeros({4, 4})},
      "wide" => %{"kernel" => zeros({4, 2})},
      # an embedding that is not called one
      "table" => %{"kernel" => zeros({5, 2})},
      "one" => %{"kernel" => zeros({1, 1})},
      "conv" => %{"kernel" => zeros({3, 3, 2, 4})},
      "first" => %{"kernel" => zeros({4, 2, 3, 3})},
      "up" => %{"kernel" => zeros({3, 3, 2, 2})},
      "bias" => zeros({4})
    }

    store = &PyTorch.new(path, [adapters: [{Adapter.PyTorchToAxon, &1}]] ++ &2)
    assert {:ok, result} = Store.apply_to(store.([], []), module)
    assert length(result.applied) == 10

    assert Enum.sort(result.ambiguous) == ~w(embedding.kernel proj.kernel tokens.kernel up.kernel)
    assert inspect(result) =~ "10 applied, 4 ambiguous"
    # the names were given: only the convolution is a guess
    assert {:ok, result} = Store.apply_to(store.([embeddings: ~r/tok|emb/], []), module)
    assert result.ambiguous == ["up.kernel"]

    # also in the result of an error, when nothing was read
    assert {:error, %{result: result}} =
             Store.apply_to(store.([], []), Map.put(module, "x", zeros({1})))

    assert length(result.ambiguous) == 4
  end

  @tag :torch
  test "functions say that they guess", %{path: path} do
    :ok = ExTorch.save(%{"a" => ones({2, 2}, []), "b" => ones({2}, [])}, path)

    guess = fn
      %{name: "a"}, tensor, _target -> {:ambiguous, tensor}
      _entry, tensor, _target -> tensor
    end

    again = fn _entry, tensor, _target -> ExTorch.mul(tensor, 1.0) end
    store = PyTorch.new(path, adapters: [guess, again])
    module = %{"a" => zeros({2, 2}), "b" => zeros({2})}
    assert {:ok, %{applied: ["a", "b"], ambiguous: ["a"]}} = Store.apply_to(store, module)
    :ok = Store.collect_from(PyTorch.new(path, adapters: [guess], overwrite: true), module)
  end

  if Torch.torch() do
    @tag :torch
    test "a PyTorch model in the layout of Axon computes the same values", %{tmp_dir: dir} do
      path = Path.join(dir, "net.pt")

      script = """
      import sys, torch
      torch.manual_seed(0)
      class Net(torch.nn.Module):
          def __init__(self):
              super().__init__()
              self.embedding = torch.nn.Embedding(7, 4)
              self.conv = torch.nn.Conv2d(2, 3, (2, 3))
              self.bn = torch.nn.BatchNorm2d(3)
              self.dense = torch.nn.Linear(12, 5)
              self.lstm = torch.nn.LSTM(4, 6)
          def forward(self, x, i):
              y = self.bn(self.conv(x)).flatten(1)
              return self.dense(y), self.lstm(self.embedding(i))[0]
      net = Net()
      net(torch.randn(8, 2, 3, 4), torch.tensor([[0, 1]]))
      net.eval()
      x, i = torch.randn(2, 2, 3, 4), torch.tensor([[3], [1], [6]])
      y, z = net(x, i)
      torch.save({"state_dict": net.state_dict(), "x": x, "i": i, "y": y.detach(), "z": z.detach()}, sys.argv[1])
      """

      Torch.run!(script, [path])
      %{"x" => x, "i" => i, "y" => y, "z" => z} = ExTorch.load!(path)

      axon = %{
        "embedding" => %{"kernel" => zeros({7, 4})},
        "conv" => %{"kernel" => zeros({2, 3, 2, 3}), "bias" => zeros({3})},
        "bn" => %{
          "gamma" => zeros({3}),
          "beta" => zeros({3}),
          "mean" => zeros({3}),
          "var" => zeros({3})
        },
        "dense" => %{"kernel" => zeros({12, 5}), "bias" => zeros({5})},
        "lstm" => %{
          "weight_ih_l0" => zeros({24, 4}),
          "weight_hh_l0" => zeros({24, 6}),
          "bias_ih_l0" => zeros({24}),
          "bias_hh_l0" => zeros({24})
        }
      }

      store = PyTorch.new(path, top_level_key: "state_dict", adapters: [Adapter.PyTorchToAxon])
      assert {:ok, result} = Store.apply_to(store, axon)
      assert result.missing == [] and result.errors == []
      assert Enum.sort(result.unused) == ~w(i state_dict.bn.num_batches_tracked x y z)
      net = result.module

      # the forward pass with Axon's layouts: channels last, kernels {in, out}
      kernel = ExTorch.op("permute", [net["conv"]["kernel"], [3, 2, 0, 1]])
      conv = ExTorch.op("conv2d", [x, kernel, net["conv"]["bias"]])
      bn = net["bn"]

      normed =
        ExTorch.op("batch_norm", [
          conv,
          bn["gamma"],
          bn["beta"],
          bn["mean"],
          bn["var"],
          false,
          0.1,
          1.0e-5,
          false
        ])

      out =
        ExTorch.add(
          ExTorch.matmul(ExTorch.op("flatten", [normed, 1, -1]), net["dense"]["kernel"]),
          net["dense"]["bias"]
        )

      assert alike?(out, y)
      embedded = ExTorch.op("embedding", [net["embedding"]["kernel"], i])
      lstm = net["lstm"]

      weights = [
        lstm["weight_ih_l0"],
        lstm["weight_hh_l0"],
        lstm["bias_ih_l0"],
        lstm["bias_hh_l0"]
      ]

      start = zeros({1, 1, 6})

      {states, _, _} =
        ExTorch.op("lstm.input", [
          embedded,
          [start, start],
          weights,
          true,
          1,
          0.0,
          false,
          false,
          false
        ])

      assert alike?(states, z)

      # and back: PyTorch's own names and shapes
      back = Path.join(dir, "back.pt")
      :ok = Store.collect_from(PyTorch.new(back, adapters: [Adapter.AxonToPyTorch]), net)
      original = ExTorch.load!(path)["state_dict"]

      for {name, tensor} <- ExTorch.load!(back), not String.starts_with?(name, "lstm") do
        assert Tensor.equal?(tensor, original[name]), name
      end
    end
  end

  defp alike?(a, b), do: ExTorch.op("allclose", [a, b, 1.0e-4, 1.0e-5, false])
end
