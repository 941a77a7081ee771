defmodule ExTorch.Test.Nginx do
  @moduledoc false
  # Runs nginx on the loopback interface, with a log of its requests.

  @enforce_keys [:dir, :port, :tls_port]
  defstruct [:dir, :port, :tls_port]

  @doc "Whether nginx is installed."
  def available?, do: executable() != nil

  # Debian has it in /usr/sbin, which may not be in PATH.
  defp executable,
    do: System.find_executable("nginx") || Enum.find(["/usr/sbin/nginx"], &File.exists?/1)

  @doc """
  Starts a server in an empty directory, with the given configuration of the server. `port` can be used in it as PORT. With
  `tls: {certificate, key}` it also serves TLS.
  """
  def start(dir, config, opts \\ []) do
    File.mkdir_p!(Path.join(dir, "tmp"))
    [port, tls_port] = free_ports(2)

    tls =
      with {certificate, key} <- opts[:tls] do
        "listen 127.0.0.1:#{tls_port} ssl; ssl_certificate #{certificate}; ssl_certificate_key #{key};"
      end

    temporary =
      for kind <- ~w(client_body proxy fastcgi uwsgi scgi),
          do: "#{kind}_temp_path #{dir}/tmp/#{kind};\n"

    File.write!(Path.join(dir, "nginx.conf"), """
    #{if System.get_env("USER", "root") == "root", do: "user root;"}
    worker_processes 1;
    daemon off;
    pid #{dir}/nginx.pid;
    error_log #{dir}/error.log;
    events { worker_connections 256; }
    http {
      #{temporary}
      log_format requests '$status $bytes_sent $request_method $uri "$http_range" "$http_authorization" "$http_x_secret" $connection';
      access_log #{dir}/access.log requests;
      sendfile on;
      types { }
      default_type application/octet-stream;
      server {
        listen 127.0.0.1:#{port};
        #{tls}
        #{String.replace(config, "PORT", Integer.to_string(port))}
      }
    }
    """)

    args = ["-p", dir, "-c", Path.join(dir, "nginx.conf"), "-e", Path.join(dir, "error.log")]
    spawn_server(executable(), args)
    server = %__MODULE__{dir: dir, port: port, tls_port: tls_port}
    wait(server, 200)
    server
  end

  # The port belongs to a process of its own, so that the server ends with the VM: `sh` waits for the end of its input.
  defp spawn_server(nginx, args) do
    script = ~S("$@" & trap 'kill $!' EXIT; read line)
    args = ["-c", script, "sh", nginx | args]

    spawn(fn ->
      Port.open({:spawn_executable, "/bin/sh"}, [:binary, :stderr_to_stdout, args: args])
      Process.sleep(:infinity)
    end)
  end

  defp free_ports(count) do
    sockets =
      for _ <- 1..count do
        {:ok, socket} = :gen_tcp.listen(0, ip: {127, 0, 0, 1})
        socket
      end

    for socket <- sockets do
      {:ok, port} = :inet.port(socket)
      :gen_tcp.close(socket)
      port
    end
  end

  defp wait(server, tries) do
    case :gen_tcp.connect({127, 0, 0, 1}, server.port, []) do
      {:ok, socket} ->
        :gen_tcp.close(socket)

      {:error, _} when tries > 0 ->
        Process.sleep(25)
        wait(server, tries - 1)

      {:error, _} ->
        raise "nginx did not start: #{File.read!(Path.join(server.dir, "error.log"))}"
    end
  end

  @doc "Stops the server."
  def stop(server) do
    with {:ok, pid} <- File.read(Path.join(server.dir, "nginx.pid")),
         do: System.cmd("kill", [String.trim(pid)], stderr_to_stdout: true)

    :ok
  end

  def url(server, path), do: "http://127.0.0.1:#{server.port}#{path}"
  def tls_url(server, path), do: "https://localhost:#{server.tls_port}#{path}"

  def clear_log(server) do
    Process.sleep(20)
    File.write!(Path.join(server.dir, "access.log"), "")
  end

  @doc "The requests so far."
  def log(server) do
    # nginx writes the line after the response.
    Process.sleep(50)

    for line <-
          server.dir |> Path.join("access.log") |> File.read!() |> String.split("\n", trim: true) do
      [_, status, bytes, uri, range, authorization, secret, connection] =
        Regex.run(~r/^(\d+) (\d+) \w+ (\S+) "(.*)" "(.*)" "(.*)" (\d+)$/, line)

      %{
        status: String.to_integer(status),
        bytes: String.to_integer(bytes),
        uri: uri,
        range: range,
        authorization: authorization,
        secret: secret,
        connection: connection
      }
    end
  end
end
