defmodule ExTorch.Checkpoint.ChangingTest do
  # Files that change after they were opened, in each format, for each way of reading.
  use ExTorch.Case
  alias ExTorch.Checkpoint
  alias ExTorch.Test.FileSource

  @moduletag :tmp_dir

  @formats [:zip, :legacy, :streaming, :safetensors]
  @count 50_000

  @ways [default: [], verify: [verify: true], mmap: [mmap: true]]

  defp value, do: %{"a" => ExTorch.arange(10), "b" => ExTorch.full({@count}, 1.5)}
  defp right?(tensor), do: Tensor.equal?(tensor, value()["b"])

  defp write(dir, format) do
    path = Path.join(dir, "file.#{format}")
    File.rm(path)
    :ok = ExTorch.save(value(), path, format: format)
    path
  end

  # name => {change, result for files that are read, result for mapped files}
  defp changes do
    [
      truncated:
        {fn path -> File.write!(path, binary_part(File.read!(path), 0, 1000)) end, :file_changed,
         :file_changed},
      emptied: {fn path -> File.write!(path, "") end, :file_changed, :file_changed},
      grown: {fn path -> File.write!(path, "more", [:append]) end, :file_changed, :file_changed},
      "rewritten with the same size":
        {fn path -> File.write!(path, :binary.copy(<<0>>, File.stat!(path).size)) end,
         :file_changed, :any},
      replaced:
        {fn path ->
           File.write!(path <> ".new", "something else")
           File.rename!(path <> ".new", path)
         end, :right, :right},
      deleted: {fn path -> File.rm!(path) end, :right, :right},
      # File.chmod/2 also sets the modification time
      "made unreadable":
        {fn path -> {"", 0} = System.cmd("chmod", ["0", path]) end, :right, :right}
    ]
  end

  # A rewritten file has another modification time only if some time has passed.
  defp age(path), do: File.touch!(path, System.os_time(:second) - 100)

  for format <- @formats, {way, _} <- @ways do
    test "#{format}, #{way}: a change is noticed, or has no effect", %{tmp_dir: dir} do
      for {name, {change, read, mapped}} <- changes() do
        name = to_string(name)
        path = write(dir, unquote(format))
        age(path)
        {:ok, ckpt} = Checkpoint.open(path, @ways[unquote(way)])
        change.(path)
        expected = if unquote(way) == :mmap, do: mapped, else: read
        assert_result(expected, Checkpoint.tensor(ckpt, "b"), name)
        # once more, and with all tensors
        assert_result(expected, Checkpoint.tensor(ckpt, "b"), name)
        all = reason(fn -> ckpt |> Checkpoint.stream() |> Enum.to_list() end)
        assert expected == :any or all == if(expected == :right, do: :none, else: expected), name
        assert Checkpoint.close(ckpt) == :ok
      end
    end
  end

  # Promise: a mapped file that is edited in place may have any values, but nothing crashes.
  defp assert_result(:any, result, name),
    do:
      assert(
        match?({:ok, %Tensor{shape: {@count}}}, result) or match?({:error, %Error{}}, result),
        name
      )

  defp assert_result(:right, result, name) do
    assert {:ok, tensor} = result, name
    assert right?(tensor), name
  end

  # The pages of a mapped file are read when the tensor is used, not when it is made.
  defp assert_result(reason, {:ok, tensor}, name),
    do: assert(reason(fn -> Tensor.to_list(tensor) end) == reason, name)

  defp assert_result(reason, {:error, error}, name), do: assert(error.reason == reason, name)

  for format <- @formats do
    test "#{format}: a source whose bytes change", %{tmp_dir: dir} do
      for {name, {change, _, _}} <- changes(), name not in [:deleted, :"made unreadable"] do
        name = to_string(name)
        path = write(dir, unquote(format))
        {:ok, ckpt} = Checkpoint.open(%FileSource{path: path}, [])
        change.(path)

        case Checkpoint.tensor(ckpt, "b") do
          {:ok, %Tensor{shape: {@count}} = tensor} ->
            assert name in ["grown", "rewritten with the same size"], name
            assert name != "grown" or right?(tensor)

          {:error, %Error{message: message}} ->
            assert message != ""
            assert name != "grown"
        end

        Checkpoint.close(ckpt)
      end
    end
  end

  test "a file that is truncated while it is loaded", %{tmp_dir: dir} do
    for format <- @formats, opts <- [[], [verify: true], [mmap: true]] do
      path = write(dir, format)
      size = File.stat!(path).size

      # between the steps of the load
      truncate = fn _ ->
        {:ok, io} = :file.open(path, [:read, :write, :raw])
        {:ok, _} = :file.position(io, div(size, 2))
        :ok = :file.truncate(io)
        :file.close(io)
      end

      result = ExTorch.load(path, [on_progress: truncate] ++ opts)

      case result do
        {:ok, %{"b" => tensor}} ->
          assert reason(fn -> Tensor.to_list(tensor) end) in [:none, :file_changed]

        {:error, error} ->
          assert error.reason in [:file_changed, :truncated]
      end
    end
  end

  test "files that cannot be read", %{tmp_dir: dir} do
    path = write(dir, :zip)

    for opts <- [[], [verify: true], [mmap: true]] do
      assert {:error, %Error{reason: :not_found}} = ExTorch.load(Path.join(dir, "none"), opts)
      assert {:error, %Error{reason: :io}} = ExTorch.load(dir, opts)
      assert {:error, %Error{reason: :io}} = ExTorch.load("/dev/full", opts)
      assert {:error, %Error{reason: :io}} = ExTorch.load("/dev/null", opts)
      assert {:error, %Error{}} = ExTorch.load(Path.join(path, "below"), opts)
      assert {:error, %Error{}} = ExTorch.load("/proc/self/mem", opts)
    end

    assert {:error, %Error{reason: :io}} = ExTorch.save(1, "/dev/full")
  end
end
