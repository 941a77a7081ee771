defmodule Mix.Tasks.Extorch.Report do
  @shortdoc "#{ExTorch.CLI.Report.summary()}"
  @moduledoc "#{ExTorch.CLI.Report.usage()}"
  use Mix.Task

  @impl true
  def run(args), do: ExTorch.CLI.Task.run("report", args)
end
