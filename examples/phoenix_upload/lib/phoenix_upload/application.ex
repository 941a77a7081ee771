defmodule PhoenixUpload.Application do
  @moduledoc false
  use Application

  alias PhoenixUpload.{Demo, Shared}

  @impl true
  def start(_type, _args) do
    path = Application.get_env(:phoenix_upload, :shared) || Demo.write!()

    children = [
      {Phoenix.PubSub, name: PhoenixUpload.PubSub},
      {Shared, path: path, on_change: &PhoenixUploadWeb.SharedLive.broadcast/1},
      PhoenixUploadWeb.Endpoint
    ]

    Supervisor.start_link(children, strategy: :one_for_one, name: PhoenixUpload.Supervisor)
  end
end
