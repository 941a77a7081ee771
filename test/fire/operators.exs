# Calls every operator of LibTorch with random arguments, in child VMs.
#
#   elixir -pa _build/test/lib/extorch/ebin test/fire/operators.exs [seconds] [seed] [all | prefix]
#   elixir -pa _build/test/lib/extorch/ebin test/fire/operators.exs repeat SEED CALL OPERATOR
#
# By default, the operators that need no full name: those of aten, without internal ones (aten::_x). With `all`, those
# too.
#
# A call must return or raise ExTorch.Error, and must not change a binary. The parent counts what ends a child: the
# operator is reported with the seed and the number of the call, and not called again. Each call depends only on the
# seed and its number, so `repeat` makes the same call. The last line is a table line. The exit status is 1 if an operator
# ended a child or a binary changed.
defmodule Fire.Schemas do
  # The schemas are strings in libtorch_cpu: "add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor".
  @moduledoc false

  def all do
    ExTorch.info()

    path =
      File.read!("/proc/self/maps")
      |> String.split("\n")
      |> Enum.find_value(&(Regex.run(~r"/\S*/libtorch_cpu\.so\S*$", &1) || nil))
      |> hd()

    library = File.read!(path)

    library
    |> :binary.matches(") -> ")
    |> Enum.flat_map(fn {at, _} -> library |> text(at) |> parse() end)
    |> Enum.uniq_by(& &1.name)
    |> Enum.flat_map(&resolve/1)
    |> Enum.sort_by(& &1.name)
  end

  # The text around an offset, up to the zero bytes.
  defp text(library, at) do
    from = max(at - 2000, 0)
    before = binary_part(library, from, at - from)
    before = before |> :binary.split(<<0>>, [:global]) |> List.last()
    rest = binary_part(library, at, min(300, byte_size(library) - at))
    before <> hd(:binary.split(rest, <<0>>))
  end

  defp parse(text) do
    case Regex.run(~r/^((?:\w+::)?[A-Za-z_]\w*(?:\.\w+)?)\((.*)\) -> /s, text) do
      [_, name, args] -> [%{name: name, args: args |> split() |> Enum.flat_map(&argument/1)}]
      nil -> []
    end
  end

  # Splits at the commas outside of parentheses and brackets.
  defp split(args) do
    {parts, last, _} =
      for <<c::utf8 <- args>>, reduce: {[], "", 0} do
        {parts, part, 0} when c == ?, -> {[part | parts], "", 0}
        {parts, part, depth} when c in [?(, ?[] -> {parts, part <> <<c::utf8>>, depth + 1}
        {parts, part, depth} when c in [?), ?]] -> {parts, part <> <<c::utf8>>, depth - 1}
        {parts, part, depth} -> {parts, part <> <<c::utf8>>, depth}
      end

    Enum.reverse([last | parts]) |> Enum.map(&String.trim/1) |> Enum.reject(&(&1 == ""))
  end

  defp argument("*"), do: []

  defp argument(text) do
    [declaration | default] = String.split(text, "=", parts: 2)

    case Regex.run(~r/^(\w+)(?:\([^)]*\))?(\S*) (\w+)$/, String.trim(declaration)) do
      [_, type, suffix, name] -> [{name, type <> suffix, default != []}]
      nil -> [{"?", "?", false}]
    end
  end

  # Finds the namespace: names without one are usually in aten. An argument that no operator has is refused with the
  # schema, without a call.
  defp resolve(schema) do
    names =
      if schema.name =~ "::",
        do: [schema.name],
        else: for(ns <- ~w(aten quantized), do: "#{ns}::#{schema.name}")

    for name <- names, known?(name), do: %{schema | name: name}
  end

  defp known?(name) do
    ExTorch.op(name, [], no_such_argument: 1)
    true
  rescue
    error in ExTorch.Error -> error.reason == :bad_argument
  end
end

defmodule Fire.Random do
  # Random arguments, by the types of a schema.
  @moduledoc false
  @dtypes ~w(float32 float32 float32 float64 int64 int64 int32 uint8 int8 int16 bool float16 bfloat16 complex64)a
  @sizes [0, 1, 1, 2, 2, 3, 4, 5, 8]
  @ints [0, 0, 1, 1, 1, 2, 2, 3, 4, -1, -1, -2, 5, 7, 100, 65_537] ++
          [0x7FFFFFFF, -0x80000000, 0x100000000, 0x7FFFFFFFFFFFFFFF, -0x8000000000000000]
  @floats [0.0, 0.5, 1.0, 1.0, 2.0, -1.0, 1.0e-5, 1.0e30, :nan, :infinity, :neg_infinity]
  @strings [
    "mean",
    "sum",
    "none",
    "floor",
    "trunc",
    "reflect",
    "constant",
    "linear",
    "tanh",
    "ij,jk->ik",
    "i,j",
    "",
    "%"
  ]

  def pick(list), do: Enum.random(list)
  defp percent(n), do: :rand.uniform(100) <= n

  # What most tensors of a call have in common, so that some calls get past the checks of shapes and dtypes.
  def context, do: %{shape: shape(), dtype: pick(@dtypes)}

  defp shape, do: for(_ <- 1..:rand.uniform(5)//1, do: pick(@sizes)) |> tl()

  def argument(type, context) do
    optional = String.ends_with?(type, "?")
    type = String.trim_trailing(type, "?")

    cond do
      optional and percent(35) -> nil
      type in ["Tensor", "Tensor!"] -> tensor(context)
      match = Regex.run(~r/^(.+)\[(\d*)\]$/, type) -> list(match, context)
      true -> value(type)
    end
  end

  defp list([_, type, size], context) do
    count = if size == "" or percent(15), do: :rand.uniform(5) - 1, else: String.to_integer(size)
    for _ <- 1..count//1, do: argument(type, context)
  end

  defp value(type) when type in ["int", "SymInt"], do: pick(@ints)
  defp value("float"), do: pick(@floats)
  defp value("bool"), do: percent(50)
  defp value("Scalar"), do: pick([true, 1, 2, -1, 0] ++ @floats)
  defp value("str"), do: pick(@strings)
  defp value("ScalarType"), do: pick(@dtypes ++ [:qint8, :quint8, :qint32])
  defp value("Layout"), do: pick([:strided, :strided, :sparse_coo, :sparse_csr, :sparse_bsr])
  defp value("Device"), do: pick([:cpu, :cpu, :cpu, :meta])
  defp value("MemoryFormat"), do: pick([:contiguous_format, :preserve_format, :channels_last])
  defp value("QScheme"), do: pick([:per_tensor_affine, :per_channel_affine])
  defp value(_), do: nil

  defp tensor(context) do
    shape = if percent(70), do: context.shape, else: shape()
    dtype = if percent(65), do: context.dtype, else: pick(@dtypes)
    tensor = plain(List.to_tuple(shape), dtype)

    try do
      case :rand.uniform(40) do
        1 -> ExTorch.op("to_sparse", [tensor])
        2 -> ExTorch.op("to_sparse_csr", [tensor])
        3 -> ExTorch.op("quantize_per_tensor", [tensor, 0.1, 3, pick([:quint8, :qint8, :qint32])])
        4 -> ExTorch.op("transpose", [tensor, 0, -1])
        5 -> ExTorch.op("expand", [tensor, [3 | shape]])
        6 -> ExTorch.op("select", [tensor, 0, 0])
        7 -> ExTorch.op("to", [tensor, :meta], dtype: dtype)
        _ -> tensor
      end
    rescue
      _ in ExTorch.Error -> tensor
    end
  end

  # Small numbers, so that many are valid indices; sometimes any bytes. Half of the tensors are over a binary.
  defp plain(shape, dtype) do
    count = Tuple.product(shape)
    size = ExTorch.DType.size(dtype)

    cond do
      percent(15) and dtype != :bool ->
        keep(ExTorch.Tensor.from_binary(:rand.bytes(count * size), shape, dtype))

      percent(50) ->
        values = for _ <- 1..count//1, do: pick([0, 0, 1, 1, 1, 2, 3])
        flat = ExTorch.tensor(values, dtype: dtype)
        keep(ExTorch.op("reshape", [flat, Tuple.to_list(shape)]))

      true ->
        values = for _ <- 1..count//1, do: pick([0, 1, 1, 2, 3, 5, 100])
        ExTorch.op("reshape", [ExTorch.tensor(values, dtype: dtype), Tuple.to_list(shape)])
    end
  end

  # Makes a binary of the memory, which is frozen from now on.
  defp keep(tensor) do
    binary = ExTorch.Tensor.to_binary(tensor)
    Process.put(:binaries, [{binary, :erlang.md5(binary)} | Process.get(:binaries, [])])
    tensor
  end
end

defmodule Fire.Child do
  @moduledoc false
  alias Fire.Random

  @doc "Makes calls until the parent ends this VM. The file always has the number and the operator of the last call."
  def run(schemas, seed, first, state) do
    ExTorch.Memory.set_budget(256 * 1024 * 1024)
    {:ok, file} = :file.open(state, [:raw, :write, :binary])
    schemas = List.to_tuple(schemas)
    loop(schemas, seed, first, file)
  end

  defp loop(schemas, seed, n, file) do
    schema = elem(schemas, :erlang.phash2({seed, n}, tuple_size(schemas)))
    :ok = :file.pwrite(file, 0, String.pad_trailing("#{n} #{schema.name}", 200) <> "\n")

    # each call has its own process, whose garbage is its own
    {pid, monitor} = spawn_monitor(fn -> call(schema, seed, n) end)

    receive do
      {:DOWN, ^monitor, _, ^pid, :normal} ->
        :ok

      {:DOWN, ^monitor, _, ^pid, reason} ->
        :file.pwrite(file, 300, "#{n} #{schema.name} #{inspect(reason)}\n")
    end

    if rem(n, 500) == 0, do: ExTorch.Memory.collect()
    loop(schemas, seed, n + 1, file)
  end

  def call(schema, seed, n, show \\ false) do
    :rand.seed(:exsss, {seed, n, 7})
    context = Random.context()

    {args, kwargs} =
      Enum.reduce(schema.args, {[], []}, fn {name, type, default}, {args, kwargs} ->
        if default and :rand.uniform(2) == 1,
          do: {args, kwargs},
          else: {args, [{name, Random.argument(type, context)} | kwargs]}
      end)

    if show, do: show({schema.name, args, kwargs})

    try do
      use_results(ExTorch.op(schema.name, Enum.reverse(args), Enum.reverse(kwargs)))
    rescue
      error in ExTorch.Error -> if show, do: IO.puts(Exception.message(error))
    end

    for {binary, digest} <- Process.get(:binaries, []),
        :erlang.md5(binary) != digest,
        do: exit(:changed)

    :ok
  end

  # Waits until it is printed: the call may end this VM.
  defp show(call) do
    IO.inspect(call, limit: 20, width: 120)
    Process.sleep(300)
  end

  # Reads the results: memory outside of a tensor would be noticed here.
  defp use_results(%ExTorch.Tensor{shape: shape} = tensor) do
    if Tuple.product(shape) < 100_000, do: ExTorch.Tensor.to_list(tensor)
  end

  defp use_results(results) when is_tuple(results),
    do: results |> Tuple.to_list() |> use_results()

  defp use_results(results) when is_list(results), do: Enum.each(results, &use_results/1)
  defp use_results(_), do: :ok
end

defmodule Fire.Operators do
  @moduledoc false
  @slow_ms 15_000

  def main(["child", schemas, seed, first, state]) do
    schemas = schemas |> File.read!() |> :erlang.binary_to_term()
    Fire.Child.run(schemas, String.to_integer(seed), String.to_integer(first), state)
  end

  def main(["repeat", seed, n, name]) do
    schema = Enum.find(Fire.Schemas.all(), &(&1.name == name))
    ExTorch.Memory.set_budget(256 * 1024 * 1024)
    Fire.Child.call(schema, String.to_integer(seed), String.to_integer(n), true)
  end

  def main(args) do
    seconds = args |> Enum.at(0, "60") |> String.to_integer()
    seed = args |> Enum.at(1, "#{:rand.uniform(1_000_000)}") |> String.to_integer()
    schemas = Enum.filter(Fire.Schemas.all(), &selected?(&1.name, Enum.at(args, 2)))
    dir = Path.join(System.tmp_dir!(), "extorch_fire_#{System.os_time()}")
    File.mkdir_p!(dir)
    now = System.monotonic_time(:millisecond)

    state = %{
      schemas: schemas,
      seed: seed,
      next: 1,
      dir: dir,
      until: now + 1000 * seconds,
      kills: [],
      slow: [],
      changed: [],
      odd: []
    }

    final = run(state)
    File.rm_rf!(dir)
    report(final, length(schemas))
    if final.kills == [] and final.changed == [], do: :ok, else: System.halt(1)
  end

  defp selected?(name, nil), do: name =~ ~r/^aten::[^_]/
  defp selected?(_, "all"), do: true
  defp selected?(name, prefix), do: String.starts_with?(name, prefix)

  defp run(state) do
    File.write!(state.dir <> "/schemas", :erlang.term_to_binary(state.schemas))
    file = state.dir <> "/state"
    File.write!(file, "")

    paths =
      for path <- :code.get_path(), to_string(path) =~ "extorch", do: ["-pa", to_string(path)]

    args = List.flatten(paths) ++ [__ENV__.file, "child", state.dir <> "/schemas"]
    args = args ++ ["#{state.seed}", "#{state.next}", file]

    port =
      Port.open({:spawn_executable, System.find_executable("sh")}, [
        :binary,
        :exit_status,
        :stderr_to_stdout,
        args: [
          "-c",
          "ulimit -c 0; exec nice -n 10 \"$0\" \"$@\"",
          System.find_executable("elixir") | args
        ]
      ])

    {:os_pid, pid} = Port.info(port, :os_pid)
    watch(state, port, pid, file, nil, System.monotonic_time(:millisecond))
  end

  defp watch(state, port, pid, file, last, since) do
    now = System.monotonic_time(:millisecond)

    receive do
      {^port, {:data, _}} -> watch(state, port, pid, file, last, since)
      {^port, {:exit_status, status}} -> ended(state, file, {:kill, status})
    after
      200 ->
        current = read(file)

        cond do
          now > state.until -> kill(port, pid) && ended(%{state | until: 0}, file, :over)
          current != last -> watch(state, port, pid, file, current, now)
          now - since > @slow_ms -> kill(port, pid) && ended(state, file, :slow)
          true -> watch(state, port, pid, file, last, since)
        end
    end
  end

  defp kill(port, pid) do
    System.cmd("kill", ["-9", "#{pid}"], stderr_to_stdout: true)
    receive do: ({^port, {:exit_status, _}} -> true)
  end

  # {number, operator} of the last call
  defp read(file) do
    with {:ok, text} <- File.read(file),
         [n, name] <- text |> String.split("\n") |> hd() |> String.split() do
      {String.to_integer(n), name}
    else
      _ -> nil
    end
  end

  defp ended(state, file, how) do
    {n, name} = read(file) || {state.next, "?"}

    state =
      case Regex.run(~r/\n\0*(\d+) (\S+) (.*)\n/, File.read!(file)) do
        [_, at, operator, ":changed"] -> %{state | changed: [{operator, at} | state.changed]}
        [_, at, operator, reason] -> %{state | odd: [{operator, at, reason} | state.odd]}
        nil -> state
      end

    state = %{state | next: n + 1}
    without = %{state | schemas: Enum.reject(state.schemas, &(&1.name == name))}

    case how do
      :over ->
        state

      :slow ->
        IO.puts("slow: #{name} (seed #{state.seed}, call #{n})")
        run(%{without | slow: [{name, n} | state.slow]})

      {:kill, status} ->
        IO.puts("killed, status #{status}: #{name} (seed #{state.seed}, call #{n})")
        run(%{without | kills: [{name, n, status} | state.kills]})
    end
  end

  defp report(state, operators) do
    for {name, at} <- state.changed,
        do: IO.puts("changed a binary: #{name} (seed #{state.seed}, call #{at})")

    for {name, at, reason} <- state.odd,
        do: IO.puts("unexpected: #{name} (call #{at}): #{reason}")

    kills = Enum.map_join(state.kills, ", ", &elem(&1, 0))

    IO.puts(
      "fire: operators | #{operators} operators | #{state.next - 1} calls | #{length(state.kills)} kills" <>
        "#{if kills != "", do: ": " <> kills} " <>
        "| #{length(state.slow)} slow | #{length(state.changed)} binaries changed | seed #{state.seed}"
    )
  end
end

Fire.Operators.main(System.argv())
