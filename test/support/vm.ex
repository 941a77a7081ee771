defmodule ExTorch.Test.VM do
  @moduledoc false
  # Runs Elixir scripts in a separate VM that has ExTorch in its code path.

  @doc "Arguments of the `elixir` command."
  def args(script, args) do
    paths = for dir <- :code.get_path(), to_string(dir) =~ "extorch", do: ["-pa", to_string(dir)]
    List.flatten(paths) ++ ["-e", script | args]
  end

  @doc """
  Runs a script. Returns its output, with that to stderr, and its exit status. `through:` is a command that starts the
  VM, such as strace and its options.
  """
  def run(script, args \\ [], opts \\ []) do
    [command | rest] = Keyword.get(opts, :through, []) ++ ["elixir" | args(script, args)]
    System.cmd(command, rest, stderr_to_stdout: true)
  end
end
