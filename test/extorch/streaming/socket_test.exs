defmodule ExTorch.StreamingSocketTest do
  # Checkpoints over real sockets: gen_tcp, ssl, socket; to and from Python.
  use ExTorch.Case
  alias ExTorch.Streaming
  alias ExTorch.Test.Python
  import ExTorch.Test.Terms, only: [plain: 1]

  @options [:binary, active: false, nodelay: true]

  defp tcp_pair(options \\ @options) do
    {:ok, listen} = :gen_tcp.listen(0, options ++ [ip: {127, 0, 0, 1}])
    {:ok, port} = :inet.port(listen)
    {:ok, a} = :gen_tcp.connect({127, 0, 0, 1}, port, options)
    {:ok, b} = :gen_tcp.accept(listen)
    :gen_tcp.close(listen)
    {a, b}
  end

  defp socket_pair do
    {:ok, listen} = :socket.open(:inet, :stream, :tcp)
    :ok = :socket.bind(listen, %{family: :inet, addr: {127, 0, 0, 1}, port: 0})
    :ok = :socket.listen(listen)
    {:ok, address} = :socket.sockname(listen)
    {:ok, a} = :socket.open(:inet, :stream, :tcp)
    :ok = :socket.connect(a, address)
    {:ok, b} = :socket.accept(listen)
    :socket.close(listen)
    {a, b}
  end

  # Certificates generated for the test.
  defp ssl_pair do
    {:ok, _} = Application.ensure_all_started(:ssl)
    options = [key: {:namedCurve, :secp256r1}, digest: :sha256]
    chain = %{root: options, intermediates: [], peer: options}

    %{server_config: server, client_config: client} =
      :public_key.pkix_test_data(%{server_chain: chain, client_chain: chain})

    {:ok, listen} = :ssl.listen(0, server ++ @options)
    {:ok, {_, port}} = :ssl.sockname(listen)

    task =
      Task.async(fn ->
        {:ok, transport} = :ssl.transport_accept(listen)
        {:ok, b} = :ssl.handshake(transport)
        :ok = :ssl.controlling_process(b, hd(Process.get(:"$callers")))
        b
      end)

    verify = [verify: :verify_peer, server_name_indication: :disable]
    {:ok, a} = :ssl.connect({127, 0, 0, 1}, port, verify ++ client ++ @options)
    {a, Task.await(task)}
  end

  defp state do
    %{
      "large" => ExTorch.rand({700, 1300}),
      "small" => ExTorch.tensor([1, 2, 3]),
      "empty" => ExTorch.tensor([]),
      "text" => "ü"
    }
  end

  for kind <- [:tcp, :socket, :ssl], format <- [:streaming, :zip, :safetensors, :legacy] do
    test "#{kind}, #{format}: several messages on one connection" do
      {a, b} = apply(__MODULE__, :"#{unquote(kind)}_of", [])
      term = if unquote(format) == :safetensors, do: Map.delete(state(), "text"), else: state()

      task =
        Task.async(fn ->
          for _ <- 1..3,
              do: :ok = Streaming.send(term, a, format: unquote(format), timeout: 20_000)
        end)

      rest =
        Enum.reduce(1..3, "", fn _, rest ->
          {:ok, got, rest} = Streaming.recv(b, buffer: rest, timeout: 20_000)
          assert plain(got) == plain(term)
          rest
        end)

      assert rest == ""
      assert [:ok, :ok, :ok] == Task.await(task)
    end
  end

  def tcp_of, do: tcp_pair()
  def socket_of, do: socket_pair()
  def ssl_of, do: ssl_pair()

  test "the bytes after a message are returned and accepted as :buffer" do
    {a, b} = tcp_pair()
    bytes = Enum.to_list(Streaming.save(%{n: 1})) ++ Enum.to_list(Streaming.save(%{n: 2}))
    :ok = :gen_tcp.send(a, [bytes, "tail"])
    assert {:ok, %{"n" => 1}, rest} = Streaming.recv(b)
    assert {:ok, %{"n" => 2}, rest} = Streaming.recv(b, buffer: rest)

    rest =
      if byte_size(rest) == 4,
        do: rest,
        else: rest <> elem(:gen_tcp.recv(b, 4 - byte_size(rest)), 1)

    assert rest == "tail"
  end

  test "send! and recv!" do
    {a, b} = tcp_pair()
    assert Streaming.send!(%{"n" => 1}, a) == :ok
    assert Streaming.recv!(b) == {%{"n" => 1}, ""}
    :gen_tcp.close(a)
    assert reason(fn -> Streaming.recv!(b) end) == :closed
    assert reason(fn -> Streaming.send!(%{"n" => 1}, a) end) == :closed
    assert Streaming.load!(Streaming.save(%{"n" => 1})) == {%{"n" => 1}, ""}
    assert reason(fn -> Streaming.load!([]) end) == :truncated
  end

  test "the peer closes the connection before or within a message" do
    {a, b} = tcp_pair()
    :gen_tcp.close(a)
    assert {:error, %Error{reason: :closed}} = Streaming.recv(b)

    bytes = saved(state())

    for size <- [1, 10, 300, 2_000, 100_000, byte_size(bytes) - 1] do
      {a, b} = tcp_pair()
      :ok = :gen_tcp.send(a, binary_part(bytes, 0, size))
      :gen_tcp.close(a)
      assert {:error, %Error{reason: :truncated, message: message}} = Streaming.recv(b)
      # incomplete pieces are not counted
      [_, received] = Regex.run(~r/after (\d+) bytes/, message)
      assert String.to_integer(received) in max(size - 262_144, 1)..size
    end

    # a peer that closes without reading
    {a, b} = tcp_pair()
    spawn(fn -> Process.sleep(50) && :gen_tcp.close(b) end)
    :gen_tcp.controlling_process(b, self())
    large = %{t: ExTorch.op("zeros", [[20_000_000]])}
    assert {:error, %Error{reason: reason}} = Streaming.send(large, a)
    assert reason in [:truncated, :io]
  end

  test "a peer that does not send or receive causes a timeout" do
    for {a, b} <- [tcp_pair(), socket_pair()] do
      assert {:error, %Error{reason: :timeout}} = Streaming.recv(b, timeout: 50)
      large = %{t: ExTorch.op("zeros", [[20_000_000]])}
      assert {:error, %Error{reason: :timeout}} = Streaming.send(large, a, timeout: 100)
    end
  end

  test "the send_timeout of the socket is restored" do
    {a, b} = tcp_pair()
    task = Task.async(fn -> Streaming.recv(b) end)
    :ok = Streaming.send(%{n: 1}, a, timeout: 5000)
    assert {:ok, [send_timeout: :infinity]} = :inet.getopts(a, [:send_timeout])
    assert {:ok, _, ""} = Task.await(task)
  end

  test "slow senders and receivers" do
    {a, b} = tcp_pair(@options ++ [sndbuf: 4096, recbuf: 4096])
    bytes = saved(state())

    writer =
      Task.async(fn ->
        for part <- for(<<part::binary-size(997) <- binary_part(bytes, 0, 60_000)>>, do: part) do
          :ok = :gen_tcp.send(a, part)
          if :rand.uniform(10) == 1, do: Process.sleep(1)
        end

        at = div(60_000, 997) * 997
        :ok = :gen_tcp.send(a, binary_part(bytes, at, byte_size(bytes) - at))
      end)

    assert {:ok, _, ""} = Streaming.recv(b, timeout: 10_000)
    Task.await(writer)

    reader =
      Task.async(fn ->
        Stream.repeatedly(fn ->
          if :rand.uniform(20) == 1, do: Process.sleep(1)
          elem(:gen_tcp.recv(b, 0), 1)
        end)
        |> Streaming.load()
      end)

    assert :ok = Streaming.send(state(), a)
    assert {:ok, _, _} = Task.await(reader, 60_000)
  end

  test "active sockets, sockets in list mode, and terms that are not sockets" do
    {_a, b} = tcp_pair([:binary, active: true])
    assert {:error, %Error{reason: :io, message: message}} = Streaming.recv(b)
    assert message =~ "passive"
    {a, b} = tcp_pair([:list, active: false])
    :ok = Streaming.send(%{n: 1}, a)
    assert {:ok, %{"n" => 1}, ""} = Streaming.recv(b)
    assert reason(fn -> Streaming.recv(:nothing) end) == :bad_argument
    assert reason(fn -> Streaming.recv(b, timeout: -1) end) == :bad_argument
    assert reason(fn -> Streaming.recv(b, chunk: 0) end) == :bad_argument
  end

  test "an error while saving is returned by send" do
    {a, _b} = tcp_pair()
    assert {:error, %Error{reason: :bad_argument}} = Streaming.send(%{a: self()}, a)
  end

  # ---- Python ----

  @tag :python
  @tag :torch
  test "a checkpoint of torch.save through a socket, without a file" do
    {:ok, listen} = :gen_tcp.listen(0, @options)
    {:ok, port} = :inet.port(listen)

    task =
      Task.async(fn ->
        Python.run!("""
        import socket, torch
        s = socket.create_connection(("127.0.0.1", #{port}))
        f = s.makefile("wb")
        torch.manual_seed(1)
        x = torch.arange(300000, dtype=torch.float32).reshape(300, 1000)
        torch.save({"x": x, "t": x.t(), "l": [1, "a", torch.tensor(7)]}, f)
        f.flush()
        """)
      end)

    {:ok, b} = :gen_tcp.accept(listen)
    assert {:ok, term, ""} = Streaming.recv(b, timeout: 60_000)
    assert {term["x"].shape, term["t"].shape} == {{300, 1000}, {1000, 300}}
    assert Tensor.to_list(ExTorch.op("sum", [term["x"]], dtype: :float64)) == 44_999_850_000.0
    assert [1, "a", seven] = term["l"]
    assert Tensor.to_list(seven) == 7
    Task.await(task, 60_000)
  end

  # Uses the functions of torch.distributed, if the installed torch has them.
  @relay """
  import socket, sys, torch
  from torch.distributed._serialization import _streaming_load, _streaming_save
  s = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
  r, w = s.makefile("rb"), s.makefile("wb")
  x = torch.arange(600000, dtype=torch.float32).reshape(600, 1000)
  state = {"x": x, "view": x[3:5, ::7], "half": x[0].half(), "n": {"deep": [torch.tensor([True, False]), 3.5, None]},
           "empty": torch.empty(0, 4), "complex": torch.complex(x[0], x[1])}
  for _ in range(2):
      _streaming_save(state, w)
      w.flush()
      back = _streaming_load(r, weights_only=True)
      assert list(back) == list(state)
      for k in ("x", "view", "half", "empty", "complex"):
          assert torch.equal(back[k], state[k]) and back[k].dtype == state[k].dtype, k
      assert back["n"]["deep"][1:] == [3.5, None] and torch.equal(back["n"]["deep"][0], state["n"]["deep"][0])
      assert back["view"].stride() == state["view"].stride()
  print("same")
  """

  # What peers send first that speak another protocol, and nothing else before they are answered.
  @greetings [
    {"HTTP/1.1 408 Request Timeout\r\n", ~s(speaks HTTP: "HTTP/1.1 408 Request Timeout")},
    {"SSH-2.0-OpenSSH_9.2p1\r\n", ~s("SSH-2.0-OpenSSH_9.2p1")},
    {"220 mail.example.com ESMTP\r\n", ~s("220 mail.example.com ESMTP")},
    {"+OK ready\r\n", ~s("+OK ready")},
    {"* OK IMAP4rev1 ready\r\n", "text"},
    {"-ERR unknown\r\n", "text"},
    {"RFB 003.008\n", "text"},
    {"IRC: who are you?\n", "text"},
    {"{\"error\": 1}\n", "JSON"},
    # MySQL, PostgreSQL, HTTP/2, an alert of TLS, telnet
    {<<74, 0, 0, 0, 10, "8.0.33", 0, 8, 0, 0, 0>>, "4a 00 00 00"},
    {"E\0\0\0\x8dSFATAL\0VFATAL\0", "45 00 00 00"},
    {<<0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 128>>, "00 00 06 04"},
    {<<21, 3, 1, 0, 2, 2, 70>>, "15 03 01 00"},
    {<<255, 253, 24, 255, 253, 32>>, "ff fd 18 ff"}
  ]
  test "a peer that speaks another protocol is recognized by its first bytes" do
    for {greeting, words} <- @greetings do
      {a, b} = tcp_pair()
      :ok = :gen_tcp.send(a, greeting)
      # the connection stays open
      assert {:error, %{reason: :corrupt, message: message}} = Streaming.recv(b, timeout: 60_000)
      assert message =~ words
      Enum.each([a, b], &:gen_tcp.close/1)
    end
  end

  test "what may become a checkpoint is waited for" do
    tar = "test/fixtures/more/tar.pt" |> File.read!() |> binary_part(0, 1024)

    for bytes <- ["PK", "\x93NUM", <<10, 0, 0, 0, 0>>, "S'ab", "I42", "F-1", "(lp0\n", tar],
        n <- 1..min(byte_size(bytes), 1023) do
      {:more, loader} = Streaming.feed(Streaming.loader(), binary_part(bytes, 0, n))
      assert {:error, _} = Streaming.ended(loader)
    end

    assert {:error, %{reason: :unsupported}} = Streaming.feed(Streaming.loader(), tar)
    assert {:done, 42, "rest"} = Streaming.feed(Streaming.loader(), "I42\n.rest")
  end

  @tag :python
  test "Python → socket → Elixir → socket → Python, unchanged" do
    has =
      "import importlib.util as u, torch; print(u.find_spec('torch.distributed._serialization'))"

    unless Python.run!(has) =~ "None" do
      {:ok, listen} = :gen_tcp.listen(0, @options)
      {:ok, port} = :inet.port(listen)
      task = Task.async(fn -> Python.run!(@relay, [Integer.to_string(port)]) end)
      {:ok, b} = :gen_tcp.accept(listen)

      Enum.reduce(1..2, "", fn _, rest ->
        {:ok, term, rest} = Streaming.recv(b, buffer: rest, ordered: true, timeout: 60_000)
        :ok = Streaming.send(term, b, format: :streaming)
        rest
      end)

      assert Task.await(task, 60_000) =~ "same"
    end
  end
end
