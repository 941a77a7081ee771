defmodule ExTorch.Checkpoint.Hostile.TarTest do
  use ExTorch.Case
  alias ExTorch.Test.{Formats, Hostile, Pickle}
  import Formats
  import Hostile, only: [load: 1, load: 2]
  import Pickle, only: [text: 1, int: 1, tuple: 1, list: 1, global: 2]

  test "a valid tar file" do
    assert {:ok, tensor} = load(tar())
    assert Tensor.to_list(tensor) == [1.0, 2.0]
    assert {:ok, _} = load(tar(first: tar_member("./sys_info", "x")))
    assert {:forbidden, _} = load(tar(), strict: true)
  end

  test "invalid tar files" do
    for part <- ~w(storages tensors pickle) do
      assert {:corrupt, message} = load(tar(without: part))
      assert message =~ "is missing"
    end

    assert {:corrupt, message} = load(tar(last: tar_member("pickle", "x")))
    assert message =~ "duplicate member"

    assert {:corrupt, message} =
             load(tar(without: "pickle", last: tar_member("pickle", "", type: "2")))

    assert message =~ "link"
    assert {:corrupt, message} = load(tar(first: tar_member("x", "x", damaged: true)))
    assert message =~ "checksum"
    assert {:truncated, _} = load(tar(last: tar_member("x", "", size: 10_000_000)))
    assert {:corrupt, message} = load(tar(size: 3))
    assert message =~ "past the end"
    assert {:corrupt, _} = load(tar(size: -1))
    assert {:corrupt, message} = load(tar(pickle: Pickle.make([text("9"), "Q"])))
    assert message =~ "not the key"
    assert {:corrupt, _} = load(tar(views: list([tuple([int(3), int(1), int(1), int(2)])])))
    assert {:corrupt, _} = load(tar(views: list([tuple([int(3), int(7), int(0), int(1)])])))
    assert {:ok, _} = load(tar(views: list([tuple([int(3), int(1), int(1), int(1)])])))
    assert {:corrupt, _} = load(tar(storages: [Pickle.make(int(2 ** 40))]))
    assert {:corrupt, _} = load(tar(storages: [Pickle.make(int(-1))]))

    head = Pickle.make(tuple([int(1), text("cpu"), global("torch", "FloatStorage")]))
    assert {:corrupt, _} = load(tar(storages: [Pickle.make(int(1)), head, <<-1::64>>]))

    assert {:corrupt, _} =
             load(tar(storages: [Pickle.make(int(1)), head, <<1000::little-64>>, two_floats()]))

    assert {:truncated, _} = load(tar(tensors: [Pickle.make(int(1))]))
  end
end
