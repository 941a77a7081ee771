defmodule ExTorch.OwnerTest do
  # What keeps memory alive: the memory of the example library sends {:freed, id} when it is freed.
  use ExTorch.Case
  alias ExTorch.Test.Example

  defp foreign(id, listener \\ self()) do
    {resource, ptr} = Example.memory(listener, id)
    Blob.from_blob(%{ptr: ptr, shape: {8, 8}, dtype: :float32}, owner: resource)
  end

  # Terms derived from a tensor. Each of them keeps the memory alive.
  defp kinds do
    [
      tensor: & &1,
      slice: &Tensor.slice(&1, [3, 2..5]),
      transposed: &Tensor.transpose/1,
      binary: &Tensor.to_binary/1,
      part: &binary_part(Tensor.to_binary(&1), 100, 100),
      blob: &Blob.to_blob/1,
      owner: &Blob.to_blob(&1).owner,
      view: &Blob.from_blob(Blob.to_blob(&1)),
      owned:
        &Blob.from_blob(Map.delete(Map.from_struct(Blob.to_blob(&1)), :owner),
          owner: {:nested, [%{t: &1}]}
        ),
      again: &Tensor.from_binary(Tensor.to_binary(&1), {64}, :float32),
      marked: &Tensor.requires_grad(&1, true),
      kept: fn tensor -> Example.take(tensor) |> elem(1) end,
      message: fn tensor ->
        spawn_link(fn ->
          receive do
            :stop -> tensor
          end
        end)
      end
    ]
  end

  defp alive?(pid) when is_pid(pid), do: Process.alive?(pid)
  defp alive?(%BlobView{tensor: tensor}), do: alive?(tensor)
  defp alive?(binary) when is_binary(binary), do: :binary.last(binary) != 191
  defp alive?(%Blob{} = blob), do: alive?(Blob.from_blob(blob))

  defp alive?(%Tensor{} = tensor),
    do: Enum.all?(List.flatten([Tensor.to_list(tensor)]), &(&1 >= 0))

  defp alive?(kept), do: match?({2, 32, _, _, _}, Example.describe(kept))

  defp drop(pid) when is_pid(pid), do: send(pid, :stop)
  defp drop(_), do: :ok

  for {name, _} <- [
        tensor: 0,
        slice: 0,
        binary: 0,
        part: 0,
        blob: 0,
        owner: 0,
        view: 0,
        owned: 0,
        again: 0,
        kept: 0
      ] do
    test "a #{name} alone keeps the owner alive" do
      name = unquote(name)
      make = kinds()[name]
      parent = self()

      # only the derived term leaves the process
      pid =
        spawn_link(fn ->
          thing = make.(foreign(1, parent).tensor)
          :erlang.garbage_collect()
          Memory.collect()
          send(parent, {:ready, alive?(thing)})

          receive do
            :go -> :ok
          end

          send(parent, {:still, alive?(thing)})
        end)

      assert_receive {:ready, true}, 5000
      send(pid, :go)
      assert_receive {:still, true}, 5000
      assert_receive {:freed, 1}, 5000
    end
  end

  test "references dropped in 1,000 random orders" do
    listener = self()

    # in a separate process: when it has ended, no references are left
    in_task(fn ->
      :rand.seed(:exsss, {1, 2, 3})

      for id <- 1..1000 do
        tensor = foreign(id, listener).tensor

        things =
          kinds()
          |> Enum.take_random(:rand.uniform(5))
          |> Enum.map(fn {_, make} -> make.(tensor) end)

        if :rand.uniform(3) == 1, do: Tensor.release(tensor)
        drop_all(Enum.shuffle(things))
      end

      :ok
    end)

    for id <- 1..1000, do: assert_receive({:freed, ^id}, 5000)
  end

  defp drop_all([]), do: :ok

  defp drop_all([thing | rest]) do
    if :rand.uniform(8) == 1, do: :erlang.garbage_collect()
    assert released_or_alive?(thing)
    drop(thing)
    drop_all(rest)
  end

  # the released tensor returns an error; no other term refers to freed memory
  defp released_or_alive?(thing) do
    alive?(thing)
  rescue
    error in Error -> error.reason == :released
  end

  test "a killed process releases its references" do
    parent = self()

    pid =
      spawn(fn ->
        view = foreign(7, parent)
        binary = Tensor.to_binary(view.tensor)
        send(parent, :made)
        Process.sleep(:infinity)
        {view, binary}
      end)

    assert_receive :made
    Process.exit(pid, :kill)
    assert_receive {:freed, 7}, 5000
  end

  @tag :torch
  test "many processes share the memory" do
    view = foreign(9)

    results =
      1..50
      |> Enum.map(fn i ->
        Task.async(fn ->
          row = Tensor.slice(view.tensor, [rem(i, 8)])
          for _ <- 1..50, do: {Tensor.to_binary(row), Blob.from_blob(Blob.to_blob(row))}
          Tensor.to_list(ExTorch.sum(row))
        end)
      end)
      |> Task.await_many(30_000)

    assert results == for(i <- 1..50, do: rem(i, 8) * 64.0 + 28.0)
    refute_received {:freed, 9}
    Tensor.release(view.tensor)
    assert view.owner
  end

  describe "include/extorch.h" do
    test "another library takes a reference to the memory" do
      t = ExTorch.tensor([[5, 6], [7, 8]], dtype: :uint8)
      {:ok, kept, false} = Example.take(Tensor.transpose(t))
      Tensor.release(t)
      :erlang.garbage_collect()
      assert Example.describe(kept) == {1, 8, [2, 2], [1, 2], 5}
      binary = :binary.copy(<<9>>, 100)
      assert {:ok, frozen, true} = Example.take(Tensor.from_binary(binary, {25}, :float32))
      assert Example.describe(frozen) == {2, 32, [25], [1], 9}
      assert {:ok, bf, false} = Example.take(ExTorch.zeros({1}, dtype: :bfloat16))
      assert {4, 16, [1], [1], 0} = Example.describe(bf)
    end

    test "a tensor without plain memory is an error with a message, another term is a badarg" do
      assert {:error, message} = Example.take(ExTorch.zeros({1}, device: :meta))
      assert to_string(message) =~ "meta tensor"
      released = ExTorch.zeros({1})
      Tensor.release(released)
      assert {:error, message} = Example.take(released)
      assert to_string(message) =~ "released"
      assert_raise ArgumentError, fn -> Example.take(make_ref()) end
      assert_raise ArgumentError, fn -> Example.take(%{resource: 1}) end
      blob = Blob.to_blob(ExTorch.zeros({1}))
      assert_raise ArgumentError, fn -> Example.take(blob) end
      assert {:ok, _, false} = Example.take(blob.owner)
    end
  end

  test "a long chain of owners is freed without a deep stack" do
    listener = self()

    in_task(fn ->
      last =
        Enum.reduce(1..100_000, foreign(1, listener).tensor, fn _, tensor ->
          Blob.from_blob(Blob.to_blob(tensor))
        end)

      assert alive?(last)
    end)

    Memory.collect()
    assert_receive {:freed, 1}, 5000
  end
end
