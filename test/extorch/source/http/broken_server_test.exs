defmodule ExTorch.Source.HTTP.BrokenServerTest do
  # Servers that answer what nginx never does.
  use ExTorch.Case, async: false
  import ExTorch.Test.ServedFile

  alias ExTorch.Source.HTTP
  alias ExTorch.Test.RawServer

  @moduletag :tmp_dir
  # Requests that fail are repeated at once.
  @fast [timeout: 2_000, retries: 2]

  describe "servers that break the rules" do
    defp load(answer, opts \\ []),
      do: ExTorch.load(HTTP.new(RawServer.start(answer), Keyword.merge(@fast, opts)))

    defp failure(answer) do
      assert {:error, %Error{reason: reason, message: message}} = load(answer)
      {reason, message}
    end

    test "connections that are cut are continued", %{tmp_dir: dir} do
      bytes = bytes(dir)

      # Every second answer ends early, in its body or in its head.
      answer = fn number, {offset, length} ->
        whole = IO.iodata_to_binary(RawServer.partial(bytes, {offset, length}))

        case rem(number, 3) do
          0 -> {:close, binary_part(whole, 0, div(byte_size(whole), 2))}
          1 -> whole
          2 -> {:close, binary_part(whole, 0, 20)}
        end
      end

      assert {:ok, loaded} = load(answer, retries: 20)
      assert same?(loaded, state())
    end

    test "errors that pass are retried", %{tmp_dir: dir} do
      bytes = bytes(dir)

      answer = fn number, range ->
        if rem(number, 2) == 1,
          do: {:close, "HTTP/1.1 503 Busy\r\nretry-after: 0\r\ncontent-length: 0\r\n\r\n"},
          else: RawServer.partial(bytes, range)
      end

      assert {:ok, loaded} = load(answer, retries: 20)
      assert same?(loaded, state())
    end

    test "chunked answers, and answers shorter than the range", %{tmp_dir: dir} do
      bytes = bytes(dir)

      chunked = fn _, {offset, length} ->
        length = min(length, byte_size(bytes) - offset)
        body = binary_part(bytes, offset, length)

        chunks =
          for chunk <- chunks(body, [1000, 70_000, 1]),
              do: [Integer.to_string(byte_size(chunk), 16), "\r\n", chunk, "\r\n"]

        [
          "HTTP/1.1 206 Partial\r\ntransfer-encoding: chunked\r\netag: \"one\"\r\n",
          "content-range: bytes #{offset}-#{offset + length - 1}/#{byte_size(bytes)}\r\n\r\n",
          [chunks, "0\r\ntrailer: 1\r\n\r\n"]
        ]
      end

      assert {:ok, loaded} = load(chunked)
      assert same?(loaded, state())

      half = fn _, {offset, length} -> RawServer.partial(bytes, {offset, div(length, 2) + 1}) end
      assert {:ok, loaded} = load(half, retries: 30)
      assert same?(loaded, state())
    end

    test "lies about lengths and ranges", %{tmp_dir: dir} do
      bytes = bytes(dir)
      partial = fn opts -> fn _, range -> RawServer.partial(bytes, range, opts) end end
      wrong = fn range -> failure(partial.(content_range: range)) end

      assert {:io, _} = wrong.("bytes 5-65535/#{byte_size(bytes)}")
      assert {:io, _} = wrong.("bytes 0-99999999/999999999")
      assert {:io, _} = wrong.("bytes 0-65535/*")
      assert {:io, _} = wrong.("bytes 0--1/5")
      assert {:io, _} = wrong.("lines 0-65535/70000")
      assert {:io, message} = failure(partial.(length: 7))
      assert message =~ "has 7 bytes"
      assert {:io, _} = failure(partial.(length: -1))
      assert {:io, _} = failure(partial.(length: "9999999999999999999999"))

      two = "content-length: 3\r\netag: \"one\"\r\n"
      assert {:io, message} = failure(partial.(headers: two))
      assert message =~ "ambiguous"
      assert {:io, _} = failure(partial.(headers: "transfer-encoding: chunked\r\n"))
      assert {:unsupported, _} = failure(partial.(headers: "content-encoding: gzip\r\n"))

      multipart = fn _, {offset, length} ->
        part = binary_part(bytes, offset, min(length, byte_size(bytes) - offset))
        body = ["--x\r\ncontent-range: bytes 0-9/10\r\n\r\n", part, "\r\n--x--\r\n"]

        [
          "HTTP/1.1 206 Partial\r\ncontent-type: multipart/byteranges; boundary=x\r\n",
          "content-length: #{IO.iodata_length(body)}\r\n\r\n",
          body
        ]
      end

      assert {:io, message} = failure(multipart)
      assert message =~ "content range"
    end

    test "redirects without end, also between other answers", %{tmp_dir: dir} do
      bytes = bytes(dir)
      redirect = "HTTP/1.1 302 Found\r\nlocation: /other.pt\r\ncontent-length: 0\r\n\r\n"
      missing = "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"
      assert {:io, message} = failure(fn _, _ -> {:close, redirect} end)
      assert message =~ "redirects"

      # The location of an open file is gone, the original redirects, and what it redirects to is gone too.
      answer = fn
        2, range -> RawServer.partial(bytes, range)
        number, _range when number in [3, 8] -> {:close, missing}
        number, _range when number < 50 -> {:close, redirect}
        _number, range -> RawServer.partial(bytes, range)
      end

      assert {:error, %Error{reason: :not_found}} = load(answer, connections: 1)
    end

    test "chunks of one byte are joined", %{tmp_dir: dir} do
      bytes = binary_part(bytes(dir), 0, 100_000)
      one = for <<byte <- bytes>>, into: "", do: <<"1\r\n", byte, "\r\n">>
      head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
      url = RawServer.start(fn _, _ -> [head, one, "0\r\n\r\n"] end)
      {:ok, url} = HTTP.URL.parse(url)

      {:ok, conn} =
        HTTP.Connection.connect(url, %{connect_timeout: 5000, timeout: 30_000, ssl: []})

      {:ok, %{framing: :chunked}, conn} = HTTP.Connection.get(conn, url, [])
      assert {:ok, parts, conn} = HTTP.Connection.body(conn, :chunked, 100_000)
      assert IO.iodata_to_binary(parts) == bytes
      assert length(parts) < 20
      HTTP.Connection.close(conn)
    end

    test "more bytes than asked for are not taken", %{tmp_dir: dir} do
      bytes = bytes(dir)

      answer = fn _, range ->
        {:close, [RawServer.partial(bytes, range), :binary.copy("x", 100_000)]}
      end

      assert {:ok, loaded} = load(answer)
      assert same?(loaded, state())
    end

    test "bodies that arrive in pieces, with pauses, and are cut", %{tmp_dir: dir} do
      bytes = bytes(dir)

      answer = fn number, range ->
        fn socket ->
          whole = RawServer.partial(bytes, range) |> IO.iodata_to_binary()

          # Every second answer ends before its last byte.
          whole =
            if rem(number, 2) == 0, do: binary_part(whole, 0, byte_size(whole) - 1), else: whole

          Enum.reduce_while(chunks(whole, [100, 70_000, 3, 1_000_000]), :ok, fn piece, _ ->
            Process.sleep(4)
            stop_or(:gen_tcp.send(socket, piece))
          end)

          :gen_tcp.close(socket)
        end
      end

      assert {:ok, loaded} = load(answer, retries: 20)
      assert same?(loaded, state())
    end

    test "a reader that is killed while it receives leaves nothing", %{tmp_dir: dir} do
      bytes = bytes(dir)
      test = self()

      # The rest of the body never arrives.
      answer = fn
        number, range when number <= 2 ->
          RawServer.partial(bytes, range)

        _number, range ->
          fn socket ->
            whole = RawServer.partial(bytes, range) |> IO.iodata_to_binary()
            :gen_tcp.send(socket, binary_part(whole, 0, div(byte_size(whole), 2)))
            send(test, :sent)
            {:error, :closed} = :gen_tcp.recv(socket, 0)
            send(test, :closed)
          end
      end

      ExTorch.Memory.collect()
      before = ExTorch.Memory.live().bytes
      source = HTTP.new(RawServer.start(answer), timeout: 60_000)
      reader = spawn(fn -> ExTorch.load(source) end)
      assert_receive :sent, 30_000
      Process.exit(reader, :kill)
      assert_receive :closed, 30_000
      assert wait_until(fn -> ExTorch.Memory.live().bytes <= before end)
    end

    # :erlang.memory/1 needs the allocators that the sanitized run turns off.
    @tag :no_asan
    test "heads without end, and lines without end" do
      endless = fn line ->
        fn _, _ ->
          fn socket ->
            :gen_tcp.send(socket, "HTTP/1.1 206 Partial\r\n")

            Enum.reduce_while(1..100_000, :ok, fn _, _ -> stop_or(:gen_tcp.send(socket, line)) end)
          end
        end
      end

      before = :erlang.memory(:binary)
      assert {:io, message} = failure(endless.("x-more: 1\r\n"))
      assert message =~ "bytes"
      assert {:io, _} = failure(endless.(:binary.copy("x", 10_000)))
      assert {:io, _} = failure(endless.(" folded\r\n"))
      assert {:io, _} = failure(fn _, _ -> {:close, "SSH-2.0-OpenSSH_9.2\r\n\r\n"} end)
      interim = :binary.copy("HTTP/1.1 100 Continue\r\n\r\n", 1000)
      assert {:io, _} = failure(fn _, _ -> {:close, interim} end)
      assert :erlang.memory(:binary) - before < 50_000_000
    end

    defp stop_or(:ok), do: {:cont, :ok}
    defp stop_or(_error), do: {:halt, :ok}

    test "a server that sends a byte from time to time is given up", %{tmp_dir: dir} do
      bytes = bytes(dir)

      drip = fn _, range ->
        fn socket ->
          [head, body] = RawServer.partial(bytes, range) |> IO.iodata_to_binary() |> split_head()
          :gen_tcp.send(socket, head)

          Enum.reduce_while(chunks(body, [1]), :ok, fn byte, _ ->
            Process.sleep(100)
            stop_or(:gen_tcp.send(socket, byte))
          end)
        end
      end

      source = HTTP.new(RawServer.start(drip), timeout: 300, retries: 1)
      assert {:error, %Error{reason: :timeout}} = ExTorch.load(source)
    end

    defp split_head(text) do
      [head, body] = :binary.split(text, "\r\n\r\n")
      [head <> "\r\n\r\n", body]
    end

    test "another ETag, another size and 200 are a changed file", %{tmp_dir: dir} do
      bytes = bytes(dir)
      bigger = bytes <> "x"

      for changed <- [
            &RawServer.partial(bytes, &1, headers: "etag: \"two\"\r\n"),
            &RawServer.partial(bigger, &1),
            fn _ -> ["HTTP/1.1 200 OK\r\ncontent-length: 3\r\netag: \"two\"\r\n\r\nabc"] end,
            fn _ -> ["HTTP/1.1 416 No\r\ncontent-length: 0\r\n\r\n"] end
          ] do
        answer = fn number, range ->
          if number <= 2, do: RawServer.partial(bytes, range), else: changed.(range)
        end

        assert {:error, %Error{reason: :file_changed}} = load(answer)
      end
    end
  end

  test "the range that is announced is the range that is read" do
    for size <- [1, 3_000_000, 9_000_000, 30_000_000] do
      state = %{"a" => ExTorch.zeros({size}, dtype: :uint8), "b" => ExTorch.ones({2})}
      bytes = saved(state, format: :zip)

      answer = fn _, range ->
        send(:ranges, range)
        RawServer.partial(bytes, range)
      end

      Process.register(self(), :ranges)
      assert {:ok, loaded} = load(answer)
      Process.unregister(:ranges)
      assert Enum.all?(state, fn {name, tensor} -> Tensor.equal?(loaded[name], tensor) end)
      moved = Enum.sum(for {_offset, length} <- received(), do: length)
      # The first request asks for 64 KiB whatever the size is.
      assert moved < byte_size(bytes) + 3 * 65_536
    end
  end

  defp received do
    receive do
      range -> [range | received()]
    after
      0 -> []
    end
  end
end
