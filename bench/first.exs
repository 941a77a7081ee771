# How long does the first call of a process take, beside the peers' first calls?
#
# Each runs in a fresh OS process, alternately: a VM whose application has been started, and a process of the peers that has
# done nothing yet. The files are in the page cache. `make setup-bench` installs the peers (bench/peers.exs explains, also
# BENCH_RUNS and BENCH_ONLY).
for file <- ~w(data measure chart results peers),
    do: Code.require_file("support/#{file}.exs", __DIR__)

alias Bench.{Data, Measure, Peers, Results}

runs = String.to_integer(System.get_env("BENCH_RUNS", "5"))
only = System.get_env("BENCH_ONLY", "")
dir = Data.dir()
sizes = Data.llm_sizes()
zip = Data.write(Path.join(dir, "llm.pt"), sizes, 2, "HalfStorage")
legacy = Data.write_legacy(Path.join(dir, "llm.legacy.pt"), sizes, 2, "HalfStorage")
safetensors = Path.join(dir, "llm.safetensors")
ExTorch.convert!(zip, safetensors, fsync: false)
many = Data.write(Path.join(dir, "many.pt"), List.duplicate(64, 20_000))
many_st = Data.write_safetensors(Path.join(dir, "many.safetensors"), 20_000)

one = """
ckpt = ExTorch.Checkpoint.open!(path)
names = Enum.sort(ExTorch.Checkpoint.keys(ckpt))
ExTorch.Checkpoint.tensor!(ckpt, Enum.at(names, div(length(names), 2)))
"""

load = "ExTorch.load!(path)"

jobs = [
  {".pt", "Open 1.9 GB and read one tensor", "pt_one", zip, one},
  {".pt", "Open 1.9 GB and read one tensor, legacy format", "legacy_one", legacy, one},
  {".pt", "Load 20,000 small tensors", "pt_load", many, load},
  {".safetensors", "Open 1.9 GB and read one tensor", "st_one", safetensors, one},
  {".safetensors", "Load 20,000 small tensors", "st_load", many_st, load},
  {".safetensors", "Load 1.9 GB", "st_load", safetensors, load}
]

here = fn job, path ->
  script = """
  {:ok, _} = Application.ensure_all_started(:extorch)
  [path] = System.argv()
  #{Measure.memory_code()}
  kib = memory_kib.("VmRSS")
  {time, _} = :timer.tc(fn -> #{job} end)
  IO.puts("\#{time / 1000} \#{memory_kib.("VmHWM") - kib}")
  """

  [ms, kib] = Measure.elixir(script, [path])
  {String.to_float(ms), String.to_integer(kib)}
end

# Memory that no program used for a while is slow to allocate in a virtual machine; that must not affect the comparison.
limits = Measure.limits(dir)
touch = fn -> {_, 0} = System.cmd(limits, ["-4000000000"]) end

there = fn peer, question, path ->
  peer = Peers.fresh(peer)
  answer = Peers.ask(peer, question, path)
  Peers.stop([peer])
  answer
end

all = Peers.start()

questions =
  for {group, question, name, path, job} <- jobs, question =~ only do
    peers = Enum.filter(all, &Peers.ask(&1, name, path))

    rounds =
      for _ <- 1..runs do
        ours = fn -> here.(job, path) end
        theirs = for peer <- peers, do: {peer.title, fn -> there.(peer, name, path) end}

        for {title, run} <- [{"ExTorch", ours} | theirs] do
          touch.()
          {title, run.()}
        end
      end

    question = Results.question(group, question, Results.answers(rounds))
    Results.print(question)
    question
  end

if only == "" do
  Results.write(
    "first",
    "Time of the first call of a process, less is better",
    ["Medians of #{runs} fresh processes each; the files are in memory (tmpfs)."],
    questions
  )
end
