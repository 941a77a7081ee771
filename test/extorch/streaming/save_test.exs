defmodule ExTorch.Streaming.SaveTest do
  use ExTorch.Case
  alias ExTorch.Streaming
  alias ExTorch.Test.Python

  import ExTorch.Test.Terms, only: [state: 0]

  @tag :torch
  test "a tensor that changes between two chunks is saved with its new values" do
    for chunk <- [1_000_000, 1024 * 1024] do
      changed = changing(ExTorch.zeros({4 * 1024 * 1024}), chunk)
      assert {:ok, %{"t" => _}} = ExTorch.load({:binary, changed}, verify: true)
    end
  end

  # Adds one in place after the fourth chunk.
  defp changing(tensor, chunk) do
    stream = Streaming.save(%{"t" => tensor}, format: :zip, chunk: chunk)
    step = fn part, _ -> {:suspend, part |> IO.iodata_to_binary() |> :binary.copy()} end
    go_on(&Enumerable.reduce(stream, &1, step), tensor, [], 0)
  end

  defp go_on(next, tensor, parts, n) do
    case next.({:cont, nil}) do
      {:suspended, part, next} ->
        if n == 3 do
          Process.sleep(5)
          Memory.collect()
          ExTorch.op("add_", [tensor, 1.0])
        end

        go_on(next, tensor, [parts | part], n + 1)

      {_done, _} ->
        IO.iodata_to_binary(parts)
    end
  end

  test "the chunks share the memory of the tensors" do
    tensor = ExTorch.op("full", [[1_000_000], 2.0])
    before = Memory.live().bytes
    chunks = %{t: tensor} |> Streaming.save() |> Enum.to_list()
    assert Memory.live().bytes == before
    assert reason(fn -> ExTorch.op("fill_", [tensor, 3.0]) end) == :frozen
    address = Blob.to_blob(tensor).ptr
    large = chunks |> List.flatten() |> Enum.filter(&(byte_size(&1) > 100_000))
    assert Enum.sum(Enum.map(large, &byte_size/1)) == 4_000_000
    [first | _] = Enum.map(large, &Tensor.from_binary(&1, {div(byte_size(&1), 4)}, :float32))
    assert Blob.to_blob(first).ptr == address
  end

  @tag :torch
  test "views, dtypes and devices that need a copy" do
    base = ExTorch.rand({400, 300})

    term = %{
      "turned" => ExTorch.op("t", [base]),
      "part" => ExTorch.op("narrow", [base, 1, 10, 20]),
      "conj" => ExTorch.op("aten::_conj", [ExTorch.op("complex", [base, base])])
    }

    for format <- [:streaming, :zip, :legacy, :safetensors], chunk <- [1000, 1_000_000] do
      term = if format == :safetensors, do: Map.delete(term, "conj"), else: term

      opts =
        [format: format, chunk: chunk] ++
          if(format == :safetensors, do: [duplicate: true], else: [])

      chunks = Enum.to_list(Streaming.save(term, opts))
      {:ok, back, ""} = Streaming.load(chunks)

      for {name, tensor} <- term do
        assert Tensor.to_list(back[name]) == Tensor.to_list(tensor)
      end
    end
  end

  test "every enumeration starts from the beginning, and one that stops early leaks nothing" do
    saved = Streaming.save(state(), chunk: 10_000)
    assert Enum.count(saved) > 8
    assert saved |> Enum.take(2) |> length() == 2
    assert {:ok, _, ""} = Streaming.load(saved)
    assert {:ok, _, ""} = Streaming.load(saved)
  end

  test "a term that cannot be saved raises an error with its path" do
    error = assert_raise Error, fn -> Enum.to_list(Streaming.save(%{a: [self()]})) end
    assert error.message =~ "a"

    assert reason(fn -> Enum.to_list(Streaming.save([1], format: :safetensors)) end) ==
             :bad_argument

    released = ExTorch.tensor([1])
    Tensor.release(released)
    assert reason(fn -> Enum.to_list(Streaming.save([released])) end) == :released
  end

  @tag :python
  @tag :tmp_dir
  @tag :torch
  test "torch reads a streamed zip file", %{tmp_dir: dir} do
    path = Path.join(dir, "streamed.pt")

    term = %{
      "a" => ExTorch.tensor([[1.5, 2.5]]),
      "n" => ExTorch.op("t", [ExTorch.rand({300, 400})])
    }

    File.write!(path, Enum.to_list(Streaming.save(term, format: :zip, chunk: 5000)))

    [a, n] =
      Python.eval!("x = torch.load(#{inspect(path)})", [
        "x['a']",
        "x['n'].sum(dtype=torch.float64)"
      ])

    assert a == [[1.5, 2.5]]
    assert close?(n, Tensor.to_list(ExTorch.op("sum", [term["n"]], dtype: :float64)))
  end
end
