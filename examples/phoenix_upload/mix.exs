defmodule PhoenixUpload.MixProject do
  use Mix.Project

  def project do
    [
      app: :phoenix_upload,
      version: "0.1.0",
      elixir: "~> 1.15",
      start_permanent: Mix.env() == :prod,
      deps: deps()
    ]
  end

  def application, do: [mod: {PhoenixUpload.Application, []}, extra_applications: [:logger]]

  # No tools for assets: the page has one style sheet and a few lines of JavaScript, and the scripts of Phoenix and
  # LiveView are served from their packages.
  defp deps do
    [
      {:extorch, path: "../.."},
      {:phoenix, "~> 1.8"},
      {:phoenix_live_view, "~> 1.1"},
      {:phoenix_html, "~> 4.1"},
      {:bandit, "~> 1.5"},
      {:jason, "~> 1.4"},
      {:lazy_html, ">= 0.1.0", only: :test}
    ]
  end
end
