defmodule ExTorch.Telemetry do
  @moduledoc """
  Events of `:telemetry`, metrics for LiveDashboard, and the memory as gauges.

  `:telemetry` is optional. Without it, and while no handler is attached to an event of ExTorch, nothing is measured.

  Each operation has three events: `[:extorch, OPERATION, :start]`, and then `:stop` or, if it raises, `:exception`.

  | operation | what | measurements of `:stop`, besides `duration` | metadata |
  |---|---|---|---|
  | `:open` | a checkpoint is opened, also within a load | `bytes` (of its storages), `tensors` | `source`, `path`, `format` |
  | `:load` | `ExTorch.load/2` | `bytes`, `tensors` | `source`, `path`, `format` |
  | `:read` | `ExTorch.Checkpoint.tensor/3` | `bytes`, `tensors` (1) | `source`, `path`, `name` |
  | `:save` | `ExTorch.save/3` | `bytes`, `tensors` | `path`, `format` |
  | `:stream` | `ExTorch.Streaming.load/2`, `recv/2` and `send/3` | `bytes`, `tensors` | `direction`: `:load`, `:recv` or `:send` |
  | `:apply` | `ExTorch.Store.apply_to/2` | `bytes`, `tensors`, `missing`, `errors` | `source`, `path` |
  | `:collect` | `ExTorch.Store.collect_from/2` | `tensors` | `source`, `path` |
  | `:http` | one request | `bytes` | `url` (without query), `status` |

    * `duration` is in native time units, and `:start` has `system_time`, as in `:telemetry.span/3`.
    * `source` is the kind of source: `:file`, `:folder`, `:url`, `:binary`, or the module of an `ExTorch.Source`.
    * `path` is a path or a URL without its query. Tokens and headers are in no event.
    * `reason` in the metadata of `:stop` is the reason of the `ExTorch.Error` that was returned, or `nil`.
    * `:exception` has `kind`, `reason` and `stacktrace`.

  `memory/0` emits `[:extorch, :memory]` with the measurements `tensors`, `bytes`, `mapped`, `leased`, `threads` and `budget` (0 if
  there is none). `:telemetry_poller` calls it from time to time:

      {:telemetry_poller, measurements: [{ExTorch.Telemetry, :memory, []}], period: 10_000}

  `metrics/0` returns metrics of all this for `Telemetry.Metrics`, and so for LiveDashboard:

      def metrics, do: ExTorch.Telemetry.metrics() ++ [...]
  """

  alias ExTorch.{Error, Tensor}

  @typep operation :: :open | :load | :read | :save | :stream | :apply | :collect | :http

  @key {__MODULE__, :notes}

  # Calls :telemetry only where it is loaded: attaching a handler loads it.
  @compile {:no_warn_undefined, [:telemetry, :telemetry_handler_table]}
  @dialyzer {:nowarn_function,
             emit: 3, enabled?: 1, handlers?: 1, handler?: 1, metrics: 0, metric: 3}

  @operations [:open, :load, :read, :save, :stream, :apply, :collect, :http]

  @doc """
  Emits the event `[:extorch, :memory]` with the numbers of `ExTorch.Memory.live/0` and the budget.

      iex> ExTorch.Telemetry.memory()
      :ok
  """
  @spec memory() :: :ok
  def memory do
    if enabled?(:memory) do
      budget = with :infinity <- ExTorch.Memory.budget(), do: 0
      emit([:extorch, :memory], Map.put(ExTorch.Memory.live(), :budget, budget), %{})
    end

    :ok
  end

  @doc """
  Returns a list of `Telemetry.Metrics` for the events of ExTorch. Needs the library `telemetry_metrics`.

      def metrics, do: ExTorch.Telemetry.metrics() ++ [summary("my_app.repo.query.total_time")]
  """
  @spec metrics() :: [struct()]
  def metrics do
    unless Code.ensure_loaded?(Telemetry.Metrics) do
      raise Error.new(
              :unsupported,
              "Telemetry.Metrics is not available; add {:telemetry_metrics, \"~> 1.0\"} to the dependencies in mix.exs"
            )
    end

    operations =
      for {operation, tags} <- [
            open: [:source, :format],
            load: [:source, :format],
            read: [:source],
            save: [:format],
            stream: [:direction],
            apply: [:source],
            http: [:status]
          ] do
        name = "extorch.#{operation}.stop."

        [
          metric(:summary, name <> "duration", unit: {:native, :millisecond}, tags: tags),
          metric(:sum, name <> "bytes", unit: :byte, tags: tags),
          metric(:counter, name <> "duration", tags: [:reason])
        ]
      end

    gauges =
      for {name, unit} <- [
            bytes: :byte,
            mapped: :byte,
            leased: :byte,
            budget: :byte,
            tensors: :unit,
            threads: :unit
          ],
          do: metric(:last_value, "extorch.memory.#{name}", unit: unit)

    List.flatten(operations) ++ gauges
  end

  defp metric(kind, name, options), do: apply(Telemetry.Metrics, kind, [name, options])

  # ---- For the other modules ----

  # Runs the function between the events :start and :stop or :exception. `metadata` and `measure` are only called if
  # somebody listens.
  @doc false
  @spec span(operation(), (() -> map()), (() -> result), (result -> map())) :: result
        when result: term()
  def span(operation, metadata, fun, measure) do
    if enabled?(operation), do: observed(operation, metadata.(), fun, measure), else: fun.()
  end

  defp observed(operation, metadata, fun, measure) do
    outer = Process.put(@key, %{})
    start = System.monotonic_time()

    emit(
      [:extorch, operation, :start],
      %{system_time: System.system_time(), monotonic_time: start},
      metadata
    )

    try do
      result = fun.()
      duration = System.monotonic_time() - start
      measurements = result |> measure.() |> Map.put(:duration, duration)
      {measurements, metadata} = with_notes(measurements, metadata)

      emit(
        [:extorch, operation, :stop],
        measurements,
        Map.put(metadata, :reason, reason(result))
      )

      result
    catch
      kind, reason ->
        duration = System.monotonic_time() - start
        found = %{kind: kind, reason: reason, stacktrace: __STACKTRACE__}
        emit([:extorch, operation, :exception], %{duration: duration}, Map.merge(metadata, found))
        :erlang.raise(kind, reason, __STACKTRACE__)
    after
      if outer, do: Process.put(@key, outer), else: Process.delete(@key)
    end
  end

  # Adds measurements and metadata to the span that the process is in, if it is in one.
  @doc false
  @spec note((() -> {map(), map()})) :: :ok
  def note(fun) do
    if notes = Process.get(@key) do
      {measurements, metadata} = fun.()
      merged = Map.merge(notes, %{metadata: metadata, measurements: measurements})
      Process.put(@key, merged)
    end

    :ok
  end

  defp with_notes(measurements, metadata) do
    notes = Process.get(@key) || %{}

    {Map.merge(measurements, Map.get(notes, :measurements, %{})),
     Map.merge(metadata, Map.get(notes, :metadata, %{}))}
  end

  defp reason({:error, %Error{reason: reason}}), do: reason
  defp reason(_result), do: nil

  # The tensors of a term and their bytes.
  @doc false
  @spec measure(term()) :: %{tensors: non_neg_integer(), bytes: non_neg_integer()}
  def measure({:error, _}), do: %{tensors: 0, bytes: 0}
  def measure({:ok, term}), do: measure(term)
  def measure({:ok, term, _rest}), do: measure(term)

  def measure(term) do
    {tensors, bytes} = count(term, {0, 0})
    %{tensors: tensors, bytes: bytes}
  end

  defp count(%Tensor{} = tensor, {tensors, bytes}),
    do: {tensors + 1, bytes + Tensor.nbytes(tensor)}

  defp count(%_{} = struct, counts), do: struct |> Map.from_struct() |> count(counts)
  defp count(map, counts) when is_map(map), do: map |> Map.values() |> count(counts)
  defp count([head | tail], counts), do: count(tail, count(head, counts))
  defp count(tuple, counts) when is_tuple(tuple), do: tuple |> Tuple.to_list() |> count(counts)
  defp count(_other, counts), do: counts

  # What a checkpoint is read from.
  @doc false
  @spec source(term()) :: %{source: atom(), path: String.t() | nil}
  def source(source) do
    case source do
      {:binary, _} -> %{source: :binary, path: nil}
      %ExTorch.Source.HTTP{} -> %{source: :url, path: ExTorch.Source.label(source)}
      %module{} -> %{source: module, path: ExTorch.Source.label(source)}
      path when is_binary(path) -> path(path)
      _ -> %{source: :other, path: nil}
    end
  end

  # A URL may contain a signature or a password, and a path that is not one the contents of a file.
  defp path(path) do
    cond do
      not ExTorch.Options.path?(path) ->
        %{source: :other, path: nil}

      String.contains?(path, "://") ->
        case ExTorch.Source.resolve(path) do
          {:ok, %ExTorch.Source.HTTP{} = source} -> source(source)
          _ -> %{source: :url, path: nil}
        end

      File.dir?(path, [:raw]) ->
        %{source: :folder, path: path}

      true ->
        %{source: :file, path: path}
    end
  end

  # Whether somebody listens to the operation. This is asked in every call, so the names of the events are literals, and
  # telemetry's own table answers: it costs less than two events that nobody listens to.
  defp enabled?(operation) do
    cond do
      :erlang.function_exported(:telemetry_handler_table, :list_for_event, 1) ->
        handlers?(operation)

      :erlang.function_exported(:telemetry, :list_handlers, 1) ->
        :telemetry.list_handlers([:extorch]) != []

      true ->
        :erlang.function_exported(:telemetry, :execute, 3)
    end
  end

  defp handlers?(:memory), do: handler?([:extorch, :memory])

  for operation <- @operations do
    defp handlers?(unquote(operation)) do
      handler?([:extorch, unquote(operation), :stop]) or
        handler?([:extorch, unquote(operation), :start]) or
        handler?([:extorch, unquote(operation), :exception])
    end
  end

  defp handler?(event), do: :telemetry_handler_table.list_for_event(event) != []

  defp emit(event, measurements, metadata),
    do: :telemetry.execute(event, measurements, metadata)
end
