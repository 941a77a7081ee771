defmodule ExTorch.Test.CLI do
  @moduledoc false
  # Runs the command line inside the VM of the tests.
  import ExUnit.{Assertions, CaptureIO}

  @doc "Returns the status, and what is written to standard output and standard error."
  def run(args) do
    me = self()

    error =
      capture_io(:stderr, fn ->
        output = capture_io(fn -> send(me, {:status, ExTorch.CLI.run(args)}) end)
        send(me, {:output, output})
      end)

    assert_received {:status, status}
    assert_received {:output, output}
    {status, output, error}
  end
end
