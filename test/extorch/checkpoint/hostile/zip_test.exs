defmodule ExTorch.Checkpoint.Hostile.ZipTest do
  # One handcrafted file for every rule: each is refused with a reason.
  use ExTorch.Case
  alias ExTorch.Checkpoint
  alias ExTorch.Test.{Hostile, Pickle, Zip}
  import Hostile, only: [load: 1, valid_records: 0]
  import Pickle, only: [int: 1, tuple: 1, global: 2, tensor: 1]

  test "the valid file loads" do
    assert {:ok, t} = load(Zip.make(valid_records()))
    assert Tensor.to_list(t) == [1.0, 2.0, 3.0, 4.0]
  end

  describe "the error for another kind of file names it" do
    for {name, content, reason, words} <- [
          {"empty", "", :truncated, "empty"},
          {"HTML", "\n<!DOCTYPE html><html>", :corrupt, "HTML page"},
          {"git-lfs", "version https://git-lfs.github.com/spec/v1\noid sha256:1", :corrupt,
           "git lfs pull"},
          {"gzip", <<0x1F, 0x8B, 8, 0, 0>>, :truncated, "gzip"},
          {"text", "hello world", :corrupt, "text, not a checkpoint"},
          {"empty zip", <<"PK", 5, 6, 0::144>>, :corrupt, "without records"},
          {"one byte", "P", :corrupt, "unknown file format"}
        ] do
      test name do
        assert {unquote(reason), message} = load(unquote(content))
        assert message =~ unquote(words)
      end
    end

    test "a truncated download; the error contains its size" do
      whole = Zip.make(valid_records())
      assert {:truncated, message} = load(binary_part(whole, 0, 100))
      assert message =~ "incomplete download" and message =~ "100 bytes"
    end

    test "a zip file that is not a checkpoint" do
      assert {:corrupt, message} = load(Zip.make([{"readme.txt", "hi"}]))
      assert message =~ "data.pkl"
    end
  end

  describe "zip" do
    defp changed(index, changes) do
      List.update_at(valid_records(), index, fn {name, data} -> {name, data, changes} end)
      |> Zip.make()
      |> load()
    end

    test "end records that are inconsistent or out of bounds" do
      assert {:corrupt, _} = load(Zip.make(valid_records(), end64: [entries: 2]))
      assert {:corrupt, _} = load(Zip.make(valid_records(), end64: [size: 10]))
      assert {:corrupt, _} = load(Zip.make(valid_records(), end64: [at: 3]))
      assert {:corrupt, _} = load(Zip.make(valid_records(), end64: [at: 2 ** 63]))
      assert {:corrupt, _} = load(Zip.make(valid_records(), directory_offset: 5_000_000))
      assert {:corrupt, _} = load(Zip.make(valid_records(), directory_size: 5_000_000))
      assert {:corrupt, _} = load(Zip.make(valid_records(), entries: 60_000))
      assert {:corrupt, _} = load(Zip.make(valid_records(), entries: 2))
      assert {:corrupt, _} = load(Zip.make(valid_records(), entries: 0xFFFF))
    end

    test "two zip files in one" do
      assert {:corrupt, message} =
               load(Zip.make(valid_records(), tail: Zip.make(valid_records())))

      assert message =~ "outside the file" or message =~ "two end records" or
               message =~ "signature"

      assert {:corrupt, _} = load(Zip.make(valid_records(), tail: <<"PK", 5, 6, 0::144>>))
    end

    test "a checkpoint inside a tensor is allowed" do
      inner = Zip.make(valid_records())
      size = byte_size(inner)

      body =
        tensor(class: global("torch", "ByteStorage"), numel: int(size), size: tuple([int(size)]))

      assert {:ok, t} = load(Zip.checkpoint(Pickle.make(body), %{"0" => inner}))
      assert Tensor.to_binary(t) == inner
    end

    test "overlapping records" do
      assert {:corrupt, _} = changed(1, offset: 0)
      assert {:corrupt, _} = changed(1, packed: 5000, size: 5000)
      assert {:corrupt, _} = changed(0, packed: 400, size: 400)
    end

    test "a header that differs from the central directory" do
      assert {:corrupt, message} = changed(1, local: [name: "a/data/1"])
      assert message =~ "different name"
      assert {:corrupt, _} = changed(1, local: [method: 8])
      assert {:corrupt, _} = changed(1, local: [flags: 8])
      assert {:corrupt, _} = changed(1, local: [size: 3])
      assert {:corrupt, _} = changed(0, local: [name: "a/data.pkx"])
    end

    test "duplicate names, encryption, unsupported methods, wrong sizes" do
      assert {:corrupt, message} =
               load(Zip.make(valid_records() ++ [{"a/data/0", Hostile.four_floats()}]))

      assert message =~ "duplicate record name"
      assert {:unsupported, message} = changed(1, flags: 1)
      assert message =~ "encrypted"
      assert {:unsupported, message} = changed(1, method: 12, local: [method: 12])
      assert message =~ "method 12"
      assert {:corrupt, _} = changed(1, size: 99)

      assert {:corrupt, _} =
               changed(1, method: 8, size: 1_000_000_000, local: [size: 1_000_000_000])

      assert {:corrupt, _} = changed(1, method: 8)

      assert {:limit, _} =
               changed(0,
                 method: 8,
                 size: 2 ** 30,
                 packed: 2 ** 21,
                 bytes: :binary.copy(<<0>>, 2 ** 21)
               )
    end

    test "record names are keys, never paths" do
      evil = [{"a/../../../etc/passwd", "x"}, {"/abs", "y"}, {"a/nul\0name", "z"}]
      assert {:ok, _} = load(Zip.make(valid_records() ++ evil))
      ckpt = Checkpoint.open!({:binary, Zip.make(valid_records() ++ evil)})
      assert Checkpoint.read_record(ckpt, "../../../etc/passwd") == {:ok, "x"}
    end

    test "records that no tensor uses are checked as well" do
      evil = fn changes ->
        Checkpoint.open!(
          {:binary, Zip.make(valid_records() ++ [{"a/data/evil", "1234", changes}])}
        )
      end

      assert {:error, %{reason: :unsupported}} =
               Checkpoint.read_storage(
                 evil.(method: 12, size: 9, local: [method: 12, size: 9]),
                 "evil"
               )

      huge = [method: 8, size: 0xFFFFFFFE, local: [method: 8, size: 0xFFFFFFFE]]
      assert {:error, %{reason: :corrupt}} = Checkpoint.read_storage(evil.(huge), "evil")
      assert {:error, %{reason: :corrupt}} = Checkpoint.read_storage(evil.(huge), "evil", 0, 16)
      ckpt = Checkpoint.open!({:binary, Zip.make(valid_records())})
      assert {:error, %{reason: :bad_argument}} = Checkpoint.read_storage(ckpt, "0", 2 ** 64, 1)
    end

    test "records that tensors use must exist and have the right size" do
      [pickle, _, version] = valid_records()
      assert {:corrupt, message} = load(Zip.make([pickle, version]))
      assert message =~ "data/0"

      assert {:corrupt, _} =
               load(Zip.make([pickle, {"a/data/0", binary_part(Hostile.four_floats(), 0, 15)}]))

      assert {:ok, _} = load(Zip.make([pickle, {"a/data/0", Hostile.four_floats() <> "abc"}]))

      assert {:corrupt, _} =
               load(Zip.make([pickle, {"a/data/0", Hostile.four_floats() <> "abcd"}]))

      assert {:corrupt, _} = load(Zip.make(valid_records() ++ [{"a/byteorder", "middle"}]))
    end
  end
end
