# Makes every Nth allocation, read, write, sync, rename, mapping, thread and open of extorch.so fail in a VM that loads,
# saves and streams. The VM must not die; every answer must be a result or an ExTorch.Error; nothing may leak; no
# temporary file may be left, and the old file must be intact.
#
# usage: MIX_ENV=test mix run --no-deps-check test/fire/faults.exs SECONDS SEED
#
# Needs a C compiler and glibc. Prints one line.
{seconds, seed} =
  case System.argv() do
    [seconds, seed] -> {seconds, seed}
    _ -> {"60", "1"}
  end

dir = Path.join(System.tmp_dir!(), "extorch_faults_#{System.pid()}")
File.mkdir_p!(dir)
library = Path.join(dir, "preload.so")
control = Path.join(dir, "control")
source = Path.join(__DIR__, "faults/preload.c")

status =
  try do
    compiler = System.get_env("CC") || "cc"

    {output, 0} =
      System.cmd(compiler, ~w(-std=c11 -O1 -g -fPIC -shared #{source} -o #{library} -ldl),
        stderr_to_stdout: true
      )

    work = Path.join(dir, "work")
    File.mkdir_p!(work)

    # The first number is the call that fails: at first none, then calls while the library is being loaded.
    start = fn numbers, args, script ->
      File.write!(control, for(n <- numbers, do: <<n::little-64>>))
      env = ["env", "LD_PRELOAD=#{library}", "EXTORCH_FAULTS=#{control}"]
      ExTorch.Test.VM.run(script, args, through: env)
    end

    # A VM that cannot start a thread, or allocate, while it loads the library starts all the same.
    loading =
      "IO.inspect(try do ExTorch.ones({2}).shape rescue e in ExTorch.Error -> e.reason end)"

    starts =
      for class <- [1, 64], fail_at <- 1..3 do
        {output, status} = start.([fail_at, 1_000_000, class, 12, 0, 0], [], loading)

        if status != 0,
          do: raise("the VM did not start with class #{class} failing at #{fail_at}: #{output}")

        output
      end

    node = "Code.require_file(#{inspect(Path.join(__DIR__, "faults/node.exs"))})"
    {output2, status} = start.([0, 0, 0, 0, 0, 0], [work, seconds, seed], node)

    case {Regex.run(~r/^faults (\d+) sweeps (\d+) of (\d+)$/m, output2), status} do
      {[_, injected, sweeps, all], 0} ->
        IO.puts(
          "fire: faults | injected #{injected} | sweeps #{sweeps} (#{all} combinations) | starts #{length(starts)} | " <>
            "seed #{seed} | ok#{output}"
        )

        0

      _ ->
        IO.puts(
          "fire: faults | FAILED | seed #{seed} | status #{status} | #{String.trim(output2)}"
        )

        1
    end
  after
    File.rm_rf!(dir)
  end

System.halt(status)
