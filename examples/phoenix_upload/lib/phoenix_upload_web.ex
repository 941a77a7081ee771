defmodule PhoenixUploadWeb do
  @moduledoc "What the modules of the web part use: `use PhoenixUploadWeb, :live_view`."

  def live_view do
    quote do
      use Phoenix.LiveView
      unquote(helpers())
    end
  end

  def live_component do
    quote do
      use Phoenix.LiveComponent
      unquote(helpers())
    end
  end

  def html do
    quote do
      use Phoenix.Component
      unquote(helpers())
    end
  end

  def controller do
    quote do
      use Phoenix.Controller, formats: [:json]
      import Plug.Conn
    end
  end

  defp helpers do
    quote do
      alias PhoenixUpload.{Contents, Format}

      use Phoenix.VerifiedRoutes,
        endpoint: PhoenixUploadWeb.Endpoint,
        router: PhoenixUploadWeb.Router,
        statics: ~w(app.css app.js)
    end
  end

  defmacro __using__(which) when is_atom(which), do: apply(__MODULE__, which, [])
end
