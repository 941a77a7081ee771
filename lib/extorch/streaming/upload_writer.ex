defmodule ExTorch.Streaming.UploadWriter do
  @moduledoc """
  Loads a checkpoint while it is being uploaded through a LiveView: a `Phoenix.LiveView.UploadWriter`.

      allow_upload(socket, :model,
        accept: :any,
        max_file_size: 20_000_000_000,
        writer: fn _name, _entry, _socket -> {ExTorch.Streaming.UploadWriter, limits: [total_bytes: 20_000_000_000]} end
      )

  The bytes go from each chunk into the tensors' memory, and no file is written. Options are those of
  `ExTorch.Streaming.loader/1`; `:on_tensor` is called in the upload's own process, so it sends to the LiveView what should
  be seen before the upload has ended:

      view = self()
      {ExTorch.Streaming.UploadWriter, on_tensor: fn name, tensor -> send(view, {:tensor, name, tensor.shape}) end}

  When the upload is done, `consume_uploaded_entries/3` gets `%{term: term}`; bytes behind the checkpoint are ignored. A
  file that is no checkpoint, or too large by the limits, ends the upload at once with the error that says why.

  It needs no dependency: without LiveView it is just a module with these functions.
  """

  alias ExTorch.{Error, Streaming}

  if Code.ensure_loaded?(Phoenix.LiveView.UploadWriter) do
    @behaviour Phoenix.LiveView.UploadWriter
  end

  @typedoc "What has come so far."
  @type state :: {:more, Streaming.loader()} | {:done, term()} | {:error, Error.t()}

  @doc "Begins."
  @spec init(keyword()) :: {:ok, state()} | {:error, Error.t()}
  def init(opts) do
    {:ok, {:more, Streaming.loader(opts)}}
  rescue
    error in Error -> {:error, error}
  end

  @doc "What the consumer of the upload gets."
  @spec meta(state()) :: %{optional(:term) => term(), optional(:error) => Error.t()}
  def meta({:done, term}), do: %{term: term}
  def meta({:error, error}), do: %{error: error}
  def meta({:more, _loader}), do: %{}

  @doc "Feeds a chunk."
  @spec write_chunk(binary(), state()) :: {:ok, state()} | {:error, Error.t(), state()}
  def write_chunk(data, {:more, loader}) do
    case Streaming.feed(loader, data) do
      {:more, loader} -> {:ok, {:more, loader}}
      {:done, term, _rest} -> {:ok, {:done, term}}
      {:error, error} -> {:error, error, {:error, error}}
    end
  end

  def write_chunk(_data, {:done, term}), do: {:ok, {:done, term}}
  def write_chunk(_data, {:error, error}), do: {:error, error, {:error, error}}

  @doc "Ends: an upload that is done before its checkpoint is an error."
  @spec close(state(), :done | :cancel | {:error, term()}) :: {:ok, state()} | {:error, Error.t()}
  def close({:more, loader}, :done), do: Streaming.ended(loader)
  def close({:error, error}, :done), do: {:error, error}
  def close(state, _reason), do: {:ok, state}
end
