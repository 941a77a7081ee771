defmodule ExTorch.Config do
  @moduledoc """
  The configuration of ExTorch.

  All keys are optional. They are read when the native library is loaded.

      config :extorch,
        num_threads: 4,
        budget: 8 * 1024 ** 3,
        collect_after: 256 * 1024 ** 2

  | key | default | meaning |
  |---|---|---|
  | `:num_threads` | LibTorch's default | the number of threads within one operator; each dirty CPU scheduler that runs an operator may use this many |
  | `:budget` | 90 % of the memory of the machine or container, whichever is less | the limit of native bytes, or `:infinity`; a call that would exceed it runs a garbage collection and then fails with `:limit` |
  | `:collect_after` | 256 MiB | the native bytes that a process may allocate before it is garbage collected (`ExTorch.Memory`) |
  """

  @doc "Returns the configured budget of native bytes."
  @spec budget() :: non_neg_integer() | :infinity
  def budget, do: Application.get_env(:extorch, :budget) || default_budget()

  @doc "Returns the number of native bytes that a process may allocate before it is garbage collected."
  @spec collect_after() :: pos_integer()
  def collect_after, do: Application.get_env(:extorch, :collect_after, 256 * 1024 * 1024)

  defp default_budget do
    case for({:ok, bytes} <- [ExTorch.Meminfo.fetch("MemTotal"), container_memory()], do: bytes) do
      [] -> :infinity
      limits -> div(Enum.min(limits) * 9, 10)
    end
  end

  defp container_memory do
    with {:ok, text} <- File.read("/sys/fs/cgroup/memory.max"),
         {bytes, _} <- Integer.parse(text) do
      {:ok, bytes}
    else
      _ -> :error
    end
  end
end
