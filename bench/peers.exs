# How long do the usual jobs take, beside Python's torch and safetensors?
#
# Each job runs alternately here and in a Python process that goes on, with files in the page cache. The chart of the README
# is this script's: `EXTORCH_PYTHON=python3 make bench BENCH=peers`, for a Python that has torch, and safetensors if it is to
# be compared with.
for file <- ~w(data measure chart results),
    do: Code.require_file("support/#{file}.exs", __DIR__)

alias Bench.{Data, Measure, Results}
alias ExTorch.Checkpoint

runs = 9
dir = Data.dir()
python = Measure.python()

port =
  python &&
    Port.open({:spawn_executable, System.find_executable(python)}, [
      :binary,
      line: 1000,
      args: [Path.join(__DIR__, "support/peers.py")]
    ])

[torch, safetensors] =
  if port, do: port |> Measure.line() |> String.split(), else: ["none", "none"]

ask = fn question, path ->
  if port do
    Port.command(port, "#{question} #{path}\n")
    Measure.line(port)
  end
end

# ---- The files ----

large = Data.write(Path.join(dir, "large.pt"), Enum.take(Data.llm_sizes(), 90), 2, "HalfStorage")
large_st = Path.join(dir, "large.safetensors")
ExTorch.convert!(large, large_st, fsync: false)
many = Data.write(Path.join(dir, "many.pt"), List.duplicate(64, 20_000))
many_st = Data.write_safetensors(Path.join(dir, "many.safetensors"), 20_000)
state = ExTorch.load!(large)
ask.("keep", large)
middle = fn names -> names |> Enum.sort() |> Enum.at(div(length(names), 2)) end

one = fn opts ->
  fn path ->
    ckpt = Checkpoint.open!(path, opts)
    Checkpoint.tensor!(ckpt, middle.(Checkpoint.keys(ckpt)))
  end
end

entries = fn path -> path |> Checkpoint.open!() |> Checkpoint.entries() end
save = fn path -> ExTorch.save!(state, path, fsync: false) end
saved = Path.join(dir, "saved")

# Before each run, memory is touched and freed (limits.c explains why).
limits = Measure.limits(dir)
touch = fn -> {_, 0} = System.cmd(limits, ["-1500000000"]) end

# ---- The questions ----

size = Float.round(File.stat!(large).size / 1.0e9, 1)
pt = ".pt, with torch #{torch |> String.split("+") |> hd()}"
st = ".safetensors, with the safetensors package #{safetensors}"

map = &ExTorch.load!(&1, mmap: true)

jobs = [
  {pt, "Names, dtypes and shapes of #{size} GB", "pt_open", large, entries},
  {pt, "Open #{size} GB and read one tensor", "pt_one", large, one.([])},
  {pt, "Load #{size} GB", "pt_load", large, &ExTorch.load!/1},
  {pt, "Save #{size} GB, without fsync", "pt_save", saved <> ".pt", save},
  {pt, "Names, dtypes and shapes of 20,000 small tensors", "pt_open", many, entries},
  {pt, "Load 20,000 small tensors", "pt_load", many, &ExTorch.load!/1},
  {st, "Names, dtypes and shapes of #{size} GB", "st_open", large_st, entries},
  {st, "Open #{size} GB and map one tensor", "st_one", large_st, one.(mmap: true)},
  {st, "Map #{size} GB", "st_load", large_st, map},
  {st, "Save #{size} GB, without fsync", "st_save", saved <> ".safetensors", save},
  {st, "Names, dtypes and shapes of 20,000 small tensors", "st_open", many_st, entries},
  {st, "Map 20,000 small tensors", "st_load", many_st, map}
]

# The first run of each, which also warms up, does not count.
questions =
  for {group, question, name, path, job} <- jobs do
    both =
      for _ <- 0..runs do
        touch.()
        here = Measure.milliseconds(fn -> job.(path) end)
        ExTorch.Memory.collect()
        touch.()
        {here, ask.(name, path)}
      end

    both = tl(both)
    peer = if String.starts_with?(name, "pt"), do: "torch", else: "safetensors"
    answers = for {_, text} <- both, text not in [nil, "none"], do: String.to_float(text)

    question =
      Results.question(group, question, [
        {"ExTorch", Enum.map(both, &elem(&1, 0))},
        {peer, answers}
      ])

    Results.print(question)
    question
  end

Results.write(
  "peers",
  "Time of the usual jobs, less is better",
  [
    "Medians of #{runs} runs, alternating with a running Python process; the files are in memory (tmpfs). torch lists and reads " <>
      "single tensors with mmap=True; safetensors maps, and so does ExTorch in its column."
  ],
  questions
)
