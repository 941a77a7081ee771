defmodule ExTorch.LibTorchTest do
  # scripts/libtorch.sh downloads a LibTorch. Here it is a small archive, from a server on this machine.
  use ExUnit.Case, async: true

  alias ExTorch.Test.RawServer

  @moduletag :tmp_dir
  # Nothing of the native library is used.
  @moduletag :no_asan

  setup_all do
    version =
      for {part, number} <- [MAJOR: 2, MINOR: 14, PATCH: 7],
          do: "#define TORCH_VERSION_#{part} #{number}\n"

    files = [
      {~c"libtorch/include/ATen/ATen.h", ""},
      {~c"libtorch/include/torch/version.h", IO.iodata_to_binary(version)},
      {~c"libtorch/lib/libtorch_cpu.so", :crypto.strong_rand_bytes(300_000)},
      {~c"libtorch/lib/libc10.so", "NSt7__cxx1112basic_string"}
    ]

    [archive: zip(files), other: zip([{~c"other/file", "no LibTorch"}])]
  end

  defp zip(files) do
    {:ok, {_name, bytes}} = :zip.create(~c"a.zip", files, [:memory])
    bytes
  end

  # Serves the bytes, in ranges, and tells the test which ones were asked for.
  defp serve(bytes, answer \\ fn _n, _range, usual -> usual end) do
    test = self()

    url =
      RawServer.start(fn n, range ->
        send(test, {:request, range})
        answer.(n, range, {:close, whole_or_part(bytes, range)})
      end)

    String.replace_suffix(url, "model.pt", "libtorch-2.14.7.zip")
  end

  defp whole_or_part(bytes, nil), do: ["HTTP/1.1 200 OK\r\n", length_of(bytes), "\r\n", bytes]
  defp whole_or_part(bytes, range), do: RawServer.partial(bytes, range)
  defp length_of(bytes), do: "content-length: #{byte_size(bytes)}\r\nconnection: close\r\n"
  defp begin_of(bytes), do: ["HTTP/1.1 200 OK\r\n", length_of(bytes), "\r\n", half(bytes)]
  defp half(bytes), do: binary_part(bytes, 0, div(byte_size(bytes), 2))
  defp sha256(bytes), do: :crypto.hash(:sha256, bytes) |> Base.encode16(case: :lower)

  defp run(url, bytes, cache, env \\ []) do
    env =
      [
        {"EXTORCH_LIBTORCH_URL", url},
        {"EXTORCH_LIBTORCH_SHA256", bytes && sha256(bytes)},
        {"EXTORCH_CACHE", cache},
        {"LIBTORCH_DIR", nil},
        {"LIBTORCH_VERSION", nil},
        {"LIBTORCH_TARGET", nil},
        {"EXTORCH_FETCH", nil},
        {"http_proxy", nil},
        {"HTTP_PROXY", nil}
      ] ++ env

    System.cmd(Path.expand("scripts/libtorch.sh"), [], env: env, stderr_to_stdout: true)
  end

  defp requests do
    receive do
      {:request, range} -> [range | requests()]
    after
      0 -> []
    end
  end

  defp files(cache),
    do: Path.wildcard(cache <> "/libtorch/*") |> Enum.reject(&String.ends_with?(&1, ".lock"))

  test "is downloaded once, and used from then on", %{archive: archive, tmp_dir: cache} do
    url = serve(archive)
    assert {output, 0} = run(url, archive, cache)
    assert output =~ "TORCH_VERSION := 2.14.7"
    assert output =~ "TORCH_ABI := 1"
    assert [dir] = files(cache)
    assert output =~ "TORCH_LIB := #{dir}/lib"
    assert requests() == [nil]
    assert {output, 0} = run(url, archive, cache)
    refute output =~ "downloading"
    assert requests() == []
  end

  test "a download that breaks off is continued", %{archive: archive, tmp_dir: cache} do
    url =
      serve(archive, fn
        1, nil, _ -> {:close, begin_of(archive)}
        2, _range, _ -> {:close, "HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n"}
        _, _range, usual -> usual
      end)

    assert {_output, 0} = run(url, archive, cache)
    assert [nil, {at, _}, {at, _}] = requests()
    assert at in 1..byte_size(archive)
  end

  test "a server without ranges sends it again", %{archive: archive, tmp_dir: cache} do
    url =
      serve(archive, fn
        1, nil, _ -> {:close, begin_of(archive)}
        _, _range, _ -> {:close, whole_or_part(archive, nil)}
      end)

    assert {_output, 0} = run(url, archive, cache)
    assert [nil, {_, _}] = requests()
  end

  test "a download that was killed is continued", %{archive: archive, tmp_dir: cache} do
    url =
      serve(archive, fn
        1, nil, _ ->
          fn socket ->
            :gen_tcp.send(socket, begin_of(archive))
            Process.sleep(:infinity)
          end

        _, _range, usual ->
          usual
      end)

    task = Task.async(fn -> run(url, archive, cache) end)
    part = wait_for(fn -> Enum.find(files(cache), &(File.stat!(&1).size > 0)) end)
    kill(cache)
    assert {_output, status} = Task.await(task, :infinity)
    assert status != 0
    size = File.stat!(part).size
    assert {_output, 0} = run(url, archive, cache)
    assert [nil, {^size, _}] = requests()
    assert [_dir] = files(cache)
  end

  test "several builds download it once", %{archive: archive, tmp_dir: cache} do
    url = serve(archive)
    tasks = for _ <- 1..3, do: Task.async(fn -> run(url, archive, cache) end)
    assert [{first, 0}, {_, 0}, {_, 0}] = Task.await_many(tasks, :infinity)
    assert first =~ "TORCH_LIB"
    assert requests() == [nil]
  end

  test "another file is refused and deleted", %{archive: archive, other: other, tmp_dir: cache} do
    assert {output, 1} = run(serve(other), archive, cache)
    assert output =~ "Its SHA-256 is #{sha256(other)}, expected #{sha256(archive)}."
    assert files(cache) == []
    assert {output, 1} = run(serve(other), other, cache)
    assert output =~ "is not an archive of LibTorch"
    assert {_output, 0} = run(serve(archive), archive, cache)
  end

  test "what to do without a network", %{archive: archive, tmp_dir: cache} do
    {:ok, listener} = :gen_tcp.listen(0, ip: {127, 0, 0, 1})
    {:ok, port} = :inet.port(listener)
    :gen_tcp.close(listener)
    url = "http://127.0.0.1:#{port}/libtorch-2.14.7%2Bcpu.zip"
    assert {output, 1} = run(url, archive, cache)
    place = Path.join(cache, "libtorch/libtorch-2.14.7+cpu.zip")
    assert output =~ "Download it in another way (SHA-256 #{sha256(archive)}) to #{place}"
    File.write!(place, archive)
    assert {output, 0} = run(url, archive, cache)
    assert output =~ "TORCH_VERSION := 2.14.7"
  end

  test "a server that does not have it", %{archive: archive, tmp_dir: cache} do
    missing = {:close, "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"}
    assert {output, 1} = run(serve(archive, fn _, _, _ -> missing end), archive, cache)
    assert output =~ "the server answered 404"
    assert [nil] = requests()
  end

  test "an archive whose checksum is not known", %{archive: archive, tmp_dir: cache} do
    env = [{"LIBTORCH_VERSION", "2.14.7"}]
    assert {output, 1} = run("http://127.0.0.1:1/a.zip", nil, cache, env)
    assert output =~ "Set EXTORCH_LIBTORCH_SHA256"
    assert {output, 1} = run("http://127.0.0.1:1", nil, cache, env)
    assert output =~ "there is no archive of LibTorch"
    assert {output, 1} = run("http://127.0.0.1:1/a.zip", archive, cache, [{"EXTORCH_FETCH", "0"}])
    assert output =~ "EXTORCH_FETCH=0"
  end

  test "a directory of links, and without SIGPIPE", %{archive: archive, tmp_dir: dir} do
    {:ok, _} = :zip.unzip(archive, cwd: String.to_charlist(dir))
    File.ln_s!(Path.join(dir, "libtorch"), Path.join(dir, "link"))

    assert {output, 0} =
             System.cmd("sh", ["-c", "trap '' PIPE; exec scripts/libtorch.sh"],
               env: [{"LIBTORCH_DIR", Path.join(dir, "link")}],
               stderr_to_stdout: true
             )

    # make compares the directories with those of the compiler.
    assert output =~ "TORCH_INCLUDE := #{dir}/libtorch/include\n"
    assert output =~ "TORCH_RPATH := #{dir}/libtorch/lib\n"
    refute output =~ "roken pipe"
  end

  defp wait_for(fun) do
    fun.() ||
      (
        Process.sleep(20)
        wait_for(fun)
      )
  end

  # Kills the processes whose arguments contain the text.
  defp kill(text) do
    for file <- Path.wildcard("/proc/[0-9]*/cmdline"),
        {:ok, arguments} <- [File.read(file)],
        String.contains?(arguments, text),
        do: System.cmd("kill", ["-9", file |> Path.dirname() |> Path.basename()])
  end

  describe "of Torchx" do
    # The source of Torchx, with what it has unpacked.
    defp torchx(dir, archive, versions) do
      File.mkdir_p!(dir)
      File.write!(Path.join(dir, "mix.exs"), ~S[System.get_env("LIBTORCH_VERSION", "2.8.0")])

      for version <- versions do
        {:ok, _} = :zip.unzip(archive, cwd: String.to_charlist(dir))
        File.mkdir_p!(Path.join(dir, "cache"))
        File.rename!(Path.join(dir, "libtorch"), Path.join(dir, "cache/libtorch-#{version}"))
      end

      dir
    end

    defp run_torchx(dir, env),
      do: run("http://localhost:1/x.zip", nil, dir, [{"TORCHX_DIR", dir} | env])

    test "is used, in the version and for the target that Torchx uses", c do
      dir = torchx(Path.join(c.tmp_dir, "torchx"), c.archive, ~w(2.8.0-cpu 2.9.1-cu130))
      assert {output, 0} = run_torchx(dir, [])
      assert output =~ "TORCH_LIB := #{dir}/cache/libtorch-2.8.0-cpu/lib\n"
      env = [{"LIBTORCH_VERSION", "2.9.1"}, {"LIBTORCH_TARGET", "cu130"}]
      assert {output, 0} = run_torchx(dir, env)
      assert output =~ "TORCH_LIB := #{dir}/cache/libtorch-2.9.1-cu130/lib\n"
      other = Path.join(dir, "cache/libtorch-2.9.1-cu130")
      assert {output, 0} = run_torchx(dir, [{"LIBTORCH_DIR", other}])
      assert output =~ "TORCH_LIB := #{other}/lib\n"
    end

    test "is the one that Torchx was compiled with, if that is another one", c do
      dir = torchx(Path.join(c.tmp_dir, "torchx"), c.archive, [])
      system = Path.join(c.tmp_dir, "system")
      File.mkdir_p!(system)
      {:ok, _} = :zip.unzip(c.archive, cwd: String.to_charlist(system))
      priv = Path.join(c.tmp_dir, "priv")
      File.mkdir_p!(priv)
      File.ln_s!(Path.join(system, "libtorch/lib"), Path.join(priv, "libtorch"))
      assert {output, 0} = run_torchx(dir, [{"TORCHX_PRIV", priv}])
      assert output =~ "TORCH_LIB := #{system}/libtorch/lib\n"

      # as with LIBTORCH_DIR=/usr
      {machine, 0} = System.cmd("uname", ["-m"])
      below = Path.join(system, "libtorch/lib/#{String.trim(machine)}-linux-gnu")
      File.mkdir_p!(below)

      for file <- Path.wildcard(Path.join(system, "libtorch/lib/*.so")),
          do: File.rename!(file, Path.join(below, Path.basename(file)))

      assert {output, 0} = run_torchx(dir, [{"TORCHX_PRIV", priv}])
      assert output =~ "TORCH_LIB := #{below}\n"
    end

    test "is not replaced by another one if it is not there", %{archive: archive, tmp_dir: dir} do
      dir = torchx(Path.join(dir, "torchx"), archive, [])
      assert {output, 1} = run_torchx(dir, [])
      assert output =~ "its LibTorch is not in #{dir}/cache/libtorch-2.8.0-cpu"
      assert output =~ "mix deps.compile torchx"
    end
  end
end
