defmodule Mix.Tasks.Extorch.Info do
  @shortdoc "#{ExTorch.CLI.Info.summary()}"
  @moduledoc "#{ExTorch.CLI.Info.usage()}"
  use Mix.Task

  @impl true
  def run(args), do: ExTorch.CLI.Task.run("info", args)
end
