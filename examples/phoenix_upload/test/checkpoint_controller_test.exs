Code.require_file("page_case.exs", __DIR__)

defmodule PhoenixUploadWeb.CheckpointControllerTest do
  # The whole server, with real connections that are kept alive.
  use PhoenixUploadWeb.PageCase

  setup do
    {:ok, {_, port}} = PhoenixUploadWeb.Endpoint.server_info(:http)
    {:ok, socket} = :gen_tcp.connect({127, 0, 0, 1}, port, [:binary, active: false])
    [socket: socket]
  end

  defp post(socket, path, headers, body) do
    head =
      for {name, value} <- [{"host", "localhost"}, {"content-length", byte_size(body)} | headers],
          do: "#{name}: #{value}\r\n"

    :ok = :gen_tcp.send(socket, ["POST #{path} HTTP/1.1\r\n", head, "\r\n", body])
    answer(socket, "")
  end

  defp answer(socket, so_far) do
    {:ok, data} = :gen_tcp.recv(socket, 0, 20_000)
    so_far = so_far <> data

    with [head, body] <- String.split(so_far, "\r\n\r\n", parts: 2),
         [_, length] <- Regex.run(~r/content-length: (\d+)/i, head),
         true <- byte_size(body) >= String.to_integer(length) do
      [_, status] = Regex.run(~r/^HTTP\/1.1 (\d+)/, head)
      {String.to_integer(status), Jason.decode!(body)}
    else
      _ -> answer(socket, so_far)
    end
  end

  @binary [{"content-type", "application/octet-stream"}]

  test "a body is parsed as it arrives, and the idle connection holds nothing", context do
    %{socket: socket, before: before} = context

    content = model()

    assert {200, %{"tensors" => 30, "names" => names}} =
             post(socket, "/api/stream", @binary, content)

    assert "model.embedding.weight" in names
    # Only the process of this test is garbage collected. The connection is open, and idle.
    assert Enum.any?(1..200, fn _ ->
             ExTorch.Memory.collect()
             live() == before or Process.sleep(20) != :ok
           end)

    # the next request on the same connection, compressed
    gzip = [{"content-encoding", "gzip"} | @binary]
    assert {200, %{"tensors" => 30}} = post(socket, "/api/stream", gzip, :zlib.gzip(model()))
    # a client that claims to send a form
    assert {200, %{"tensors" => 30}} =
             post(
               socket,
               "/api/stream",
               [{"content-type", "application/x-www-form-urlencoded"}],
               model()
             )
  end

  test "errors in words, without paths of the server", %{socket: socket} do
    content = model()
    half = binary_part(content, 0, div(byte_size(content), 2))
    hostile = "\x80\x02cposix\nsystem\nq\x00X\x07\x00\x00\x00echo hiq\x01\x85q\x02Rq\x03."

    for {body, expected} <- [
          {half, ~r/ended after|not complete/},
          {"", ~r/ended|empty/},
          {hostile, ~r/posix/},
          {:zlib.gzip(half), ~r/ended after|not complete/},
          {content <> "x", ~r/more bytes/}
        ] do
      assert {422, %{"error" => error}} = post(socket, "/api/stream", @binary, body)
      assert error =~ expected
      refute error =~ "/"
    end
  end

  test "a client that disconnects in the middle leaves nothing", %{socket: socket, before: before} do
    content = model()
    half = binary_part(content, 0, div(byte_size(content), 2))

    head =
      "POST /api/stream HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/octet-stream\r\ncontent-length: #{byte_size(content)}\r\n\r\n"

    :ok = :gen_tcp.send(socket, [head, half])
    assert wait_until(fn -> live().bytes > before.bytes end)
    :gen_tcp.close(socket)
    assert wait_until(fn -> live() == before end)
  end

  test "a form with a file", %{socket: socket} do
    form = fn content ->
      [
        "--x\r\ncontent-disposition: form-data; name=\"file\"; filename=\"model.pt\"\r\ncontent-type: application/octet-stream\r\n\r\n",
        content,
        "\r\n--x--\r\n"
      ]
      |> IO.iodata_to_binary()
    end

    multipart = [{"content-type", "multipart/form-data; boundary=x"}]
    before = MapSet.new(uploads())
    assert {200, %{"tensors" => 30}} = post(socket, "/api/file", multipart, form.(model()))

    assert {422, %{"error" => error}} =
             post(socket, "/api/file", multipart, form.("<html>" <> String.duplicate(" ", 2000)))

    assert error =~ "HTML"
    refute error =~ "/"
    # the files are gone although the connection is open
    assert MapSet.new(uploads()) == before
    assert {400, %{"error" => _}} = post(socket, "/api/file", multipart, "--x--\r\n")
  end

  defp uploads, do: Path.wildcard(Path.join(System.tmp_dir!(), "plug-*/multipart-*"))
end
