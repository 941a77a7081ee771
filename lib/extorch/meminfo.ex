defmodule ExTorch.Meminfo do
  @moduledoc false
  # The memory that Linux and the control groups of the process (containers, systemd units) leave to it. A file of /proc
  # or /sys that is missing or has unexpected contents counts as no information. `root` is another root directory, for
  # tests.

  # The files with the limits of a control group and its use, and the fields of memory.stat that are file cache, which
  # the kernel gives back on demand.
  @v2 {["memory.max", "memory.high"], "memory.current", ["inactive_file", "active_file"]}
  @v1 {["memory.limit_in_bytes"], "memory.usage_in_bytes",
       ["total_inactive_file", "total_active_file"]}

  # Returns the value of a field of /proc/meminfo in bytes, or :error if it is not available.
  @spec fetch(String.t(), Path.t()) :: {:ok, non_neg_integer()} | :error
  def fetch(field, root \\ "/") do
    with {:ok, kilobytes} <-
           field(Path.join(root, "proc/meminfo"), field, ~r/^:\s+(\d{1,16}) kB$/) do
      {:ok, kilobytes * 1024}
    end
  end

  # Returns the bytes that the process can allocate now: the least of what the machine and each control group, up to the
  # topmost one, have available. Returns :error if nothing is known.
  @spec available(Path.t()) :: {:ok, non_neg_integer()} | :error
  def available(root \\ "/") do
    case for({:ok, bytes} <- [machine(root) | groups(root)], do: bytes) do
      [] -> :error
      all -> {:ok, Enum.min(all)}
    end
  end

  # Linux before 3.14 has no MemAvailable.
  defp machine(root), do: with(:error <- fetch("MemAvailable", root), do: fetch("MemTotal", root))

  defp groups(root) do
    mounts = mounts(root)

    for {version, path} <- memberships(root),
        {^version, mounted, mount_point} <- mounts,
        directory <- directories(path, mounted, Path.join(root, mount_point)),
        do: group(directory, version)
  end

  # The control groups of the process: "0::/path" (version 2), "4:cpu,memory:/path" (version 1).
  defp memberships(root) do
    for line <- lines(Path.join(root, "proc/self/cgroup")),
        [_, controllers, path] <- [String.split(line, ":", parts: 3)],
        version = if(controllers == "", do: :v2, else: memory_v1(controllers)),
        do: {version, path}
  end

  # Which directory of which hierarchy is mounted where.
  defp mounts(root) do
    for line <- lines(Path.join(root, "proc/self/mountinfo")),
        [mount, system] <- [String.split(line, " - ", parts: 2)],
        [_, _, _, mounted, mount_point | _] <- [String.split(mount, " ")],
        version = mount_version(String.split(system, " ")),
        do: {version, unescape(mounted), unescape(mount_point)}
  end

  defp mount_version(["cgroup2" | _]), do: :v2
  defp mount_version(["cgroup", _, options]), do: memory_v1(options)
  defp mount_version(_), do: nil

  defp memory_v1(names), do: if("memory" in String.split(names, ","), do: :v1)

  # The kernel writes white space and backslashes as octal numbers.
  defp unescape(text),
    do: Regex.replace(~r/\\([0-3][0-7]{2})/, text, fn _, n -> <<String.to_integer(n, 8)>> end)

  # The directories of a control group and of its parents. In a container, the mount may show another part of the
  # hierarchy than the path is in: then the mount point is all that can be seen.
  defp directories(path, mounted, mount_point) do
    {path, mounted} = {Path.split(path), Path.split(mounted)}
    inside? = List.starts_with?(path, mounted) and ".." not in path
    below = if inside?, do: Enum.drop(path, length(mounted)), else: []
    for depth <- 0..length(below), do: Path.join([mount_point | Enum.take(below, depth)])
  end

  defp group(directory, version) do
    {limits, usage, cache} = if version == :v2, do: @v2, else: @v1

    with [_ | _] = limits <-
           for({:ok, bytes} <- Enum.map(limits, &number(directory, &1)), do: bytes),
         {:ok, used} <- number(directory, usage) do
      stat = Path.join(directory, "memory.stat")

      cached =
        for name <- cache, {:ok, bytes} <- [field(stat, name, ~r/^ (\d{1,19})$/)], do: bytes

      {:ok, max(Enum.min(limits) - max(used - Enum.sum(cached), 0), 0)}
    else
      _ -> :error
    end
  end

  # No limit is the word "max" in version 2, and a number that is larger than any memory in version 1.
  defp number(directory, file) do
    case lines(Path.join(directory, file)) do
      [line] -> parse(line, ~r/^(\d{1,19})$/)
      _ -> :error
    end
  end

  defp field(file, name, format) do
    Enum.find_value(lines(file), :error, fn line ->
      if String.starts_with?(line, name),
        do: with(:error <- parse(String.replace_prefix(line, name, ""), format), do: nil)
    end)
  end

  defp parse(text, format) do
    case Regex.run(format, text) do
      [_, digits] -> {:ok, String.to_integer(digits)}
      nil -> :error
    end
  end

  defp lines(file) do
    case File.read(file) do
      {:ok, text} -> String.split(text, "\n", trim: true)
      {:error, _} -> []
    end
  end
end
