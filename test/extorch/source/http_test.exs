defmodule ExTorch.Source.HTTPTest do
  # nginx is a real server. What it never answers is in http/broken_server_test.exs.
  use ExTorch.Case, async: false
  import ExTorch.Test.ServedFile
  import ExUnit.CaptureLog

  alias ExTorch.{Checkpoint, Source.HTTP, Store}
  alias ExTorch.Test.Nginx

  @moduletag :tmp_dir
  @secret "s3cr3t-t0ken"
  # Requests that fail are repeated at once.
  @fast [timeout: 2_000, retries: 2]

  describe "nginx" do
    @describetag :nginx

    setup %{tmp_dir: dir} do
      www = file(dir)

      server =
        Nginx.start(Path.join(dir, "nginx"), """
        root #{www};
        location /forward/ { alias #{www}/; max_ranges 0; }
        location /slow/ { alias #{www}/; limit_rate 4000k; }
        location /gzip/ { alias #{www}/; gzip on; gzip_types *; gzip_min_length 1; max_ranges 0; }
        location /busy/ { return 429; add_header Retry-After 0 always; }
        location /later/ { return 503; add_header Retry-After 3600 always; }
        location /broken/ { return 500; }
        location /private/ { return 403; }
        location /elsewhere/ { rewrite ^/elsewhere/(.*)$ http://localhost:PORT/$1 redirect; }
        location /here/ { rewrite ^/here/(.*)$ /$1 permanent; }
        location /loop/ { rewrite ^ /loop/again redirect; }
        location /token/ {
          alias #{www}/;
          if ($http_authorization != "Bearer #{@secret}") { return 401; }
        }
        location /org/model/resolve/main/ { alias #{www}/; }
        """)

      on_exit(fn -> Nginx.stop(server) end)
      %{server: server, www: www}
    end

    test "a load transfers each byte once, with several connections", %{server: server} do
      assert {:ok, loaded} = ExTorch.load(Nginx.url(server, "/model.pt"))
      assert same?(loaded, state())
      log = Nginx.log(server)
      assert Enum.all?(log, &(&1.status == 206))
      size = 4 * (2_500_000 + 800_000 + 3)
      assert Enum.sum(for r <- log, do: r.bytes) in size..(size + 200_000)
      assert length(Enum.uniq_by(log, & &1.connection)) in 1..4
    end

    test "a lazy checkpoint reads what it is asked for", %{server: server} do
      {:ok, ckpt} = Checkpoint.open(Nginx.url(server, "/model.pt"))
      assert Enum.sort(Checkpoint.keys(ckpt)) == ["big", "small", "table"]
      assert inspect(ckpt) =~ "/model.pt (zip), 3 tensors"
      opened = Nginx.log(server)
      assert length(opened) <= 5
      Nginx.clear_log(server)
      assert {:ok, tensor} = Checkpoint.tensor(ckpt, "table")
      assert Tensor.equal?(tensor, state()["table"])
      read = Nginx.log(server)
      moved = Enum.sum(for r <- opened ++ read, do: r.bytes)
      assert moved <= 800_000 * 4 + 256 * 1024
      assert Checkpoint.close(ckpt) == :ok
    end

    test "the same connection serves one request after another", %{server: server} do
      {:ok, ckpt} = Checkpoint.open(Nginx.url(server, "/model.pt"))
      for _ <- 1..5, do: {:ok, _} = Checkpoint.tensor(ckpt, "table")
      assert length(Enum.uniq_by(Nginx.log(server), & &1.connection)) == 1
    end

    test "only: reads the selected tensors", %{server: server} do
      assert {:ok, loaded} = ExTorch.load(Nginx.url(server, "/model.pt"), only: "small")
      assert Map.keys(loaded) == ["small", "step"]
      assert Enum.sum(for r <- Nginx.log(server), do: r.bytes) < 300_000
    end

    test "a server without ranges is read forward", %{server: server} do
      url = Nginx.url(server, "/forward/model.pt")
      assert {:ok, loaded} = ExTorch.load(url)
      assert same?(loaded, state())
      assert {:ok, ckpt} = Checkpoint.open(url)
      assert Tensor.equal?(Checkpoint.tensor!(ckpt, "table"), state()["table"])

      assert {:error, %Error{reason: :limit} = error} =
               Checkpoint.open(url, limits: [spool_bytes: 1_000_000])

      assert error.message =~ "ExTorch.load"
    end

    test "a slow server is waited for", %{server: server} do
      assert {:ok, loaded} = ExTorch.load(HTTP.new(Nginx.url(server, "/slow/model.pt"), @fast))
      assert same?(loaded, state())
    end

    test "compressed answers are refused", %{server: server} do
      # Ranges are off: nginx would compress the answer to a client that accepts it. This one asks for identity.
      assert {:ok, loaded} = ExTorch.load(Nginx.url(server, "/gzip/model.pt"))
      assert same?(loaded, state())
    end

    test "statuses", %{server: server} do
      reason = fn path ->
        {:error, error} = ExTorch.load(HTTP.new(Nginx.url(server, path), @fast))
        assert error.path == Nginx.url(server, path)
        {error.reason, error.message}
      end

      assert {:not_found, _} = reason.("/none.pt")
      assert {:forbidden, _} = reason.("/private/model.pt")
      assert {:io, message} = reason.("/broken/model.pt")
      assert message =~ "500"
      assert {:busy, message} = reason.("/later/model.pt")
      assert message =~ "3600 seconds"
      Nginx.clear_log(server)
      assert {:io, message} = reason.("/busy/model.pt")
      assert message =~ "429"
      assert length(Nginx.log(server)) == 3
    end

    test "redirects are followed, but credentials stay with their host", %{server: server} do
      opts = @fast ++ [token: fn -> @secret end, headers: [{"x-secret", @secret}]]

      assert {:ok, loaded} =
               ExTorch.load(HTTP.new(Nginx.url(server, "/elsewhere/model.pt"), opts))

      assert same?(loaded, state())
      {redirects, files} = Enum.split_with(Nginx.log(server), &(&1.uri =~ "elsewhere"))
      assert redirects != [] and Enum.all?(redirects, &(&1.authorization =~ @secret))
      assert files != [] and Enum.all?(files, &(&1.authorization == "-" and &1.secret == "-"))

      Nginx.clear_log(server)
      assert {:ok, _} = ExTorch.load(HTTP.new(Nginx.url(server, "/here/model.pt"), opts))
      assert Enum.all?(Nginx.log(server), &(&1.authorization =~ @secret))

      assert {:error, %Error{reason: :io, message: message}} =
               ExTorch.load(HTTP.new(Nginx.url(server, "/loop/model.pt"), @fast))

      assert message =~ "redirects"
    end

    test "a file that changes is noticed", %{server: server, www: www} do
      {:ok, ckpt} = Checkpoint.open(Nginx.url(server, "/model.pt"))
      path = Path.join(www, "model.pt")
      changed = path <> ".new"
      File.write!(changed, [File.read!(path), "more"])
      File.rename!(changed, path)
      assert {:error, %Error{reason: :file_changed}} = Checkpoint.tensor(ckpt, "big")
    end

    test "stores, and an index with its shards", %{server: server, www: www} do
      module = Map.delete(state(), "step")
      store = Store.PyTorch.new(Nginx.url(server, "/model.pt"))
      assert {:ok, result} = Store.apply_to(store, module)
      assert Enum.sort(result.applied) == ["big", "small", "table"]
      assert {:error, %Error{reason: :unsupported}} = Store.collect_from(store, module)

      index = Path.join(www, "model.safetensors.index.json")
      :ok = Store.collect_from(Store.Sharded.new(index, max_shard_size: "5MB"), module)
      url = Nginx.url(server, "/model.safetensors.index.json")
      assert {:ok, loaded} = ExTorch.load(url)
      assert Enum.all?(module, fn {name, tensor} -> Tensor.equal?(loaded[name], tensor) end)
      assert {:ok, flat} = Checkpoint.state_dict(url <> "?signature=1")
      assert Tensor.equal?(flat["table"], module["table"])
      assert {:ok, result} = Store.apply_to(Store.Sharded.new(url), module)
      assert length(result.applied) == 3

      hub = HTTP.hub("org/model", "model.safetensors.index.json", endpoint: Nginx.url(server, ""))
      assert {:ok, loaded} = ExTorch.load(hub)
      assert Tensor.equal?(loaded["big"], module["big"])
      assert {:ok, _} = Store.apply_to(Store.Sharded.new(hub), module)
    end

    test "killing the reader closes its connections", %{server: server} do
      url = Nginx.url(server, "/slow/model.pt")
      before = length(Port.list())
      pid = spawn(fn -> ExTorch.load(url) end)
      assert wait_until(fn -> length(Port.list()) > before end)
      Process.exit(pid, :kill)
      assert wait_until(fn -> length(Port.list()) <= before end)
    end

    test "blocks are cached on disk, within a limit", %{server: server, tmp_dir: dir} do
      cache = Path.join(dir, "cache")
      load = fn opts -> ExTorch.load(HTTP.new(Nginx.url(server, "/model.pt"), opts)) end
      assert {:ok, loaded} = load.(cache: cache)
      assert same?(loaded, state())
      first = Enum.sum(for r <- Nginx.log(server), do: r.bytes)
      assert first < 16_000_000
      Nginx.clear_log(server)
      # Several processes at once, from the cache.
      tasks = for _ <- 1..3, do: Task.async(fn -> load.(cache: cache) end)
      assert Enum.all?(Task.await_many(tasks), fn {:ok, loaded} -> same?(loaded, state()) end)
      assert Enum.sum(for r <- Nginx.log(server), do: r.bytes) < 1_000_000

      # Damaged and truncated blocks are read again.
      [one, two | _] = blocks = Enum.sort(Path.wildcard(cache <> "/*/*"))
      File.write!(one, flip_bit(File.read!(one), 1000, 3))
      File.write!(two, "short")
      assert {:ok, loaded} = load.(cache: cache)
      assert same?(loaded, state())

      # A smaller limit removes blocks.
      assert length(blocks) > 10
      File.rm!(one)
      assert {:ok, loaded} = load.(cache: cache, cache_bytes: 4 * 1024 * 1024)
      assert same?(loaded, state())
      left = Path.wildcard(cache <> "/*/*")
      assert Enum.sum(for path <- left, do: File.stat!(path).size) <= 4 * 1024 * 1024 + 4096
    end

    test "nothing secret is printed", %{server: server} do
      # The secret is in a token, a header, the query and the user information of the URL.
      url = fn path ->
        Nginx.url(server, path <> "?X-Amz-Signature=#{@secret}")
        |> String.replace("http://", "http://user:#{@secret}@")
      end

      opts = @fast ++ [token: fn -> @secret end, headers: %{"x-secret" => @secret}]

      log =
        capture_log(fn ->
          printed =
            for path <- [
                  "/model.pt",
                  "/none.pt",
                  "/private/model.pt",
                  "/broken/model.pt",
                  "/loop/a"
                ] do
              source = HTTP.new(url.(path), opts)
              store = Store.PyTorch.new(url.(path))
              results = [ExTorch.load(source), ExTorch.load(url.(path)), Checkpoint.open(source)]
              errors = for {:error, error} <- results, do: Exception.message(error)

              # Also as Erlang prints them, which does not use the protocol Inspect.
              [inspect({source, store, results}, structs: false, limit: :infinity), errors] ++
                [:io_lib.format("~p ~w", [{source, store}, results])]
            end

          refute IO.iodata_to_binary(printed) |> String.contains?(@secret)

          raised =
            for bad <- ["http://a b/#{@secret}", "https://#{@secret}:x:y/", "http://"],
                error <- [catch_error(HTTP.new(bad)), elem(ExTorch.load(bad), 1)],
                do: Exception.message(error)

          refute Enum.join(raised) =~ @secret

          # A function that raises, and a reader that crashes.
          raising = HTTP.new(Nginx.url(server, "/model.pt"), token: fn -> raise @secret end)
          {:error, error} = ExTorch.load(raising)
          refute Exception.message(error) =~ @secret
          source = HTTP.new(url.("/slow/model.pt"), opts)
          {pid, ref} = spawn_monitor(fn -> ExTorch.load(source) end)
          Process.sleep(50)
          Process.exit(pid, :crash)
          assert_receive {:DOWN, ^ref, _, _, _}
        end)

      refute log =~ @secret
    end

    test "another HTTP client", %{server: server} do
      client = fn url, headers ->
        headers = for {name, value} <- headers, do: {to_charlist(name), to_charlist(value)}
        request = {to_charlist(url), headers}

        case :httpc.request(:get, request, [autoredirect: false], body_format: :binary) do
          {:ok, {{_, status, _}, headers, body}} ->
            {:ok, status, for({n, v} <- headers, do: {to_string(n), to_string(v)}), body}

          {:error, _} ->
            {:error, :closed}
        end
      end

      {:ok, _} = Application.ensure_all_started(:inets)
      source = HTTP.new(Nginx.url(server, "/token/model.pt"), client: client, token: @secret)
      assert {:ok, loaded} = ExTorch.load(source)
      assert same?(loaded, state())
    end
  end

  describe "TLS" do
    @describetag :nginx

    setup %{tmp_dir: dir} do
      [authority, authority_key, certificate, key, request, names] =
        Enum.map(~w(ca.pem ca.key cert.pem cert.key cert.req names), &Path.join(dir, &1))

      File.write!(names, "subjectAltName=DNS:localhost\n")

      openssl!(
        ~w(req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=authority) ++
          ["-keyout", authority_key, "-out", authority]
      )

      openssl!(
        ~w(req -newkey rsa:2048 -nodes -subj /CN=localhost) ++ ["-keyout", key, "-out", request]
      )

      signed = [
        "-in",
        request,
        "-CA",
        authority,
        "-CAkey",
        authority_key,
        "-extfile",
        names,
        "-out",
        certificate
      ]

      openssl!(~w(x509 -req -days 2 -CAcreateserial) ++ signed)
      www = file(dir)
      server = Nginx.start(Path.join(dir, "nginx"), "root #{www};", tls: {certificate, key})
      on_exit(fn -> Nginx.stop(server) end)
      %{server: server, certificate: authority}
    end

    defp openssl!(args), do: {_, 0} = System.cmd("openssl", args, stderr_to_stdout: true)

    test "certificates and host names are verified", %{server: server, certificate: certificate} do
      url = Nginx.tls_url(server, "/model.pt")
      assert {:error, %Error{reason: :forbidden, message: message}} = ExTorch.load(url)
      assert message =~ "TLS"
      trusted = [ssl: [cacertfile: certificate]]
      assert {:ok, loaded} = ExTorch.load(HTTP.new(url, trusted))
      assert same?(loaded, state())
      other = String.replace(url, "localhost", "127.0.0.1")
      assert {:error, %Error{reason: :forbidden}} = ExTorch.load(HTTP.new(other, trusted))
    end
  end

  test "invalid arguments" do
    for {url, opts} <- [
          {"ftp://host/file", []},
          {"file", []},
          {"http://host/file", [timeout: -1]},
          {"http://host/file", [headers: [{"a", "b\r\nc: d"}]]},
          {"http://host/file", [token: 1]},
          {"http://host/file", [unknown: 1]},
          {:url, []}
        ] do
      assert reason(fn -> HTTP.new(url, opts) end) == :bad_argument
    end

    assert reason(fn -> HTTP.hub("org/../model", "file") end) == :bad_argument
    source = HTTP.hub("org/model", "a b.pt", revision: "refs/pr/1", endpoint: "http://host/")

    assert inspect(source) ==
             "#ExTorch.Source.HTTP<http://host/org/model/resolve/refs%2Fpr%2F1/a%20b.pt>"
  end
end
