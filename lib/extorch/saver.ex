defmodule ExTorch.Saver do
  @moduledoc false
  # Saving: options are checked, the NIFs plan and write in steps between which progress is reported.

  alias ExTorch.{DType, Error, Memory, Native, Options, Progress, Tensor}

  @formats [:zip, :legacy, :streaming, :safetensors]
  @options [
    format: nil,
    metadata: %{},
    fsync: true,
    compact: false,
    duplicate: false,
    on_progress: nil
  ]
  @stream_options Keyword.drop(@options, [:fsync])
  @step_bytes 64 * 1024 * 1024
  @chunk_bytes 1024 * 1024

  def save(term, path, opts) do
    options = check!(opts)
    format = options[:format] || format_of(path)
    metadata = metadata!(options[:metadata], format)

    with {:ok, path} <- check_path(path),
         {:ok, term} <- prepare(term, format),
         {:ok, {saver, total}} <- begin(term, format, root_of(path), options, metadata),
         {:ok, :ok} <- open(saver, path, options[:fsync]) do
      step(saver, Progress.new(options[:on_progress], total))
    end
    |> Error.located(path)
  end

  # ---- As a stream of iodata ----

  # Each enumeration plans anew; an error is raised while it goes on.
  def stream(term, opts) do
    {chunk, opts} = Keyword.pop(opts, :chunk, @chunk_bytes)
    options = check!(opts, @stream_options)
    format = options[:format] || :streaming
    metadata = metadata!(options[:metadata], format)

    Options.chunk!(chunk)

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
    with {:ok, term} <- prepare(term, format),
         {:ok, begun} <- begin(term, format, "archive", options, metadata) do
      begun
    else
      {:error, error} -> raise error
    end
  end

  defp begin(term, format, root, options, metadata) do
    flags = {options[:compact], options[:duplicate]}
    Memory.run(fn -> Native.saver_begin(term, format, root, flags, metadata) end)
  end

  defp next(:over, _chunk), do: {:halt, :over}

  defp next({saver, progress}, chunk) do
    case Memory.run!(fn -> Native.saver_next(saver, chunk) end) do
      {:more, done, iodata} ->
        {[iodata], {saver, Progress.report(progress, done)}}

      {:done, _done, iodata} ->
        Progress.finish(progress)
        {[iodata], :over}
    end
  end

  # ---- Into a file ----

  defp open(saver, path, fsync),
    do: Memory.run(fn -> Native.saver_open(saver, path, fsync) end)

  defp step(saver, progress) do
    case Memory.run(fn -> Native.saver_step(saver, @step_bytes) end) do
      {:ok, {:more, done}} -> step(saver, Progress.report(progress, done))
      {:ok, :done} -> Progress.finish(progress)
      {:error, error} -> {:error, error}
    end
  end

  # ---- Options ----

  defp check!(opts, known \\ @options) do
    options = Options.validate!(opts, known)

    for key <- [:fsync, :compact, :duplicate],
        Keyword.has_key?(known, key) and not is_boolean(options[key]) do
      raise Error.new(:bad_argument, "#{key} is true or false, not #{inspect(options[key])}")
    end

    unless options[:format] in [nil | @formats] do
      names = Enum.map_join(@formats, ", ", &inspect/1)

      raise Error.new(
              :bad_argument,
              "format is one of #{names}, not #{inspect(options[:format])}"
            )
    end

    Progress.check!(options[:on_progress])
    options
  end

  defp metadata!(metadata, format) do
    pairs = if is_map(metadata) or is_list(metadata), do: Enum.to_list(metadata), else: [:wrong]

    texts =
      for pair <- pairs do
        with {key, value} when (is_binary(key) or is_atom(key)) and is_binary(value) <- pair,
             key = to_string(key),
             true <- String.valid?(key) and String.valid?(value) do
          {key, value}
        else
          _ ->
            raise Error.new(
                    :bad_argument,
                    "metadata is a map of strings, not #{inspect(metadata, limit: 5)}"
                  )
        end
      end

    if texts != [] and format != :safetensors do
      raise Error.new(
              :bad_argument,
              "only safetensors has metadata of its own; put it into the term"
            )
    end

    Enum.sort(texts)
  end

  defp format_of(path) when is_binary(path) do
    if String.downcase(Path.extname(path)) == ".safetensors", do: :safetensors, else: :zip
  end

  defp format_of(_path), do: :zip

  def check_path(path) when is_binary(path) do
    if Options.path?(path),
      do: {:ok, path},
      else: {:error, Error.new(:not_found, "this is no path")}
  end

  def check_path(other) do
    {:error, Error.new(:bad_argument, "#{inspect(other, limit: 5)} is no sink: save to a path")}
  end

  # The folder inside a zip: the file's name without its last extension, as torch does it.
  defp root_of(path) do
    case path |> Path.basename() |> Path.rootname() do
      "" -> "archive"
      name -> name
    end
  end

  # ---- Safetensors ----

  # Names and tensors in the order that aligns them: the widest dtypes first, then by name.
  defp prepare(term, :safetensors) do
    with {:ok, pairs} <- pairs(term),
         sorted = List.keysort(pairs, 0),
         :ok <- unique(sorted) do
      widths = Enum.group_by(sorted, fn {_name, tensor} -> DType.size(tensor.dtype) end)
      {:ok, widths |> Enum.sort(:desc) |> Enum.flat_map(&elem(&1, 1))}
    end
  end

  defp prepare(term, _format), do: {:ok, term}

  defp pairs(%ExTorch.Python.Dict{pairs: pairs}), do: check_pairs(pairs)
  defp pairs(%_{} = other), do: no_dict(other)
  defp pairs(term) when is_map(term), do: check_pairs(Map.to_list(term))
  defp pairs(term) when is_list(term), do: check_pairs(term)
  defp pairs(other), do: no_dict(other)

  defp no_dict(other) do
    {:error,
     Error.new(
       :bad_argument,
       "safetensors holds a map of names and tensors, not #{inspect(other, limit: 3)}"
     )}
  end

  defp check_pairs(pairs) do
    Enum.reduce_while(pairs, {:ok, []}, fn
      {name, value}, {:ok, done} when is_binary(name) or is_atom(name) ->
        name = to_string(name)

        case tensor_of(value) do
          _ when name == "__metadata__" or not is_binary(name) ->
            {:halt, {:error, Error.new(:bad_argument, "__metadata__ is no name for a tensor")}}

          {:ok, tensor} ->
            if String.valid?(name),
              do: {:cont, {:ok, [{name, tensor} | done]}},
              else: {:halt, {:error, Error.new(:bad_argument, "a name is no UTF-8 text")}}

          :error ->
            {:halt,
             {:error,
              Error.new(
                :bad_argument,
                "term[#{inspect(name)}] is no tensor, and safetensors holds nothing else: #{inspect(value, limit: 3)}"
              )}}
        end

      other, _done ->
        {:halt, no_dict(other)}
    end)
  end

  defp tensor_of(%Tensor{} = tensor), do: {:ok, tensor}
  defp tensor_of(%Tensor.BlobView{tensor: tensor}), do: {:ok, tensor}
  defp tensor_of(_), do: :error

  defp unique([{name, _}, {name, _} | _]),
    do: {:error, Error.new(:bad_argument, "two tensors have the name #{inspect(name)}")}

  defp unique([_ | rest]), do: unique(rest)
  defp unique([]), do: :ok
end
