defmodule ExTorch.SaveFileTest do
  # A save replaces the file completely or not at all.
  use ExTorch.Case
  alias ExTorch.Checkpoint
  alias ExTorch.Native.Call
  alias ExTorch.Test.VM

  @moduletag :tmp_dir

  setup %{tmp_dir: dir}, do: {:ok, path: Path.join(dir, "model.pt")}

  defp mode(path), do: Bitwise.band(File.stat!(path).mode, 0o7777)

  test "a path that cannot be written returns the reason", %{tmp_dir: dir, path: path} do
    assert {:error, %Error{reason: :not_found, message: message}} =
             ExTorch.save(1, Path.join(dir, "no/such/x.pt"))

    assert message =~ "no such directory"
    assert {:error, %Error{reason: :io, message: message}} = ExTorch.save(1, dir)
    assert message =~ "directory"
    assert {:error, %Error{reason: :io}} = ExTorch.save(1, dir <> "/")
    assert {:error, %Error{reason: :io, message: message}} = ExTorch.save(1, "/dev/full")
    assert message =~ "not a regular file"
    assert {:error, %Error{reason: reason}} = ExTorch.save(1, "/proc/extorch.pt")
    assert reason in [:io, :not_found]
    File.write!(path, "x")
    assert {:error, %Error{}} = ExTorch.save(1, path <> "/y.pt")
    assert File.ls!(dir) == ["model.pt"]
  end

  test "permissions are those of the umask or of the replaced file", %{tmp_dir: dir, path: path} do
    umask = System.cmd("sh", ["-c", "umask"]) |> elem(0) |> String.trim() |> String.to_integer(8)
    :ok = ExTorch.save(1, path)
    assert mode(path) == Bitwise.band(0o666, Bitwise.bnot(umask))
    File.chmod!(path, 0o640)
    :ok = ExTorch.save(2, path)
    assert mode(path) == 0o640
    assert ExTorch.load!(path) == 2
    assert File.ls!(dir) == ["model.pt"]
  end

  test "symbolic links are followed, also dangling ones", %{tmp_dir: dir, path: path} do
    File.mkdir_p!(Path.join(dir, "deep"))
    link = Path.join(dir, "link.pt")
    File.ln_s!("deep/target.pt", link)
    :ok = ExTorch.save(1, link)
    assert ExTorch.load!(Path.join(dir, "deep/target.pt")) == 1
    File.ln_s!(link, path)
    :ok = ExTorch.save(2, path)
    assert ExTorch.load!(Path.join(dir, "deep/target.pt")) == 2
    assert {:ok, "deep/target.pt"} = File.read_link(link)
    loop = Path.join(dir, "loop.pt")
    File.ln_s!("loop.pt", loop)
    assert {:error, %Error{reason: :io}} = ExTorch.save(1, loop)
  end

  test "an open or mapped file keeps its old contents", %{path: path} do
    :ok = ExTorch.save(%{"a" => ExTorch.tensor([1.0, 2.0])}, path)
    ckpt = Checkpoint.open!(path, mmap: true)
    old = Checkpoint.tensor!(ckpt, "a")
    :ok = ExTorch.save(%{"a" => ExTorch.tensor([3.0])}, path)
    assert Tensor.to_list(old) == [1.0, 2.0]
    assert Tensor.to_list(ExTorch.load!(path)["a"]) == [3.0]
  end

  test "a mapped file that is truncated during a save is an error, and the target is unchanged",
       %{
         tmp_dir: dir,
         path: path
       } do
    source = Path.join(dir, "source.pt")
    :ok = ExTorch.save(ExTorch.ones({1_000_000}), source)
    :ok = ExTorch.save("old", path)
    tensor = ExTorch.load!(source, mmap: true)
    {:ok, file} = File.open(source, [:read, :write, :raw])
    :file.position(file, 100_000)
    :ok = :file.truncate(file)
    assert {:error, %Error{reason: :file_changed}} = ExTorch.save(%{"t" => tensor}, path)
    assert ExTorch.load!(path) == "old"
    assert Enum.sort(File.ls!(dir)) == ["model.pt", "source.pt"]
  end

  test "temporary files of dead processes are removed, those of running saves are not", %{
    tmp_dir: dir,
    path: path
  } do
    left = Path.join(dir, ".extorch-save-0123456789abcdef01234567")
    File.write!(left, "left behind by a power cut")
    other = Path.join(dir, ".extorch-other")
    File.write!(other, "not ours")
    :ok = ExTorch.save(1, path)
    refute File.exists?(left)
    assert File.exists?(other)
  end

  test "a killed process leaves no file", %{tmp_dir: dir, path: path} do
    :ok = ExTorch.save("old", path)
    tensor = ExTorch.zeros({500 * 1024 * 1024}, dtype: :uint8)
    me = self()

    {pid, ref} =
      spawn_monitor(fn ->
        ExTorch.save(tensor, path,
          on_progress: fn done, _ -> send(me, {:at, done}) end,
          fsync: false
        )
      end)

    assert_receive {:at, done} when done > 0, 20_000
    Process.exit(pid, :kill)
    assert_receive {:DOWN, ^ref, _, _, :killed}, 5000
    Memory.collect()
    assert File.ls!(dir) == ["model.pt"]
    # the save may have finished before the kill
    assert ExTorch.load!(path) == "old" or done > 400 * 1024 * 1024
    Tensor.release(tensor)
  end

  test "concurrent saves of one file: the result is one complete file", %{
    tmp_dir: dir,
    path: path
  } do
    1..20
    |> Task.async_stream(
      fn i -> :ok = ExTorch.save(ExTorch.full({100_000}, i * 1.0), path, fsync: false) end,
      max_concurrency: 8
    )
    |> Stream.run()

    [first | rest] = Tensor.to_list(ExTorch.load!(path, verify: true))
    assert Enum.all?(rest, &(&1 == first))
    assert File.ls!(dir) == ["model.pt"]
  end

  # ---- Faults ----

  @say """
  [path] = System.argv()
  case ExTorch.save(ExTorch.ones({2_000_000}), path) do
    :ok -> IO.puts("saved")
    {:error, error} -> IO.puts("refused \#{error.reason}: \#{error.message}")
  end
  """

  @tag timeout: 300_000
  test "the disk is full", %{tmp_dir: dir, path: path} do
    small = Path.join(dir, "small")
    File.mkdir_p!(small)

    case System.cmd("mount", ["-t", "tmpfs", "-o", "size=4m", "tmpfs", small],
           stderr_to_stdout: true
         ) do
      {_, 0} ->
        try do
          target = Path.join(small, "model.pt")
          :ok = ExTorch.save("old", target)

          assert {:error, %Error{reason: :io, message: message}} =
                   ExTorch.save(ExTorch.ones({2_000_000}), target)

          assert message =~ "disk is full"
          assert ExTorch.load!(target) == "old"
          assert File.ls!(small) == ["model.pt"]
        after
          # files are closed by the reaper, shortly after the calls return
          unmount = fn ->
            match?({_, 0}, System.cmd("umount", [small], stderr_to_stdout: true))
          end

          assert wait_until(unmount)
          File.rmdir!(small)
        end

      _ ->
        # mounting is not permitted, and a limit of the file size would end the VM
        assert ExTorch.save(1, path) == :ok
    end
  end

  if System.find_executable("strace") do
    @tag :no_asan
    @tag timeout: 300_000
    test "a disk that fails during the save", %{tmp_dir: dir, path: path} do
      :ok = ExTorch.save("old", path)

      for {fault, words} <- [
            {"pwrite64:error=EIO:when=3", "could not be written"},
            {"pwrite64:error=ENOSPC:when=5", "disk is full"},
            {"fsync:error=EIO:when=1", "synced to disk"},
            {"renameat:error=EIO", "moved into place"}
          ] do
        call = fault |> String.split(":") |> hd()
        wrap = ~w(strace -f -qq -o /dev/null -e trace=#{call} -e inject=#{fault})
        {output, _} = VM.run(@say, [path], through: wrap)
        assert output =~ "refused io" and output =~ words, "#{fault}: #{output}"
        assert ExTorch.load!(path) == "old"
        assert File.ls!(dir) == ["model.pt"]
      end

      wrap =
        ~w(strace -f -qq -o /dev/null -e trace=pwrite64 -e inject=pwrite64:error=EINTR:when=2)

      assert {"saved" <> _, 0} = VM.run(@say, [path], through: wrap)
      assert %Tensor{shape: {2_000_000}} = ExTorch.load!(path, verify: true)
    end
  end

  test "a save that has ended holds nothing", %{path: path} do
    {:ok, {saver, 4000}} =
      Call.saver_begin(%{"a" => ExTorch.zeros({1000})}, :safetensors, "root", {false, false}, [])

    {:ok, :ok} = Call.saver_open(saver, path, false)
    before = Memory.live()
    assert before.bytes >= 4000
    {:ok, :done} = Call.saver_step(saver, 1_000_000)
    assert wait_until(fn -> Memory.live().bytes <= before.bytes - 4000 end)
    assert {:error, %Error{reason: :released, message: message}} = Call.saver_step(saver, 1)
    assert message =~ "this save has ended"
    assert {:error, %Error{reason: :released}} = Call.saver_open(saver, path, false)
    assert {:error, %Error{reason: :released}} = Call.saver_next(saver, 1)
    assert Tensor.to_list(ExTorch.load!(path)["a"]) == List.duplicate(0.0, 1000)
  end

  test "the binaries of a stream keep its tensors, even if the save ends in a file", %{path: path} do
    tensor = ExTorch.full({1_000_000}, 1.5)

    {:ok, {saver, _}} =
      Call.saver_begin(%{"a" => tensor}, :safetensors, "root", {false, false}, [])

    {:ok, {:more, _done, iodata}} = Call.saver_next(saver, 2_000_000)
    sum = :erlang.crc32(iodata)
    {:ok, :ok} = Call.saver_open(saver, path, false)
    {:ok, :done} = Call.saver_step(saver, 10_000_000)
    Tensor.release(tensor)
    Memory.collect()
    assert Memory.live().bytes >= 4_000_000
    assert :erlang.crc32(iodata) == sum
  end

  test "a large file is replaced, and its bytes are freed", %{path: path} do
    :ok = ExTorch.save(ExTorch.zeros({5_000_000}), path, fsync: false)
    %{inode: inode} = File.stat!(path)
    :ok = ExTorch.save(ExTorch.tensor([1, 2]), path, fsync: false)
    assert Tensor.to_list(ExTorch.load!(path)) == [1, 2]
    assert File.stat!(path).inode != inode

    open = fn ->
      for fd <- File.ls!("/proc/self/fd"),
          {:ok, name} <- [File.read_link("/proc/self/fd/#{fd}")],
          String.starts_with?(name, path),
          do: name
    end

    assert wait_until(fn -> open.() == [] end)
  end

  @tag :no_asan
  @tag timeout: 600_000
  test "kill -9 during a save: the old file can always be loaded", %{tmp_dir: dir, path: path} do
    :ok = ExTorch.save(ExTorch.full({3_000_000}, 0.0), path)

    script = """
    [path] = System.argv()
    tensor = ExTorch.full({3_000_000}, 1.0)
    IO.puts("ready")
    Stream.repeatedly(fn -> :ok = ExTorch.save(tensor, path, fsync: false) end) |> Stream.run()
    """

    # EXTORCH_KILLS sets a larger number of rounds
    rounds = String.to_integer(System.get_env("EXTORCH_KILLS") || "20")

    for round <- 1..rounds do
      port =
        Port.open({:spawn_executable, System.find_executable("elixir")}, [
          :binary,
          :exit_status,
          args: VM.args(script, [path]),
          env: [{~c"LD_PRELOAD", false}]
        ])

      assert_receive {^port, {:data, "ready" <> _}}, 60_000
      {:os_pid, pid} = Port.info(port, :os_pid)
      Process.sleep(:rand.uniform(60))
      System.cmd("kill", ["-9", to_string(pid)])
      assert_receive {^port, {:exit_status, _}}, 10_000
      assert %Tensor{shape: {3_000_000}} = ExTorch.load!(path, verify: true), "round #{round}"
    end

    # the next save removes the temporary file of a killed one
    :ok = ExTorch.save(1, path)
    assert File.ls!(dir) == ["model.pt"]
  end
end
