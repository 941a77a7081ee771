Code.require_file("page_case.exs", __DIR__)

defmodule PhoenixUploadWeb.SharedLiveTest do
  use PhoenixUploadWeb.PageCase

  alias PhoenixUpload.{Demo, Shared}

  setup do
    path = Path.join(System.tmp_dir!(), "phoenix_upload_demo.pt")
    on_exit(fn -> Demo.write!(path) && Shared.reload() end)
    [path: path]
  end

  test "all visitors have the new checkpoint after a reload", %{conn: conn, path: path} do
    views = for _ <- 1..3, do: conn |> live("/shared") |> elem(1)
    generation = Shared.current().generation
    for view <- views, do: assert(render(view) =~ "version #{generation}")

    ExTorch.save!(%{"new" => ExTorch.tensor([1.0, 2.0])}, path)
    [first | others] = views
    first |> element("button", "Reload the file") |> render_click()

    for view <- views do
      html = render(view)
      assert html =~ "version #{generation + 1}"
      assert has_element?(view, "button.tensor", "new")
    end

    view = hd(others)
    view |> element("button.tensor", "new") |> render_click()
    assert render_async(view) =~ "1.5"
    assert first |> element("button", "Reload the file") |> render_click() =~ "has not changed"
  end

  test "a file that cannot be read does not replace the checkpoint", %{conn: conn, path: path} do
    {:ok, view, _html} = live(conn, "/shared")
    File.write!(path <> ".new", "not a checkpoint")
    File.rename!(path <> ".new", path)
    html = view |> element("button", "Reload the file") |> render_click()
    assert html =~ "This checkpoint cannot be read."
    assert html =~ "The last version is still there."
    refute html =~ System.tmp_dir!()
    view |> element("button.module", "model") |> render_click()
    view |> form("form.search", query: "head") |> render_change()
    view |> element("button.tensor", "head") |> render_click()
    assert render_async(view) =~ "Standard deviation"
  end

  test "the owner is started again after a crash, and visitors do not see it", %{conn: conn} do
    {:ok, view, _html} = live(conn, "/shared")
    Process.exit(Process.whereis(Shared), :kill)
    assert Shared.current() != nil
    view |> form("form.search", query: "embedding") |> render_change()
    view |> element("button.tensor", "embedding") |> render_click()
    assert render_async(view) =~ "Standard deviation"
    assert wait_until(fn -> is_pid(Process.whereis(Shared)) end)
  end
end
