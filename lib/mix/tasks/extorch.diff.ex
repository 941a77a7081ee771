defmodule Mix.Tasks.Extorch.Diff do
  @shortdoc "#{ExTorch.CLI.Diff.summary()}"
  @moduledoc "#{ExTorch.CLI.Diff.usage()}"
  use Mix.Task

  @impl true
  def run(args), do: ExTorch.CLI.Task.run("diff", args)
end
