defmodule ExTorch.Checkpoint.Hostile.DamageTest do
  # Damaged files. The C tests do the same under sanitizers, without the terms.
  use ExTorch.Case

  @seeds Path.wildcard("test/fixtures/2.14.1/{tensor,list,meta,parameter,conj}.pt")

  for seed <- @seeds do
    test "#{seed} truncated at every byte, with every bit flipped" do
      data = File.read!(unquote(seed))
      before = Memory.live()

      for cut <- 0..(byte_size(data) - 1),
          do: assert({:error, %Error{}} = ExTorch.load({:binary, binary_part(data, 0, cut)}))

      for at <- 0..(byte_size(data) - 1)//3, bit <- 0..7 do
        case ExTorch.load({:binary, flip_bit(data, at, bit)}, verify: rem(bit, 2) == 0) do
          {:ok, _} -> :ok
          {:error, %Error{message: message}} -> assert message != ""
        end
      end

      assert_live(before)
    end
  end

  test "bytes passed as a path are detected, and the error does not contain them" do
    bytes = "PK" <> <<3, 4, 0, 255>> <> :binary.copy("a", 5000)
    assert {:error, %Error{reason: :not_found, path: nil} = error} = ExTorch.load(bytes)
    assert Exception.message(error) =~ "{:binary, bytes}"
    assert {:error, %Error{reason: :not_found, path: nil}} = ExTorch.save(%{}, bytes)

    odd = Path.join(System.tmp_dir!(), "no" <> <<255>> <> "such")
    assert {:error, %Error{path: ^odd} = error} = ExTorch.load(odd)
    assert String.valid?(Exception.message(error))
  end
end
