defmodule ExTorch.Test.Browser do
  @moduledoc false
  # Drives headless Chromium through the DevTools protocol, over the pipe of --remote-debugging-pipe: messages are JSON,
  # and each ends in a zero byte.

  import ExUnit.Assertions

  alias ExTorch.CLI.JSON

  @timeout 60_000

  defstruct [:port, :session, :directory]

  def executable do
    Enum.find_value(["chromium", "chromium-browser", "google-chrome"], &System.find_executable/1)
  end

  def available?, do: executable() != nil

  # The browser reads its commands from descriptor 3 and writes to 4. It ends when they are closed.
  def start do
    directory =
      Path.join(System.tmp_dir!(), "extorch_browser_#{System.unique_integer([:positive])}")

    File.mkdir_p!(directory)

    arguments =
      ~w(--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --disable-extensions
         --disable-background-networking --disable-component-update --disable-sync --mute-audio --hide-scrollbars
         --remote-debugging-pipe --user-data-dir=#{directory} about:blank)

    script = ~s(exec "$@" 3<&0 4>&1 </dev/null >/dev/null 2>"#{directory}/log")

    port =
      Port.open({:spawn_executable, System.find_executable("sh")}, [
        :binary,
        :exit_status,
        args: ["-c", script, "sh", executable() | arguments],
        env: [{~c"HOME", String.to_charlist(directory)}, {~c"LD_PRELOAD", false}]
      ])

    browser = %__MODULE__{port: port, directory: directory}
    {:ok, %{"targetId" => target}} = call(browser, "Target.createTarget", %{url: "about:blank"})

    {:ok, %{"sessionId" => session}} =
      call(browser, "Target.attachToTarget", %{targetId: target, flatten: true})

    browser = %{browser | session: session}
    for domain <- ~w(Page Runtime Log Network), do: {:ok, _} = call(browser, domain <> ".enable")
    browser
  end

  def stop(browser) do
    call(browser, "Browser.close")
    receive_exit(browser)
    File.rm_rf(browser.directory)
  end

  defp receive_exit(%{port: port}) do
    receive do
      {^port, {:exit_status, _}} -> :ok
      {^port, {:data, _}} -> receive_exit(%{port: port})
    after
      @timeout -> Port.close(port)
    end
  end

  # Sends a command and waits for its answer. Events are kept until errors/1 asks for them.
  def call(browser, method, params \\ %{}) do
    id = System.unique_integer([:positive])
    message = %{id: id, method: method, params: params}
    message = if browser.session, do: Map.put(message, :sessionId, browser.session), else: message
    Port.command(browser.port, [JSON.encode(message), 0])
    answer(browser, id)
  end

  defp answer(browser, id) do
    case next(browser) do
      %{"id" => ^id, "result" => result} -> {:ok, result}
      %{"id" => ^id, "error" => error} -> {:error, error}
      %{"method" => method} = event -> keep(browser, method, event, id)
      _other -> answer(browser, id)
    end
  end

  defp keep(browser, method, event, id) do
    send(self(), {:event, browser.port, method, event["params"]})
    answer(browser, id)
  end

  # The next message. What comes after it stays in the process dictionary.
  defp next(%{port: port} = browser) do
    case String.split(Process.get(port, ""), <<0>>, parts: 2) do
      [message, rest] ->
        Process.put(port, rest)
        ExTorch.Error.unwrap!(ExTorch.JSON.parse(message))

      [part] ->
        receive do
          {^port, {:data, data}} ->
            Process.put(port, part <> data)
            next(browser)

          {^port, {:exit_status, status}} ->
            flunk(
              "Chromium ended with status #{status}:\n#{File.read!(browser.directory <> "/log")}"
            )
        after
          @timeout -> flunk("Chromium does not answer")
        end
    end
  end

  # Opens a file and waits until the page is ready.
  def open(browser, path) do
    url = "file://" <> Path.expand(path)
    {:ok, _} = call(browser, "Page.navigate", %{url: url})
    wait(browser, "location.href === '#{url}' && document.documentElement.dataset.ready")
  end

  # The value of an expression.
  def eval(browser, expression) do
    case try_eval(browser, expression) do
      {:ok, value} -> value
      {:error, error} -> flunk("#{expression}: #{inspect(error, limit: 50)}")
    end
  end

  defp try_eval(browser, expression) do
    options = %{expression: expression, returnByValue: true, awaitPromise: true}

    case call(browser, "Runtime.evaluate", options) do
      {:ok, %{"exceptionDetails" => exception}} -> {:error, exception}
      {:ok, answer} -> {:ok, answer["result"]["value"]}
      error -> error
    end
  end

  # Waits until an expression is true, and returns its value. While a page is loaded there may be nothing to ask.
  def wait(browser, expression, tries \\ 600) do
    case try_eval(browser, expression) do
      {:ok, value} when value not in [nil, false] ->
        value

      other when tries == 0 ->
        flunk("this does not become true: #{expression}: #{inspect(other, limit: 50)}")

      _ ->
        Process.sleep(50)
        wait(browser, expression, tries - 1)
    end
  end

  # Types a text, or presses a key that has a name.
  def type(browser, text), do: {:ok, _} = call(browser, "Input.insertText", %{text: text})

  @codes %{"Enter" => 13, "Escape" => 27, "End" => 35, "Home" => 36, "Tab" => 9}
         |> Map.merge(%{"ArrowUp" => 38, "ArrowDown" => 40, "ArrowRight" => 39})

  def press(browser, key) do
    text = %{"Enter" => "\r", "/" => "/"}[key]
    base = %{key: key, code: key, windowsVirtualKeyCode: @codes[key] || 0}

    down =
      if text,
        do: Map.merge(base, %{type: "keyDown", text: text}),
        else: Map.put(base, :type, "keyDown")

    {:ok, _} = call(browser, "Input.dispatchKeyEvent", down)
    {:ok, _} = call(browser, "Input.dispatchKeyEvent", Map.put(base, :type, "keyUp"))
  end

  # light or dark, as the system's setting
  def scheme(browser, scheme) do
    features = [%{name: "prefers-color-scheme", value: scheme}]
    {:ok, _} = call(browser, "Emulation.setEmulatedMedia", %{features: features})
  end

  def size(browser, width, height) do
    metrics = %{width: width, height: height, deviceScaleFactor: 1, mobile: false}
    {:ok, _} = call(browser, "Emulation.setDeviceMetricsOverride", metrics)
  end

  def screenshot(browser, path) do
    {:ok, %{"data" => data}} = call(browser, "Page.captureScreenshot", %{format: "png"})
    File.write!(path, Base.decode64!(data))
  end

  # The events since the last call, as {method, parameters}: what was logged, and every request.
  def events(browser) do
    port = browser.port

    receive do
      {:event, ^port, method, params} -> [{method, params} | events(browser)]
    after
      0 -> []
    end
  end
end
