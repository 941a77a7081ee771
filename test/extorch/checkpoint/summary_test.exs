defmodule ExTorch.Checkpoint.SummaryTest do
  # What people see of a checkpoint: inspect, summary/2 and the bar.
  use ExTorch.Case
  alias ExTorch.{Checkpoint, Text}
  import ExUnit.CaptureIO

  defp open(term), do: Checkpoint.open!({:binary, saved(term, format: :zip)})

  defp lines(ckpt, opts \\ []) do
    text = capture_io(fn -> assert Checkpoint.summary(ckpt, opts) == :ok end)
    text |> String.trim() |> String.split("\n") |> Enum.map(&String.replace(&1, ~r/  +/, "|"))
  end

  defp model do
    ones = &ExTorch.ones/1

    open(%ExTorch.Python.Dict{
      pairs: [
        {"enc.0.weight", ones.({100, 20})},
        {"enc.0.bias", ones.({20})},
        {"enc.1.weight", ones.({500, 20})},
        {"head.out.proj.weight", ExTorch.ones({3}, dtype: :int64)},
        {"scale", ones.({})}
      ]
    })
  end

  test "a tree with sizes" do
    assert lines(model()) == [
             "enc|3 tensors|12.0 k|48.1 kB",
             "|0|2 tensors|2.0 k|8.1 kB",
             "|weight|float32[100][20]|2.0 k|8.0 kB",
             "|bias|float32[20]|20|80 B",
             "|1.weight|float32[500][20]|10.0 k|40.0 kB",
             "head.out.proj.weight|int64[3]|3|24 B",
             "scale|float32|1|4 B",
             "5 tensors, 12.0 k parameters, 48.1 kB"
           ]

    assert ["enc|3 tensors" <> _, "head" <> _, "scale" <> _, _] = lines(model(), depth: 1)
    assert ["enc" <> _, "|1.weight" <> _, "|0" <> _ | _] = lines(model(), sort: :size)
    assert ["enc" <> _, "|0" <> _, "|bias" <> _ | _] = lines(model(), sort: :name)

    assert ["enc.1.weight" <> _, "enc.0.weight" <> _, "2 tensors" <> _] =
             lines(model(), table: true, sort: :size, only: ~r/enc.*weight/)

    ckpt = model()

    for bad <- [[depth: 0], [sort: :x], [table: 1], [only: 1], [x: 1]],
        do: assert(reason(fn -> Checkpoint.summary(ckpt, bad) end) == :bad_argument)

    assert reason(fn -> Checkpoint.summary(ckpt, only: "x") end) == :not_found
    assert lines(open(%{})) == ["0 tensors, 0 parameters, 0 B"]
    # a name that is also the beginning of others
    assert ["w|float32[1]" <> _, "w|1 tensor" <> _, "|x" <> _, _] =
             lines(
               open(
                 [{"w", ExTorch.ones({1})}, {"w.x", ExTorch.ones({1})}]
                 |> then(&%ExTorch.Python.Dict{pairs: &1})
               )
             )
  end

  test "inspect shows what is inside" do
    assert inspect(model()) ==
             "#ExTorch.Checkpoint<#{byte_size(elem(model().source, 1))} bytes (zip), 5 tensors, 12.0 k parameters, 48.1 kB, " <>
               "float32 4, int64 1: enc.0.weight, enc.0.bias, enc.1.weight, …>"

    assert inspect(open(%{})) =~ "bytes (zip), 0 tensors>"
    tied = ExTorch.ones({1000})

    assert inspect(open(%{"a" => tied, "b" => tied})) =~
             "2 tensors, 1.0 k parameters, 4.0 kB, float32: a, b>"

    entry = Checkpoint.entry!(model(), "enc.0.weight")

    assert inspect(entry) ==
             "#ExTorch.Checkpoint.Entry<enc.0.weight: float32[100][20], 8.0 kB, storage 0>"

    assert inspect(%Checkpoint.Entry{name: "x"}) =~ "%ExTorch.Checkpoint.Entry{"
  end

  test "names cannot control a terminal" do
    ckpt =
      open(%{
        "a\e[31m\nb" => ExTorch.ones({1}),
        "ünïcode" => ExTorch.ones({1}),
        "\u202Ex" => ExTorch.ones({1})
      })

    text =
      capture_io(fn -> Checkpoint.summary(ckpt) end) <>
        inspect(ckpt) <> inspect(Checkpoint.entries(ckpt))

    refute text =~ "\e"
    refute text =~ "\u202E"
    assert text =~ "ünïcode"
    assert text =~ ~S("a\e[31m\nb")
  end

  test "20,000 tensors" do
    ckpt =
      open(Map.new(1..20_000, &{"layers.#{div(&1, 100)}.block.#{&1}.weight", ExTorch.ones({1})}))

    {time, lines} = :timer.tc(fn -> lines(ckpt) end)
    assert length(lines) > 20_000
    assert time < 30_000_000
  end

  test "numbers for people" do
    assert Enum.map(
             [0, 999, 1000, 999_949, 999_950, 1_234_567, 10 ** 12, 10 ** 19],
             &Text.bytes/1
           ) ==
             ["0 B", "999 B", "1.0 kB", "999.9 kB", "1.0 MB", "1.2 MB", "1.0 TB", "10.0 EB"]

    assert Enum.map([1, 1500], &Text.count/1) == ["1", "1.5 k"]
  end

  test "the bar" do
    alias ExTorch.Progress.Bar
    assert Bar.line(0, 100, 0) =~ "  0 %  0 B of 100 B, 0 B/s"
    assert Bar.line(1_000_000, 4_000_000, 1000) =~ " 25 %  1.0 MB of 4.0 MB, 1.0 MB/s, 3.0 s left"
    assert Bar.line(10, 10, 2000) =~ "100 %  10 B of 10 B, 5 B/s, 2.0 s"
    assert Bar.line(0, 0, 0) =~ "100 %"
    # not a terminal: nothing is written, and the load works
    bytes = saved(%{"a" => ExTorch.ones({1})}, format: :zip)

    assert capture_io(:stderr, fn ->
             assert {:ok, _} = ExTorch.load({:binary, bytes}, on_progress: :bar)
           end) == ""

    assert reason(fn -> ExTorch.load({:binary, bytes}, on_progress: :baz) end) == :bad_argument
  end
end
