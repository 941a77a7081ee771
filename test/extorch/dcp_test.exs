defmodule ExTorch.DCPTest do
  # The fixtures are written by test/fixtures/dcp.py with 1, 2 and 4 ranks of gloo.
  use ExTorch.Case

  alias ExTorch.{Checkpoint, DCP, Store}
  alias ExTorch.DCP.Chunk
  alias ExTorch.Python.{Dict, Global, Object}
  alias ExTorch.Test.Python

  @moduletag :tmp_dir

  defp fixture(ranks), do: "test/fixtures/dcp/ranks-#{ranks}"
  defp list(from, shape), do: ExTorch.op("reshape", [ExTorch.arange(from), shape])

  for ranks <- [1, 2, 4] do
    test "a folder of #{ranks} ranks is one object" do
      assert {:ok, state} = ExTorch.load(fixture(unquote(ranks)))
      rows = list(33.0, [11, 3])
      columns = Tensor.to(list(20.0, [4, 5]), dtype: :bfloat16)
      assert Tensor.equal?(state["model"]["rows"], rows)
      assert Tensor.equal?(state["model"]["columns"], columns)
      assert Tensor.equal?(state["model"]["whole"], rows)
      assert Tensor.to_list(state["optimizer"]["state"]["0"]["step"]) == 3.0
      assert state["optimizer"]["lr"] == 0.5
      assert state["names"] == ["x", "y"]
    end
  end

  test "a folder is a checkpoint" do
    {:ok, ckpt} = Checkpoint.open(fixture(4))

    assert Checkpoint.keys(ckpt) ==
             ~w(model.rows model.columns model.whole optimizer.state.0.step)

    assert %{format: :dcp} = Checkpoint.metadata(ckpt)
    {:ok, entry} = Checkpoint.entry(ckpt, "model.rows")
    assert {entry.shape, entry.dtype, entry.nbytes} == {{11, 3}, :float32, 132}
    assert {:ok, tensor} = Checkpoint.tensor(ckpt, "model.rows")
    assert Tensor.equal?(tensor, list(33.0, [11, 3]))
    assert {:ok, _} = Checkpoint.tensor(ckpt, ["model", "rows"])

    assert {:error, %Error{reason: :not_found, message: message}} =
             Checkpoint.tensor(ckpt, "model.row")

    assert message =~ "model.rows"
    assert {:ok, %{"model" => %{"rows" => ^entry}}} = Checkpoint.object(ckpt)
    assert length(Enum.to_list(Checkpoint.stream(ckpt))) == 4
    assert {:error, %Error{reason: :not_found}} = Checkpoint.read_record(ckpt, "data.pkl")
    assert Checkpoint.close(ckpt) == :ok

    assert {:ok, %{"model" => model}} = ExTorch.load(fixture(2), only: "model.columns")
    assert Map.keys(model) == ["columns"]

    assert {:ok, %Dict{pairs: [{"model", %Dict{}} | _]}} = ExTorch.load(fixture(1), ordered: true)
    assert {:ok, flat} = Checkpoint.state_dict(fixture(2))
    assert map_size(flat) == 4
    module = %{rows: ExTorch.zeros({11, 3}), whole: ExTorch.zeros({11, 3})}
    store = Store.PyTorch.new(fixture(4), top_level_key: "model", only: ["rows", "whole"])
    assert {:ok, result} = Store.apply_to(store, module)
    assert Tensor.equal?(result.module.rows, list(33.0, [11, 3]))
  end

  test "a slice reads the chunks it touches", %{tmp_dir: dir} do
    folder = Path.join(dir, "dcp")
    File.cp_r!(fixture(4), folder)
    {:ok, ckpt} = Checkpoint.open(folder)
    whole = Tensor.to_list(Checkpoint.tensor!(ckpt, "model.columns"))

    for rows <- [0..3, 1..2, 3..3], columns <- [0..4, 0..0, 1..3, 4..4] do
      assert {:ok, slice} = DCP.slice(ckpt, "model.columns", [rows, columns])

      assert Tensor.to_list(slice) ==
               for(row <- Enum.slice(whole, rows), do: Enum.slice(row, columns))
    end

    # The chunks of the last rank are gone.
    File.write!(Path.join(folder, "__3_0.distcp"), "")
    assert {:ok, _} = DCP.slice(ckpt, "model.rows", [0..2, 0..2])
    assert {:error, _} = DCP.slice(ckpt, "model.rows", [0..10, 0..2])

    for bad <- [[0..11, 0..2], [0..2], [2..1//-1, 0..2], [-1..2//1, 0..2], [:all, 0..2]],
        do: assert({:error, %Error{reason: :bad_argument}} = DCP.slice(ckpt, "model.rows", bad))

    path = Path.join(dir, "a.pt")
    ExTorch.save!(%{"a" => list(12, [3, 4])}, path)
    slice = DCP.slice!(Checkpoint.open!(path), "a", [1..2, 0..1])
    assert Tensor.to_list(slice) == [[4, 5], [8, 9]]
  end

  defp sample do
    %{
      "model" => %{
        "weight" => Tensor.to(list(12.0, [3, 4]), dtype: :bfloat16),
        "layers" => [%{"bias" => ExTorch.tensor([1.0])}, %{"bias" => ExTorch.tensor([2.0])}],
        "transposed" => ExTorch.op("t", [list(6, [2, 3])]),
        "empty" => ExTorch.zeros({0, 3}),
        "scalar" => ExTorch.tensor(7)
      },
      "lr" => 0.5,
      "betas" => {0.9, 0.99},
      "names" => ["x", nil],
      "nothing" => %{}
    }
  end

  test "what is saved is loaded again", %{tmp_dir: dir} do
    folder = Path.join(dir, "new/dcp")
    assert ExTorch.save(sample(), folder, format: :dcp) == :ok
    assert {:ok, loaded} = ExTorch.load(folder)
    assert inspect(loaded) == inspect(sample())

    # Again: the new files have other names, and the old ones are removed after the commit.
    assert ExTorch.save(%{"a" => ExTorch.tensor([1])}, folder, format: :dcp) == :ok
    assert Enum.sort(File.ls!(folder)) == [".metadata", "__0_1.distcp"]
    assert {:ok, %{"a" => _}} = ExTorch.load(folder)

    for bad <- [[1], ExTorch.tensor(1), %{{1} => 1}, %{"a.b" => 1, "a" => %{"b" => 2}}],
        do:
          assert(
            {:error, %Error{reason: :bad_argument}} = ExTorch.save(bad, folder, format: :dcp)
          )

    assert {:error, %Error{}} = ExTorch.save(%{"a" => self()}, folder, format: :dcp)
    assert Enum.sort(File.ls!(folder)) == [".metadata", "__0_1.distcp"]
    File.write!(Path.join(dir, "file"), "")

    assert {:error, %Error{reason: :io}} =
             ExTorch.save(sample(), Path.join(dir, "file"), format: :dcp)
  end

  test "several writers, and one that commits", %{tmp_dir: dir} do
    whole = list(40, [8, 5])
    rows = fn from, to -> ExTorch.op("narrow", [whole, 0, from, to - from]) end
    chunk = fn from, to -> %Chunk{tensor: rows.(from, to), offsets: {from, 0}, shape: {8, 5}} end

    parts =
      for {from, to, rank} <- [{0, 3, 0}, {3, 7, 1}, {7, 8, 2}] do
        Task.async(fn ->
          term = %{"w" => chunk.(from, to), "same" => ExTorch.tensor([9]), "step" => 3}
          {:ok, part} = DCP.write(term, dir, rank: rank)
          part
        end)
      end
      |> Task.await_many()

    assert {:error, _} = ExTorch.load(dir)
    assert {:error, %Error{reason: :bad_argument}} = DCP.commit(dir, tl(parts))
    assert DCP.commit!(dir, parts) == :ok
    assert {:ok, loaded} = ExTorch.load(dir)
    assert Tensor.equal?(loaded["w"], whole)
    assert loaded["step"] == 3
    other = DCP.write!(%{"w" => ExTorch.tensor([1])}, dir, rank: 9)

    assert {:error, %Error{reason: :bad_argument, message: message}} =
             DCP.commit(dir, [other | parts])

    assert message =~ "disagree"
  end

  @tag :python
  test "Python reads what is saved", %{tmp_dir: dir} do
    if Version.match?(Regex.run(~r/^\d+\.\d+\.\d+/, Python.torch_version()) |> hd(), ">= 2.3.0") do
      assert ExTorch.save(sample(), dir, format: :dcp) == :ok

      script = """
      import sys, torch, torch.distributed.checkpoint as dcp
      z = torch.zeros
      state = {"model": {"weight": z(3, 4, dtype=torch.bfloat16), "layers": [{"bias": z(1)}, {"bias": z(1)}],
               "transposed": z(3, 2, dtype=torch.int64), "empty": z(0, 3), "scalar": torch.tensor(0)},
               "lr": None, "betas": None, "names": None}
      dcp.load(state, checkpoint_id=sys.argv[1])
      m = state["model"]
      print(m["weight"].tolist(), [l["bias"].tolist() for l in m["layers"]], m["transposed"].tolist(), m["scalar"].item(),
            state["lr"], state["betas"], state["names"])
      """

      assert Python.run!(script, [dir]) |> String.trim() ==
               "[[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0], [8.0, 9.0, 10.0, 11.0]] [[1.0], [2.0]] " <>
                 "[[0, 3], [1, 4], [2, 5]] 7 0.5 (0.9, 0.99) ['x', None]"
    end
  end

  describe "folders that lie" do
    setup %{tmp_dir: dir} do
      folder = Path.join(dir, "dcp")
      File.cp_r!(fixture(2), folder)
      {:ok, metadata} = ExTorch.load(Path.join(folder, ".metadata"), ordered: true)
      %{folder: folder, metadata: metadata}
    end

    # Writes .metadata again with each value under the key replaced.
    defp damage(folder, metadata, key, fun) do
      bytes = saved(replace(metadata, key, fun), format: :zip)
      pickle = Checkpoint.read_record!(Checkpoint.open!({:binary, bytes}), "data.pkl")
      File.write!(Path.join(folder, ".metadata"), pickle)

      case ExTorch.load(folder) do
        {:error, %Error{reason: reason}} -> reason
        {:ok, _} -> :ok
      end
    end

    defp replace(%Dict{pairs: pairs}, key, fun) do
      pairs =
        for {k, v} <- pairs,
            do: {replace(k, key, fun), if(k == key, do: fun.(v), else: replace(v, key, fun))}

      %Dict{pairs: pairs}
    end

    defp replace(%Object{} = object, key, fun),
      do: %{object | state: replace(object.state, key, fun)}

    defp replace(list, key, fun) when is_list(list), do: Enum.map(list, &replace(&1, key, fun))
    defp replace(other, _key, _fun), do: other

    test "are refused", %{folder: folder, metadata: metadata} do
      damage = &damage(folder, metadata, &1, &2)
      assert damage.("nothing", & &1) == :ok
      assert damage.("relative_path", fn _ -> "../../secret" end) == :forbidden
      assert damage.("relative_path", fn _ -> "/etc/passwd" end) == :forbidden
      assert damage.("relative_path", fn _ -> "none.distcp" end) == :not_found
      assert damage.("relative_path", fn _ -> 5 end) == :corrupt
      assert damage.("length", fn _ -> 2 ** 40 end) == :truncated
      assert damage.("length", fn _ -> 10 end) == :corrupt
      assert damage.("length", fn _ -> -1 end) == :corrupt

      assert damage.("offset", fn v -> if is_integer(v), do: v + 1, else: v end) in [
               :corrupt,
               :truncated
             ]

      assert damage.("size", fn _ -> {2 ** 30, 2 ** 30} end) == :corrupt
      assert damage.("size", fn _ -> {-1} end) == :corrupt
      assert damage.("size", fn _ -> "11" end) == :corrupt
      assert damage.("sizes", fn v -> if v == {5, 3}, do: {4, 3}, else: v end) == :corrupt
      assert damage.("offsets", fn v -> if v == {6, 0}, do: {5, 0}, else: v end) == :corrupt
      assert damage.("chunks", fn _ -> [] end) == :corrupt
      assert damage.("chunks", fn [chunk | _] -> [chunk, chunk] end) == :corrupt
      assert damage.("storage_data", fn _ -> %Dict{} end) == :corrupt
      assert damage.("storage_data", fn _ -> nil end) == :corrupt
      assert damage.("state_dict_metadata", fn _ -> [] end) == :corrupt

      assert damage.("planner_data", fn _ ->
               %Dict{pairs: [{"names", {"model"}}, {"model.rows", {"model", "rows"}}]}
             end) == :corrupt

      assert damage.("planner_data", fn _ -> %Dict{pairs: [{"names", {2 ** 40}}]} end) == :corrupt
      unknown = %Object{class: %Global{module: "os", name: "system"}, args: {"id"}}
      assert damage.("properties", fn _ -> unknown end) == :corrupt
      assert damage.("version", fn _ -> unknown end) == :ok
    end

    test "parts with other contents are errors", %{folder: folder} do
      path = Path.join(folder, "__1_0.distcp")
      bytes = File.read!(path)

      for at <- 0..(byte_size(bytes) - 1)//23 do
        File.write!(path, flip_bit(bytes, at, 2))
        assert elem(ExTorch.load(folder, verify: true), 0) in [:ok, :error]
      end

      File.write!(path, binary_part(bytes, 0, byte_size(bytes) - 1))
      assert {:error, %Error{reason: :truncated}} = ExTorch.load(folder)
      File.rm!(path)
      {_, 0} = System.cmd("mkfifo", [path])
      assert {:error, %Error{}} = ExTorch.load(folder)
    end
  end

  describe "chunks" do
    alias ExTorch.DCP.Metadata

    defp item(shape, boxes) do
      chunks = for {offsets, sizes} <- boxes, do: %{offsets: offsets, sizes: sizes}
      %{name: "t", path: {"t"}, kind: :tensor, dtype: :int8, shape: shape, chunks: chunks}
    end

    defp check(shape, boxes) do
      length(Metadata.check!(item(shape, boxes)).chunks)
    catch
      {:corrupt, error} -> error.reason
    end

    test "must cover the tensor exactly, however many there are" do
      grid = for i <- 0..39, j <- 0..39, do: {{2 * i, j}, {2, 1}}
      assert check({80, 40}, grid) == 1600
      assert check({80, 40}, Enum.shuffle(grid)) == 1600
      # The last one lies over another, and its place is empty.
      assert check({80, 40}, [{{0, 0}, {2, 1}} | tl(Enum.reverse(grid))]) == :corrupt
      assert check({80, 40}, [{{1, 0}, {2, 1}} | tl(grid)]) == :corrupt
      assert check({80, 40}, tl(grid)) == :corrupt

      # A windmill cannot be cut into two parts.
      windmill = [
        {{0, 0}, {2, 1}},
        {{2, 0}, {1, 2}},
        {{1, 2}, {2, 1}},
        {{0, 1}, {1, 2}},
        {{1, 1}, {1, 1}}
      ]

      assert check({3, 3}, windmill) == 5
      assert check({3, 3}, List.replace_at(windmill, 4, {{0, 0}, {1, 1}})) == :corrupt
    end

    test "without elements are left out" do
      assert check({4, 2}, [{{0, 0}, {4, 2}}, {{4, 0}, {0, 2}}, {{4, 0}, {0, 2}}]) == 1
      assert check({0, 2}, [{{0, 0}, {0, 2}}, {{0, 0}, {0, 2}}]) == 1
      assert check({0}, []) == 0
      assert check({}, [{{}, {}}]) == 1
      assert check({}, []) == :corrupt
    end

    test "may be split in more dimensions if there are few" do
      cut = fn n ->
        corner = {Tuple.duplicate(0, n), Tuple.duplicate(1, n)}

        [
          corner
          | for d <- 0..(n - 1) do
              sizes = List.duplicate(1, d + 1) ++ List.duplicate(2, n - d - 1)
              {put_elem(Tuple.duplicate(0, n), d, 1), List.to_tuple(sizes)}
            end
        ]
      end

      assert check(Tuple.duplicate(2, 3), cut.(3)) == 4
      assert check(Tuple.duplicate(2, 20), cut.(20)) == 21
      assert check(Tuple.duplicate(2, 20), [hd(tl(cut.(20))) | tl(cut.(20))]) == :corrupt
      assert check(Tuple.duplicate(2, 40), cut.(40)) == :limit
    end
  end

  test "a save removes only files that are named like those of writers", %{tmp_dir: dir} do
    folder = Path.join(dir, "folder")
    :ok = ExTorch.save(%{"a" => ExTorch.ones({2})}, folder, format: :dcp)
    File.rename!(Path.join(folder, "__0_0.distcp"), Path.join(folder, "notes.txt"))
    metadata = Path.join(folder, ".metadata")
    pickle = String.replace(File.read!(metadata), "\f\0\0\0__0_0.distcp", "\t\0\0\0notes.txt")
    File.write!(metadata, pickle)
    assert {:ok, _} = ExTorch.load(folder)
    :ok = ExTorch.save(%{"b" => ExTorch.ones({2})}, folder, format: :dcp)
    assert Enum.sort(File.ls!(folder)) == [".metadata", "__0_0.distcp", "notes.txt"]
    :ok = ExTorch.save(%{"c" => ExTorch.ones({2})}, folder, format: :dcp)
    assert length(File.ls!(folder)) == 3
  end

  test "parts must not be many times the bytes of their files", %{tmp_dir: dir} do
    folder = Path.join(dir, "folder")
    tensors = Map.new(1..20, &{"t#{&1}", ExTorch.zeros({1})})
    :ok = ExTorch.save(tensors, folder, format: :dcp)
    {:ok, items} = ExTorch.DCP.Metadata.items(load_metadata(folder))
    [%{chunks: [%{place: place}]} | _] = items

    aliased =
      for item <- items, do: put_in(item.chunks, for(c <- item.chunks, do: %{c | place: place}))

    {:ok, pickle} = ExTorch.DCP.Metadata.pickle(aliased)
    File.write!(Path.join(folder, ".metadata"), pickle)
    # The other parts are still there.
    assert {:ok, _} = ExTorch.load(folder)
    path = Path.join(folder, "__0_0.distcp")
    File.write!(path, binary_part(File.read!(path), 0, place.offset + place.length))
    assert {:error, %Error{reason: :corrupt, message: message}} = ExTorch.load(folder)
    assert message =~ "overlap"
  end

  defp load_metadata(folder), do: ExTorch.load!(Path.join(folder, ".metadata"), ordered: true)
end
