defmodule ExTorch.NativeTest do
  use ExTorch.Case

  @stubs Native.__info__(:functions) -- [load: 0]

  test "the table in C and the stubs are the same list" do
    table =
      Regex.scan(~r/X\((\w+), (\d+), XT_/, File.read!("c_src/nif/table.h"),
        capture: :all_but_first
      )
      |> Enum.map(fn [name, arity] -> {String.to_atom(name), String.to_integer(arity)} end)

    assert Enum.sort(table) == Enum.sort(@stubs)
  end

  for {name, arity} <- @stubs, arity > 0 do
    test "#{name}/#{arity} refuses bogus arguments" do
      args = List.duplicate(make_ref(), unquote(arity))
      assert_raise ArgumentError, fn -> apply(Native, unquote(name), args) end
    end
  end

  test "statuses in C and reasons in Elixir are the same list" do
    statuses =
      Regex.scan(~r/^  X\((\w+)\)/m, File.read!("c_src/core/base/error.h"), capture: :all_but_first)

    {:ok, types} = Code.Typespec.fetch_types(Error)

    {:type, {:reason, {:type, _, :union, atoms}, []}} =
      Enum.find(types, &match?({_, {:reason, _, _}}, &1))

    assert statuses |> List.flatten() |> List.delete("ok") |> Enum.sort() ==
             atoms |> Enum.map(fn {:atom, _, name} -> Atom.to_string(name) end) |> Enum.sort()
  end

  @tag :capture_log
  test "loading the code again is refused and leaves the running one" do
    tensor = ExTorch.tensor([1, 2])

    assert {:error, _} = :code.load_file(Native)
    assert Tensor.to_list(ExTorch.add(tensor, 1)) == [2, 3]
  end
end
