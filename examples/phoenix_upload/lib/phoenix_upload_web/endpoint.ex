defmodule PhoenixUploadWeb.Endpoint do
  use Phoenix.Endpoint, otp_app: :phoenix_upload

  @session [store: :cookie, key: "_phoenix_upload", signing_salt: "upload", same_site: "Lax"]

  socket "/live", Phoenix.LiveView.Socket, websocket: [connect_info: [session: @session]]

  plug Plug.Static, at: "/", from: :phoenix_upload, only: ~w(app.css app.js)
  plug Plug.Static, at: "/phoenix", from: {:phoenix, "priv/static"}, only: ~w(phoenix.min.js)

  plug Plug.Static,
    at: "/phoenix",
    from: {:phoenix_live_view, "priv/static"},
    only: ~w(phoenix_live_view.min.js)

  # No Plug.Parsers here: it would read the bodies that the router sends to the streaming action. See the pipelines.
  plug Plug.Session, @session
  plug PhoenixUploadWeb.Router
end
