defmodule ExTorch.DiffTest do
  use ExTorch.Case
  alias ExTorch.{Checkpoint, Diff}
  alias ExTorch.Test.{FileSource, Python}

  @moduletag :tmp_dir

  defp save(term, dir, name, opts \\ []) do
    path = Path.join(dir, name)
    ExTorch.save!(term, path, opts)
    path
  end

  test "names, shapes, dtypes and values", %{tmp_dir: dir} do
    t = &ExTorch.tensor/1

    a =
      save(
        %{
          "same" => t.([1.0, :nan, :infinity]),
          "value" => t.([1.0, 2.0, 3.0, 4.0]),
          "nan" => t.([1.0, :nan]),
          "inf" => t.([:infinity, 1.0]),
          "shape" => t.([1, 2]),
          "dtype" => t.([1, 2]),
          "gone" => t.(1)
        },
        dir,
        "a.pt"
      )

    b =
      save(
        %{
          "same" => t.([1.0, :nan, :infinity]),
          "value" => t.([1.0, 2.5, 3.0, 2.0]),
          "nan" => t.([1.0, 2.0]),
          "inf" => t.([:neg_infinity, 2.0]),
          "shape" => t.([[1, 2]]),
          "dtype" => t.([1.0, 3.0]),
          "new" => t.(1)
        },
        dir,
        "b.safetensors"
      )

    assert {:ok, diff} = ExTorch.diff(a, b)

    assert {diff.equal, diff.only_a, diff.only_b, diff.values} ==
             {["same"], ["gone"], ["new"], []}

    refute Diff.equal?(diff)
    changes = Map.new(diff.changed, &{&1.name, &1})

    assert %{what: [:values], max: 2.0, mean: 0.625, differing: 2, numel: 4, nan: 0} =
             changes["value"]

    assert %{what: [:values], max: 0.0, mean: 0.0, differing: 1, nan: 1} = changes["nan"]
    assert %{max: :infinity, mean: :infinity, differing: 2, nan: 0} = changes["inf"]
    assert %{what: [:shape], shape: {{2}, {1, 2}}, max: nil, differing: nil} = changes["shape"]
    assert %{what: [:dtype, :values], dtype: {:int64, :float32}, max: 1.0} = changes["dtype"]

    lines = diff |> inspect() |> String.split("\n")
    # the summary, after what differs most
    assert Enum.at(lines, -2) =~ "1 equal, 5 changed, 1 only in a, 1 only in b"
    assert Enum.at(lines, -3) =~ "shape: shape {2} → {1, 2}"
    assert Enum.at(lines, -4) =~ "inf: max infinity"

    # the other way round
    assert {:ok, back} = ExTorch.diff(b, a)
    assert Enum.sort(Enum.map(back.changed, & &1.name)) == Enum.sort(Map.keys(changes))
    assert {back.only_a, back.only_b} == {["new"], ["gone"]}
  end

  test "every kind of source, and a file is equal to itself", %{tmp_dir: dir} do
    for file <- Path.wildcard("test/fixtures/*/*.{pt,safetensors,stream}"),
        {:ok, ckpt} <- [Checkpoint.open(file)],
        names = Checkpoint.keys(ckpt),
        names == Enum.uniq(names) do
      for other <- [file, {:binary, File.read!(file)}, %FileSource{path: file}] do
        assert {:ok, diff} = ExTorch.diff(file, other)
        assert Diff.equal?(diff), "#{file}: #{inspect(diff)}"
      end
    end

    index = Path.join(dir, "model.safetensors.index.json")
    module = Map.new(1..5, &{"layer.#{&1}", ExTorch.full({3}, &1)})
    ExTorch.Store.collect_from!(ExTorch.Store.Sharded.new(index, max_shard_size: 20), module)
    flat = save(module, dir, "flat.pt")

    for source <- [index, dir] do
      assert {:ok, diff} = ExTorch.diff(source, flat)
      assert {length(diff.equal), Diff.equal?(diff)} == {5, true}
    end
  end

  test "tolerances, NaN and dtypes", %{tmp_dir: dir} do
    a = save(%{"w" => ExTorch.tensor([100.0, :nan])}, dir, "a.pt")
    b = save(%{"w" => ExTorch.tensor([101.0, :nan])}, dir, "b.pt")
    half = save(%{"w" => ExTorch.tensor([100.0, :nan], dtype: :float16)}, dir, "c.pt")
    equal? = fn a, b, opts -> Diff.equal?(ExTorch.diff!(a, b, opts)) end

    refute equal?.(a, b, [])
    refute equal?.(a, b, atol: 0.9)
    assert equal?.(a, b, atol: 1)
    assert equal?.(a, b, rtol: 0.01)
    refute equal?.(a, a, equal_nan: false)
    refute equal?.(a, half, [])
    assert equal?.(a, half, check_dtype: false)

    for bad <- [[rtol: -1], [atol: :nan], [equal_nan: 1], [check_dtype: nil], [unknown: 1]] do
      assert reason(fn -> ExTorch.diff(a, b, bad) end) == :bad_argument
    end

    assert {:error, %Error{reason: :not_found}} = ExTorch.diff(a, Path.join(dir, "none.pt"))
    assert {:error, %Error{reason: :not_found}} = ExTorch.diff(a, b, only: "x")
  end

  test "values that are not tensors", %{tmp_dir: dir} do
    base = %{
      "w" => ExTorch.ones({1}),
      "epoch" => 1,
      "args" => %{"lr" => 0.1, "tags" => ["a", {1, nil}]}
    }

    a = save(base, dir, "a.pt")

    b =
      save(
        %{base | "epoch" => 2, "args" => %{"lr" => 0.1, "tags" => ["a", {1, "b"}, "c"]}},
        dir,
        "b.pt"
      )

    diff = ExTorch.diff!(a, b)

    assert Enum.sort_by(diff.values, & &1.name) == [
             %{name: "args.tags.1.1", a: nil, b: "b"},
             %{name: "args.tags.2", b: "c"},
             %{name: "epoch", a: 1, b: 2}
           ]

    assert diff.equal == ["w"]
    refute Diff.equal?(diff)
    assert Diff.equal?(ExTorch.diff!(a, b, values: false))
    assert inspect(diff) =~ "args.tags.2: none → \"c\""
  end

  test "a training checkpoint and an export with other names", %{tmp_dir: dir} do
    weights = %{"bert.w" => ExTorch.ones({2}), "bert.b" => ExTorch.zeros({1})}
    a = save(%{"state_dict" => weights, "epoch" => 3}, dir, "a.pt")
    b = save(%{"w" => ExTorch.ones({2}), "b" => ExTorch.zeros({1})}, dir, "b.safetensors")
    diff = ExTorch.diff!(a, b, top_level_key: :auto, rename: [{~r/^bert\./, ""}])
    assert {Enum.sort(diff.equal), Diff.equal?(diff)} == {["b", "w"], true}
  end

  @tag :torch
  test "large tensors piece by piece, views too, with progress", %{tmp_dir: dir} do
    x = ExTorch.rand({3, 700, 1000})
    y = ExTorch.Tensor.clone(x)
    ExTorch.op("fill_", [ExTorch.Tensor.slice(y, [2, 699, 999]), 5.0])
    ExTorch.op("fill_", [ExTorch.Tensor.slice(y, [0, 0, 0]), -2.0])
    view = &ExTorch.Tensor.transpose(&1, 1, 2)
    a = save(%{"x" => x, "view" => view.(x), "long" => Tensor.reshape(x, {-1})}, dir, "a.pt")
    b = save(%{"x" => y, "view" => view.(y), "long" => Tensor.reshape(y, {-1})}, dir, "b.pt")
    me = self()
    diff = ExTorch.diff!(a, b, on_progress: fn done, total -> send(me, {done, total}) end)
    total = 3 * 4 * 2_100_000
    assert_received {^total, ^total}
    assert length(diff.changed) == 3
    [wide_x, wide_y] = Enum.map([x, y], &Tensor.to(&1, :float64))
    expected = Tensor.to_list(ExTorch.max(ExTorch.abs(ExTorch.sub(wide_x, wide_y))))

    for change <- diff.changed do
      assert {change.differing, change.numel, change.max} == {2, 2_100_000, expected}
    end
  end

  @tag :python
  test "the numbers are those of torch", %{tmp_dir: dir} do
    Python.run!(
      """
      import torch, sys
      torch.manual_seed(1)
      dtypes = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.uint8,
                torch.bool, torch.complex64, torch.complex128]
      def make(d):
          x = torch.randn(50, 3) * 3
          return (x > 0) if d == torch.bool else x.abs().to(d) if d == torch.uint8 else x.to(d)
      a = {str(d): make(d) for d in dtypes}
      b = {k: torch.where(torch.rand(50, 3) < 0.5, v, make(v.dtype)) for k, v in a.items()}
      torch.save(a, sys.argv[1] + "/a.pt")
      torch.save(b, sys.argv[1] + "/b.pt")
      """,
      [dir]
    )

    {a, b} = {Path.join(dir, "a.pt"), Path.join(dir, "b.pt")}
    diff = ExTorch.diff!(a, b)

    expected =
      Python.run!(
        """
        import torch, sys
        a, b = torch.load(sys.argv[1]), torch.load(sys.argv[2])
        for k in a:
            x, y = [t.to(torch.complex128 if t.is_complex() else torch.float64) for t in (a[k], b[k])]
            d = (x - y).abs()
            print(k, repr(float(d.max())), repr(float(d.mean())), int((a[k] != b[k]).sum()),
                  int(torch.allclose(x, y, rtol=0.5, atol=0.1)), sep='|')
        """,
        [a, b]
      )

    [state_a, state_b] = Enum.map([a, b], &ExTorch.load!/1)

    for line <- String.split(expected, "\n", trim: true) do
      [name, max, mean, differing, close] = String.split(line, "|")
      change = Enum.find(diff.changed, &(&1.name == name))
      assert change.differing == String.to_integer(differing)
      assert close?(change.max, String.to_float(max), 1.0e-12), name
      assert close?(change.mean, String.to_float(mean), 1.0e-12), name

      assert Tensor.allclose?(state_a[name], state_b[name], rtol: 0.5, atol: 0.1) ==
               (close == "1")
    end
  end
end
