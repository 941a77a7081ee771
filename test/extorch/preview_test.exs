defmodule ExTorch.PreviewTest do
  # What notebooks show. Kino itself is not needed: it gets this HTML and these rows.
  use ExTorch.Case
  alias ExTorch.{Checkpoint, Preview}
  alias ExTorch.Preview.Picture
  alias ExTorch.Report.Histogram

  @moduletag :tmp_dir

  defp open(term), do: Checkpoint.open!({:binary, saved(term, format: :zip)})

  # The size, and the colours of the pixels from the left to the right and then down.
  defp pixels(tensor) do
    {stats, _} = Histogram.of(tensor)
    {_, width, height, rgb} = Picture.pixels(tensor, stats)
    {width, height, for(<<red, green, blue <- rgb>>, do: {red, green, blue})}
  end

  @tag :torch
  test "heat maps: blue below zero, red above, magenta where there is no number" do
    assert {3, 1, [blue, white, red]} = pixels(ExTorch.tensor([[-2.0, 0.0, 2.0]]))
    assert blue == {33, 102, 172} and white == {247, 247, 247} and red == {178, 24, 43}
    # of one sign: from dark to bright
    assert {2, 2, [{68, 1, 84}, _, {255, 0, 255}, {253, 231, 37}]} =
             pixels(ExTorch.tensor([[1.0, 2.0], [:nan, 3.0]]))

    assert {2, 1, [_, _]} = pixels(ExTorch.tensor([true, false]))
    assert {2, 1, [same, same]} = pixels(ExTorch.tensor([4, 4]))
    # large ones are thinned, long vectors are folded, more dimensions are rows
    assert {125, 100, _} = pixels(ExTorch.ones({300, 500}))
    assert {32, 31, _} = pixels(ExTorch.ones({1000}))
    assert {7, 84, _} = pixels(ExTorch.ones({4, 3, 7, 7}) |> ExTorch.mul(2))
    assert {2, 3, _} = pixels(ExTorch.op("t", [ExTorch.ones({2, 3})]))
  end

  test "images" do
    channels =
      ExTorch.op("stack", [Enum.map([10, 20, 30], &ExTorch.full({9, 8}, &1, dtype: :uint8))])

    assert {8, 9, [{10, 20, 30} | _]} = pixels(channels)
    assert {8, 9, [{10, 20, 30} | _]} = pixels(ExTorch.op("permute", [channels, [1, 2, 0]]))
    assert {8, 8, [{128, 128, 128} | _]} = pixels(ExTorch.full({1, 8, 8}, 0.5))
  end

  test "a PNG that can be read" do
    png = Picture.png(2, 1, <<1, 2, 3, 4, 5, 6>>)

    assert <<137, "PNG\r\n", 26, "\n", 13::32, "IHDR", 2::32, 1::32, 8, 2, 0, 0, 0, _::32,
             rest::binary>> = png

    assert <<size::32, "IDAT", data::binary-size(size), crc::32, 0::32, "IEND", _::32>> = rest
    assert :zlib.uncompress(data) == <<0, 1, 2, 3, 4, 5, 6>>
    assert crc == :erlang.crc32(["IDAT", data])
  end

  @tag :torch
  test "tensors of every kind have a preview" do
    html = Preview.tensor_html(ExTorch.tensor([[1.0, 2.0], [0.0, :nan]]))

    for part <- [
          "float32[2][2]",
          ">max</dt>",
          ">nan</dt>",
          "<img alt=\"Heat map",
          "<svg role=\"img\""
        ],
        do: assert(html =~ part)

    sparse = ExTorch.op("to_sparse", [ExTorch.tensor([[0.0, 3.0]])])
    complex = ExTorch.op("complex", [ExTorch.ones({2}), ExTorch.ones({2})])

    for tensor <- [
          ExTorch.tensor(1),
          ExTorch.zeros({0, 2}),
          ExTorch.tensor([:nan]),
          sparse,
          complex,
          ExTorch.zeros({2}, dtype: :bool)
        ] do
      assert Preview.tensor_html(tensor) =~ "<dl"
    end

    assert Preview.tensor_html(ExTorch.ones({300, 300})) =~ "sampled"
    assert Preview.tensor_html(ExTorch.op("empty", [[2]], device: :meta)) =~ "meta"
    released = ExTorch.ones({2})
    Tensor.release(released)
    assert Preview.tensor_html(released) =~ "released"
  end

  test "checkpoints and entries as rows and HTML; names are text" do
    name = "<b>\"'&\u202E"
    ckpt = open(%{name => ExTorch.ones({2, 3}), "note" => "</pre><script>"})
    assert {[:name, :dtype, :shape, :elements, :bytes | _], [row]} = Preview.table(ckpt)
    assert [shown, "float32", "[2][3]", 6, 24, "tensor", false, "cpu", "0"] = row
    # Elixir 1.18 writes \u202E.
    assert shown =~ ~r/\A"<b>\\"'&\\u\{?202E\}?"\z/
    [entry] = Checkpoint.entries(ckpt)
    assert Preview.table(entry) == Preview.table([entry])

    for html <- [
          Preview.structure_html(ckpt),
          Preview.metadata_html(ckpt),
          Preview.entry_html(entry),
          Preview.treemap_html(ckpt)
        ] do
      refute html =~ "<b>" or html =~ "<script" or html =~ "\u202E"
    end

    assert Preview.structure_html(ckpt) =~ "not tensors:\nnote: &quot;&lt;/pre&gt;"
    assert Preview.metadata_html(ckpt) =~ ":zip"
    assert Preview.treemap_html(ckpt) =~ ~s(sandbox="allow-scripts")
    assert Preview.report_frame(ckpt) =~ "srcdoc="
    Checkpoint.close(ckpt)
  end

  test "diffs and results of stores", %{tmp_dir: dir} do
    [a, b] = for name <- ["a.pt", "b.pt"], do: Path.join(dir, name)
    ExTorch.save!(%{"x" => ExTorch.ones({2}), "y" => ExTorch.ones({1}), "n" => 1}, a)
    ExTorch.save!(%{"x" => ExTorch.zeros({2}), "z" => ExTorch.ones({1}), "n" => 2}, b)
    diff = ExTorch.diff!(a, b)
    assert {[:status, :name, :difference], rows} = Preview.table(diff)
    assert ["only in a", "y", ""] in rows and ["only in b", "z", ""] in rows
    assert ["value", "n", "1 → 2"] in rows
    assert ["changed", "x", "max 1.0" <> _] = hd(rows)
    assert Preview.counts_html(diff) =~ "only in a"

    store = ExTorch.Store.PyTorch.new(a, allow_partial: true)
    module = %{"x" => ExTorch.zeros({3}), "y" => ExTorch.zeros({1}), "w" => ExTorch.zeros({1})}
    {:ok, result} = ExTorch.Store.apply_to(store, module)
    assert {[:status, :name, :note], rows} = Preview.table(result)
    assert [["error", "x", _] | _] = rows
    assert ["missing", "w", _] = Enum.find(rows, &(hd(&1) == "missing"))
    assert ["applied", "y", "-"] in rows
    assert Preview.counts_html(result) =~ "applied"
  end

  test "progress" do
    assert Preview.progress_html(50, 200, 1000) =~ ~s(value="25.0")
    assert Preview.progress_html(50, 200, 1000) =~ "50 B of 200 B, 50 B/s"
    assert Preview.progress_html(0, 0, 0) =~ ~s(value="100")
  end
end
