defmodule ExTorch.Meminfo do
  @moduledoc false
  # Reads /proc/meminfo of Linux.

  # Returns the value of a field in bytes, or :error if it is not available.
  @spec fetch(String.t()) :: {:ok, non_neg_integer()} | :error
  def fetch(field) do
    with {:ok, text} <- File.read("/proc/meminfo"),
         [_, kilobytes] <- Regex.run(~r/^#{field}:\s+(\d+) kB/m, text) do
      {:ok, String.to_integer(kilobytes) * 1024}
    else
      _ -> :error
    end
  end
end
