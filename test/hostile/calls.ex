defmodule ExTorch.HostileFiles.Calls do
  @moduledoc false
  # The calls that every file of the catalogue is given to. A call is `{name, how}`; run/2 makes it.
  alias ExTorch.{Checkpoint, Store, Streaming}
  alias ExTorch.HostileFiles.MemorySource

  @options [default: [], strict: [strict: true], verify: [verify: true], ordered: [ordered: true]]

  # Every way in.
  @ways [
    path: [],
    path: [strict: true],
    path: [mmap: true],
    path: [verify: true],
    binary: [],
    source: []
  ]

  @doc """
  The calls for a file: all that differ (`:complete`), those of the long form, those of the short form, or a few of
  these: which ones depends on the number.
  """
  def all(kind, form \\ :long)

  def all(:index, :complete) do
    opts = [[strict: true], [verify: true], [mmap: true], [only: ~r/w/]]
    all(:index, :long) ++ for(opts <- opts, do: {:load_index, opts})
  end

  def all(:index, _form), do: [:load, :load_directory, :store_keys, :store_apply]

  # A folder is read by its path.
  def all(:folder, {:few, i}) do
    [first | rest] = all(:folder, :short)
    [first, Enum.at(rest, rem(i, length(rest)))]
  end

  def all(:folder, form),
    do: for({call, :path, opts} <- all(:file, form), do: {call, :path, opts})

  def all(:file, :complete) do
    reads =
      for call <- [:open, :load, :only, :entries, :object],
          {source, opts} <- @ways,
          do: {call, source, opts}

    # Stores take no binaries, and do not map files.
    stores =
      for {source, opts} <- @ways,
          source != :binary and not Keyword.has_key?(opts, :mmap),
          do: {:store_apply, source, opts}

    streams =
      for opts <- [[], [strict: true], [verify: true], [only: ~r/[02468]$/]],
          do: {:stream, :large, opts}

    others =
      for call <-
            [:describe, :records, :tensor, :missing, :lazy, :store_keys, :store_auto] ++
              [:inspect, :use],
          do: {call, :path, []}

    reads ++
      stores ++
      streams ++
      others ++
      [
        {:stream, :small, []},
        {:stream_tensors, :large, []},
        {:gunzip, :large, []},
        {:gunzip_tensors, :large, []},
        {:task, :path, []},
        {:load, :path, ordered: true},
        {:save, :path, []}
      ]
  end

  def all(:file, :short) do
    [
      {:load, :path, []},
      {:load, :binary, strict: true},
      {:load, :source, verify: true},
      {:stream, :small, []},
      {:stream, :large, []},
      {:entries, :path, mmap: true},
      {:object, :path, ordered: true},
      {:tensor, :path, []},
      {:only, :path, []},
      {:task, :path, []},
      {:missing, :path, []},
      {:store_apply, :path, []}
    ]
  end

  def all(:file, {:few, i}) do
    [first | rest] = all(:file, :short)
    [first | rest |> Stream.cycle() |> Stream.drop(rem(3 * i, length(rest))) |> Enum.take(3)]
  end

  def all(:file, :long) do
    loads =
      for source <- [:path, :binary, :source], {_, opts} <- @options, do: {:load, source, opts}

    streams = for size <- [:small, :large], {_, opts} <- @options, do: {:stream, size, opts}

    reads =
      for call <- [:open, :keys, :entries, :object, :tensor, :describe, :records, :only],
          {source, opts} <- [path: [], binary: [], source: [], path: [mmap: true]],
          do: {call, source, opts}

    loads ++
      [
        {:load, :path, mmap: true},
        {:stream_tensors, :large, []},
        {:lazy, :path, []},
        {:gunzip, :large, []}
      ] ++
      [{:store_keys, :path, []}, {:store_apply, :path, []}, {:store_auto, :path, []}] ++
      [
        {:task, :path, []},
        {:missing, :path, []},
        {:save, :path, []},
        {:save, :path, ordered: true}
      ] ++ streams ++ reads
  end

  @doc """
  The call that a call begins with and whose error is its error too, or nil. If the first fails, the other adds nothing.
  """
  def begins_with({call, source, opts})
      when call in [:entries, :object, :describe, :records, :tensor, :missing, :lazy],
      do: {:open, source, opts}

  def begins_with(_call), do: nil

  @doc "Reads what a call needs into memory, so that this is not measured."
  def prepare({_, source, _}, path) when source in [:binary, :source, :small, :large],
    do: {path, File.read!(path)}

  def prepare(_call, path), do: {path, nil}

  @doc "Makes a call. Returns `{:ok, value}` or `{:error, error}`; other answers and exceptions are for the caller."
  def run(:load, {path, _}), do: ExTorch.load(path)
  def run(:load_directory, {path, _}), do: ExTorch.load(Path.dirname(path))
  def run(:store_keys, {path, _}), do: Store.keys(Store.Sharded.new(path))

  def run(:store_apply, {path, _}),
    do: Store.apply_to(Store.Sharded.new(path), %{"w" => ExTorch.zeros({1})})

  def run({:load_index, opts}, {path, _}), do: ExTorch.load(path, opts)
  def run({:load, source, opts}, file), do: ExTorch.load(source(source, file), opts)

  def run({:only, source, opts}, file),
    do:
      ExTorch.load(
        source(source, file),
        [only: fn name -> :erlang.phash2(name, 2) == 0 end] ++ opts
      )

  # The result becomes a message, which is a copy without shared parts.
  def run({:task, :path, opts}, {path, _}),
    do: Task.await(Task.async(fn -> ExTorch.load(path, opts) end), :infinity)

  def run({:save, :path, opts}, {path, _}) do
    with {:ok, term} <- ExTorch.load(path, opts),
         do: {:ok, term |> Streaming.save() |> Enum.reduce(0, &(IO.iodata_length(&1) + &2))}
  end

  # What a program does with a result: printing it, and reading and copying its first tensors.
  def run({:inspect, :path, opts}, {path, _}) do
    with {:ok, term} <- ExTorch.load(path, opts) do
      inspect(term)
      {:ok, term}
    end
  end

  def run({:use, :path, opts}, {path, _}) do
    with {:ok, ckpt} <- Checkpoint.open(path, opts) do
      try do
        for {_name, tensor} <- ckpt |> Checkpoint.stream() |> Enum.take(20),
            do: use_tensor(tensor)

        {:ok, nil}
      after
        Checkpoint.close(ckpt)
      end
    end
  end

  def run({:stream, size, opts}, {_, bytes}) do
    with {:ok, term, _rest} <- Streaming.load(chunks(bytes, size), opts), do: {:ok, term}
  end

  def run({:gunzip, size, opts}, {_, bytes}) do
    with {:ok, term, _rest} <-
           bytes |> chunks(size) |> Streaming.gunzip() |> Streaming.load(opts),
         do: {:ok, term}
  end

  def run({:stream_tensors, size, opts}, {_, bytes}) do
    {:ok,
     bytes |> chunks(size) |> Streaming.tensors(opts) |> Enum.reduce(0, fn _, n -> n + 1 end)}
  end

  def run({:gunzip_tensors, size, opts}, {_, bytes}) do
    tensors = bytes |> chunks(size) |> Streaming.gunzip() |> Streaming.tensors(opts)
    {:ok, Enum.reduce(tensors, 0, fn _, n -> n + 1 end)}
  end

  def run({:store_keys, :path, opts}, {path, _}), do: Store.keys(Store.PyTorch.new(path, opts))

  def run({:store_apply, source, opts}, file) do
    store =
      Store.PyTorch.new(source(source, file), [allow_partial: true, validate: false] ++ opts)

    Store.apply_to(store, %{"w" => ExTorch.zeros({1}), "0" => ExTorch.zeros({1})})
  end

  def run({:store_auto, :path, opts}, {path, _}) do
    store =
      Store.PyTorch.new(path, [allow_partial: true, top_level_key: :auto, renumber: true] ++ opts)

    Store.apply_to(store, %{"w" => ExTorch.zeros({1}), "0" => ExTorch.zeros({1})})
  end

  def run({call, source, opts}, file) do
    with {:ok, ckpt} <- Checkpoint.open(source(source, file), opts) do
      try do
        read(call, ckpt)
      after
        Checkpoint.close(ckpt)
      end
    end
  end

  # Operators refuse what they cannot do with an error.
  defp use_tensor(%ExTorch.Tensor{} = tensor) do
    inspect(tensor)

    if ExTorch.Tensor.numel(tensor) <= 1_000_000 do
      for op <- ["clone", "add", "to_dense", "sum", "contiguous", "coalesce", "dequantize"] do
        try do
          args = if op == "add", do: [tensor, 1], else: [tensor]
          inspect(ExTorch.op(op, args))
        rescue
          _ in [ExTorch.Error, ArgumentError] -> :ok
        end
      end

      try do
        ExTorch.Tensor.to_binary(tensor)
        ExTorch.Tensor.to_list(tensor)
        ExTorch.Tensor.equal?(tensor, tensor)
      rescue
        _ in [ExTorch.Error, ArgumentError] -> :ok
      end
    end
  end

  defp use_tensor(other), do: inspect(other)

  defp read(:open, ckpt), do: {:ok, inspect(ckpt)}
  defp read(:keys, ckpt), do: {:ok, Checkpoint.keys(ckpt)}
  defp read(:entries, ckpt), do: {:ok, Checkpoint.entries(ckpt)}
  defp read(:object, ckpt), do: Checkpoint.object(ckpt)

  defp read(:tensor, ckpt) do
    # By name first and, if several tensors have this name, by path.
    case Enum.take(Checkpoint.keys(ckpt), -1) do
      [] ->
        {:ok, nil}

      [name] ->
        with {:error, %{reason: :ambiguous}} <- Checkpoint.tensor(ckpt, name),
             do: Checkpoint.tensor(ckpt, List.last(Checkpoint.entries(ckpt)).path)
    end
  end

  # Errors that suggest similar names.
  defp read(:missing, ckpt) do
    with {:error, %{reason: :not_found}} <- Checkpoint.tensor(ckpt, "layer1.wieght"),
         {:error, %{reason: :not_found}} <- Checkpoint.tensor(ckpt, ["layer1", 0]),
         do: Checkpoint.entry(ckpt, String.duplicate("k", 100_000))
  end

  defp read(:describe, ckpt),
    do: {:ok, {Checkpoint.metadata(ckpt), Checkpoint.records(ckpt), Checkpoint.storages(ckpt)}}

  defp read(:records, ckpt) do
    # The largest is what may be held.
    Enum.reduce_while(
      Enum.take(Checkpoint.records(ckpt), 50),
      {:ok, {:data, ""}},
      fn name, {:ok, {:data, largest}} ->
        case Checkpoint.read_record(ckpt, name) do
          {:ok, data} when byte_size(data) > byte_size(largest) -> {:cont, {:ok, {:data, data}}}
          {:ok, _data} -> {:cont, {:ok, {:data, largest}}}
          {:error, error} -> {:halt, {:error, error}}
        end
      end
    )
  end

  # The tensors of all entries, one after another.
  defp read(:lazy, ckpt) do
    {:ok, {:streamed, for({_name, tensor} <- Checkpoint.stream(ckpt), do: bytes(tensor))}}
  end

  defp bytes(%ExTorch.Tensor{} = tensor), do: ExTorch.Tensor.nbytes(tensor)
  defp bytes(_other), do: 0

  defp source(:path, {path, _}), do: path
  defp source(:binary, {_, bytes}), do: {:binary, bytes}
  defp source(:source, {_, bytes}), do: %MemorySource{bytes: bytes}

  # At most about 2,000 chunks.
  defp chunks(bytes, :small),
    do: ExTorch.Case.chunks(bytes, [max(7, div(byte_size(bytes), 2000))])

  defp chunks(bytes, :large), do: ExTorch.Case.chunks(bytes, [1_048_576])
end
