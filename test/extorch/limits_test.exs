defmodule ExTorch.LimitsTest do
  # Every limit at its limit and one past it. The limits inside c_src/core have a C test (test/c/checkpoint/limits_test.c).
  use ExTorch.Case
  alias ExTorch.{Checkpoint, Options, Streaming}
  alias ExTorch.Test.FileSource

  @moduletag :tmp_dir
  @formats [:zip, :legacy, :streaming, :safetensors]

  # 40 and 24 bytes.
  defp value, do: %{"a" => ExTorch.arange(5), "b" => ExTorch.full({2, 3}, 1.5)}

  defp write(dir, term, format) do
    path = Path.join(dir, "file.#{format}")
    :ok = ExTorch.save(term, path, format: format)
    path
  end

  defp ways do
    [
      file: &ExTorch.load(&1, limits: &2),
      mapped: &ExTorch.load(&1, limits: &2, mmap: true),
      binary: &ExTorch.load({:binary, File.read!(&1)}, limits: &2),
      source: &ExTorch.load(%FileSource{path: &1}, limits: &2),
      stream: fn path, limits ->
        with {:ok, term, _rest} <- Streaming.load([File.read!(path)], limits: limits),
             do: {:ok, term}
      end
    ]
  end

  # The smallest value of the limit that the load accepts. One less must be refused with :limit, by name.
  defp smallest(load, path, name, most) do
    accepted? = fn value ->
      case load.(path, [{name, value}]) do
        {:ok, _} -> true
        {:error, %Error{reason: :limit}} -> false
      end
    end

    assert accepted?.(most), "#{name} #{most} is refused"
    least = if name == :depth, do: 1, else: 0
    found = search(accepted?, least - 1, most)

    if found > least do
      assert {:error, %Error{reason: :limit, message: message}} = load.(path, [{name, found - 1}])
      assert message =~ "limits: [#{name}: n]"
    end

    found
  end

  # `most` is accepted, `least` is not.
  defp search(_accepted?, least, most) when most - least == 1, do: most

  defp search(accepted?, least, most) do
    middle = div(least + most, 2)

    if accepted?.(middle),
      do: search(accepted?, least, middle),
      else: search(accepted?, middle, most)
  end

  for format <- @formats do
    test "#{format}: bytes of a tensor and of all tensors", %{tmp_dir: dir} do
      path = write(dir, value(), unquote(format))

      for {way, load} <- ways() do
        assert {way, smallest(load, path, :tensor_bytes, 1000)} == {way, 40}
        assert {way, smallest(load, path, :total_bytes, 1000)} == {way, 64}
      end
    end
  end

  for format <- [:zip, :legacy, :streaming] do
    test "#{format}: bytes of the pickle", %{tmp_dir: dir} do
      path = write(dir, value(), unquote(format))

      sizes =
        for {_, load} <- ways(), uniq: true, do: smallest(load, path, :pickle_bytes, 100_000)

      assert [size] = sizes
      assert size in 100..File.stat!(path).size
    end

    test "#{format}: depth", %{tmp_dir: dir} do
      for depth <- [1, 2, 10, 100] do
        path = write(dir, Enum.reduce(1..depth, 1, fn _, term -> [term] end), unquote(format))
        for {_, load} <- ways(), do: assert(smallest(load, path, :depth, 1000) == depth)
      end
    end
  end

  test "the default depth", %{tmp_dir: dir} do
    for {depth, result} <- [{1000, :ok}, {1001, :error}] do
      path = write(dir, Enum.reduce(1..depth, 1, fn _, term -> [term] end), :zip)
      for {_, load} <- ways(), do: assert(elem(load.(path, []), 0) == result)
    end
  end

  # The storages come before the object, so the whole stream is kept.
  test "bytes that a stream keeps" do
    for file <- ["test/fixtures/2.14.1/script.pt", "test/fixtures/more/cpp_module.pt"] do
      size = File.stat!(file).size
      assert smallest(ways()[:stream], file, :spool_bytes, 2 * size) == size
    end
  end

  # {values that are accepted, values that are not}
  test "options" do
    ranges = [
      {&limit(:depth, &1), [1, 10_000], [0, -1, 10_001, 1.0, "1", nil]},
      {&limit(:pickle_bytes, &1), [0, 2 ** 62], [-1, 2 ** 62 + 1, 2 ** 64, nil]},
      {&limit(:tensor_bytes, &1), [0, 2 ** 62], [-1, 2 ** 62 + 1]},
      {&limit(:total_bytes, &1), [0, 2 ** 62], [-1, 2 ** 62 + 1]},
      {&limit(:spool_bytes, &1), [0, 2 ** 62], [-1, 2 ** 62 + 1]},
      {&Checkpoint.Options.check!(offset: &1), [0, 2 ** 62], [-1, 2 ** 62 + 1]},
      {&Options.chunk!/1, [1, 2 ** 40], [0, 2 ** 40 + 1]},
      {&Options.timeout!/1, [0, 2 ** 40, :infinity], [-1, 2 ** 40 + 1, :never]}
    ]

    for {check, good, bad} <- ranges do
      for value <- good, do: assert(reason(fn -> check.(value) end) == :none, inspect(value))

      for value <- bad,
          do: assert(reason(fn -> check.(value) end) == :bad_argument, inspect(value))
    end
  end

  defp limit(name, value), do: Checkpoint.Options.check!(limits: [{name, value}])

  test "the length of a path", %{tmp_dir: dir} do
    assert Options.path?(String.duplicate("x", 4095))
    refute Options.path?(String.duplicate("x", 4096))
    # one component has at most 255 bytes
    name = String.duplicate("n", 252) <> ".pt"
    assert ExTorch.save(1, Path.join(dir, name)) == :ok
    assert ExTorch.load!(Path.join(dir, name)) == 1
    assert {:error, %Error{reason: :io}} = ExTorch.save(1, Path.join(dir, "n" <> name))
    assert {:error, %Error{}} = ExTorch.load(Path.join(dir, "n" <> name))
    assert {:error, %Error{}} = ExTorch.load(String.duplicate("x", 4095))
    assert {:error, %Error{}} = ExTorch.save(1, String.duplicate("x", 4095))
  end

  test "the size of a JSON file", %{tmp_dir: dir} do
    path = Path.join(dir, "a.json")
    File.write!(path, ~s({"a": 1}))
    assert {:ok, %{"a" => 1}, 0} = Native.json_read(path, 8)
    assert {:error, %Error{reason: :limit}} = Native.json_read(path, 7)
  end

  test "dimensions" do
    shape = List.to_tuple(List.duplicate(1, 64))
    assert Tensor.from_binary(<<1.0::float-32-native>>, shape, :float32).shape == shape
    longer = Tuple.append(shape, 1)

    assert reason(fn -> Tensor.from_binary(<<1.0::float-32-native>>, longer, :float32) end) !=
             :none

    assert ExTorch.zeros(shape).shape == shape
    assert reason(fn -> ExTorch.zeros(longer) end) != :none
  end
end
