defmodule ExTorch.Checkpoint.Hostile.LegacyTest do
  use ExTorch.Case
  alias ExTorch.Test.{Formats, Hostile, Pickle}
  import Formats
  import Hostile, only: [load: 1, load: 2]
  import Pickle, only: [text: 1, int: 1, tuple: 1, dict: 1]

  test "a valid legacy file" do
    assert {:ok, tensor} =
             load(legacy(tensor_of(legacy_storage()), ["0"], [<<2::little-64>>, two_floats()]))

    assert Tensor.to_list(tensor) == [1.0, 2.0]
  end

  test "legacy: stray bytes after a byte storage that is viewed as a wider dtype" do
    object = tuple([tensor_of(legacy_storage()), tensor_of(legacy_storage(key: "1"))])
    data = [<<2::little-64>>, two_floats(), "xy", <<2::little-64>>, two_floats()]
    assert {:ok, {a, b}} = load(legacy(object, ["0", "1"], data))
    assert Tensor.to_list(a) == Tensor.to_list(b)
  end

  test "invalid legacy files" do
    good = [<<2::little-64>>, two_floats()]

    assert {:corrupt, message} =
             load(
               legacy(tensor_of(legacy_storage()), ["0"], [
                 <<3::little-64>>,
                 two_floats(),
                 two_floats()
               ])
             )

    assert message =~ "number of elements of a storage differs"

    assert {:truncated, _} =
             load(legacy(tensor_of(legacy_storage()), ["0"], [<<2::little-64>>, "1234567"]))

    assert {:truncated, _} = load(legacy(tensor_of(legacy_storage()), ["0"], ["123"]))
    assert {:corrupt, message} = load(legacy(tensor_of(legacy_storage()), [], good))
    assert message =~ "number of listed storages differs"
    assert {:corrupt, message} = load(legacy(tensor_of(legacy_storage()), ["1"], good))
    assert message =~ "not used by any tensor"
    object = tuple([tensor_of(legacy_storage()), tensor_of(legacy_storage(key: "1"))])
    assert {:corrupt, message} = load(legacy(object, ["0", "0"], [good, good]))
    assert message =~ "duplicate storage key"

    assert {:unsupported, message} =
             load(legacy(tensor_of(legacy_storage()), ["0"], good, protocol: 1002))

    assert message =~ "1001"
    assert {:corrupt, _} = load(legacy(tensor_of(legacy_storage()), ["0"], good, system: int(1)))

    assert {:corrupt, _} =
             load([legacy_magic(), Pickle.make(int(1001)), Pickle.make(dict([])), "\xff"])

    assert {:truncated, _} = load([legacy_magic(), Pickle.make(int(1001))])

    assert {:limit, message} =
             load(legacy(tensor_of(legacy_storage()), ["0"], good), limits: [pickle_bytes: 50])

    assert message =~ "pickle_bytes"
  end

  test "legacy: views of a storage" do
    data = [<<4::little-64>>, two_floats(), two_floats()]

    part = fn opts ->
      tensor_of(legacy_storage(numel: 4, view: legacy_view(opts)), opts[:size] || 2)
    end

    assert {:ok, tensor} = load(legacy(part.(start: 1, count: 2), ["0"], data))
    assert Tensor.to_list(tensor) == [2.0, 1.0]
    assert {:corrupt, message} = load(legacy(part.(start: 3, count: 2), ["0"], data))
    assert message =~ "past its storage"
    assert {:corrupt, _} = load(legacy(part.(start: -1, count: 2), ["0"], data))
    assert {:corrupt, message} = load(legacy(part.(start: 1, count: 2, size: 3), ["0"], data))
    assert message =~ "past the end"

    assert {:corrupt, _} =
             load(
               legacy(tensor_of(legacy_storage(numel: 4, view: tuple([text("v")]))), ["0"], data)
             )
  end

  test "a legacy file that contains a NumPy array" do
    object =
      dict([{"t", tensor_of(legacy_storage())}, {"n", numpy_array([2], "f4", two_floats())}])

    assert {:ok, %{"t" => t, "n" => n}} =
             load(legacy(object, ["0"], [<<2::little-64>>, two_floats()]))

    assert Tensor.to_list(t) == Tensor.to_list(n)
  end
end
