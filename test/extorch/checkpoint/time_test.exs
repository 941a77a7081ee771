defmodule ExTorch.Checkpoint.TimeTest do
  # Files that would take long with algorithms that are worse than linear. The bounds are generous: each test takes well
  # below a second, and took from many seconds to minutes before.
  use ExTorch.Case
  alias ExTorch.{Checkpoint, Streaming}
  alias ExTorch.Test.{Pickle, Zip}
  import Pickle, only: [dict: 1, int: 1, tensor: 1, tuple: 1]

  defmodule BinarySource do
    @behaviour ExTorch.Source
    defstruct [:bytes]
    def size(source), do: {:ok, byte_size(source.bytes)}
    def read_at(source, offset, length), do: {:ok, binary_part(source.bytes, offset, length)}
    def close(_source), do: :ok
  end

  @seconds 10

  defp assert_soon(fun) do
    {microseconds, result} = :timer.tc(fun)
    assert microseconds < @seconds * 1_000_000
    result
  end

  defp zip(object, data, byteorder \\ "little") do
    Zip.make(
      [{"a/data.pkl", Pickle.make(object)}, {"a/byteorder", byteorder}, {"a/data/0", data}],
      align: 64
    )
  end

  defp view(numel, offset, sizes, strides) do
    tensor(
      numel: int(numel),
      offset: int(offset),
      size: tuple(Enum.map(sizes, &int/1)),
      stride: tuple(Enum.map(strides, &int/1))
    )
  end

  @tag :tmp_dir
  test "views whose rows overlap, in big-endian and gzip files", %{tmp_dir: dir} do
    numel = 12_000_000
    data = for i <- 0..2999, into: <<>>, do: <<i * 4000.0::float-32-big, 0::size(127_968)>>
    big = zip(view(numel, 0, [1499, 1499], [4000, 4000]), data, "big")
    path = Path.join(dir, "a.pt")
    File.write!(path, big)

    for source <- [path, {:binary, big}] do
      ckpt = Checkpoint.open!(source)
      t = assert_soon(fn -> Checkpoint.tensor!(ckpt, []) end)

      row = ExTorch.op("slice", [ExTorch.op("select", [t, 0, 3]), 0, 0, 3])
      assert Tensor.to_list(row) == [12000.0, 16000.0, 20000.0]
    end

    # the data is not aligned, so it cannot be shared
    object = view(numel, 0, [1499, 1499], [4000, 4000])
    file = Zip.make([{"a/data.pkl", Pickle.make(object)}, {"a/data/0", data}])
    File.write!(path, :zlib.gzip(file))
    ckpt = Checkpoint.open!(path)
    assert %Tensor{shape: {1499, 1499}} = assert_soon(fn -> Checkpoint.tensor!(ckpt, []) end)
  end

  test "many names in a filter" do
    n = 20_000
    object = dict(for i <- 1..n, do: {"t#{i}", view(4, 0, [1], [1])})
    bytes = zip(object, <<0::128>>)
    names = for i <- 1..n, do: "x#{i}"
    source = {:binary, bytes}
    assert assert_soon(fn -> ExTorch.load!(source, only: ["t7" | names]) end) |> map_size() == 1

    assert {:ok, %{"t7" => _}, ""} =
             assert_soon(fn -> Streaming.load([bytes], only: [["t7"] | names]) end)

    ckpt = Checkpoint.open!(source)

    assert [{"t7", _}] =
             assert_soon(fn ->
               ckpt |> Checkpoint.stream(only: names ++ [~r/^t7$/]) |> Enum.to_list()
             end)
  end

  test "many views of one storage that is verified, from a source" do
    n = 20_000
    object = dict(for i <- 1..n, do: {"t#{i}", view(1_000_000, i, [1], [1])})
    bytes = zip(object, :binary.copy(<<1.0::float-32-little>>, 1_000_000))
    source = %BinarySource{bytes: bytes}
    term = assert_soon(fn -> ExTorch.load!(source, verify: true) end)
    assert map_size(term) == n and Tensor.to_list(term["t7"]) == [1.0]
    {at, _} = :binary.match(bytes, :binary.copy(<<1.0::float-32-little>>, 10))
    damaged = %BinarySource{bytes: flip_bit(bytes, at + 3_000_000, 0)}
    assert {:error, %Error{reason: :corrupt}} = ExTorch.load(damaged, verify: true)
  end

  test "a name that is similar to many long names" do
    prefix = String.duplicate("layer.", 30)
    object = dict(for i <- 1..20_000, do: {prefix <> "#{i}", view(4, 0, [1], [1])})
    ckpt = Checkpoint.open!({:binary, zip(object, <<0::128>>)})
    assert {:error, error} = assert_soon(fn -> Checkpoint.tensor(ckpt, prefix <> "x777") end)
    assert error.reason == :not_found and error.message =~ "did you mean"
    missing = for i <- 1..50, name = prefix <> "a#{i}", do: {name, [name]}
    unused = for i <- 1..2000, do: prefix <> "b#{i}"
    found = assert_soon(fn -> ExTorch.Store.Names.suggestions(missing, unused) end)
    assert map_size(found) == 50
  end

  test "similar names" do
    object =
      dict(
        for name <- ["encoder.weight", "encoder.bias", "head"], do: {name, view(4, 0, [1], [1])}
      )

    ckpt = Checkpoint.open!({:binary, zip(object, <<0::128>>)})

    for {wrong, right} <- [
          {"encoder.wieght", "encoder.weight"},
          {"ncoder.weight", "encoder.weight"},
          {"Encoder.Weight", "encoder.weight"},
          {"encoder.bia", "encoder.bias"},
          {"haed", "head"}
        ] do
      assert {:error, %Error{reason: :not_found, message: message}} =
               Checkpoint.tensor(ckpt, wrong)

      assert message =~ "did you mean #{inspect(right)}"
    end

    assert {:error, %Error{message: message}} = Checkpoint.tensor(ckpt, "zzz")
    assert message =~ "see ExTorch.Checkpoint.keys/1"
  end

  test "many small records in a stream" do
    records = for i <- 1..30_000, do: {"a/data/#{i}", "", flags: 8}
    zip = Zip.make([{"a/data.pkl", Pickle.make("N")} | records])
    assert_soon(fn -> Streaming.load([zip]) end)
  end
end
