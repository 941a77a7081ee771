defmodule ExTorch.Streaming.Gzip do
  @moduledoc false
  # Decompresses gzip data in steps of bounded size, because little input may expand to a lot of output. Several gzip
  # members one after another are decompressed as one, as gunzip does.

  alias ExTorch.Error

  @opaque t :: %__MODULE__{enumerable: Enumerable.t()}
  @enforce_keys [:enumerable]
  defstruct [:enumerable]

  @typedoc "Decompressed bytes, and the number of compressed bytes that were read until they were there."
  @type chunk :: {module(), non_neg_integer(), iodata()}

  # Decompresses what is pushed instead of pulled. It belongs to the process that has opened it.
  @opaque push :: {:zlib.zstream(), non_neg_integer()}

  @window_with_gzip_header 31
  @chunk 64 * 1024

  @spec new(Enumerable.t()) :: t()
  def new(enumerable), do: %__MODULE__{enumerable: check!(enumerable)}

  # Raises unless the term can be enumerated.
  @spec check!(term()) :: Enumerable.t()
  def check!(function) when is_function(function) and not is_function(function, 2),
    do: ExTorch.Options.expected!("an enumerable of binaries", function)

  def check!(enumerable) do
    if Enumerable.impl_for(enumerable),
      do: enumerable,
      else: ExTorch.Options.expected!("an enumerable of binaries", enumerable)
  end

  # Returns a stream of chunks. Other enumerables are returned as they are.
  @spec counted(Enumerable.t()) :: Enumerable.t()
  def counted(%__MODULE__{enumerable: enumerable}),
    do: Stream.transform(enumerable, &open/0, &inflate/2, &close/1)

  def counted(enumerable), do: check!(enumerable)

  @spec open() :: push()
  def open do
    z = :zlib.open()
    :ok = :zlib.inflateInit(z, @window_with_gzip_header, :reset)
    {z, 0}
  end

  @spec close(push()) :: :ok
  def close({z, _stored}), do: :zlib.close(z)

  defp inflate(chunk, gzip) do
    {input, {z, stored} = gzip} = input(chunk, gzip)
    {Stream.unfold(input, &step(z, stored, &1)), gzip}
  end

  # Takes compressed data. Call next/2 with the result until it returns nil, before the next data.
  @spec input(iodata(), push()) :: {{:input, iodata()}, push()}
  def input(chunk, {z, stored}), do: {{:input, chunk}, {z, stored + IO.iodata_length(chunk)}}

  # The next chunk that the data decompresses to. Raises if the data is invalid.
  @spec next(push(), state) :: {chunk(), state} | nil when state: {:input, iodata()} | [] | :done
  def next({z, stored}, state), do: step(z, stored, state)

  # There may be a gzip member for every byte of output, so several outputs become one chunk.
  defp inflate_some(z, input, outputs, size) do
    {event, output} = :zlib.safeInflate(z, input)
    size = size + IO.iodata_length(output)
    outputs = [outputs | output]

    cond do
      event == :finished -> {outputs, :done}
      size < @chunk -> inflate_some(z, [], outputs, size)
      true -> {outputs, []}
    end
  end

  defp step(_z, _stored, :done), do: nil

  defp step(z, stored, state) do
    input = with {:input, chunk} <- state, do: chunk

    {output, state} = inflate_some(z, input, [], 0)
    {{__MODULE__, stored, output}, state}
  rescue
    error in ErlangError ->
      reraise Error.new(:corrupt, "invalid gzip data: #{inspect(error.original)}"),
              __STACKTRACE__
  end

  defimpl Enumerable do
    alias ExTorch.Streaming.Gzip

    def reduce(gzip, acc, fun) do
      gzip
      |> Gzip.counted()
      |> Stream.map(fn {Gzip, _stored, output} -> output end)
      |> Enumerable.reduce(acc, fun)
    end

    def count(_gzip), do: {:error, __MODULE__}
    def member?(_gzip, _element), do: {:error, __MODULE__}
    def slice(_gzip), do: {:error, __MODULE__}
  end
end
