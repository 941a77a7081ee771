defmodule ExTorch.Streaming.Upload do
  @moduledoc false
  # A loader for data that clients send: data that begins like gzip is decompressed first. It belongs to one process.
  #
  #   {:begin, loader, bytes}   fewer than two bytes have arrived
  #   {:plain, loader}
  #   {:gzip, loader, gzip}
  #   {:done, term, gzip | nil} the checkpoint is complete

  alias ExTorch.{Error, Streaming}
  alias ExTorch.Streaming.Gzip

  @opaque t ::
            {:begin, Streaming.loader(), binary()}
            | {:plain, Streaming.loader()}
            | {:gzip, Streaming.loader(), Gzip.push()}
            | {:done, term(), Gzip.push() | nil}

  @magic <<0x1F, 0x8B>>

  @spec new(keyword()) :: t()
  def new(opts), do: {:begin, Streaming.loader(opts), ""}

  # Feeds data. If the checkpoint is complete, `rest` tells whether there were bytes after it. After an error everything is
  # freed.
  @spec feed(t(), binary()) ::
          {:more, t()} | {:done, t(), rest :: boolean()} | {:error, Error.t()}
  def feed({:done, _, _} = upload, ""), do: {:done, upload, false}
  def feed(upload, ""), do: {:more, upload}

  def feed({:begin, loader, bytes}, data) do
    case bytes <> data do
      @magic <> _ = data -> feed({:gzip, loader, Gzip.open()}, data)
      <<byte>> -> {:more, {:begin, loader, <<byte>>}}
      data -> feed({:plain, loader}, data)
    end
  end

  def feed({:plain, loader}, data) do
    case Streaming.feed(loader, data) do
      {:more, loader} -> {:more, {:plain, loader}}
      {:done, term, rest} -> {:done, {:done, term, nil}, rest != ""}
      {:error, error} -> {:error, error}
    end
  end

  def feed({:done, _term, nil} = done, _data), do: {:done, done, true}

  def feed({state, loader_or_term, gzip}, data) do
    {input, gzip} = Gzip.input(data, gzip)
    inflate({state, loader_or_term, gzip}, input, false)
  end

  defp inflate({state, _, gzip} = upload, input, rest) do
    with {:ok, chunk, input} <- next(gzip, input),
         {:ok, upload, more} <- feed_chunk(upload, chunk) do
      inflate(upload, input, rest or more)
    else
      nil ->
        if state == :done, do: {:done, upload, rest}, else: {:more, upload}

      {:error, error} ->
        finish(upload)
        {:error, error}
    end
  end

  defp next(gzip, input) do
    with {chunk, input} <- Gzip.next(gzip, input), do: {:ok, chunk, input}
  rescue
    error in Error -> {:error, error}
  end

  defp feed_chunk({:gzip, loader, gzip}, chunk) do
    case Streaming.Loader.feed(loader, chunk) do
      {:more, loader} -> {:ok, {:gzip, loader, gzip}, false}
      {:done, term, rest} -> {:ok, {:done, term, gzip}, rest != ""}
      {:error, error} -> {:error, error}
    end
  end

  defp feed_chunk({:done, _term, _gzip} = done, {Gzip, _stored, output}),
    do: {:ok, done, IO.iodata_length(output) > 0}

  # Ends the data: returns the term, or the error of data that ends too early. Frees what is not returned.
  @spec finish(t()) :: {:ok, term()} | {:error, Error.t()}
  def finish({:done, term, gzip}) do
    if gzip, do: Gzip.close(gzip)
    {:ok, term}
  end

  def finish({:gzip, loader, gzip}) do
    Gzip.close(gzip)
    Streaming.ended(loader)
  end

  def finish({:plain, loader}), do: Streaming.ended(loader)

  # A single byte is no checkpoint.
  def finish({:begin, loader, byte}) do
    case Streaming.feed(loader, byte) do
      {:more, loader} -> Streaming.ended(loader)
      {:error, error} -> {:error, error}
    end
  end
end
