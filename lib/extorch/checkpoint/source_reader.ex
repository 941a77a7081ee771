defmodule ExTorch.Checkpoint.SourceReader do
  @moduledoc false
  # Reads checkpoints from an ExTorch.Source. The NIFs return which bytes they need; this module reads them.

  alias ExTorch.{Error, Memory, Native, Source, Tensor}
  alias ExTorch.Checkpoint.{Handle, Options}

  # The index of an entry or the name of a record.
  @type target :: non_neg_integer() | String.t()

  @spec open(Source.t(), Options.native()) :: Handle.result(reference())
  def open(%module{} = source, native_opts) do
    with {:ok, size} <- call(module, :size, [source]),
         {:ok, {resource, need}} <-
           Memory.run(fn -> Native.source_reader_open(size, native_opts) end) do
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
    with {:ok, bytes} <- read(source, offset, size),
         {:ok, need} <- Memory.run(fn -> Native.source_reader_fill(resource, bytes) end) do
      fill(source, resource, need)
    end
  end

  # Reads the bytes of an entry (by index) or record (by name). Returns them and their offset in the source.
  @spec locate(Source.t(), reference(), target(), boolean()) ::
          {:ok, non_neg_integer(), binary()} | {:error, Error.t()}
  def locate(source, resource, target, whole?) do
    case Memory.run(fn -> Native.source_reader_locate(resource, target, whole?) end) do
      {:ok, nil} ->
        {:ok, 0, <<>>}

      {:ok, {:bytes, offset, 0}} ->
        {:ok, offset, <<>>}

      {:ok, {:bytes, offset, size}} ->
        with {:ok, bytes} <- read(source, offset, size), do: {:ok, offset, bytes}

      {:ok, {:header, offset, size}} ->
        with {:ok, header} <- read(source, offset, size),
             :ok <- check_header(resource, target, header) do
          locate(source, resource, target, whole?)
        end

      {:error, error} ->
        {:error, error}
    end
  end

  defp check_header(resource, target, header) do
    with {:ok, _} <-
           Memory.run(fn -> Native.source_reader_check_header(resource, target, header) end),
         do: :ok
  end

  # Returns the tensor of an entry, or the bytes of a record; nil if there is no such record.
  @spec decode(reference(), target(), boolean(), non_neg_integer(), binary()) ::
          Handle.result(Tensor.t() | struct() | binary() | nil)
  def decode(resource, target, verify, offset, bytes) do
    Memory.run(fn -> Native.source_reader_decode(resource, target, verify, offset, bytes) end)
  end

  # Reads exactly `size` bytes.
  @spec read(Source.t(), non_neg_integer(), non_neg_integer()) ::
          {:ok, binary()} | {:error, Error.t()}
  def read(%module{} = source, offset, size) do
    case call(module, :read_at, [source, offset, size]) do
      {:ok, bytes} when is_binary(bytes) and byte_size(bytes) == size ->
        {:ok, bytes}

      {:ok, other} when not is_binary(other) ->
        {:error,
         Error.new(
           :io,
           "expected read_at to return #{size} bytes at #{offset}, got #{inspect(other, limit: 3)}"
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

      {:error, %Error{} = error} ->
        {:error, error}

      {:error, reason} ->
        {:error, Error.new(:io, "#{inspect(module)}.#{function} failed: #{inspect(reason)}")}

      other ->
        {:error,
         Error.new(
           :io,
           "expected #{inspect(module)}.#{function} to return {:ok, value} or {:error, reason}, " <>
             "got #{inspect(other, limit: 3)}"
         )}
    end
  end
end
