Code.require_file("page_case.exs", __DIR__)

defmodule PhoenixUploadWeb.BrowserTest do
  # The pages in Chromium, as people use them. With SCREENSHOTS=directory, pictures of them are kept there.
  use PhoenixUploadWeb.PageCase

  alias ExTorch.Test.Browser
  alias PhoenixUpload.Demo

  @moduletag :chromium
  @moduletag timeout: 180_000

  setup do
    browser = Browser.start()
    on_exit(fn -> File.rm_rf(browser.directory) end)
    Browser.size(browser, 1100, 900)
    {:ok, {_, port}} = PhoenixUploadWeb.Endpoint.server_info(:http)
    dir = Path.join(System.tmp_dir!(), "phoenix_upload_#{System.unique_integer([:positive])}")
    File.mkdir_p!(dir)
    on_exit(fn -> File.rm_rf(dir) end)
    [browser: browser, url: "http://localhost:#{port}", dir: dir]
  end

  defp visit(browser, url) do
    {:ok, _} = Browser.call(browser, "Page.navigate", %{url: url})
    Browser.wait(browser, "document.querySelector('.phx-connected') !== null")
  end

  defp text(browser, selector),
    do: Browser.eval(browser, "document.querySelector(#{inspect(selector)})?.innerText ?? ''")

  defp click(browser, selector),
    do: Browser.eval(browser, "document.querySelector(#{inspect(selector)}).click()")

  defp wait_text(browser, selector, part) do
    Browser.wait(
      browser,
      "(document.querySelector(#{inspect(selector)})?.innerText ?? '').includes(#{inspect(part)})"
    )
  end

  # Some tensors are complete, and others are not.
  defp wait_parsed(browser) do
    Browser.wait(
      browser,
      "/[1-9]\\d* tensors complete/.test(document.querySelector('#progress .note')?.innerText ?? '')"
    )
  end

  defp choose(browser, paths) do
    {:ok, %{"root" => %{"nodeId" => root}}} = Browser.call(browser, "DOM.getDocument")
    selector = %{nodeId: root, selector: "input[type=file]"}
    {:ok, %{"nodeId" => node}} = Browser.call(browser, "DOM.querySelector", selector)

    {:ok, _} =
      Browser.call(browser, "DOM.setFileInputFiles", %{nodeId: node, files: List.wrap(paths)})
  end

  defp drop(browser, paths) do
    %{"x" => x, "y" => y} =
      Browser.eval(
        browser,
        "(() => { const r = document.querySelector('.drop').getBoundingClientRect(); return {x: r.x + r.width / 2, y: r.y + r.height / 2} })()"
      )

    data = %{items: [], files: List.wrap(paths), dragOperationsMask: 1}

    for type <- ~w(dragEnter dragOver drop) do
      {:ok, _} =
        Browser.call(browser, "Input.dispatchDragEvent", %{type: type, x: x, y: y, data: data})
    end
  end

  defp picture(browser, name, {width, height} \\ {1100, 900}) do
    if dir = System.get_env("SCREENSHOTS") do
      Browser.size(browser, width, height)

      for scheme <- ~w(light dark) do
        Browser.scheme(browser, scheme)
        Process.sleep(150)
        Browser.screenshot(browser, Path.join(dir, "#{name}_#{scheme}.png"))
      end

      Browser.scheme(browser, "light")
    end
  end

  # A slow connection, so that an upload can be looked at.
  defp throttle(browser, bytes_per_second) do
    limits = %{
      offline: false,
      latency: 0,
      downloadThroughput: -1,
      uploadThroughput: bytes_per_second
    }

    {:ok, _} = Browser.call(browser, "Network.emulateNetworkConditions", limits)
  end

  # Nothing was logged, no script failed, and nothing but this server was asked.
  defp finish(browser, url) do
    events = Browser.events(browser)

    # LiveView itself logs what it does if the host is localhost.
    wrong =
      for {method, params} <- events,
          method in ["Log.entryAdded", "Runtime.exceptionThrown"] or
            (method == "Runtime.consoleAPICalled" and params["type"] in ["error", "warning"]),
          do: inspect({method, Map.delete(params, "stackTrace")}, limit: 30)

    assert wrong == []
    urls = for {"Network.requestWillBeSent", %{"request" => %{"url" => url}}} <- events, do: url
    assert urls != []
    for requested <- urls, do: assert(String.starts_with?(requested, [url, "data:"]))
    Browser.stop(browser)
  end

  test "a file is dropped, parsed, browsed with the keyboard, and closed", context do
    %{browser: browser, url: url, dir: dir} = context
    path = Path.join(dir, "tiny-llm.pt")
    ExTorch.save!(Demo.checkpoint(8), path)
    visit(browser, url)
    assert text(browser, "h1") == "Look into a checkpoint"
    picture(browser, "phoenix_start")

    drop(browser, path)
    wait_text(browser, "#contents h2", "tiny-llm.pt")
    assert text(browser, ".figures") =~ "58"
    picture(browser, "phoenix_contents")

    # with the keyboard: a module, a tensor, and back
    Browser.eval(browser, "document.querySelector('button.module').focus()")
    Browser.press(browser, "Enter")
    wait_text(browser, ".crumbs", "model")
    Browser.eval(browser, "document.querySelector('#contents input[type=search]').focus()")
    Browser.type(browser, "blocks.0 output")
    wait_text(browser, ".search .note", "1 tensor")
    Browser.eval(browser, "document.querySelector('button.tensor').focus()")
    Browser.press(browser, "Enter")
    wait_text(browser, ".tensor-detail", "Standard deviation")
    assert Browser.eval(browser, "document.activeElement.ariaExpanded") == "true"
    assert Browser.eval(browser, "document.querySelectorAll('.histogram rect').length") > 5
    Browser.eval(browser, "window.scrollTo(0, 0)")
    picture(browser, "phoenix_tensor")

    click(browser, "#contents .bar button")
    Browser.wait(browser, "document.querySelector('#contents') === null")
    finish(browser, url)
  end

  test "an upload can be watched and canceled; errors are said; a wrong drop does nothing",
       context do
    %{browser: browser, url: url, dir: dir} = context
    path = Path.join(dir, "tiny-llm.pt")
    ExTorch.save!(Demo.checkpoint(8), path)
    visit(browser, url)
    throttle(browser, 1_000_000)
    choose(browser, path)
    wait_parsed(browser)
    picture(browser, "phoenix_progress", {1100, 730})
    click(browser, "#progress button")
    Browser.wait(browser, "document.querySelector('#progress') === null")
    throttle(browser, -1)

    content = File.read!(path)
    half = Path.join(dir, "cut.pt")
    File.write!(half, binary_part(content, 0, div(byte_size(content), 2)))
    choose(browser, half)
    wait_text(browser, "#errors", "This checkpoint cannot be read.")
    assert Browser.eval(browser, "document.querySelector('#errors').role") == "alert"
    refute text(browser, "#errors") =~ dir
    picture(browser, "phoenix_error")

    empty = Path.join(dir, "empty.pt")
    File.write!(empty, "")
    choose(browser, empty)
    wait_text(browser, "#errors", "The file is empty.")

    other = Path.join(dir, "program.exe")
    File.write!(other, "MZ")
    choose(browser, other)
    wait_text(browser, "#errors", "not accepted")

    huge = Path.join(dir, "huge.pt")
    {:ok, file} = :file.open(huge, [:write, :raw])
    {:ok, _} = :file.position(file, 60_000_000)
    :ok = :file.write(file, "x")
    :ok = :file.close(file)
    choose(browser, huge)
    wait_text(browser, "#errors", "too large")

    drop(browser, [path, half])
    wait_text(browser, "#errors", "Choose one file at a time.")
    click(browser, "#errors button")
    Browser.wait(browser, "document.querySelector('#errors').innerText === ''")

    # the page is as before, and the next file is read
    choose(browser, path)
    wait_text(browser, "#contents h2", "tiny-llm.pt")
    assert text(browser, "#errors") == ""
    finish(browser, url)
  end

  test "a visitor who closes the page in the middle leaves nothing", context do
    %{browser: browser, url: url, dir: dir, before: before} = context
    path = Path.join(dir, "tiny-llm.pt")
    ExTorch.save!(Demo.checkpoint(8), path)
    visit(browser, url)
    throttle(browser, 1_000_000)
    choose(browser, path)
    wait_parsed(browser)
    assert live().bytes > before.bytes
    {:ok, _} = Browser.call(browser, "Page.navigate", %{url: "about:blank"})
    assert wait_until(fn -> live() == before end)
    finish(browser, url)
  end

  test "the shared checkpoint, in two windows", context do
    %{browser: browser, url: url} = context
    visit(browser, url <> "/shared")
    wait_text(browser, "#contents h2", "phoenix_upload_demo.pt")
    click(browser, "button.module")
    wait_text(browser, ".crumbs", "model")
    picture(browser, "phoenix_shared")

    # another visitor reloads a new file
    Demo.write!()
    {:ok, other, _html} = live(context.conn, "/shared")
    other |> element("button", "Reload the file") |> render_click()
    wait_text(browser, "#said", "The checkpoint was reloaded")
    # this visitor is still in the same module
    assert text(browser, ".crumbs") =~ "model"

    click(browser, "nav a[href='/']")
    wait_text(browser, "h1", "Look into a checkpoint")
    finish(browser, url)
  end

  test "labels, languages and names for screen readers, on a narrow screen, too", context do
    %{browser: browser, url: url} = context
    Browser.size(browser, 380, 800)

    for page <- ["/", "/shared"] do
      visit(browser, url <> page)

      unnamed =
        Browser.eval(browser, """
        [...document.querySelectorAll('button, a, input:not([type=hidden])')]
          .filter((e) => !(e.innerText?.trim() || e.ariaLabel || e.labels?.[0]?.innerText.trim()))
          .map((e) => e.outerHTML)
        """)

      assert unnamed == []
      assert Browser.eval(browser, "document.documentElement.lang") == "en"
      assert Browser.eval(browser, "document.querySelectorAll('h1').length") == 1
      assert Browser.eval(browser, "document.documentElement.scrollWidth <= innerWidth"), page
      picture(browser, "phoenix_narrow_#{String.trim(page, "/")}", {380, 800})
    end

    # the first stop of the keyboard leads to the content
    visit(browser, url)
    Browser.press(browser, "Tab")
    assert Browser.eval(browser, "document.activeElement.className") == "skip"
    finish(browser, url)
  end
end
