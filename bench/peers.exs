# How long do the usual jobs take, beside the peers: Python's torch, safetensors, Run:ai's model streamer and
# fastsafetensors, Rust's safetensors, candle and burn?
#
# Each job runs alternately here and in processes of the peers that go on, with files in the page cache. `make setup-bench`
# installs the peers into build/bench; otherwise a Python that has torch is used, or that of EXTORCH_PYTHON. The chart of the
# README is this script's: `make bench BENCH=peers`. BENCH_RUNS sets the number of runs; BENCH_ONLY selects the questions
# that contain a text, and then no chart is drawn.
for file <- ~w(data measure chart results peers),
    do: Code.require_file("support/#{file}.exs", __DIR__)

alias Bench.{Data, Measure, Peers, Results}
alias ExTorch.Checkpoint

runs = String.to_integer(System.get_env("BENCH_RUNS", "9"))
only = System.get_env("BENCH_ONLY", "")
dir = Data.dir()
peers = Peers.start()

# ---- The files ----

large = Data.write(Path.join(dir, "large.pt"), Enum.take(Data.llm_sizes(), 90), 2, "HalfStorage")
large_st = Path.join(dir, "large.safetensors")
ExTorch.convert!(large, large_st, fsync: false)
many = Data.write(Path.join(dir, "many.pt"), List.duplicate(64, 20_000))
many_st = Data.write_safetensors(Path.join(dir, "many.safetensors"), 20_000)

legacy =
  Data.write_legacy(
    Path.join(dir, "large.legacy.pt"),
    Enum.take(Data.llm_sizes(), 90),
    2,
    "HalfStorage"
  )

state = ExTorch.load!(large)
Peers.keep(peers, "pt", large)
Peers.keep(peers, "st", large_st)
middle = fn names -> names |> Enum.sort() |> Enum.at(div(length(names), 2)) end

one = fn opts ->
  fn path ->
    ckpt = Checkpoint.open!(path, opts)
    Checkpoint.tensor!(ckpt, middle.(Checkpoint.keys(ckpt)))
  end
end

entries = fn path -> path |> Checkpoint.open!() |> Checkpoint.entries() end
save = fn path -> ExTorch.save!(state, path, fsync: false) end
save_stream = fn path -> ExTorch.save!(state, path, format: :streaming, fsync: false) end
saved = Path.join(dir, "saved")

# Before each run that takes much memory, memory is touched and freed (limits.c explains why).
limits = Measure.limits(dir)
touch = fn -> {_, 0} = System.cmd(limits, ["-1500000000"]) end

# ---- The questions ----

size = Float.round(File.stat!(large).size / 1.0e9, 1)
pt = ".pt"
st = ".safetensors"

map = &ExTorch.load!(&1, mmap: true)
load = &ExTorch.load!/1

# Maps a file and reads an element of each page, as the peer does. The tensors are of float16.
touch_pages = fn path ->
  for {_name, tensor} <- ExTorch.load!(path, mmap: :populate) do
    pages = ExTorch.Tensor.reshape(tensor, {-1})
    ExTorch.op("aten::sum", [ExTorch.Tensor.slice(pages, 0, 0..-1//2048)])
  end
end

state_of_many = ExTorch.load!(many_st)
save_many = fn path -> ExTorch.save!(state_of_many, path, fsync: false) end

jobs = [
  {pt, "Names, dtypes and shapes of #{size} GB", "pt_open", large, entries},
  {pt, "Open #{size} GB and read one tensor", "pt_one", large, one.([])},
  {pt, "Load #{size} GB", "pt_load", large, load},
  {pt, "Load #{size} GB, legacy format", "legacy_load", legacy, load},
  {pt, "Save #{size} GB, without fsync", "pt_save", saved <> ".pt", save},
  {pt, "Save #{size} GB, streaming format", "stream_save", saved <> ".stream", save_stream},
  {pt, "Names, dtypes and shapes of 20,000 small tensors", "pt_open", many, entries},
  {pt, "Load 20,000 small tensors", "pt_load", many, load},
  {st, "Names, dtypes and shapes of #{size} GB", "st_open", large_st, entries},
  {st, "Open #{size} GB and map one tensor", "st_one", large_st, one.(mmap: true)},
  {st, "Load #{size} GB", "st_load", large_st, load},
  {st, "Map #{size} GB", "st_map", large_st, map},
  {st, "Map #{size} GB and touch every page", "st_touch", large_st, touch_pages},
  {st, "Save #{size} GB, without fsync", "st_save", saved <> ".safetensors", save},
  {st, "Save #{size} GB over an old file", "st_save", saved <> ".safetensors", save},
  {st, "Names, dtypes and shapes of 20,000 small tensors", "st_open", many_st, entries},
  {st, "Load 20,000 small tensors", "st_load", many_st, load},
  {st, "Map 20,000 small tensors", "st_map", many_st, map}
]

# The first run of each, which also warms up, does not count.
ask = fn {group, question, name, path, job} ->
  # In both programs, a save writes a new file unless the question is about replacing one.
  prepare = fn ->
    if name =~ "save" and not (question =~ "old file"), do: File.rm(path)
    if question =~ " GB" and name =~ ~r/load|save|touch/, do: touch.()
  end

  here = fn ->
    answer = Peers.measure(fn -> job.(path) end)
    ExTorch.Memory.collect()
    answer
  end

  all = [
    {"ExTorch", here}
    | for(peer <- peers, do: {peer.title, fn -> Peers.ask(peer, name, path) end})
  ]

  # In another order each time: memory that the one before has freed is faster or slower to get.
  rounds =
    for _ <- 0..runs do
      answers =
        for {title, run} <- Enum.shuffle(all) do
          prepare.()
          {title, run.()}
        end

      Enum.sort_by(answers, fn {title, _} -> Enum.find_index(all, &(elem(&1, 0) == title)) end)
    end

  question = Results.question(group, question, Results.answers(tl(rounds)))
  Results.print(question)
  question
end

ask_selected = fn jobs -> for job <- jobs, elem(job, 1) =~ only, do: ask.(job) end
questions = ask_selected.(jobs)

# What the peers save is kept once: now the small tensors.
Peers.keep(peers, "pt", many)
Peers.keep(peers, "st", many_st)

questions =
  questions ++
    ask_selected.([
      {pt, "Save 20,000 small tensors", "pt_save", saved <> ".pt", save_many},
      {st, "Save 20,000 small tensors", "st_save", saved <> ".safetensors", save_many}
    ])

versions = Enum.map_join(peers, ", ", &String.trim("#{&1.title} #{&1.version}"))

if only == "",
  do:
    Results.write(
      "peers",
      "Time of the usual jobs, less is better",
      [
        "Medians of #{runs} runs, alternating with running processes of the peers (#{versions}); the files are in memory (tmpfs). " <>
          "torch lists and reads single tensors with mmap=True."
      ],
      questions
    )
