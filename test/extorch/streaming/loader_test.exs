defmodule ExTorch.Streaming.LoaderTest do
  # Loaders: tensors as they complete, the states of a loader, and many at once.
  use ExTorch.Case
  alias ExTorch.Streaming

  import ExTorch.Test.Terms, only: [plain: 1, state: 0]

  test "a file is collected into a loader" do
    path = "test/fixtures/2.14.1/nested.pt"
    chunks = file_stream(path, 1000)
    assert {:ok, term, ""} = Enum.into(chunks, Streaming.loader())
    assert plain(term) == plain(ExTorch.load!(path))

    assert {:error, %Error{reason: :truncated}} =
             chunks |> Enum.take(3) |> Enum.into(Streaming.loader())

    assert {:error, %Error{reason: :corrupt}} =
             Enum.into(["<html>", String.duplicate(" ", 2000)], Streaming.loader())
  end

  test "invalid options" do
    assert reason(fn -> Streaming.loader(limits: [spool_bytes: 2 ** 70]) end) == :bad_argument
    assert reason(fn -> Streaming.loader(mmap: true) end) == :bad_argument
    assert reason(fn -> Streaming.loader(offset: 1) end) == :bad_argument
    assert reason(fn -> Streaming.loader(on_tensor: 1) end) == :bad_argument
    assert reason(fn -> Streaming.loader(nonsense: 1) end) == :bad_argument
    assert reason(fn -> Streaming.save(1, chunk: 0) end) == :bad_argument
    assert reason(fn -> Streaming.save(1, fsync: true) end) == :bad_argument
    assert reason(fn -> Streaming.save(1, format: :tar) end) == :bad_argument
    assert {:error, %Error{reason: :bad_argument}} = Streaming.feed(Streaming.loader(), :atom)
  end

  test "tensors are ready before the stream has ended" do
    tensors = for i <- 1..9, into: %{}, do: {"t#{i}", ExTorch.op("full", [[1000], i * 1.0])}
    test = self()

    for format <- [:streaming, :zip, :safetensors, :legacy] do
      bytes = saved(tensors, format: format)
      half = div(byte_size(bytes), 2)
      loader = Streaming.loader(on_tensor: fn name, tensor -> send(test, {name, tensor}) end)
      {:more, loader} = Streaming.feed(loader, binary_part(bytes, 0, half))

      for i <- 1..3 do
        name = "t#{i}"
        assert_received {^name, tensor}
        assert Tensor.to_list(tensor) == List.duplicate(i * 1.0, 1000)
      end

      refute_received {"t9", _}
      rest = binary_part(bytes, half, byte_size(bytes) - half)
      assert {:done, term, ""} = Streaming.feed(loader, rest)
      for i <- 4..9, name = "t#{i}", do: assert_received({^name, _})
      # the object has the same tensors
      assert plain(term) == plain(tensors)
    end
  end

  test "tensors/2 keeps only one tensor in memory" do
    tensors = for i <- 1..50, into: %{}, do: {"t#{i}", ExTorch.op("full", [[100_000], i * 1.0])}
    chunks = tensors |> Streaming.save(chunk: 65_536) |> Enum.map(&IO.iodata_to_binary/1)
    before = Memory.live().bytes

    most =
      chunks
      |> Streaming.tensors()
      |> Enum.reduce(0, fn {_name, tensor}, most ->
        Tensor.release(tensor)
        Memory.collect()
        max(most, Memory.live().bytes - before)
      end)

    assert most < 5 * 400_000

    assert reason(fn -> chunks |> Enum.take(20) |> Streaming.tensors() |> Stream.run() end) ==
             :truncated

    assert chunks |> Streaming.tensors(only: ~r/7$/) |> Enum.count() == 5
    # a consumer that stops early leaks nothing
    assert chunks |> Streaming.tensors() |> Enum.take(1) |> length() == 1
  end

  test "views of one storage share memory" do
    {:ok, term, ""} =
      Streaming.load(chunks(File.read!("test/fixtures/2.14.1/views.stream"), [50]))

    whole = ExTorch.load!("test/fixtures/2.14.1/views.stream")
    assert plain(term) == plain(whole)
    base = ExTorch.tensor([[1.0, 2.0], [3.0, 4.0]])
    bytes = saved(%{base: base, turned: ExTorch.op("t", [base])}, format: :streaming)
    {:ok, term, ""} = Streaming.load([bytes])
    ExTorch.op("fill_", [term["base"], 9.0])
    assert Tensor.to_list(term["turned"]) == [[9.0, 9.0], [9.0, 9.0]]
  end

  test "an old state of a loader is stale, and a loader that another process feeds is busy" do
    bytes = saved(state())
    [a, b] = [binary_part(bytes, 0, 100), binary_part(bytes, 100, byte_size(bytes) - 100)]
    old = Streaming.loader()
    {:more, new} = Streaming.feed(old, a)
    assert {:error, %Error{reason: :stale}} = Streaming.feed(old, a)
    assert {:done, term, ""} = Streaming.feed(new, b)
    assert Map.keys(term) == ["b", "name", "step", "w"]
    assert {:error, %Error{reason: :stale}} = Streaming.feed(new, b)

    test = self()

    loader =
      Streaming.loader(
        on_tensor: fn _, _ ->
          send(test, {:inside, self()})
          receive do: (:go -> :ok)
        end
      )

    task = Task.async(fn -> Streaming.feed(loader, bytes) end)
    assert_receive {:inside, pid}
    assert {:error, %Error{reason: :busy}} = Streaming.feed(loader, bytes)
    send(pid, :go)
    assert_receive {:inside, ^pid}
    send(pid, :go)
    assert {:done, _, ""} = Task.await(task)
    assert {:error, %Error{reason: :stale}} = Streaming.feed(loader, bytes)
  end

  test "a process that is killed or raises while feeding leaves a stale loader and no memory" do
    bytes = saved(state())

    in_task(fn ->
      test = self()

      loader =
        Streaming.loader(
          on_tensor: fn _, _ ->
            send(test, :inside)
            Process.sleep(:infinity)
          end
        )

      pid = spawn(fn -> Streaming.feed(loader, bytes) end)
      receive do: (:inside -> :ok)
      Process.exit(pid, :kill)
      Process.sleep(20)
      assert {:error, %Error{reason: :stale}} = Streaming.feed(loader, bytes)

      loader = Streaming.loader(on_tensor: fn _, _ -> raise "mine" end)
      assert_raise RuntimeError, "mine", fn -> Streaming.feed(loader, bytes) end
      assert {:error, %Error{reason: :stale}} = Streaming.feed(loader, bytes)
    end)
  end

  test "1,000 concurrent streams" do
    bytes = saved(state(), format: :zip)
    expected = plain(ExTorch.load!({:binary, bytes}))

    1..1000
    |> Task.async_stream(
      fn i ->
        {:ok, term, ""} = Streaming.load(chunks(bytes, [i * 37]))
        plain(term) == expected
      end,
      max_concurrency: 1000,
      timeout: 120_000
    )
    |> Enum.each(fn {:ok, same} -> assert same end)
  end

  test "100 stalled streams block no thread" do
    bytes = saved(state(), format: :zip)

    loaders =
      for _ <- 1..100 do
        {:more, loader} = Streaming.feed(Streaming.loader(), binary_part(bytes, 0, 50_000))
        loader
      end

    assert Memory.live().threads == 0
    task = Task.async(fn -> for _ <- 1..50, do: File.read!("mix.exs") end)
    assert Task.yield(task, 5000)
    assert length(loaders) == 100
  end
end
