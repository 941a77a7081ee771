defmodule Mix.Tasks.Extorch.Verify do
  @shortdoc "#{ExTorch.CLI.Verify.summary()}"
  @moduledoc "#{ExTorch.CLI.Verify.usage()}"
  use Mix.Task

  @impl true
  def run(args), do: ExTorch.CLI.Task.run("verify", args)
end
