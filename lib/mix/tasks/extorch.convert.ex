defmodule Mix.Tasks.Extorch.Convert do
  @shortdoc "#{ExTorch.CLI.Convert.summary()}"
  @moduledoc "#{ExTorch.CLI.Convert.usage()}"
  use Mix.Task

  @impl true
  def run(args), do: ExTorch.CLI.Task.run("convert", args)
end
