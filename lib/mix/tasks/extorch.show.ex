defmodule Mix.Tasks.Extorch.Show do
  @shortdoc "#{ExTorch.CLI.Show.summary()}"
  @moduledoc "#{ExTorch.CLI.Show.usage()}"
  use Mix.Task

  @impl true
  def run(args), do: ExTorch.CLI.Task.run("show", args)
end
