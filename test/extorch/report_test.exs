defmodule ExTorch.ReportTest do
  # The page as text: what it contains, and that nothing of a file can become markup. report/browser_test.exs opens it.
  use ExTorch.Case

  alias ExTorch.Report
  alias ExTorch.Tensor.Sample

  @moduletag :tmp_dir

  defp data(page) do
    [_, json] = Regex.run(~r{<script type="application/json" id="data">(.*)</script>}U, page)
    Error.unwrap!(ExTorch.JSON.parse(json))
  end

  defp report(source, opts \\ []), do: source |> Report.html!(opts) |> data()

  # The names, which are stored as what they share with the name before and the rest.
  defp names(data) do
    {names, _} =
      data["names"]
      |> Enum.chunk_every(2)
      |> Enum.map_reduce("", fn [shared, rest], before ->
        name = binary_part(before, 0, shared) <> rest
        {name, name}
      end)

    names
  end

  defp saved!(term, dir, name \\ "model.pt", opts \\ []) do
    path = Path.join(dir, name)
    ExTorch.save!(term, path, opts)
    path
  end

  defp dict(pairs), do: %ExTorch.Python.Dict{pairs: pairs}

  test "tensors, what is shared, what is not a tensor, statistics", %{tmp_dir: dir} do
    tied = ExTorch.tensor([1.0, 2.0, :nan, :infinity, 0.0])

    path =
      saved!(
        dict([
          {"enc", dict([{"w", ExTorch.tensor([[1, 2], [3, 4]])}, {"é.b", tied}])},
          {"head", tied},
          {"epoch", 3},
          {"note", "x<y"}
        ]),
        dir
      )

    data = report(path)
    assert names(data) == ["enc.w", "enc.é.b", "head"]
    assert data["title"] == "model.pt"
    assert Enum.map(data["dtype"], &Enum.at(data["dtypes"], &1)) == ~w(int64 float32 float32)
    assert Enum.map(data["shape"], &Enum.at(data["shapes"], &1)) == [[2, 2], [5], [5]]
    assert data["bytes"] == [32, 20, 20]
    assert {data["shared"], data["again"]} == {[[1, 2]], [2]}
    assert data["values"] == [["epoch", "3"], ["note", ~s("x<y")]]
    assert data["state"] == "eee"

    assert {data["min"], data["max"], data["mean"]} ==
             {[1.0, 0.0, 0.0], [4.0, 2.0, 2.0], [2.5, 1.0, 1.0]}

    assert data["nan"] == %{"1" => 1, "2" => 1} and data["infinite"] == data["nan"]
    assert data["zeros"] == %{"1" => 1, "2" => 1}
    assert byte_size(data["histogram"]) == 3 * data["bins"]
    assert %{"verdict" => "safe", "names" => []} = data["safety"]
    assert report(path, stats: :none)["state"] == "ooo"
    # from an open checkpoint, a binary, and a stream format
    ckpt = ExTorch.Checkpoint.open!(path)
    assert report(ckpt) == data
    assert report({:binary, File.read!(path)})["histogram"] == data["histogram"]
    ExTorch.Checkpoint.close(ckpt)
  end

  test "safety, and formats without code", %{tmp_dir: dir} do
    data = report("test/fixtures/more/module.pt")
    assert %{"verdict" => "refused", "names" => names, "message" => message} = data["safety"]
    assert "torch.nn.modules.linear.Linear" in names
    assert message =~ "torch.nn"
    path = saved!(%{"w" => ExTorch.ones({2})}, dir, "m.safetensors", metadata: %{"by" => "me"})
    data = report(path)
    assert data["safety"]["verdict"] == "data"
    assert data["metadata"] == [["by", ~s("me")]]
  end

  test "large tensors are sampled, and their statistics are close to those of all values", %{
    tmp_dir: dir
  } do
    large = ExTorch.op("arange", [0.0, 300_000.0])
    turned = ExTorch.op("t", [Tensor.reshape(large, {500, 600})])
    wide = ExTorch.op("expand", [ExTorch.tensor([7.0]), [200_000]])
    path = saved!(dict([{"large", large}, {"turned", turned}, {"wide", wide}]), dir)
    data = report(path)
    assert data["state"] == "sss"
    for {_, n} <- data["sampled"], do: assert(n in 1_000..131_072)
    [mean, turned_mean, wide_mean] = data["mean"]
    assert_in_delta mean, 150_000, 3_000
    assert_in_delta turned_mean, 150_000, 3_000
    assert wide_mean == 7.0
    data = report(path, stats: :all)
    assert data["state"] == "eee"
    assert [150_000.0, 150_000.0, 7.0] == data["mean"]
    # a view: the memory is that of the tensor
    view = Sample.view(large, 1_000)
    assert Tensor.numel(view) <= 2_048 and Blob.to_blob(view).ptr == Blob.to_blob(large).ptr
  end

  test "shards, folders and damaged tensors", %{tmp_dir: dir} do
    path = saved!(%{"a" => ExTorch.ones({1000}), "b" => ExTorch.ones({1000})}, dir)
    folder = Path.join(dir, "shards")
    File.mkdir!(folder)
    ExTorch.convert!(path, folder, max_shard_size: 5_000)
    data = report(folder)
    assert {data["shards"], Enum.sort(names(data)), data["title"]} == {2, ["a", "b"], "shards"}
    assert data["shared"] == []
    bytes = File.read!(path)
    {at, _} = :binary.match(bytes, <<1.0::float-32-little, 1.0::float-32-little>>)
    File.write!(path, flip_bit(bytes, at, 3))
    data = report(path, verify: true)
    assert data["state"] |> String.graphemes() |> Enum.sort() == ["e", "x"]
    assert [message] = Map.values(data["errors"])
    assert message =~ "checksum"
    assert {:error, %Error{reason: :not_found}} = Report.html(Path.join(dir, "none"))
    assert reason(fn -> Report.html(path, stats: :some) end) == :bad_argument
  end

  test "numbers at the limits of float64", %{tmp_dir: dir} do
    path =
      saved!(
        dict([
          {"wide", ExTorch.tensor([1.7e308, -1.7e308], dtype: :float64)},
          {"large", ExTorch.tensor([1.0e200, 1.0e200], dtype: :float64)},
          {"far", ExTorch.tensor([1.0e160, -1.0e160], dtype: :float64)},
          {"small", ExTorch.tensor([5.0e-324, 0.0], dtype: :float64)},
          {"int", ExTorch.tensor([2 ** 63 - 1, -(2 ** 63)])}
        ]),
        dir
      )

    data = report(path)

    assert {data["state"], data["max"]} ==
             {"eeeee", [1.7e308, 1.0e200, 1.0e160, 5.0e-324, 9.223e18]}

    assert [nil, 1.0e200, _, _, _] = data["mean"]

    for name <- ["wide", "large", "far", "small", "int"] do
      assert ExUnit.CaptureIO.capture_io(fn ->
               assert ExTorch.CLI.run(["show", path, name]) == 0
             end) =~ ~r/█ [12]\n/

      assert ExTorch.Preview.tensor_html(ExTorch.load!(path)[name]) =~ "<svg"
    end
  end

  test "every fixture has a report, and its tensors a preview" do
    files = Path.wildcard("test/fixtures/{*,more}/*.{pt,ptl,pkl,npy,npz,safetensors,gz}")
    assert length(files) > 80

    for file <- Enum.uniq(files), {:ok, page} <- [Report.html(file)] do
      data = data(page)
      refute data["state"] =~ "x", file
      assert String.length(data["state"]) == length(data["bytes"])
      ckpt = ExTorch.Checkpoint.open!(file)

      for html <- [ExTorch.Preview.structure_html(ckpt), ExTorch.Preview.treemap_html(ckpt)],
          do: assert(is_binary(html))

      for {_, %Tensor{} = tensor} <- ExTorch.Checkpoint.stream(ckpt, only: &known?(ckpt, &1)),
          do: assert(ExTorch.Preview.tensor_html(tensor) =~ "<dl")

      ExTorch.Checkpoint.close(ckpt)
    end
  end

  # Whether the linked LibTorch has the dtype, and the name is one tensor's.
  defp known?(ckpt, name), do: match?({:ok, _}, ExTorch.Checkpoint.tensor(ckpt, name))

  @hostile [
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "<img src=x onerror=alert(1)>",
    ~s("'`><b>&lt;),
    "a\u202Eb\u2066c",
    "\e[31m\0\n\r\u2028\u2029",
    "__proto__",
    "constructor.prototype.x",
    "{{script}}{{data}}",
    "$& $' \\u003c"
  ]

  test "names are text", %{tmp_dir: dir} do
    pairs = for name <- @hostile, do: {name, ExTorch.ones({2})}
    values = for name <- @hostile, do: {name <> "!", name}
    path = saved!(dict(pairs ++ values), dir, "<b>&'\".pt")
    page = Report.html!(path)
    # the elements of the page, and nothing else
    assert length(Regex.scan(~r/<script/, page)) == 2
    assert length(Regex.scan(~r{</script}, page)) == 2
    refute page =~ "<img" or page =~ "<b>" or page =~ "<!--"
    assert page =~ "<title>&lt;b&gt;&amp;&#39;&quot;.pt</title>"
    # no character that controls anything
    refute page =~
             ~r/[\x{202A}-\x{202E}\x{2066}-\x{2069}\x{2028}\x{2029}\x{0}-\x{8}\x{B}-\x{1F}]/u

    assert page =~ "default-src 'none'; script-src 'sha256-"
    refute page =~ "unsafe-inline"
    data = data(page)
    assert "</script><script>alert(1)</script>" in names(data)
    assert "{{script}}{{data}}" in names(data)
    assert length(data["values"]) == length(@hostile)
  end

  test "long names are cut", %{tmp_dir: dir} do
    path = Path.join(dir, "long.pt")
    name = String.duplicate("a.", 5_000) <> String.duplicate("ü", 5_000)
    ExTorch.save!(dict([{name, ExTorch.ones({1})}]), path)
    assert [long] = names(report(path))
    assert String.length(long) < 1_100
  end

  test "a tensor takes less than 150 bytes", %{tmp_dir: dir} do
    size = &byte_size(Report.html!(ExTorch.Test.Models.many(dir, &1)))
    assert size.(2_000) - size.(1_000) < 150_000
  end

  test "the command", %{tmp_dir: dir} do
    import ExUnit.CaptureIO
    path = saved!(%{"w" => ExTorch.ones({2})}, dir)
    output = Path.join(dir, "page.html")

    assert capture_io(fn -> assert ExTorch.CLI.run(["report", path, "-o", output]) == 0 end) ==
             output <> "\n"

    assert File.read!(output) == Report.html!(path)

    assert capture_io(fn -> ExTorch.CLI.run(["report", path, "-o", "-"]) end) ==
             Report.html!(path)

    json = capture_io(fn -> ExTorch.CLI.run(["report", path, "-o", output, "--json"]) end)

    assert Error.unwrap!(ExTorch.JSON.parse(json)) == %{
             "path" => output,
             "bytes" => File.stat!(output).size
           }

    File.cd!(dir, fn -> capture_io(fn -> assert ExTorch.CLI.run(["report", path]) == 0 end) end)
    assert File.exists?(Path.join(dir, "model.pt.html"))

    for args <- [
          ["report"],
          ["report", path, "--stats", "x"],
          ["report", path <> "x", "-o", output],
          ["report", path, "-o", dir <> "/no/x"]
        ] do
      assert capture_io(:stderr, fn -> assert ExTorch.CLI.run(args) == 2 end) != ""
    end
  end
end
