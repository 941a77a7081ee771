defmodule ExTorch.Checkpoint.Hostile.PlainPickleTest do
  # Plain pickles, NumPy arrays and nested checkpoints.
  use ExTorch.Case
  alias ExTorch.Test.{Formats, Hostile, Pickle}
  import Formats
  import Hostile, only: [load: 1, load: 2]
  import Pickle, only: [text: 1, int: 1, list: 1, global: 2, reduce: 2]

  test "invalid plain pickles" do
    assert {:truncated, message} = load(<<0x80, 2, "X", 100::little-32, "short">>)
    assert message =~ "incomplete download"
    assert {:corrupt, message} = load(<<0x80, 2, 0xFF, ".">>)
    assert message =~ "not a valid pickle"
    assert {:corrupt, message} = load(Pickle.make([text("0"), "Q"]))
    assert message =~ "outside"
    # the limit does not apply to the bytes of arrays
    big = Pickle.make(numpy_array([100_000], "u1", String.duplicate("x", 100_000)))
    assert {:ok, _} = load(big, limits: [pickle_bytes: 1000])

    assert {:limit, _} =
             load(Pickle.make(list(List.duplicate(int(5), 1000))), limits: [pickle_bytes: 1000])

    assert {:corrupt, _} = load("(this is a text in brackets)")
  end

  test "NumPy arrays whose shape does not fit their data" do
    assert {:ok, tensor} = load(Pickle.make(numpy_array([2], "f4", two_floats())))
    assert Tensor.to_list(tensor) == [1.0, 2.0]
    assert {:corrupt, message} = load(Pickle.make(numpy_array([3], "f4", two_floats())))
    assert message =~ "fit"
    assert {:corrupt, _} = load(Pickle.make(numpy_array([-2], "f4", two_floats())))
    assert {:corrupt, _} = load(Pickle.make(numpy_array([2 ** 40, 2 ** 40], "f4", two_floats())))
    assert {:corrupt, _} = load(Pickle.make(numpy_array(List.duplicate(1, 65), "u1", "x")))

    assert {:ok, %ExTorch.Python.Object{}} =
             load(Pickle.make(numpy_array([1], "f16", String.duplicate("x", 16))))

    scalar =
      reduce(global("numpy.core.multiarray", "scalar"), [numpy_dtype("f4"), pickled_bytes("xyz")])

    assert {:corrupt, _} = load(Pickle.make(scalar))
  end

  test "an invalid nested checkpoint" do
    inside = fn save ->
      Pickle.make(
        reduce(global("torch.storage", "_load_from_bytes"), [
          pickled_bytes(IO.iodata_to_binary(save))
        ])
      )
    end

    assert {:ok, %ExTorch.Python.Storage{numel: 2}} =
             load(inside.(legacy(legacy_storage(), ["0"], [<<2::little-64>>, two_floats()])))

    assert {:corrupt, _} =
             load(inside.(legacy(legacy_storage(), ["0"], [<<3::little-64>>, two_floats()])))

    assert {:corrupt, _} =
             load(inside.(legacy(legacy_storage(), [], [<<2::little-64>>, two_floats()])))

    assert {:corrupt, _} =
             load(inside.(legacy(legacy_storage(), ["1"], [<<2::little-64>>, two_floats()])))

    assert {:corrupt, _} =
             load(inside.(legacy(legacy_storage(), ["0"], [<<2::little-64>>, "short"])))

    assert {:truncated, _} = load(inside.([legacy_magic(), Pickle.make(int(1001))]))

    again =
      legacy(
        reduce(global("torch.storage", "_load_from_bytes"), [
          pickled_bytes(IO.iodata_to_binary(legacy(legacy_storage(), ["0"], [])))
        ]),
        [],
        []
      )

    assert {:corrupt, message} = load(inside.(again))
    assert message =~ "inside"
    assert {:ok, %ExTorch.Python.Object{}} = load(inside.("something else"))
    assert {:forbidden, _} = load(inside.("something else"), strict: true)
  end

  test "a shared node is counted each time it is visited" do
    name = String.duplicate("m", 1_000_000)
    global = [text(name), text("x"), <<0x93, "q", 0>>, "0"]
    again = List.duplicate(["h", 0], 600)
    assert {:limit, _} = load(Pickle.make([global, "](", again, "e"]))
    long = [text(name), "q", 0, "0"]
    assert {:limit, _} = load(Pickle.make([long, "](", List.duplicate(["h", 0], 2000), "e"]))
    save = IO.iodata_to_binary(legacy(legacy_storage(), ["0"], [<<2::little-64>>, two_floats()]))

    call = [
      global("torch.storage", "_load_from_bytes"),
      "q",
      1,
      "0",
      pickled_bytes(save),
      "q",
      0,
      "0"
    ]

    assert {:corrupt, message} =
             load(Pickle.make([call, "](", List.duplicate(["h", 1, "h", 0, 0x85, "R"], 50), "e"]))

    assert message =~ "more than once"
  end
end
