defmodule ExTorch.Checkpoint.SourceReader do
  @moduledoc false
  # Reads checkpoints from an ExTorch.Source. The NIFs return which bytes they need; this module reads them.

  alias ExTorch.{Error, Native, Source, Tensor}
  alias ExTorch.Checkpoint.{Handle, Options}
  alias ExTorch.Native.Call

  @max_size 2 ** 62

  # The index of an entry or the name of a record.
  @type target :: non_neg_integer() | String.t()

  @spec open(Source.t(), Options.native()) :: Handle.result(reference())
  def open(source, native_opts) do
    with {:ok, size} <- size(source),
         {:ok, {resource, need}} <-
           Call.source_reader_open(size, native_opts) do
      fill_or_close(source, resource, need)
    end
  end

  defp fill_or_close(source, resource, need) do
    case fill(source, resource, need) do
      :ok ->
        {:ok, resource}

      {:error, error} ->
        close(resource)
        {:error, error}
    end
  catch
    kind, reason ->
      close(resource)
      :erlang.raise(kind, reason, __STACKTRACE__)
  end

  defp close(resource), do: Native.checkpoint_close(resource)

  defp fill(_source, _resource, :open), do: :ok

  defp fill(source, resource, {:need, offset, size}) do
    with {:ok, bytes} <- read_at(source, offset, size),
         {:ok, need} <- Call.source_reader_fill(resource, bytes) do
      fill(source, resource, need)
    end
  end

  # Returns the tensor of an entry (by index), or the bytes of a record (by name); nil if there is no such record.
  @spec read(Source.t(), reference(), target(), boolean()) ::
          Handle.result(Tensor.t() | binary() | nil)
  def read(source, resource, target, verify) do
    with {:ok, [_ | _] = ranges} <- locate(resource, target, verify),
         :ok <- Source.prefetch(source, fn -> ranges end),
         {:ok, pieces} <- read_ranges(source, ranges, []),
         do: decode(resource, target, verify, pieces)
  end

  # No bytes are needed for a tensor without elements, or inside the pickle.
  defp locate(resource, target, verify) do
    with {:ok, []} <- Call.source_reader_locate(resource, target, verify),
         do: decode(resource, target, verify, [])
  end

  defp decode(resource, target, verify, pieces),
    do: Call.source_reader_decode(resource, target, verify, pieces)

  defp read_ranges(_source, [], pieces), do: {:ok, pieces}

  defp read_ranges(source, [{offset, size} | ranges], pieces) do
    with {:ok, bytes} <- read_at(source, offset, size),
         do: read_ranges(source, ranges, [{offset, bytes} | pieces])
  end

  # Returns the size of the source. A server may declare any number.
  @spec size(Source.t()) :: Handle.result(non_neg_integer())
  def size(%module{} = source) do
    case call(module, :size, [source]) do
      {:ok, size} when is_integer(size) and size in 0..@max_size ->
        {:ok, size}

      {:ok, size} when is_integer(size) and size > @max_size ->
        {:error,
         Error.new(:limit, "the source declares more than 2 ** 62 bytes; check its size function")}

      {:ok, other} ->
        {:error,
         Error.new(
           :io,
           "expected #{inspect(module)}.size to return a number of bytes, got #{Error.quoted(other)}"
         )}

      error ->
        error
    end
  end

  # Reads exactly `size` bytes.
  @spec read_at(Source.t(), non_neg_integer(), non_neg_integer()) ::
          {:ok, binary()} | {:error, Error.t()}
  def read_at(%module{} = source, offset, size) do
    case call(module, :read_at, [source, offset, size]) do
      {:ok, bytes} when is_binary(bytes) and byte_size(bytes) == size ->
        {:ok, bytes}

      {:ok, other} when not is_binary(other) ->
        {:error,
         Error.new(
           :io,
           "expected read_at to return #{size} bytes at #{offset}, got #{Error.quoted(other)}"
         )}

      {:ok, bytes} ->
        {:error,
         Error.new(
           :io,
           "expected read_at to return #{size} bytes at #{offset}, got #{byte_size(bytes)} bytes"
         )}

      other ->
        other
    end
  end

  defp call(module, function, args) do
    case apply(module, function, args) do
      {:ok, value} ->
        {:ok, value}

      {:error, reason} ->
        {:error, source_error(module, function, reason)}

      other ->
        {:error,
         Error.new(
           :io,
           "expected #{inspect(module)}.#{function} to return {:ok, value} or {:error, reason}, " <>
             "got #{Error.quoted(other)}"
         )}
    end
  end

  # Returns the error for what a callback of a source returned.
  @spec source_error(module() | Source.t() | term(), atom(), term()) :: Error.t()
  def source_error(_source, _function, %Error{} = error), do: error
  def source_error(%module{}, function, reason), do: source_error(module, function, reason)

  def source_error(module, function, reason) when is_atom(module),
    do: Error.new(:io, "#{inspect(module)}.#{function} failed: #{Error.quoted(reason)}")
end
