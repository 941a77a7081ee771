defmodule ExTorch.SaveCppTest do
  # LibTorch's reader in C++ (test/support/pickle_load.cpp, built by `make pickle_load`) loads the files of ExTorch.save/3.
  use ExTorch.Case
  @moduletag :no_asan
  @moduletag :torch
  @moduletag :tmp_dir

  # The description of the checkpoint that the C++ program prints, by name.
  defp seen_by_cpp(term, dir, opts \\ []) do
    program = Path.expand("build/pickle_load")
    File.exists?(program) || flunk("#{program} does not exist; build it with make pickle_load")
    path = Path.join(dir, "model.pt")
    :ok = ExTorch.save(term, path, opts)
    {text, status} = System.cmd(program, [path], stderr_to_stdout: true)
    assert status == 0, text

    for line <- String.split(text, "\n", trim: true),
        do: line |> String.split(" ", parts: 2) |> List.to_tuple()
  end

  test "tensors with their dtypes, shapes, strides and values", %{tmp_dir: dir} do
    matrix = ExTorch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])

    seen =
      seen_by_cpp(
        %{
          "matrix" => matrix,
          "turned" => Tensor.transpose(matrix, 0, 1),
          "row" => Tensor.slice(matrix, [1]),
          "halves" => ExTorch.full({3}, 1.5, dtype: :bfloat16),
          "counts" => ExTorch.tensor([1, 2, 3]),
          "flags" => ExTorch.tensor([true, false, true]),
          "none" => ExTorch.zeros({0, 2}),
          "scalar" => ExTorch.tensor(7.0, dtype: :float64),
          "learned" => Tensor.requires_grad(ExTorch.tensor([0.5]), true),
          "long" => ExTorch.ones({300_000}, dtype: :uint8)
        },
        dir
      )

    assert Map.new(seen) == %{
             "matrix" => "Float [2, 3] [3, 1] 21",
             "turned" => "Float [3, 2] [1, 3] 21",
             "row" => "Float [3] [1] 15",
             "halves" => "BFloat16 [3] [1] 4.5",
             "counts" => "Long [3] [1] 6",
             "flags" => "Bool [3] [1] 2",
             "none" => "Float [0, 2] [2, 1] 0",
             "scalar" => "Double [] [] 7",
             "learned" => "Float [1] [1] 0.5",
             "long" => "Byte [300000] [1] 300000"
           }

    assert [{"row", "Float [3] [1] 15"}] =
             seen_by_cpp(%{"row" => Tensor.slice(matrix, [1])}, dir, compact: true)
  end

  test "numbers, strings and containers, in their order", %{tmp_dir: dir} do
    pairs = [
      {"n", 3},
      {"x", 2.5},
      {"text", "hi"},
      {"list", [1, 2.5, nil, true]},
      {"pair", {1, "a"}}
    ]

    assert seen_by_cpp(%ExTorch.Python.Dict{pairs: pairs}, dir) == [
             {"n", "3"},
             {"x", "2.5"},
             {"text", "hi"},
             {"list", "[1, 2.5, None, True]"},
             {"pair", "(1, a)"}
           ]
  end

  test "thousands of tensors", %{tmp_dir: dir} do
    names = for i <- 1..5000, do: "layers.#{i}.weight"
    seen = seen_by_cpp(Map.new(names, &{&1, ExTorch.full({16}, 0.5)}), dir)
    assert Map.new(seen) == Map.new(names, &{&1, "Float [16] [1] 8"})
  end
end
