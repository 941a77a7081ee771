defmodule ExTorch.Report.BrowserTest do
  # Opens pages in Chromium and uses them as people do.
  use ExTorch.Case
  alias ExTorch.Test.{Browser, Models}

  @moduletag :tmp_dir
  @moduletag :chromium
  # Chromium is not built with sanitizers, and its processes inherit the environment.
  @moduletag :no_asan

  setup %{tmp_dir: dir} do
    # Without an owner the browser ends, also if a test fails; its files are removed here.
    browser = Browser.start()
    on_exit(fn -> File.rm_rf(browser.directory) end)
    Browser.size(browser, 1300, 900)
    [browser: browser, page: Path.join(dir, "page.html")]
  end

  # Ends the browser. Nothing was logged, no script failed, and only the page itself was requested.
  defp finish(browser, page) do
    events = Browser.events(browser)
    wrong = ["Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled"]
    assert for({method, _} = event <- events, method in wrong, do: event) == []
    urls = for {"Network.requestWillBeSent", %{"request" => %{"url" => url}}} <- events, do: url
    assert Enum.uniq(urls) == ["file://" <> page]
    Browser.stop(browser)
  end

  defp dict(pairs), do: %ExTorch.Python.Dict{pairs: pairs}

  defp model(dir) do
    tied = ExTorch.tensor([1.0, :nan])

    layers =
      for i <- 0..29,
          {name, shape} <- [{"weight", {i + 1, 4}}, {"bias", {i + 1}}],
          do: {"layers.#{i}.#{name}", ExTorch.ones(shape)}

    path = Path.join(dir, "model.pt")
    tensors = [{"embed", ExTorch.zeros({50, 20})}] ++ layers ++ [{"a", tied}, {"b", tied}]
    ExTorch.save!(dict([{"model", dict(tensors)}, {"epoch", 3}]), path)
    path
  end

  defp found(browser), do: Browser.eval(browser, "document.getElementById('found').textContent")

  defp first_names(browser, count \\ 3) do
    browser
    |> Browser.eval("[...document.querySelectorAll('#rows bdi')].map((e) => e.textContent)")
    |> Enum.take(count)
  end

  defp click(browser, selector),
    do: Browser.eval(browser, "document.querySelector(#{inspect(selector)}).click()")

  defp focused(browser, property \\ "id"),
    do: Browser.eval(browser, "document.activeElement.#{property}")

  test "searches, sorts, expands and switches the theme",
       %{browser: browser, page: page} = context do
    ExTorch.report!(model(context.tmp_dir), page)
    Browser.open(browser, page)
    assert found(browser) =~ ~r/^63.tensors$/u
    assert ["model.embed", "model.layers.0.weight" | _] = first_names(browser)

    # the key / goes to the search, and rows are found while typing
    Browser.press(browser, "/")
    assert focused(browser) == "search"
    Browser.type(browser, "LAYERS.1 bias")
    Browser.wait(browser, "document.getElementById('found').textContent.startsWith('11 of')")
    assert ["model.layers.1.bias", "model.layers.10.bias" | _] = first_names(browser)
    Browser.eval(browser, "document.getElementById('search').value = ''")
    Browser.type(browser, "/^model\\.[ab]$/")
    Browser.wait(browser, "document.getElementById('found').textContent.startsWith('2 of')")
    Browser.eval(browser, "document.getElementById('search').select()")
    Browser.type(browser, "/(/")
    Browser.wait(browser, "document.getElementById('search').ariaInvalid === 'true'")
    Browser.eval(browser, "document.getElementById('search').select()")
    Browser.type(browser, "no such name")

    Browser.wait(
      browser,
      "document.querySelector('#rows .none')?.textContent.includes('No tensor')"
    )

    Browser.eval(browser, "document.getElementById('search').select()")
    Browser.type(browser, " ")
    Browser.wait(browser, "document.getElementById('found').textContent.startsWith('63')")
    click(browser, "#bad")
    assert first_names(browser) == ["model.a", "model.b"]
    click(browser, "#bad")

    # sorting: numbers begin with the largest, then the smallest, then the order of the file
    click(browser, "[data-key=bytes] button")
    assert ["model.embed", "model.layers.29.weight" | _] = first_names(browser)

    assert Browser.eval(browser, "document.querySelector('[data-key=bytes]').ariaSort") ==
             "descending"

    click(browser, "[data-key=bytes] button")
    assert ["model.layers.0.bias" | _] = first_names(browser)
    click(browser, "[data-key=bytes] button")
    assert ["model.embed" | _] = first_names(browser)

    # with the keyboard: down, open, the end, which was not drawn before
    Browser.eval(browser, "document.querySelector('#rows [tabindex=\"0\"]').focus()")
    Browser.press(browser, "ArrowDown")
    assert focused(browser, "textContent") == "model.layers.0.weight"
    Browser.press(browser, "Enter")
    Browser.wait(browser, "document.querySelector('#rows .detail svg[role=img]')")
    assert focused(browser, "ariaExpanded") == "true"

    assert Browser.eval(browser, "document.querySelector('#rows .detail').innerText") =~
             "Standard deviation"

    Browser.press(browser, "End")
    assert focused(browser, "textContent") == "model.bNaNshared"
    Browser.press(browser, "Home")
    assert focused(browser, "textContent") == "model.embed"

    # the treemap: open a module, list it, and go back
    Browser.eval(browser, "document.querySelector('#treemap [tabindex=\"0\"]').focus()")
    assert focused(browser, "ariaLabel") =~ ~r/^model: 63.tensors/u
    Browser.press(browser, "ArrowDown")
    assert focused(browser, "ariaLabel") =~ "model."
    click(browser, "#treemap [aria-label^='model.layers:']")
    assert Browser.eval(browser, "document.getElementById('crumbs').innerText") =~ "layers"
    click(browser, "#list")
    assert found(browser) =~ "60 of"
    click(browser, "#module")
    assert found(browser) =~ ~r/^63/
    Browser.eval(browser, "document.querySelector('#treemap button').focus()")
    Browser.press(browser, "Escape")
    refute Browser.eval(browser, "document.getElementById('crumbs').innerText") =~ "layers"

    # the theme follows the system, until the switch is used
    color = "getComputedStyle(document.documentElement).backgroundColor"
    Browser.scheme(browser, "light")

    light =
      Browser.wait(browser, "matchMedia('(prefers-color-scheme: light)').matches && #{color}")

    Browser.scheme(browser, "dark")
    dark = Browser.wait(browser, "matchMedia('(prefers-color-scheme: dark)').matches && #{color}")
    assert dark != light
    Browser.wait(browser, "document.getElementById('theme').ariaPressed === 'true'")
    click(browser, "#theme")
    assert Browser.eval(browser, color) == light
    click(browser, "#theme")
    assert Browser.eval(browser, color) == dark
    finish(browser, page)
  end

  # Text and the background that it is on, as (contrast, text). Transparent backgrounds are those of the parent.
  @contrasts """
  (() => {
    const parse = (c) => { const n = c.match(/[\\d.]+/g).map(Number); return n.length < 4 || n[3] === 1 ? n.slice(0, 3) : null; };
    const light = (rgb) => rgb.map((v) => v / 255).map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
      .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
    const behind = (e) => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); if (c) return c; } };
    const found = [];
    for (const e of document.body.querySelectorAll("*")) {
      const own = [...e.childNodes].filter((n) => n.nodeType === 3).map((n) => n.data.trim()).join("");
      if (!own || !e.checkVisibility() || e.closest(".hidden, script, option, noscript")) continue;
      const [a, b] = [light(parse(getComputedStyle(e).color)), light(behind(e))];
      const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
      if (ratio < 4.5) found.push(own.slice(0, 30) + ": " + ratio.toFixed(2));
    }
    return found;
  })()
  """

  @nameless """
  [...document.querySelectorAll("button, input, select, [role=img]")].filter((e) => e.checkVisibility() &&
    !(e.ariaLabel || e.textContent.trim() || e.labels?.[0]?.textContent.trim())).map((e) => e.outerHTML)
  """

  test "can be read: contrast, and names of what can be used",
       %{browser: browser, page: page} = context do
    ExTorch.report!("test/fixtures/more/module.pt", page)

    for {width, scheme} <- [{1300, "light"}, {500, "dark"}] do
      Browser.size(browser, width, 900)
      Browser.scheme(browser, scheme)
      Browser.open(browser, page)
      click(browser, "#rows .name")
      assert Browser.eval(browser, @contrasts) == []
      assert Browser.eval(browser, @nameless) == []
      # nothing is wider than the window
      assert Browser.eval(browser, "document.documentElement.scrollWidth") <= width

      assert Browser.eval(browser, "document.getElementById('safety').innerText") =~
               "Refused by weights_only"
    end

    assert context.tmp_dir
    finish(browser, page)
  end

  test "hostile names are inert", %{browser: browser, page: page} = context do
    hostile = [
      "</script><script>window.pwned = 1</script>",
      "<img src=x onerror='window.pwned = 1'>",
      "\"><svg onload=window.pwned=1>",
      "'); window.pwned = 1; ('",
      "javascript:window.pwned=1",
      "a\u202Egnp.exe",
      "\0\e[31m\u2028",
      "__proto__.toString",
      "constructor",
      "x.y",
      "x"
    ]

    pairs = for name <- hostile, do: {name, ExTorch.ones({4})}
    values = for name <- hostile, do: {name <> "=", name}
    path = Path.join(context.tmp_dir, "<img src=x onerror='window.pwned = 1'>.pt")
    ExTorch.save!(dict(pairs ++ values), path)
    ExTorch.report!(path, page)
    Browser.open(browser, page)
    assert "</script><script>window.pwned = 1</script>" in first_names(browser, 20)
    # everything that shows names: rows, details, treemap, tip, list of a module
    Browser.eval(
      browser,
      "document.querySelectorAll('#rows .name').forEach((e, i) => document.querySelector(`[data-at=\"${i}\"]`).click())"
    )

    Browser.eval(
      browser,
      "document.querySelectorAll('#treemap button').forEach((e) => e.dispatchEvent(new PointerEvent('pointermove', {bubbles: true})))"
    )

    click(browser, "#treemap button")
    assert Browser.eval(browser, "typeof window.pwned") == "undefined"

    assert Browser.eval(
             browser,
             "document.querySelectorAll('img, iframe, object, svg [onload], script').length"
           ) == 2

    assert Browser.eval(browser, "document.getElementById('title').textContent") =~ "<img src=x"
    # even if markup came in, the policy would stop it
    Browser.eval(
      browser,
      "document.body.insertAdjacentHTML('beforeend', '<b onclick=\"window.pwned = 1\">x</b>'); document.querySelector('b[onclick]').click()"
    )

    assert Browser.eval(browser, "typeof window.pwned") == "undefined"
    # which Chromium logs
    for {"Log.entryAdded", %{"entry" => entry}} <- Browser.events(browser),
        do: assert(entry["text"] =~ "Content Security Policy")

    Browser.stop(browser)
  end

  test "20,000 tensors", %{browser: browser, page: page} = context do
    ExTorch.report!(Models.many(context.tmp_dir, 20_000), page)
    assert File.stat!(page).size < 3_000_000
    Browser.open(browser, page)
    assert found(browser) =~ ~r/^20,000.tensors$/u
    # few elements, whatever the number of tensors
    assert Browser.eval(browser, "document.querySelectorAll('*').length") < 4_000
    Browser.eval(browser, "document.getElementById('table').scrollTop = 1e9")

    Browser.wait(
      browser,
      "[...document.querySelectorAll('#rows bdi')].at(-1).textContent === 'model.layers.49.mlp.experts.99.w3.weight'"
    )

    Browser.press(browser, "/")
    Browser.type(browser, "layers.7. experts.42. w2")

    Browser.wait(
      browser,
      "document.getElementById('found').textContent.startsWith('1 of 20,000')"
    )

    assert first_names(browser) == ["model.layers.7.mlp.experts.42.w2.weight"]
    click(browser, "[data-key=mean] button")
    finish(browser, page)
  end
end
