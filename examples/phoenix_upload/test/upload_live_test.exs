Code.require_file("page_case.exs", __DIR__)

defmodule PhoenixUploadWeb.UploadLiveTest do
  use PhoenixUploadWeb.PageCase

  defp open(conn) do
    {:ok, view, _html} = live(conn, "/")
    view
  end

  defp input(view, files), do: file_input(view, "#upload", :checkpoint, files)

  defp upload(view, name, content, percent \\ 100) do
    input = input(view, [file(name, content)])
    {render_upload(input, name, percent), input}
  end

  defp error(view), do: view |> element("#errors") |> render()

  test "is parsed while it is uploaded, browsed and closed", %{conn: conn, before: before} do
    view = open(conn)
    content = model()
    {_, input} = upload(view, "model.pt", content, 60)
    html = render(view)
    assert html =~ ~r/60 % of/
    [_, complete] = Regex.run(~r/(\d+) tensors complete/, html)
    assert String.to_integer(complete) in 1..29
    assert html =~ "model.blocks.0.mlp.up.bias"

    render_upload(input, "model.pt", 40)
    html = render(view)
    assert html =~ "<dd>30</dd>"
    assert html =~ "model.pt was read: 30 tensors."
    assert html =~ "What is not a tensor"
    assert html =~ "1.8742"
    refute has_element?(view, "#progress")

    # the modules
    view |> element("button.module", "model") |> render_click()
    assert has_element?(view, "button.module", "blocks")
    view |> element("button.module", "blocks") |> render_click()
    view |> element("button.module", "3") |> render_click()
    view |> element("button.module", "mlp") |> render_click()
    view |> element("button.module", "up") |> render_click()
    view |> element("button.tensor", "bias") |> render_click()
    html = render_async(view)
    assert html =~ "Standard deviation"
    assert html =~ "Histogram of the values"
    assert has_element?(view, "button.tensor[aria-expanded=true]")
    view |> element("button.tensor", "bias") |> render_click()
    refute has_element?(view, "tr.detail")
    view |> element(".crumbs button", "blocks") |> render_click()
    assert has_element?(view, "button.module", "0")

    # search and order
    html = view |> form("form.search", query: "NORM 2") |> render_change()
    assert html =~ "1 tensor"
    assert has_element?(view, "button.tensor", "model.blocks.2.norm.weight")

    assert view |> form("form.search", query: "none such") |> render_change() =~
             "No tensor has such a name"

    view |> form("form.search", query: "weight") |> render_change()
    html = view |> element("thead button", "Size") |> render_click()
    assert html =~ ~s(aria-sort="descending")
    [first | _] = Regex.run(~r/<bdi>(model\.[^<]*weight)</, html, capture: :all_but_first)
    assert first == "model.embedding.weight"

    # freed without waiting for the visitor to leave
    view |> element("button", "Close") |> render_click()
    refute has_element?(view, "#contents")
    assert wait_until(fn -> live() == before end)
  end

  test "errors in words, and another attempt", %{conn: conn} do
    content = model()
    half = binary_part(content, 0, div(byte_size(content), 2))

    damaged =
      binary_part(content, 0, 300_000) <>
        <<7, 7, 7>> <> binary_part(content, 300_003, byte_size(content) - 300_003)

    page = "<html>" <> String.duplicate(" ", 5000)
    view = open(conn)

    for {name, content, expected} <- [
          {"cut.pt", half, ~r/This checkpoint cannot be read\. .*(ends|incomplete|bytes)/},
          {"damaged.pt", damaged, ~r/This checkpoint cannot be read\. .*checksum/i},
          {"page.pt", page, ~r/This checkpoint cannot be read\. .*HTML/},
          {"bomb.pt.gz", :zlib.gzip(String.duplicate("x", 1_000_000)),
           ~r/This checkpoint cannot be read/},
          {"cut.gz", binary_part(:zlib.gzip(content), 0, 10_000),
           ~r/This checkpoint cannot be read/}
        ] do
      upload(view, name, content)
      html = error(view)
      assert html =~ expected, name
      assert html =~ ~s(role="alert")
      # neither paths of this machine nor code
      refute html =~ ~r{/tmp|/home|/src|#PID|%ExTorch|lib/}
      refute has_element?(view, "#progress")
      refute has_element?(view, "#contents")
    end

    view |> element("#errors button", "Dismiss") |> render_click()
    refute has_element?(view, "#errors .error")
    upload(view, "good.pt", content)
    assert has_element?(view, "#contents h2", "good.pt")
    refute has_element?(view, "#errors .error")
  end

  # A pickle that would run a command in Python.
  @hostile "\x80\x02cposix\nsystem\nq\x00X\x07\x00\x00\x00echo hiq\x01\x85q\x02Rq\x03."

  test "a hostile pickle is inert data, or refused by strict", %{conn: conn} do
    view = open(conn)
    upload(view, "hostile.pkl", @hostile)
    assert has_element?(view, "#contents")
    assert render(view) =~ "There are no tensors in this checkpoint."
    assert render(view) =~ "posix"

    view |> form("#upload", %{strict: "true", verify: "true"}) |> render_change()
    upload(view, "hostile.pkl", @hostile)
    assert error(view) =~ "posix.system"
    refute has_element?(view, "#contents")
  end

  test "names in a file are text", %{conn: conn} do
    view = open(conn)

    upload(
      view,
      "<script>.pt",
      saved(%{"<img src=x onerror=1>" => ExTorch.ones({2}), "<b>" => "<i>"})
    )

    html = render(view)
    assert html =~ "&lt;img src=x onerror=1&gt;"
    assert html =~ "&lt;script&gt;.pt"
    refute html =~ "<img src"
    refute html =~ "<i>"
  end

  test "files that are refused before they are sent", %{conn: conn} do
    view = open(conn)
    big = file("big.pt", String.duplicate("x", 50_000_001))
    view |> input([big]) |> preflight_upload()
    assert error(view) =~ "The file is too large: at most 50.0 MB are accepted."

    view = open(conn)

    view
    |> input([%{file("a.exe", "MZ") | type: "application/x-msdownload"}])
    |> preflight_upload()

    assert error(view) =~ "This type of file is not accepted"

    view = open(conn)
    two = [file("a.pt", "a"), file("b.pt", "b")]
    view |> input(two) |> preflight_upload()
    assert error(view) =~ "Choose one file at a time."
    refute has_element?(view, "#progress")
  end

  test "an empty file", %{conn: conn} do
    view = open(conn)
    event = %{"_target" => ["checkpoint"], "empty" => "true", "verify" => "true"}
    view |> element("#upload") |> render_change(event)
    assert error(view) =~ "The file is empty."
    refute has_element?(view, "#progress")
    upload(view, "good.pt", model())
    assert has_element?(view, "#contents h2", "good.pt")
    refute has_element?(view, "#errors .error")
  end

  test "a cancel in the middle leaves nothing", %{conn: conn, before: before} do
    view = open(conn)
    upload(view, "model.pt", model(), 50)
    assert live().bytes > before.bytes
    view |> element("#progress button", "Cancel") |> render_click()
    refute has_element?(view, "#progress")
    refute has_element?(view, "#errors .error")
    assert wait_until(fn -> live() == before end)
    upload(view, "again.pt", model())
    assert has_element?(view, "#contents h2", "again.pt")
  end

  test "a visitor who leaves in the middle leaves nothing", %{conn: conn, before: before} do
    Process.flag(:trap_exit, true)
    view = open(conn)
    upload(view, "model.pt", model(), 50)
    assert live().bytes > before.bytes
    Process.exit(view.pid, :kill)
    assert wait_until(fn -> live() == before end)
  end

  test "a visitor whose connection stalls is told", %{conn: conn, before: before} do
    view = open(conn)
    {_, input} = upload(view, "model.pt", model(), 50)
    [channel] = input |> Phoenix.LiveViewTest.UploadClient.channel_pids() |> Map.values()
    send(channel, :chunk_timeout)
    assert wait_until(fn -> not Process.alive?(channel) end)
    assert error(view) =~ "The upload was interrupted. Choose the file again."
    refute has_element?(view, "#progress")
    assert wait_until(fn -> live() == before end)
  end

  test "twenty thousand tensors", %{conn: conn} do
    view = open(conn)
    one = ExTorch.ones({4})
    pairs = for i <- 1..20_000, do: {"layers.#{rem(i, 40)}.#{i}.weight", one}
    content = saved(%ExTorch.Python.Dict{pairs: pairs})
    upload(view, "many.pt", content)
    html = render(view)
    view |> form("form.search", query: "weight") |> render_change()
    assert html =~ "<dd>20000</dd>"
    assert render(view) =~ "Show more (19900 left)"
  end

  test "two visitors at once", %{conn: conn} do
    [a, b] = [open(conn), open(conn)]
    {_, input_a} = upload(a, "a.pt", model(), 40)
    {_, input_b} = upload(b, "b.pt", saved(%{"only" => ExTorch.ones({300_000})}), 40)
    render_upload(input_a, "a.pt", 60)
    render_upload(input_b, "b.pt", 60)
    assert has_element?(a, "#contents h2", "a.pt")
    assert has_element?(b, "#contents h2", "b.pt")
    assert render(b) =~ "only"
    refute render(b) =~ "blocks"
  end

  test "gzip", %{conn: conn} do
    view = open(conn)
    upload(view, "model.pt.gz", :zlib.gzip(model()))
    assert has_element?(view, "#contents h2", "model.pt.gz")
    assert render(view) =~ "<dd>30</dd>"
  end

  test "every kind of tensor has a description", %{conn: conn} do
    view = open(conn)

    tensors = %{
      "scalar" => ExTorch.tensor(3),
      "empty" => ExTorch.zeros({0, 4}),
      "bool" => ExTorch.tensor([true, false]),
      "nan" => ExTorch.tensor([:nan, :infinity]),
      "complex" => ExTorch.op("complex", [ExTorch.ones({2}), ExTorch.ones({2})]),
      "cube" => ExTorch.ones({3, 4, 5, 6}),
      "half" => ExTorch.ones({2, 2}, dtype: :bfloat16),
      "sparse" => ExTorch.op("to_sparse", [ExTorch.ones({2, 2})])
    }

    upload(view, "kinds.pt", saved(tensors))

    for name <- Map.keys(tensors) do
      view |> element("button.tensor", name) |> render_click()
      html = render_async(view)
      assert has_element?(view, ".tensor-detail"), name <> html
    end
  end
end
