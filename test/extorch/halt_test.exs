defmodule ExTorch.HaltTest do
  # A node that stops while calls are inside LibTorch ends with its own status, not with a signal.
  use ExTorch.Case
  alias ExTorch.Test.VM
  @moduletag :no_asan

  @busy """
  ExTorch.info()

  for _ <- 1..4 do
    spawn(fn ->
      a = ExTorch.rand({400, 400})
      Enum.reduce(1..100_000, a, fn _, x -> ExTorch.matmul(x, a) end)
    end)
  end

  for _ <- 1..4, do: spawn(fn -> Enum.each(1..1_000_000, fn _ -> ExTorch.load(hd(System.argv())) end) end)
  Process.sleep(150)
  """

  for {how, code} <- [{"System.halt(7)", 7}, {"System.stop(3)\nProcess.sleep(:infinity)", 3}] do
    test "#{how |> String.split("\n") |> hd()} during calls" do
      script = @busy <> unquote(how)

      {output, status} = VM.run(script, ["test/fixtures/2.14.1/nested.pt"])

      assert {status, output} == {unquote(code), output}
    end
  end

  @tag :torch
  test "halt while an archive waits for its writer" do
    script = """
    test = self()
    spawn(fn -> ExTorch.Archive.save(ExTorch.tensor(1), fn _ -> send(test, :inside); Process.sleep(:infinity) end) end)
    receive do: (:inside -> System.halt(5))
    """

    {time, {output, status}} = :timer.tc(fn -> VM.run(script) end)

    assert {status, output} == {5, ""}
    assert time < 20_000_000
  end
end
