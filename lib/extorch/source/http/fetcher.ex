defmodule ExTorch.Source.HTTP.Fetcher do
  @moduledoc false
  # Reads ranges for one process, with several connections at once.
  #
  # Each process that reads HTTP sources has one fetcher, which monitors it, and up to `connections` workers, which are
  # linked to the fetcher. A worker owns one connection, which it keeps for the next request. If the process is killed,
  # all of them end, and the connections are closed. A fetcher that is not used for a while ends, too.
  #
  # Ranges are read in pieces. The jobs are the pieces that are expected to be read next, in this order. A job is waiting,
  # then running, then ready. Running and ready jobs together have at most `ahead` bytes, unless there is only one: that
  # is all the memory that is used besides the binary that is returned.
  use GenServer

  alias ExTorch.Error
  alias ExTorch.Source.HTTP
  alias ExTorch.Source.HTTP.Request

  # A range up to the first size is read with one request: what is received need not be copied. Larger ones are read in
  # pieces. Both may be larger by the slack, rather than leave a small rest.
  @whole 32 * 1024 * 1024
  @piece 8 * 1024 * 1024
  @slack 256 * 1024
  @idle_ms 10_000
  @key {__MODULE__, :pid}

  # ---- The process that reads ----

  # Reads exactly `length` bytes of an opened source.
  @spec read(HTTP.t(), non_neg_integer(), pos_integer()) :: {:ok, binary()} | {:error, Error.t()}
  def read(source, offset, length), do: call({:read, source, pieces(offset, length)})

  # Reads the beginning of a file that is not opened.
  @spec first(HTTP.t(), pos_integer()) ::
          {:ok, binary(), Request.description()} | {:error, Error.t()}
  def first(source, length), do: call({:first, source, length})

  # Announces the ranges that are read next. Other work is cancelled.
  @spec prefetch(HTTP.t(), [{non_neg_integer(), pos_integer()}]) :: :ok
  def prefetch(source, []), do: if(Process.get(@key), do: call({:plan, source, []}), else: :ok)

  def prefetch(source, ranges) do
    call(
      {:plan, source, Enum.flat_map(ranges, fn {offset, length} -> pieces(offset, length) end)}
    )
  end

  defp pieces(offset, length) when length <= @whole + @slack, do: [{offset, length}]
  defp pieces(offset, length), do: split(offset, length)

  defp split(offset, length) when length <= @piece + @slack, do: [{offset, length}]
  defp split(offset, length), do: [{offset, @piece} | split(offset + @piece, length - @piece)]

  defp call(message, tries \\ 2) do
    GenServer.call(pid(), message, :infinity)
  catch
    # A fetcher that was idle has ended.
    :exit, _reason when tries > 0 ->
      Process.delete(@key)
      call(message, tries - 1)

    :exit, _reason ->
      {:error, Error.new(:io, "the process that reads from the server was killed")}
  end

  defp pid do
    with nil <- Process.get(@key) do
      {:ok, pid} = GenServer.start(__MODULE__, self())
      Process.put(@key, pid)
      pid
    end
  end

  # ---- The fetcher ----

  # jobs: [%{key: {id, offset}, source:, offset:, length:, state: :waiting | {:running, worker} | {:ready, result}}]
  # workers: %{pid => :idle | key}
  # reading: nil, or the read that waits for its pieces: {from, [{offset, length}], [binary]}
  @impl true
  def init(caller) do
    Process.flag(:trap_exit, true)
    Process.monitor(caller)
    {:ok, %{jobs: [], workers: %{}, reading: nil}, @idle_ms}
  end

  @impl true
  def handle_call({:plan, source, pieces}, _from, state),
    do: reply(:ok, run(plan(state, jobs(source, pieces))))

  def handle_call({:read, source, pieces}, from, state) do
    wanted = jobs(source, pieces)
    last = List.last(wanted).key
    after_last = state.jobs |> Enum.drop_while(&(&1.key != last)) |> Enum.drop(1)
    state = plan(state, wanted ++ after_last)
    advance(%{state | reading: {from, pieces, []}})
  end

  def handle_call({:first, source, length}, from, state) do
    job = %{key: {source.id, :first}, source: source, offset: 0, length: length, state: :waiting}
    advance(%{plan(state, [job]) | reading: {from, :first, []}})
  end

  # If the reader waits, nothing is left to do for others: there is one reader.
  @impl true
  def handle_info({:done, worker, key, result}, state) do
    jobs =
      Enum.map(state.jobs, fn job ->
        if job.key == key and job.state == {:running, worker},
          do: %{job | state: {:ready, result}},
          else: job
      end)

    advance(%{state | jobs: jobs, workers: %{state.workers | worker => :idle}})
  end

  def handle_info({:EXIT, worker, _reason}, state) do
    {key, workers} = Map.pop(state.workers, worker)

    jobs =
      Enum.map(state.jobs, fn job ->
        if job.key == key and job.state == {:running, worker},
          do: %{job | state: {:ready, {:error, Error.new(:io, "the request was killed")}}},
          else: job
      end)

    advance(%{state | workers: workers, jobs: jobs})
  end

  # The caller has ended. Workers are linked: they end with the fetcher.
  def handle_info({:DOWN, _ref, :process, _caller, _reason}, state), do: {:stop, :shutdown, state}

  def handle_info(:timeout, %{jobs: [], reading: nil} = state), do: {:stop, :shutdown, state}
  def handle_info(_other, state), do: noreply(state)

  # A crash report would contain headers otherwise. GenServer has this callback since Elixir 1.17.
  if {:format_status, 1} in GenServer.behaviour_info(:callbacks), do: @impl(true)

  def format_status(status),
    do: Map.new(status, fn {key, _} -> {key, if(key == :reason, do: :failed, else: :hidden)} end)

  defp reply(value, %{jobs: [], reading: nil} = state), do: {:reply, value, state, @idle_ms}
  defp reply(value, state), do: {:reply, value, state}

  defp noreply(%{jobs: [], reading: nil} = state), do: {:noreply, state, @idle_ms}
  defp noreply(state), do: {:noreply, state}

  # ---- Jobs ----

  defp jobs(source, pieces) do
    for {offset, length} <- pieces,
        do: %{
          key: {source.id, offset},
          source: source,
          offset: offset,
          length: length,
          state: :waiting
        }
  end

  # Replaces the jobs. Those that are known already and long enough are kept as they are; the others are cancelled.
  defp plan(state, wanted) do
    known = Map.new(state.jobs, &{&1.key, &1})

    jobs =
      for %{key: key} = job <- wanted do
        case known do
          %{^key => %{length: length} = old} when length >= job.length -> old
          _ -> job
        end
      end

    kept = MapSet.new(for %{state: {:running, worker}} <- jobs, do: worker)

    for {worker, work} <- state.workers,
        work != :idle and worker not in kept,
        do: Process.exit(worker, :kill)

    %{state | jobs: jobs}
  end

  # Starts jobs in their order, as far as the limits allow it.
  defp run(state) do
    {jobs, {workers, _ahead}} =
      Enum.map_reduce(state.jobs, {state.workers, 0}, fn
        %{state: :waiting} = job, {workers, ahead} ->
          if may_start?(job, workers, ahead) do
            {worker, workers} = worker(workers)
            send(worker, {:job, job.key, job.source, job.offset, job.length})
            started = %{job | state: {:running, worker}}
            {started, {Map.put(workers, worker, job.key), ahead + job.length}}
          else
            {job, {workers, :full}}
          end

        job, {workers, ahead} ->
          {job, {workers, if(ahead == :full, do: :full, else: ahead + job.length)}}
      end)

    %{state | jobs: jobs, workers: workers}
  end

  defp may_start?(_job, _workers, :full), do: false

  defp may_start?(%{source: %{options: options}, length: length}, workers, ahead) do
    busy = Enum.count(workers, fn {_, work} -> work != :idle end)
    busy < options.connections and (ahead == 0 or ahead + length <= options.ahead)
  end

  # ---- Reading ----

  defp advance(%{reading: nil} = state), do: noreply(run(state))

  defp advance(
         %{reading: {from, wanted, parts}, jobs: [%{state: {:ready, result}} | jobs]} = state
       ) do
    case {result, wanted} do
      {{:ok, bytes, _}, [{_, length} | wanted]} when byte_size(bytes) >= length ->
        parts = [binary_part(bytes, 0, length) | parts]
        next(%{state | jobs: jobs}, from, wanted, parts)

      {{:ok, _bytes, _}, [_ | _]} ->
        error = Error.new(:truncated, "the file on the server is shorter than expected")
        finish(plan(state, []), from, {:error, error})

      {{:error, error}, _} ->
        finish(plan(state, []), from, {:error, error})

      {result, :first} ->
        finish(%{state | jobs: jobs}, from, result)
    end
  end

  defp advance(state), do: noreply(run(state))

  defp next(state, from, [], [bytes]), do: finish(state, from, {:ok, bytes})

  defp next(state, from, [], parts),
    do: finish(state, from, {:ok, parts |> Enum.reverse() |> IO.iodata_to_binary()})

  defp next(state, from, wanted, parts), do: advance(%{state | reading: {from, wanted, parts}})

  # The binary is the reader's now.
  defp finish(state, from, result) do
    state = run(%{state | reading: nil})
    GenServer.reply(from, result)
    :erlang.garbage_collect()
    noreply(state)
  end

  # ---- Workers ----

  defp worker(workers) do
    case Enum.find(workers, fn {_, work} -> work == :idle end) do
      {worker, :idle} ->
        {worker, workers}

      nil ->
        fetcher = self()
        worker = spawn_link(fn -> work(fetcher, nil) end)
        {worker, workers}
    end
  end

  defp work(fetcher, conn) do
    receive do
      {:job, key, source, offset, length} ->
        {result, conn} = request(source, offset, length, conn)
        send(fetcher, {:done, self(), key, result})
        # The binary must not stay referenced here.
        :erlang.garbage_collect()
        work(fetcher, conn)
    end
  end

  # A function of the caller may raise. What it raises may contain a secret.
  defp request(source, offset, length, conn) do
    Request.range(source, offset, length, conn)
  catch
    _kind, _reason ->
      message = "the request failed: a function given as :token or :client raised"
      {{:error, Error.new(:bad_argument, message)}, nil}
  end
end
