defmodule ExTorch.CLI.Task do
  @moduledoc false
  # Runs a command as a Mix task.

  @spec run(String.t(), [String.t()]) :: :ok
  def run(name, args) do
    # Without starting the application of the project, which may take long, or print.
    Mix.Task.run("app.config")
    ExTorch.CLI.defer_libtorch(name)
    {:ok, _} = Application.ensure_all_started(:extorch)

    case ExTorch.CLI.run([name | args]) do
      0 -> :ok
      status -> exit({:shutdown, status})
    end
  end
end
