defmodule ExTorch.Saver do
  @moduledoc false
  # Saves terms to files and as streams. Native code plans the file and writes it in steps; progress is reported between
  # them.

  alias ExTorch.{Error, Options, Progress, Source, Telemetry, Tensor}
  alias ExTorch.Native.Call
  alias ExTorch.Saver.Cast

  @formats [:zip, :legacy, :streaming, :safetensors, :npy, :npz]
  @endings Map.merge(
             %{".safetensors" => :safetensors, ".npy" => :npy, ".npz" => :npz},
             Map.new(~w(.pt .pth .bin .ckpt .pkl .tar) ++ [""], &{&1, :zip})
           )
  @options [
    format: nil,
    metadata: %{},
    fsync: true,
    compact: false,
    duplicate: false,
    on_progress: nil
  ]
  @stream_options [chunk: 1024 * 1024] ++ Keyword.delete(@options, :fsync)
  @step_bytes 64 * 1024 * 1024

  @spec save(term(), Path.t(), keyword()) :: :ok | {:error, Error.t()}
  def save(term, path, opts) do
    Telemetry.span(
      :save,
      fn -> Map.take(Telemetry.source(path), [:path]) end,
      fn -> save_term(term, path, opts) end,
      fn _result -> Telemetry.measure([term]) end
    )
  end

  defp save_term(term, path, opts) do
    if Keyword.keyword?(opts) and opts[:format] == :dcp,
      do: save_folder(term, path, Keyword.delete(opts, :format)),
      else: save_file(term, path, opts)
  end

  # A folder of torch.distributed.checkpoint with one writer.
  defp save_folder(term, path, opts) do
    opts = Options.validate!(opts, fsync: true)
    Telemetry.note(fn -> {%{}, %{format: :dcp}} end)

    with {:ok, part} <- ExTorch.DCP.write(term, path, opts),
         do: ExTorch.DCP.commit(path, [part], opts)
  end

  defp save_file(term, path, opts) do
    options = check!(opts)

    with {:ok, path} <- check_path(path),
         {:ok, format} <- format(options[:format], path),
         :ok = Telemetry.note(fn -> {%{}, %{format: format}} end),
         metadata = metadata!(options[:metadata], format),
         {:ok, {saver, total}} <- begin(term, format, root_of(path), options, metadata),
         {:ok, :ok} <- open(saver, path, options[:fsync]) do
      step(saver, Progress.new(options[:on_progress], total))
    end
    |> Error.put_path(path)
  end

  # ---- Streams of iodata ----

  # The options of stream/2 with their defaults.
  @spec stream_options() :: keyword()
  def stream_options, do: @stream_options

  # Each enumeration plans the file again. Errors are raised during the enumeration.
  @spec stream(term(), keyword()) :: Enumerable.t()
  def stream(term, opts) do
    options = check!(opts, @stream_options)
    format = options[:format] || :streaming
    metadata = metadata!(options[:metadata], format)
    chunk = Options.chunk!(options[:chunk])

    Stream.resource(
      fn ->
        {saver, total} = begin!(term, format, options, metadata)
        {saver, Progress.new(options[:on_progress], total)}
      end,
      &next(&1, chunk),
      fn _state -> :ok end
    )
  end

  defp begin!(term, format, options, metadata) do
    case begin(term, format, "archive", options, metadata) do
      {:ok, begun} -> begun
      {:error, error} -> raise error
    end
  end

  defp next(:done, _chunk), do: {:halt, :done}

  defp next({saver, progress}, chunk) do
    case Error.unwrap!(Call.saver_next(saver, chunk)) do
      {:more, done, iodata} ->
        {[iodata], {saver, Progress.report(progress, done)}}

      {:done, _done, iodata} ->
        Progress.finish(progress)
        {[iodata], :done}
    end
  end

  # ---- Files ----

  defp open(saver, path, fsync),
    do: Call.saver_open(saver, path, fsync)

  defp step(saver, progress) do
    case Call.saver_step(saver, @step_bytes) do
      {:ok, {:more, done}} -> step(saver, Progress.report(progress, done))
      {:ok, :done} -> Progress.finish(progress)
      {:error, error} -> {:error, error}
    end
  end

  # ---- Options ----

  defp check!(opts, known \\ @options) do
    options = Options.validate!(opts, known)

    booleans = Enum.filter([:fsync, :compact, :duplicate], &Keyword.has_key?(known, &1))
    Options.booleans!(options, booleans)

    check_format!(options[:format])
    Progress.check!(options[:on_progress])
    options
  end

  @spec check_format!(term()) :: :ok
  def check_format!(format) when format in [nil | @formats], do: :ok

  def check_format!(other) do
    names = Enum.map_join(@formats, ", ", &inspect/1)
    Options.invalid!(:format, "one of #{names}", other)
  end

  # Returns the metadata as a sorted list of strings.
  @spec metadata!(term(), atom()) :: [{String.t(), String.t()}]
  def metadata!(metadata, format) do
    pairs =
      if (is_map(metadata) and not is_struct(metadata)) or
           (is_list(metadata) and not List.improper?(metadata)),
         do: Enum.to_list(metadata),
         else: [:invalid]

    strings =
      for pair <- pairs do
        with {key, value} when (is_binary(key) or is_atom(key)) and is_binary(value) <- pair,
             key = to_string(key),
             true <- String.valid?(key) and String.valid?(value) do
          {key, value}
        else
          _ -> Options.invalid!(:metadata, "a map of strings", metadata)
        end
      end

    if strings != [] and format != :safetensors do
      raise Error.new(
              :bad_argument,
              "only safetensors files have metadata; add it to the term that is saved instead"
            )
    end

    Enum.sort(strings)
  end

  # Returns the format that the option gives, or else the ending of the path.
  @spec format(atom(), Path.t()) :: {:ok, atom()} | {:error, Error.t()}
  def format(nil, path) do
    ending = path |> Path.extname() |> String.downcase()

    case @endings do
      %{^ending => format} ->
        {:ok, format}

      _ ->
        known = @endings |> Map.keys() |> Enum.reject(&(&1 == "")) |> Enum.sort()

        {:error,
         Error.new(
           :bad_argument,
           "the ending #{inspect(ending)} does not determine a format; pass format: :zip or another one, " <>
             "or use one of #{Enum.join(known, ", ")}"
         )}
    end
  end

  def format(format, _path), do: {:ok, format}

  @no_url "URLs are only read (ExTorch.load/2, ExTorch.Source.HTTP): write a file and upload it, or send the chunks of " <>
            "ExTorch.Streaming.save/2 as the body of a request"

  @spec check_path(term()) :: {:ok, Path.t()} | {:error, Error.t()}
  def check_path(path) do
    cond do
      error = Source.refuse_url(path, @no_url) ->
        {:error, error}

      not is_binary(path) ->
        {:error, Error.new(:bad_argument, "expected a path, got #{inspect(path, limit: 5)}")}

      Options.path?(path) ->
        {:ok, path}

      true ->
        {:error, Error.new(:not_found, "expected a path, got an empty or invalid string")}
    end
  end

  # Returns the root directory of the records: the file name without its last extension, as torch does it.
  defp root_of(path) do
    case path |> Path.basename() |> Path.rootname() do
      "" -> "archive"
      name -> name
    end
  end

  # ---- Named tensors ----

  # Plans the file. Native code takes maps of strings and tensors as they are; what it does not take is converted here,
  # or refused.
  defp begin(term, format, root, options, metadata) when format in [:safetensors, :npz] do
    with {:ok, named} <- named(term, format),
         {:ok, nil} <- begin_native(named, format, root, options, metadata),
         {:ok, pairs} <- pairs(named, format),
         do: begin_native(pairs, format, root, options, metadata)
  end

  defp begin(term, :npy, root, options, metadata) do
    case tensor_of(term) do
      {:ok, tensor} ->
        begin_native([{"array", tensor}], :npy, root, options, metadata)

      :error ->
        message = "expected a tensor to save as npy, got #{inspect(term, limit: 3)}"
        {:error, Error.new(:bad_argument, message <> "; save several as npz")}
    end
  end

  defp begin(term, format, root, options, metadata),
    do: begin_native(term, format, root, options, metadata)

  defp begin_native(term, format, root, options, metadata) do
    # numpy's files have no shared arrays: their bytes are written for each
    flags = {options[:compact], options[:duplicate] or format in [:npy, :npz]}
    Call.saver_begin(term, format, root, flags, metadata)
  end

  defp named(%ExTorch.Python.Dict{pairs: pairs}, _format), do: {:ok, pairs}

  defp named(term, format) do
    if (is_map(term) and not is_struct(term)) or (is_list(term) and not List.improper?(term)),
      do: {:ok, term},
      else: not_a_dict(term, format)
  end

  defp not_a_dict(other, format) do
    {:error,
     Error.new(
       :bad_argument,
       "expected a map of names and tensors to save as #{format}, got #{inspect(other, limit: 3)}"
     )}
  end

  defp pairs(term, format) do
    result =
      Enum.reduce_while(term, [], fn
        {name, value}, pairs when is_binary(name) or is_atom(name) ->
          case tensor_of(value) do
            {:ok, tensor} -> {:cont, [{to_string(name), tensor} | pairs]}
            :error -> {:halt, not_a_tensor(to_string(name), value, format)}
          end

        other, _pairs ->
          {:halt, not_a_dict(other, format)}
      end)

    if is_list(result), do: {:ok, result}, else: result
  end

  defp not_a_tensor(name, value, format) do
    message =
      "expected term[#{inspect(name)}] to be a tensor to save as #{format}, got #{inspect(value, limit: 3)}"

    {:error, Error.new(:bad_argument, message)}
  end

  defp tensor_of(%Tensor{} = tensor), do: {:ok, tensor}
  defp tensor_of(%Tensor.BlobView{tensor: tensor}), do: {:ok, tensor}
  defp tensor_of(%Cast{} = cast), do: {:ok, cast}
  defp tensor_of(_), do: :error
end
