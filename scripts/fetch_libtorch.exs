# Downloads an archive of LibTorch, checks it and unpacks it:
#
#     elixir scripts/fetch_libtorch.exs URL SHA256 DIRECTORY
#
# The archive is kept beside the directory until it is unpacked. One that is there already is used, and a download that
# was interrupted is continued. The directory appears when it is complete. scripts/libtorch.sh runs this with a lock.
defmodule FetchLibTorch do
  @tries 5
  @silence_ms 60_000
  @chunk 1024 * 1024

  def run(url, sha256, dir) do
    unless File.dir?(dir) do
      archive =
        Path.join(
          Path.dirname(dir),
          url |> URI.parse() |> Map.get(:path) |> Path.basename() |> URI.decode()
        )

      File.mkdir_p!(Path.dirname(dir))
      unless File.exists?(archive) and valid?(archive, sha256), do: download(url, archive, sha256)
      unpack(archive, dir)
      File.rm(archive)
    end
  end

  # ---- Download ----

  defp download(url, archive, sha256) do
    {:ok, _} = Application.ensure_all_started(:inets)
    {:ok, _} = Application.ensure_all_started(:ssl)
    set_proxy()
    note("downloading #{url}")
    part = archive <> ".part"

    case receive_all(url, part, 1) do
      :ok ->
        File.rename!(part, archive)
        unless valid?(archive, sha256), do: fail("Build again to download it again.")

      {:error, reason} ->
        fail("""
        #{url} could not be downloaded: #{reason}.
        Download it in another way (SHA-256 #{sha256}) to #{archive},
        or set LIBTORCH_DIR to a LibTorch, or EXTORCH_LIBTORCH_URL to a mirror, and build again.\
        """)
    end
  end

  # Each attempt continues where the one before it ended.
  defp receive_all(url, part, try) do
    case request(url, part) do
      {:retry, _reason} when try < @tries ->
        Process.sleep(500 * 2 ** try)
        receive_all(url, part, try + 1)

      {:retry, reason} ->
        {:error, reason}

      result ->
        result
    end
  end

  defp request(url, part) do
    have = size(part)
    range = if have > 0, do: [{~c"range", ~c"bytes=#{have}-"}], else: []
    options = [connect_timeout: 30_000, ssl: tls(url)]

    with {:ok, id} <-
           :httpc.request(:get, {String.to_charlist(url), range}, options,
             sync: false,
             stream: {:self, :once}
           ) do
      receive do
        {:http, {^id, :stream_start, headers, pid}} ->
          receive_body(id, pid, headers, part, have)

        {:http, {^id, {{_, 416, _}, _, _}}} ->
          start_again(part)

        {:http, {^id, {{_, status, _}, _, _}}} when status in 500..599 ->
          {:retry, "the server answered #{status}"}

        {:http, {^id, {{_, status, _}, _, _}}} ->
          {:error, "the server answered #{status}"}

        {:http, {^id, {:error, reason}}} ->
          {:retry, text(reason)}
      after
        @silence_ms -> cancel(id)
      end
    else
      {:error, reason} -> {:retry, text(reason)}
    end
  end

  # A server without ranges sends the whole file.
  defp receive_body(id, pid, headers, part, have) do
    continues? = header(headers, ~c"content-range") != nil
    start = if continues?, do: have, else: 0
    length = header(headers, ~c"content-length")
    total = length && start + String.to_integer(length)
    {:ok, file} = File.open(part, [:raw, :binary, if(continues?, do: :append, else: :write)])

    try do
      receive_chunks(id, pid, file, %{done: start, total: total, shown: nil})
    after
      File.close(file)
    end
  end

  defp receive_chunks(id, pid, file, progress) do
    :httpc.stream_next(pid)

    receive do
      {:http, {^id, :stream, bytes}} ->
        :ok = IO.binwrite(file, bytes)
        receive_chunks(id, pid, file, show(%{progress | done: progress.done + byte_size(bytes)}))

      {:http, {^id, :stream_end, _headers}} ->
        if progress.total in [nil, progress.done],
          do: :ok,
          else: {:retry, "the connection was closed"}

      {:http, {^id, {:error, reason}}} ->
        {:retry, text(reason)}
    after
      @silence_ms -> cancel(id)
    end
  end

  # The part is longer than the file: it belongs to another one.
  defp start_again(part) do
    File.rm(part)
    {:retry, "the file on the server has changed"}
  end

  defp cancel(id) do
    :httpc.cancel_request(id)
    {:retry, "the server does not send anything"}
  end

  defp header(headers, name) do
    with {_, value} <- List.keyfind(headers, name, 0), do: to_string(value)
  end

  defp size(path) do
    case File.stat(path) do
      {:ok, %{size: size}} -> size
      _ -> 0
    end
  end

  defp tls("https:" <> _) do
    [
      verify: :verify_peer,
      depth: 10,
      cacerts: :public_key.cacerts_get(),
      customize_hostname_check: [match_fun: :public_key.pkix_verify_hostname_match_fun(:https)]
    ]
  end

  defp tls(_url), do: []

  # http_proxy, https_proxy and no_proxy, as curl has them.
  defp set_proxy do
    except =
      (env("no_proxy") || "")
      |> String.split(",", trim: true)
      |> Enum.map(&String.to_charlist(String.trim(&1)))

    for {option, name} <- [proxy: "http_proxy", https_proxy: "https_proxy"], proxy = env(name) do
      %{host: host, port: port} = URI.parse(proxy)
      if host, do: :httpc.set_options([{option, {{String.to_charlist(host), port}, except}}])
    end
  end

  defp env(name), do: System.get_env(name) || System.get_env(String.upcase(name))

  defp text({:failed_connect, reasons}) do
    case List.keyfind(reasons, :inet, 0) || List.keyfind(reasons, :inet6, 0) do
      {_, _, :nxdomain} -> "the host is not known"
      {_, _, reason} -> "no connection (#{inspect(reason)})"
      nil -> "no connection"
    end
  end

  defp text(reason), do: inspect(reason)

  # ---- Progress ----

  # On a terminal a line that is overwritten, else a line for each tenth.
  defp show(%{total: nil} = progress), do: progress

  defp show(%{done: done, total: total, shown: shown} = progress) do
    terminal? = match?({:ok, _}, :io.columns(:standard_error))
    percent = div(100 * done, max(total, 1))
    step = if terminal?, do: percent, else: div(percent, 10) * 10

    if step == shown do
      progress
    else
      text = "#{step} % of #{div(total, 1_000_000)} MB"
      IO.write(:stderr, if(terminal?, do: "\r#{bar(percent)} #{text}", else: "#{text}\n"))
      if terminal? and done == total, do: IO.write(:stderr, "\n")
      %{progress | shown: step}
    end
  end

  defp bar(percent) do
    full = div(percent, 4)
    "[" <> String.duplicate("=", full) <> String.duplicate(" ", 25 - full) <> "]"
  end

  # ---- Check and unpack ----

  # A file that is not what was expected is deleted.
  defp valid?(archive, sha256) do
    actual =
      archive
      |> File.open!([:raw, :binary, :read])
      |> hash(:crypto.hash_init(:sha256))

    valid? = actual == String.downcase(sha256)

    unless valid? do
      note(
        "#{archive} is damaged or another file, and is deleted. Its SHA-256 is #{actual}, expected #{sha256}."
      )

      File.rm(archive)
    end

    valid?
  end

  defp hash(file, state) do
    case IO.binread(file, @chunk) do
      :eof -> state |> :crypto.hash_final() |> Base.encode16(case: :lower)
      bytes -> hash(file, :crypto.hash_update(state, bytes))
    end
  end

  # What an earlier run left when it was killed is removed.
  defp unpack(archive, dir) do
    unpacking = dir <> ".unpacking"
    File.rm_rf!(unpacking)
    File.mkdir_p!(unpacking)
    note("unpacking #{Path.basename(archive)}")
    extract(archive, unpacking)

    inner = Enum.find(["libtorch", "torch"], &File.dir?(Path.join([unpacking, &1, "lib"])))

    unless inner,
      do:
        fail(
          "#{archive} is not an archive of LibTorch: it has neither libtorch/lib nor torch/lib."
        )

    File.rename!(Path.join(unpacking, inner), dir)
    File.rm_rf!(unpacking)
  end

  # :zip holds the largest file in memory.
  defp extract(archive, to) do
    if unzip = System.find_executable("unzip") do
      {output, status} =
        System.cmd(unzip, ["-q", "-o", archive, "-d", to], stderr_to_stdout: true)

      unless status == 0, do: fail("#{archive} could not be unpacked: #{String.trim(output)}")
    else
      case :zip.extract(String.to_charlist(archive), cwd: String.to_charlist(to)) do
        {:ok, _files} -> :ok
        {:error, reason} -> fail("#{archive} could not be unpacked: #{inspect(reason)}")
      end
    end
  end

  defp note(text), do: IO.puts(:stderr, "ExTorch: #{text}")

  defp fail(text) do
    note(text)
    System.halt(1)
  end
end

[url, sha256, dir] = System.argv()
FetchLibTorch.run(url, sha256, dir)
