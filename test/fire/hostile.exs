# Gives every file of the catalogue of test/hostile to every call, in a separate VM, and measures memory and time:
#
#     MIX_ENV=test mix run --no-deps-check test/fire/hostile.exs SECONDS SEED
#
# The first round has every file in its usual size, in an order that depends on the seed. Further rounds choose the
# size. The environment variables NAME and CALL limit the files and the calls to those whose names contain them,
# FORM=short takes the calls of the test, and TRACE=1 prints the time of each file.
alias ExTorch.HostileFiles.Round

{seconds, seed} =
  case System.argv() do
    [seconds, seed] -> {String.to_integer(seconds), String.to_integer(seed)}
    _ -> {60, 1}
  end

form = if System.get_env("FORM") == "short", do: :short, else: :long

totals =
  Round.fire(seconds, seed,
    name: System.get_env("NAME") || "",
    call: System.get_env("CALL"),
    form: form
  )

IO.puts(Round.line(totals))
if Round.failed?(totals), do: System.halt(1)
