# Gives the files of the catalogue of test/hostile to calls, in a separate VM, and measures memory and time:
#
#     MIX_ENV=test mix run --no-deps-check test/fire/hostile.exs SECONDS SEED
#     MIX_ENV=test mix run --no-deps-check test/fire/hostile.exs all [TURN]
#
# With a number of seconds, the first round has every file in its usual size, in an order that depends on the seed.
# Further rounds choose the size. With `all`, every file, also every fixture of the other tests, is given once to every
# call with every option, however long it takes: about 20 minutes on two cores. Pickles are in a zip file and in one
# other container. A TURN of 1 to 4 gives only the pickles, in another container than the turns before.
#
# The environment variables NAME and CALL limit the files and the calls to those whose names contain them, FORM=short
# takes the calls of the test, and TRACE=1 prints the time of each file.
alias ExTorch.HostileFiles.Round

opts = [name: System.get_env("NAME") || "", call: System.get_env("CALL")]
form = if System.get_env("FORM") == "short", do: :short, else: :long

totals =
  case System.argv() do
    ["all" | turn] ->
      turn = String.to_integer(List.first(turn) || "0")
      Round.complete(turn, [form: :complete] ++ opts)

    [seconds, seed] ->
      Round.fire(String.to_integer(seconds), String.to_integer(seed), [form: form] ++ opts)

    _ ->
      Round.fire(60, 1, [form: form] ++ opts)
  end

IO.puts(Round.line(totals))
if Round.failed?(totals), do: System.halt(1)
