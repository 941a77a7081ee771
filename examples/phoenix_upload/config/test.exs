import Config

config :logger, level: :error
# A port is chosen when the server starts: the browser and the clients of the tests need one.
config :phoenix_upload, PhoenixUploadWeb.Endpoint, http: [port: 0], server: true
config :phoenix_upload, max_bytes: 50_000_000
