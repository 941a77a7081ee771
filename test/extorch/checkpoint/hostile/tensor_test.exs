defmodule ExTorch.Checkpoint.Hostile.TensorTest do
  # Storages and tensors that are inconsistent or out of bounds.
  use ExTorch.Case
  alias ExTorch.Test.{Hostile, Pickle, Zip}
  import Hostile, only: [load: 1, load_body: 1]
  import Pickle, only: [text: 1, int: 1, tuple: 1, list: 1, global: 2, tensor: 1]

  test "persistent ids of the wrong type" do
    for id <- [
          int(1),
          text("x"),
          tuple([]),
          tuple([text("module"), int(1), int(2), int(3), int(4)])
        ] do
      assert {:corrupt, _} = load_body([id, "Q"])
    end

    for opts <-
          [
            [class: text("x")],
            [class: global("torch", "Nope")],
            [class: global("os", "FloatStorage")],
            [key: int(0)],
            [location: int(0)]
          ] ++
            [
              [numel: text("4")],
              [numel: int(-1)],
              [numel: int(2 ** 62)],
              [numel: int(5)],
              [numel: int(2)],
              [key: text("1")]
            ] do
      assert {opts, {:corrupt, opts}} ==
               {opts, {opts |> tensor() |> load_body() |> elem(0), opts}}
    end

    assert {:corrupt, message} =
             load_body(list([tensor([]), tensor(numel: int(3), size: tuple([int(1)]))]))

    assert message =~ "two sizes"
  end

  test "views that extend past their storage" do
    for opts <- [
          [offset: int(1)],
          [offset: int(-1)],
          [offset: text("0")],
          [size: tuple([int(5)])],
          [size: tuple([int(-1)])],
          [size: int(4)],
          [size: tuple([text("4")])],
          [stride: tuple([int(2)])],
          [stride: tuple([int(-1)])],
          [stride: tuple([])],
          [stride: tuple([int(1), int(1)])],
          [size: tuple([int(2 ** 40), int(2 ** 40)]), stride: tuple([int(0), int(0)])],
          [size: tuple([int(2 ** 62)]), stride: tuple([int(2 ** 62)])],
          [size: tuple(List.duplicate(int(1), 65)), stride: tuple(List.duplicate(int(1), 65))],
          [storage: int(1)]
        ] do
      assert {opts, :corrupt} == {opts, opts |> tensor() |> load_body() |> elem(0)}
    end

    assert {:limit, _} = load_body(tensor(size: tuple([int(2 ** 50)]), stride: tuple([int(0)])))

    assert {:ok, %{shape: {1_000_000_000}}} =
             load_body(tensor(size: tuple([int(1_000_000_000)]), stride: tuple([int(0)])))

    huge_empty = tuple([int(2 ** 62), int(8), int(0)])

    assert {:corrupt, _} =
             load_body(tensor(size: huge_empty, stride: tuple([int(1), int(1), int(1)])))

    wide_empty = tuple([int(2 ** 40), int(0)])
    assert {:ok, t} = load_body(tensor(size: wide_empty, stride: tuple([int(1), int(1)])))
    assert reason(fn -> Tensor.to_list(t) end) == :limit
    assert {:ok, %{shape: {0}}} = load_body(tensor(offset: int(100), size: tuple([int(0)])))
    assert {:ok, %{shape: {}}} = load_body(tensor(offset: int(3), size: ")", stride: ")"))
  end

  test "stray bytes after a byte storage that is viewed as a wider dtype" do
    # arange(18, dtype=uint8)[:16].view(float32): 18 bytes for 4 floats
    assert {:ok, t} =
             load(
               Zip.checkpoint(Pickle.make(tensor([])), %{
                 "0" => Hostile.four_floats() <> <<16, 17>>
               })
             )

    assert Tensor.to_binary(t) == Hostile.four_floats()
  end

  test "a tensor as a dict key" do
    assert {:unsupported, _} = load_body(["}", tensor([]), "Ns"])
  end

  test "only classes of torch become tensors by their state" do
    state = ["(", tensor([]), "NN", <<0x88>>, "Nt"]
    made = &[global(&1, &2), ")", <<0x81>>, state, "b"]
    assert {:ok, %ExTorch.Tensor{}} = load_body(made.("torch.autograd.variable", "Variable"))

    assert {:ok,
            %ExTorch.Python.Object{class: class, state: {%ExTorch.Tensor{}, nil, nil, true, nil}}} =
             load_body(made.("my.module", "Thing"))

    assert %ExTorch.Python.Global{module: "my.module", name: "Thing"} = class
  end
end
