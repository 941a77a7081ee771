defmodule ExTorch.MeminfoTest do
  use ExUnit.Case, async: true
  alias ExTorch.Meminfo

  @moduletag :tmp_dir
  @mib 1024 * 1024
  @unlimited_v1 "9223372036854771712\n"
  @meminfo "MemTotal:       8388608 kB\nMemFree:         1048576 kB\nMemAvailable:    4194304 kB\n"
  @machine 4096 * @mib
  @v2 "41 31 0:38 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw\n"
  @v1 "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n" <>
        "34 31 0:31 / /sys/fs/cgroup/cpuset rw shared:9 - cgroup cgroup rw,cpuset\n" <>
        "35 31 0:32 / /sys/fs/cgroup/memory rw shared:10 - cgroup cgroup rw,memory\n"

  # Writes the files of a root directory: paths to contents.
  defp write(root, files) do
    for {path, text} <- files do
      file = Path.join(root, path)
      File.mkdir_p!(Path.dirname(file))
      File.write!(file, text)
    end
  end

  defp available(root, files) do
    write(root, Map.merge(%{"proc/meminfo" => @meminfo}, files))
    Meminfo.available(root)
  end

  # The files of a group of version 2 with these numbers of MiB.
  defp group(directory, numbers) do
    stat =
      "anon 1\nfile 99\nactive_file #{(numbers[:active] || 0) * @mib}\n" <>
        "inactive_file #{(numbers[:inactive] || 0) * @mib}\nslab 5\n"

    %{
      "sys/fs/cgroup#{directory}/memory.max" => limit(numbers[:max]),
      "sys/fs/cgroup#{directory}/memory.high" => limit(numbers[:high]),
      "sys/fs/cgroup#{directory}/memory.current" => "#{numbers[:current] * @mib}\n",
      "sys/fs/cgroup#{directory}/memory.stat" => stat
    }
  end

  defp limit(nil), do: "max\n"
  defp limit(mib), do: "#{mib * @mib}\n"

  defp v2(path, groups) do
    Enum.reduce(
      groups,
      %{"proc/self/cgroup" => "0::#{path}\n", "proc/self/mountinfo" => @v2},
      fn {directory, numbers}, files -> Map.merge(files, group(directory, numbers)) end
    )
  end

  test "a machine without limits: its available memory", %{tmp_dir: root} do
    assert available(root, %{}) == {:ok, @machine}
    assert Meminfo.fetch("MemTotal", root) == {:ok, 8192 * @mib}
    assert Meminfo.fetch("MemAvail", root) == :error
  end

  test "an old kernel without MemAvailable: all its memory", %{tmp_dir: root} do
    assert available(root, %{"proc/meminfo" => "MemTotal: 1024 kB\n"}) == {:ok, @mib}
  end

  test "a system without /proc", %{tmp_dir: root} do
    assert Meminfo.available(root) == :error
    assert Meminfo.fetch("MemTotal", root) == :error
  end

  test "version 2: the limit minus what is used", %{tmp_dir: root} do
    assert available(root, v2("/app", [{"/app", max: 512, current: 100}])) == {:ok, 412 * @mib}
  end

  test "version 2: file cache counts as free", %{tmp_dir: root} do
    numbers = [max: 512, current: 500, active: 200, inactive: 250]
    assert available(root, v2("/app", [{"/app", numbers}])) == {:ok, 462 * @mib}
    # Shared counters are not exact: the cache may be larger than the use.
    numbers = [max: 512, current: 100, active: 200, inactive: 250]
    assert available(root, v2("/app", [{"/app", numbers}])) == {:ok, 512 * @mib}
  end

  test "version 2: memory.high is a limit too", %{tmp_dir: root} do
    assert available(root, v2("/app", [{"/app", high: 300, current: 100}])) == {:ok, 200 * @mib}
    numbers = [max: 512, high: 300, current: 100]
    assert available(root, v2("/app", [{"/app", numbers}])) == {:ok, 200 * @mib}
  end

  test "version 2: more used than allowed is nothing left", %{tmp_dir: root} do
    assert available(root, v2("/app", [{"/app", max: 512, current: 600}])) == {:ok, 0}
  end

  test "version 2: without a limit, the machine's memory", %{tmp_dir: root} do
    assert available(root, v2("/app", [{"/app", current: 100}])) == {:ok, @machine}
  end

  test "version 2: the least of all parents", %{tmp_dir: root} do
    groups = [
      {"/a/b/c", max: 900, current: 100},
      {"/a/b", max: 1000, current: 800},
      {"/a", current: 800}
    ]

    assert available(root, v2("/a/b/c", groups)) == {:ok, 200 * @mib}
  end

  test "version 2: a container sees its own group as the root", %{tmp_dir: root} do
    assert available(root, v2("/", [{"", max: 512, current: 12}])) == {:ok, 500 * @mib}
  end

  # The mount shows /outer/box, which is the container, whose processes see their path from the host's root.
  test "version 2: a mount of a part of the hierarchy", %{tmp_dir: root} do
    mount = "41 31 0:38 /outer/box /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
    groups = [{"", max: 512, current: 12}, {"/in", max: 100, current: 90}]
    files = %{v2("/outer/box/in", groups) | "proc/self/mountinfo" => mount}
    assert available(root, files) == {:ok, 10 * @mib}

    for path <- ["/elsewhere", "/../elsewhere", "/outer/boxes/in"] do
      files = %{v2(path, groups) | "proc/self/mountinfo" => mount}
      assert available(root, files) == {:ok, 500 * @mib}
    end
  end

  test "version 2: a mount point with a space", %{tmp_dir: root} do
    mount = "41 31 0:38 / /sys/fs/cgroup\\040x rw - cgroup2 cgroup2 rw\n"
    files = %{v2("/", [{" x", max: 512, current: 12}]) | "proc/self/mountinfo" => mount}
    assert available(root, files) == {:ok, 500 * @mib}
  end

  test "version 1: the limit minus what is used, file cache free, all parents", %{tmp_dir: root} do
    files = %{
      "proc/self/cgroup" => "9:name=systemd:/x\n4:cpu,memory:/docker/abc\n3:cpuset:/y\n0::/\n",
      "proc/self/mountinfo" => @v1,
      "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes" => "#{512 * @mib}\n",
      "sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes" => "#{400 * @mib}\n",
      "sys/fs/cgroup/memory/docker/abc/memory.stat" =>
        "inactive_file 7\ntotal_inactive_file #{100 * @mib}\ntotal_active_file #{50 * @mib}\n",
      "sys/fs/cgroup/memory/memory.limit_in_bytes" => @unlimited_v1,
      "sys/fs/cgroup/memory/memory.usage_in_bytes" => "#{5000 * @mib}\n",
      "sys/fs/cgroup/memory/memory.stat" => "total_inactive_file 0\n"
    }

    assert available(root, files) == {:ok, 262 * @mib}
    parent = %{"sys/fs/cgroup/memory/docker/memory.limit_in_bytes" => "#{200 * @mib}"}
    assert available(root, Map.merge(files, parent)) == {:ok, 262 * @mib}
    parent = Map.put(parent, "sys/fs/cgroup/memory/docker/memory.usage_in_bytes", "#{@mib}")
    assert available(root, Map.merge(files, parent)) == {:ok, 199 * @mib}
  end

  test "a group without memory.stat has no file cache", %{tmp_dir: root} do
    files = v2("/app", [{"/app", max: 512, current: 100}])

    assert available(root, Map.delete(files, "sys/fs/cgroup/app/memory.stat")) ==
             {:ok, 412 * @mib}
  end

  test "files with unexpected contents are ignored", %{tmp_dir: root} do
    files = v2("/app", [{"/app", max: 512, current: 100}])

    garbage = [
      "",
      "\n",
      "abc",
      "-5\n",
      "12x\n",
      "1\n2\n",
      "1e9",
      <<0, 255, 10>>,
      String.duplicate("9", 40)
    ]

    for {path, _} <- files, text <- garbage, path != "sys/fs/cgroup/app/memory.stat" do
      expected = if path == "sys/fs/cgroup/app/memory.high", do: 412 * @mib, else: @machine
      assert available(root, Map.put(files, path, text)) == {:ok, expected}, path
    end

    for text <- garbage do
      assert available(root, Map.put(files, "sys/fs/cgroup/app/memory.stat", text)) ==
               {:ok, 412 * @mib}

      assert available(root, Map.put(files, "proc/meminfo", text)) == {:ok, 412 * @mib}
    end

    for line <- [
          "a - b",
          " - ",
          " -  - ",
          "1 2 3 4 - cgroup2",
          "1 2 3 /\\000 /\\777 - cgroup2 x y",
          "- cgroup - memory"
        ] do
      assert available(root, Map.put(files, "proc/self/mountinfo", line <> "\n" <> @v2)) ==
               {:ok, 412 * @mib}
    end
  end

  test "a directory in place of a file is ignored", %{tmp_dir: root} do
    write(root, v2("/app", [{"/app", max: 512, current: 100}]))
    File.mkdir_p!(Path.join(root, "proc/meminfo"))
    assert Meminfo.available(root) == {:ok, 412 * @mib}
    File.rm!(Path.join(root, "sys/fs/cgroup/app/memory.max"))
    File.mkdir_p!(Path.join(root, "sys/fs/cgroup/app/memory.max"))
    assert Meminfo.available(root) == :error
  end

  test "the default budget is 90 % of what was available when ExTorch was loaded" do
    {:ok, total} = Meminfo.fetch("MemTotal")
    assert ExTorch.Config.budget() <= div(total * 9, 10)
    assert ExTorch.Config.budget() > 0
    assert ExTorch.Config.budget() == ExTorch.Config.budget()
  end
end
