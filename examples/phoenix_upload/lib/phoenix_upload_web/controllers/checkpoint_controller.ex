defmodule PhoenixUploadWeb.CheckpointController do
  @moduledoc """
  Checkpoints for programs:

      curl --data-binary @model.pt -H 'content-type: application/octet-stream' localhost:4000/api/stream
      gzip -c model.pt | curl --data-binary @- -H 'content-encoding: gzip' localhost:4000/api/stream
      curl -F file=@model.pt localhost:4000/api/file
  """

  use PhoenixUploadWeb, :controller

  require Logger

  alias ExTorch.{Checkpoint, Error}
  alias ExTorch.Streaming.Body
  alias PhoenixUpload.{Contents, Isolated}

  @doc "The body is the checkpoint. It is parsed as it arrives; nothing is written."
  def stream(conn, _params) do
    {result, conn} =
      Isolated.run(conn, fn body ->
        # This is called in the process that loads, which the tensors do not leave.
        on_tensor = fn name, tensor -> send(self(), {:row, Contents.row(name, tensor)}) end

        case Body.load(body, [on_tensor: on_tensor] ++ options()) do
          {:ok, _term, _body} -> {:ok, rows()}
          {:error, error, _body} -> {:error, error}
        end
      end)

    answer(conn, result)
  end

  defp rows do
    receive do
      {:row, row} -> [row | rows()]
    after
      0 -> []
    end
  end

  @doc "A form with a file. Plug has written it to a temporary file, which is opened without reading the tensors."
  def file(conn, %{"file" => %Plug.Upload{path: path}}) do
    result =
      with {:ok, ckpt} <- Checkpoint.open(path, options()) do
        rows = for entry <- Checkpoint.entries(ckpt), do: Contents.row(entry.name, entry)
        Checkpoint.close(ckpt)
        {:ok, rows}
      end

    # Otherwise the file stays as long as the connection.
    Plug.Upload.delete(path)
    answer(conn, result)
  end

  def file(conn, _params),
    do: conn |> put_status(400) |> json(%{error: "send a form with a file called file"})

  defp options do
    max = Application.fetch_env!(:phoenix_upload, :max_bytes)
    [strict: true, verify: true, limits: [total_bytes: max]]
  end

  @names 100

  defp answer(conn, {:ok, rows}) do
    figures = Contents.figures(rows)
    names = rows |> Enum.take(@names) |> Enum.map(& &1.name)

    json(conn, %{
      tensors: figures.tensors,
      elements: figures.elements,
      bytes: figures.bytes,
      names: names
    })
  end

  # The client is told what is wrong with its data, the log has the rest.
  defp answer(conn, {:error, error}) do
    Logger.info("a checkpoint was refused: " <> Exception.message(error))
    conn |> put_status(status(error)) |> json(%{error: Error.public_message(error)})
  end

  defp status(%Error{reason: :limit}), do: 413
  defp status(%Error{reason: :timeout}), do: 408

  defp status(%Error{reason: reason})
       when reason in [:truncated, :corrupt, :forbidden, :unsupported],
       do: 422

  defp status(_error), do: 500
end
