import Config

config :phoenix, :json_library, Jason

# LiveView wants to know the type of every ending that an upload accepts. This is read when `mime` is compiled: after a
# change, run `mix deps.compile mime --force`.
config :mime, :types, %{
  "application/x-checkpoint" => ~w(pt pth ckpt safetensors pkl npy npz)
}

# The largest upload. What all uploads together may hold is the budget of ExTorch: `config :extorch, budget: …`, by default
# 90 % of the memory that is available.
config :phoenix_upload, max_bytes: 4_000_000_000

config :phoenix_upload, PhoenixUploadWeb.Endpoint,
  adapter: Bandit.PhoenixAdapter,
  http: [ip: {127, 0, 0, 1}, port: 4000],
  check_origin: ["//localhost", "//127.0.0.1"],
  render_errors: [formats: [html: PhoenixUploadWeb.ErrorHTML, json: PhoenixUploadWeb.ErrorJSON]],
  pubsub_server: PhoenixUpload.PubSub,
  live_view: [signing_salt: "checkpoint"],
  secret_key_base: String.duplicate("only for this example ", 3)

if config_env() == :test, do: import_config("test.exs")
