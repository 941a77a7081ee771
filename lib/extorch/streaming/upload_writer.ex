defmodule ExTorch.Streaming.UploadWriter do
  @moduledoc """
  A `Phoenix.LiveView.UploadWriter` that loads a checkpoint while it is being uploaded.

      allow_upload(socket, :model,
        accept: :any,
        max_file_size: 20_000_000_000,
        writer: fn _name, _entry, _socket -> {ExTorch.Streaming.UploadWriter, limits: [total_bytes: 20_000_000_000]} end
      )

  The bytes of each chunk are copied into the memory of the tensors. No file is written. The options are those of
  `ExTorch.Streaming.loader/1`. `:on_tensor` is called in the process of the upload; it can send messages to the
  LiveView to show progress:

      view = self()
      {ExTorch.Streaming.UploadWriter, on_tensor: fn name, tensor -> send(view, {:tensor, name, tensor.shape}) end}

  A file that is compressed with gzip is decompressed as it arrives. The limits apply to the decompressed data.

  When the upload is complete, `consume_uploaded_entries/3` receives `%{term: term}`. Bytes after the checkpoint are
  ignored. The upload stops with an error as soon as the file turns out not to be a checkpoint or to exceed the limits.
  The messages of errors contain no paths of the server. After an error, and after an upload that was canceled, nothing
  of it is kept in memory.

  This module has no dependencies. It implements the behaviour if LiveView is available.
  """

  alias ExTorch.Error
  alias ExTorch.Streaming.Upload

  if Code.ensure_loaded?(Phoenix.LiveView.UploadWriter) do
    @behaviour Phoenix.LiveView.UploadWriter
  end

  @typedoc "The state of an upload."
  @opaque state :: {:more, Upload.t()} | {:done, term()} | {:error, Error.t()}

  @doc """
  Creates the state of an upload.

      iex> {:ok, state} = ExTorch.Streaming.UploadWriter.init(limits: [total_bytes: 1_000_000])
      iex> ExTorch.Streaming.UploadWriter.meta(state)
      %{}
  """
  @spec init(keyword()) :: {:ok, state()} | {:error, Error.t()}
  def init(opts) do
    {:ok, {:more, Upload.new(opts)}}
  rescue
    error in Error -> {:error, error}
  end

  @doc """
  Returns what the consumer of the upload receives.

      iex> ExTorch.Streaming.UploadWriter.meta({:done, %{"epoch" => 3}})
      %{term: %{"epoch" => 3}}
  """
  @spec meta(state()) :: %{optional(:term) => term(), optional(:error) => Error.t()}
  def meta({:done, term}), do: %{term: term}
  def meta({:error, error}), do: %{error: error}
  def meta({:more, _upload}), do: %{}
  def meta(other), do: not_a_state!(other)

  @doc """
  Feeds a chunk to the loader.

      iex> {:ok, state} = ExTorch.Streaming.UploadWriter.init([])
      iex> [chunk] = %{"epoch" => 3} |> ExTorch.Streaming.save() |> Enum.map(&IO.iodata_to_binary/1)
      iex> ExTorch.Streaming.UploadWriter.write_chunk(chunk, state)
      {:ok, {:done, %{"epoch" => 3}}}
  """
  @spec write_chunk(binary(), state()) :: {:ok, state()} | {:error, Error.t(), state()}
  def write_chunk(data, {:more, upload}) do
    case Upload.feed(upload, data) do
      {:more, upload} ->
        {:ok, {:more, upload}}

      {:done, upload, _rest} ->
        {:ok, term} = Upload.finish(upload)
        {:ok, {:done, term}}

      {:error, error} ->
        {:error, error, {:error, error}}
    end
  end

  def write_chunk(_data, {:done, term}), do: {:ok, {:done, term}}
  def write_chunk(_data, {:error, error}), do: {:error, error, {:error, error}}
  def write_chunk(_data, other), do: not_a_state!(other)

  @doc """
  Ends the upload. It is an error if the checkpoint is incomplete.

      iex> {:ok, state} = ExTorch.Streaming.UploadWriter.init([])
      iex> {:error, error} = ExTorch.Streaming.UploadWriter.close(state, :done)
      iex> error.reason
      :truncated
  """
  @spec close(state(), :done | :cancel | {:error, term()}) :: {:ok, state()} | {:error, Error.t()}
  def close({:more, upload}, :done), do: Upload.finish(upload)
  def close({:error, error}, :done), do: {:error, error}

  # Frees what was received: the process of the upload may go on.
  def close({:more, upload} = state, _reason) do
    Upload.finish(upload)
    {:ok, state}
  end

  def close(state, _reason), do: {:ok, state}

  @spec not_a_state!(term()) :: no_return()
  defp not_a_state!(other),
    do: ExTorch.Options.expected!("the state of an upload, as init/1 returns it", other)
end
