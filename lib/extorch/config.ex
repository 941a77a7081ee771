defmodule ExTorch.Config do
  @moduledoc """
  Every configuration key of ExTorch. All are optional and read when the native library is loaded.

      config :extorch,
        num_threads: 4,
        budget: 8 * 1024 ** 3,
        collect_after: 256 * 1024 ** 2

  | key | default | meaning |
  |---|---|---|
  | `:num_threads` | LibTorch's choice | threads LibTorch uses inside one operator; every dirty CPU scheduler that calls it may use so many |
  | `:budget` | 90 % of the machine's memory (of the container's, when that is less) | the most native bytes that may be live at once, or `:infinity`; over it a call collects the garbage of its process, and if that does not help fails with `:limit` |
  | `:collect_after` | 256 MiB | native bytes a process may take before its garbage is collected on its behalf (`ExTorch.Memory`) |
  """

  @doc "The configured budget of native bytes."
  @spec budget() :: non_neg_integer() | :infinity
  def budget, do: Application.get_env(:extorch, :budget) || default_budget()

  @doc "Native bytes that a process takes before its garbage is collected."
  @spec collect_after() :: pos_integer()
  def collect_after, do: Application.get_env(:extorch, :collect_after, 256 * 1024 * 1024)

  defp default_budget do
    case Enum.reject([machine_memory(), container_memory()], &is_nil/1) do
      [] -> :infinity
      known -> div(Enum.min(known) * 9, 10)
    end
  end

  defp machine_memory do
    with {:ok, text} <- File.read("/proc/meminfo"),
         [_, kilobytes] <- Regex.run(~r/^MemTotal:\s+(\d+) kB/m, text) do
      String.to_integer(kilobytes) * 1024
    else
      _ -> nil
    end
  end

  defp container_memory do
    with {:ok, text} <- File.read("/sys/fs/cgroup/memory.max"),
         {bytes, _} <- Integer.parse(text) do
      bytes
    else
      _ -> nil
    end
  end
end
