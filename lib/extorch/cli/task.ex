defmodule ExTorch.CLI.Task do
  @moduledoc false
  # Runs a command as a Mix task.

  @spec run(String.t(), [String.t()]) :: :ok
  def run(name, args) do
    Mix.Task.run("app.start")

    case ExTorch.CLI.run([name | args]) do
      0 -> :ok
      status -> exit({:shutdown, status})
    end
  end
end
