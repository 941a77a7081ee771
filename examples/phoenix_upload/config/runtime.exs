import Config

# The checkpoint of the second page. Without it, a small one is made.
if path = System.get_env("SHARED_CHECKPOINT"), do: config(:phoenix_upload, shared: path)

if port = System.get_env("PORT"),
  do: config(:phoenix_upload, PhoenixUploadWeb.Endpoint, http: [port: String.to_integer(port)])

if config_env() == :prod do
  host = System.get_env("PHX_HOST", "localhost")

  config :phoenix_upload, PhoenixUploadWeb.Endpoint,
    server: true,
    url: [host: host],
    check_origin: true,
    secret_key_base: System.fetch_env!("SECRET_KEY_BASE")
end
