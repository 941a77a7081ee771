# How long does it take to get a checkpoint into Nx, and how much memory does it need?
#
# Compared with the package safetensors, and with the readers of Bumblebee, each in a fresh OS process, in turns. Runs
# what is compiled (EXTORCH_NX_PATH): Nx, safetensors, Torchx, Bumblebee. Arguments choose parts: eager, load_model, loads.
Code.require_file("support/data.exs", __DIR__)
Code.require_file("support/measure.exs", __DIR__)

defmodule Bench.Nx do
  alias Bench.{Data, Measure}

  @rounds 5
  @applications [:nx, :safetensors, :torchx, :bumblebee, :extorch]

  # The first use of each library takes time of its own, which is not measured.
  @setup """
  [path, repository, limits | touch_memory] = System.argv()
  Logger.configure(level: :error)

  for app <- #{inspect(@applications)}, do: Application.ensure_all_started(app)
  ExTorch.info()
  if Code.ensure_loaded?(Torchx.Backend), do: Nx.tensor([1.0], backend: Torchx.Backend)
  small = Path.join(Path.dirname(repository), "small.safetensors")
  touch = fn read -> Enum.each(read.(small), fn {_, t} -> Nx.to_tensor(t) end) end
  if Code.ensure_loaded?(Safetensors), do: touch.(&Safetensors.read!/1)
  touch.(&ExTorch.load!(&1, as: :nx))
  touch.(&ExTorch.Nx.read!/1)

  # Memory that is not in the page cache: sampled, because the kernel keeps no peak of it.
  sampler =
    spawn(fn ->
      sample = fn sample, peak ->
        peak = max(peak, memory_kib.("RssAnon"))
        receive do {:peak, from} -> send(from, {:peak, peak}) after 2 -> sample.(sample, peak) end
      end

      sample.(sample, 0)
    end)

  {_, 0} = System.cmd(limits, touch_memory)
  before = memory_kib.("RssAnon")

  measured = fn fun ->
    # A mapped file is read when it is used: every byte is used once.
    {time, result} =
      :timer.tc(fn ->
        result = fun.()
        for {_, %{data: %Nx.BinaryBackend{state: bytes}}} <- result, do: :erlang.crc32(bytes)
        result
      end)

    send(sampler, {:peak, self()})
    peak = receive do {:peak, peak} -> peak end
    IO.puts("\#{time / 1000} \#{max(peak, memory_kib.("RssAnon")) - before}")
    result
  end
  """

  def run do
    cond do
      not Code.ensure_loaded?(Nx) -> IO.puts("Nx was not found")
      not Code.ensure_loaded?(Safetensors) -> IO.puts("the package safetensors was not found")
      true -> measure(Data.dir())
    end
  end

  defp measure(dir) do
    parts = if System.argv() == [], do: ~w(eager load_model loads), else: System.argv()
    paths = write(dir)
    if "eager" in parts, do: eager(paths)

    if Code.ensure_loaded?(Bumblebee) and Code.ensure_loaded?(Torchx) do
      if "load_model" in parts, do: load_model(paths)
      if "loads" in parts, do: ten_loads(paths)
    end

    File.rm_rf!(dir)
  end

  # ---- Files: a BERT of 600 MB, as a local repository of Bumblebee with each kind of file ----

  @hidden 768
  @vocabulary 83_000

  defp write(dir) do
    tensors = Map.new(bert(), fn {name, shape} -> {name, ExTorch.randn(shape)} end)
    ExTorch.save!(%{"w" => ExTorch.ones({2})}, Path.join(dir, "small.safetensors"))
    limits = Measure.limits(dir)

    for {kind, name} <- [safetensors: "model.safetensors", bin: "pytorch_model.bin"], into: %{} do
      repository = Path.join(dir, "#{kind}")
      File.mkdir_p!(repository)
      File.write!(Path.join(repository, "config.json"), config())
      path = Path.join(repository, name)
      ExTorch.save!(tensors, path, fsync: false)
      {kind, {path, repository, limits}}
    end
  end

  defp config do
    ~s({"architectures": ["BertModel"], "model_type": "bert", "vocab_size": #{@vocabulary}, ) <>
      ~s("hidden_size": #{@hidden}, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072, ) <>
      ~s("max_position_embeddings": 512, "type_vocab_size": 2, "hidden_act": "gelu", "layer_norm_eps": 1e-12})
  end

  defp bert do
    embeddings = [
      {"embeddings.word_embeddings.weight", {@vocabulary, @hidden}},
      {"embeddings.position_embeddings.weight", {512, @hidden}},
      {"embeddings.token_type_embeddings.weight", {2, @hidden}}
    ]

    layers =
      for i <- 0..11,
          {name, rows, columns} <- [
            {"attention.self.query", @hidden, @hidden},
            {"attention.self.key", @hidden, @hidden},
            {"attention.self.value", @hidden, @hidden},
            {"attention.output.dense", @hidden, @hidden},
            {"intermediate.dense", 3072, @hidden},
            {"output.dense", @hidden, 3072}
          ],
          pair <- linear("encoder.layer.#{i}.#{name}", rows, columns),
          do: pair

    norms =
      for prefix <-
            ["embeddings"] ++
              for(
                i <- 0..11,
                part <- ["attention.output", "output"],
                do: "encoder.layer.#{i}.#{part}"
              ),
          name <- ["weight", "bias"],
          do: {"#{prefix}.LayerNorm.#{name}", {@hidden}}

    embeddings ++ layers ++ norms ++ linear("pooler.dense", @hidden, @hidden)
  end

  defp linear(name, rows, columns),
    do: [{"#{name}.weight", {rows, columns}}, {"#{name}.bias", {rows}}]

  # ---- All tensors of a safetensors file ----

  defp eager(%{safetensors: files}) do
    backends = [
      Nx.BinaryBackend | if(Code.ensure_loaded?(Torchx), do: [Torchx.Backend], else: [])
    ]

    for backend <- backends do
      default = "Nx.default_backend(#{inspect(backend)})\n"

      compare("safetensors to #{inspect(backend)}", files, [
        {"Safetensors.read!", default <> "measured.(fn -> Safetensors.read!(path) end)"},
        {"ExTorch.load, as: :nx", default <> "measured.(fn -> ExTorch.load!(path, as: :nx) end)"},
        {"ExTorch.load, as: :nx, mmap: false",
         default <> "measured.(fn -> ExTorch.load!(path, as: :nx, mmap: false) end)"}
      ])
    end
  end

  # ---- Bumblebee ----

  @load "load = fn opts -> {:ok, info} = Bumblebee.load_model({:local, repository}, [backend: Torchx.Backend] ++ opts); info end\n"
  @reader ~s(opts = [safetensors_reader: &ExTorch.Nx.read!/1, params_filename: "model.safetensors"]\n)

  # The reader detects the format from the content: with a link, a .bin is read as well.
  @link """
  link = Path.join(repository, "model.safetensors")
  unless File.exists?(link), do: File.ln_s!("pytorch_model.bin", link)
  """

  defp load_model(paths) do
    for {kind, link} <- [safetensors: "", bin: @link] do
      compare("Bumblebee.load_model of a .#{kind}, Torchx.Backend", paths[kind], [
        {"its reader", @load <> "measured.(fn -> load.(#{its_reader(kind)}) end)"},
        {"ExTorch.Nx.read!", link <> @load <> @reader <> "measured.(fn -> load.(opts) end)"}
      ])
    end
  end

  defp ten_loads(paths) do
    IO.puts("MiB after each of ten loads in a row, Torchx.Backend")

    for {kind, link} <- [safetensors: "", bin: @link],
        {label, opts} <- [
          {"its reader", "opts = #{its_reader(kind)}\n"},
          {"ExTorch.Nx.read!", link <> @reader}
        ] do
      script = """
      #{@load <> opts}
      for _ <- 1..10 do
        load.(opts)
        ExTorch.Memory.collect()
        IO.puts(div(memory_kib.("RssAnon") - before, 1024))
      end
      """

      loads = run(script, paths[kind])
      IO.puts("  .#{kind}, #{label}: #{Enum.join(loads, ", ")}")
    end
  end

  defp its_reader(:safetensors), do: "[]"
  defp its_reader(:bin), do: ~s([params_filename: "pytorch_model.bin"])

  # ---- Comparisons ----

  defp compare(title, {path, _, _} = files, variants) do
    IO.puts("#{title}, #{div(File.stat!(path).size, 1_000_000)} MB, medians of #{@rounds}")

    runs =
      for _ <- 1..@rounds, {label, script} <- variants do
        [ms, kib | _] = run(script, files)
        {label, String.to_float(ms), String.to_integer(kib)}
      end

    for {label, _} <- variants do
      mine = for {^label, ms, kib} <- runs, do: {ms, kib}
      peak = mine |> Enum.map(&elem(&1, 1)) |> Measure.median() |> div(1024)
      Measure.print_runs("  " <> label, Enum.map(mine, &elem(&1, 0)), "peak #{peak} MiB")
    end
  end

  defp run(script, {path, repository, limits}) do
    args = [path, repository, limits | Measure.touch_memory()]
    Measure.elixir(Measure.memory_code() <> @setup <> script, args)
  end
end

Bench.Nx.run()
