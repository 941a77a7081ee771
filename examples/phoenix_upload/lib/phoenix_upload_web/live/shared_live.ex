defmodule PhoenixUploadWeb.SharedLive do
  @moduledoc "One checkpoint for all visitors. When it is reloaded, every open page has the new one."
  use PhoenixUploadWeb, :live_view

  alias PhoenixUpload.Shared
  alias PhoenixUploadWeb.{Browser, Layouts}

  @topic "shared"

  @doc "Tells all visitors about a reload."
  def broadcast(generation),
    do: Phoenix.PubSub.broadcast(PhoenixUpload.PubSub, @topic, {:reloaded, generation})

  @impl true
  def mount(_params, _session, socket) do
    if connected?(socket), do: Phoenix.PubSub.subscribe(PhoenixUpload.PubSub, @topic)
    {:ok, socket |> assign(page_title: "Shared checkpoint", error: nil, said: nil) |> read()}
  end

  # The term is shared with all other views: nothing is copied into this process.
  defp read(socket) do
    case Shared.current() do
      nil ->
        assign(socket, contents: nil, generation: 0)

      %{contents: contents, generation: generation} ->
        assign(socket, contents: contents, generation: generation)
    end
  end

  @impl true
  def handle_event("reload", _params, socket) do
    case Shared.reload() do
      {:ok, :reloaded} ->
        {:noreply, socket |> read() |> assign(error: nil)}

      {:ok, :unchanged} ->
        {:noreply, assign(socket, said: "The file has not changed.", error: nil)}

      {:error, error} ->
        {:noreply, assign(socket, error: Format.error(error))}
    end
  end

  @impl true
  def handle_info({:reloaded, generation}, socket) do
    send(self(), :collect)

    {:noreply,
     socket
     |> read()
     |> assign(said: "The checkpoint was reloaded: version #{generation}.", error: nil)}
  end

  # Lets go of the old checkpoint now: this process may be idle for long.
  def handle_info(:collect, socket) do
    :erlang.garbage_collect()
    {:noreply, socket}
  end

  @impl true
  def render(assigns) do
    ~H"""
    <Layouts.app page={:shared}>
      <h1>One checkpoint for everyone</h1>
      <p class="lead">
        The file is mapped into memory once, for all visitors. It can be replaced while they look at it.
      </p>

      <div id="errors" role="alert">
        <p :if={@error} class="error"><span>{@error} The last version is still there.</span></p>
        <p :if={@contents == nil} class="error"><span>There is no checkpoint at the moment.</span></p>
      </div>
      <p :if={@said} id="said" class="said" role="status">{@said}</p>

      <section :if={@contents} id="contents" aria-label="Contents of the checkpoint">
        <.live_component module={Browser} id="browser" contents={@contents} version={@generation}>
          <:action><button type="button" class="quiet" phx-click="reload">Reload the file</button></:action>
        </.live_component>
      </section>
      <button :if={@contents == nil} type="button" class="quiet" phx-click="reload">Try again</button>
    </Layouts.app>
    """
  end
end
