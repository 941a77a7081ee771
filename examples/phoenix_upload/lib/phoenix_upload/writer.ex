defmodule PhoenixUpload.Writer do
  @moduledoc """
  Parses a checkpoint while it is uploaded, and tells the LiveView after each chunk what has become complete.

  The messages are `{:parsed, ref, %{tensors: count, newest: rows}}` with at most eight rows, so that a file with many
  thousands of tensors does not flood the view, and `{:stopped, ref}` if the upload was given up: it was canceled, or no
  chunk has arrived for too long, about which LiveView says nothing itself. Tensors stay in the process of the upload until it is consumed: after an
  error, a cancel or a disconnect they are freed with it.
  """

  @behaviour Phoenix.LiveView.UploadWriter

  alias ExTorch.Streaming.UploadWriter
  alias PhoenixUpload.Contents

  @newest 8

  # The process of an upload does nothing else, so its dictionary has the tensors that on_tensor was called with.
  @impl true
  def init({view, ref, opts}) do
    Process.put(__MODULE__, [])
    on_tensor = fn name, tensor -> Process.put(__MODULE__, [{name, tensor} | tensors()]) end

    with {:ok, writer} <- UploadWriter.init([on_tensor: on_tensor] ++ opts),
         do: {:ok, tell(%{view: view, ref: ref, writer: writer, told: -1})}
  end

  @impl true
  def write_chunk(data, state) do
    case UploadWriter.write_chunk(data, state.writer) do
      {:ok, writer} -> {:ok, tell(%{state | writer: writer})}
      {:error, error, writer} -> {:error, error, %{state | writer: writer}}
    end
  end

  @impl true
  def close(state, reason) do
    unless reason == :done, do: Process.put(__MODULE__, [])
    if reason == :cancel, do: send(state.view, {:stopped, state.ref})

    with {:ok, writer} <- UploadWriter.close(state.writer, reason),
         do: {:ok, %{state | writer: writer}}
  end

  # What consume_uploaded_entry/3 receives.
  @impl true
  def meta(state) do
    with %{term: term} <- UploadWriter.meta(state.writer),
         do: %{term: term, tensors: Enum.reverse(tensors())}
  end

  defp tensors, do: Process.get(__MODULE__)

  defp tell(state) do
    tensors = tensors()
    count = length(tensors)

    if count > state.told do
      newest = for {name, tensor} <- Enum.take(tensors, @newest), do: Contents.row(name, tensor)
      send(state.view, {:parsed, state.ref, %{tensors: count, newest: newest}})
    end

    %{state | told: count}
  end
end
