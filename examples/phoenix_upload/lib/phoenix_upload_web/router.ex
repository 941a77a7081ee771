defmodule PhoenixUploadWeb.Router do
  use Phoenix.Router
  import Phoenix.LiveView.Router

  @policy "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"

  pipeline :browser do
    plug :accepts, ["html"]
    plug Plug.Parsers, parsers: [:urlencoded]
    plug :fetch_session
    plug :put_root_layout, html: {PhoenixUploadWeb.Layouts, :root}
    plug :protect_from_forgery
    plug :put_secure_browser_headers, %{"content-security-policy" => @policy}
  end

  pipeline :api do
    plug :accepts, ["json"]
  end

  # A multipart body is written to a temporary file.
  pipeline :files do
    plug Plug.Parsers,
      parsers: [:multipart],
      pass: ["*/*"],
      length: Application.compile_env!(:phoenix_upload, :max_bytes)
  end

  scope "/", PhoenixUploadWeb do
    pipe_through :browser
    live "/", UploadLive
    live "/shared", SharedLive
  end

  scope "/api", PhoenixUploadWeb do
    pipe_through :api
    post "/stream", CheckpointController, :stream
  end

  scope "/api", PhoenixUploadWeb do
    pipe_through [:api, :files]
    post "/file", CheckpointController, :file
  end
end
