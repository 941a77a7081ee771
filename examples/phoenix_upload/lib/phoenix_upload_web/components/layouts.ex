defmodule PhoenixUploadWeb.Layouts do
  @moduledoc "The frame of every page."
  use PhoenixUploadWeb, :html

  def root(assigns) do
    ~H"""
    <!DOCTYPE html>
    <html lang="en">
      <head>
        <meta charset="utf-8" />
        <meta name="viewport" content="width=device-width, initial-scale=1" />
        <meta name="csrf-token" content={Phoenix.Controller.get_csrf_token()} />
        <meta name="color-scheme" content="light dark" />
        <link rel="icon" href="data:," />
        <.live_title suffix=" · ExTorch">{assigns[:page_title]}</.live_title>
        <link rel="stylesheet" href={~p"/app.css"} />
        <script defer src="/phoenix/phoenix.min.js"></script>
        <script defer src="/phoenix/phoenix_live_view.min.js"></script>
        <script defer src={~p"/app.js"}></script>
      </head>
      <body>{@inner_content}</body>
    </html>
    """
  end

  attr :page, :atom, required: true
  slot(:inner_block, required: true)

  def app(assigns) do
    ~H"""
    <a class="skip" href="#main">Skip to the content</a>
    <header>
      <p class="brand">ExTorch</p>
      <nav aria-label="Pages">
        <.link navigate={~p"/"} aria-current={@page == :upload && "page"}>Upload</.link>
        <.link navigate={~p"/shared"} aria-current={@page == :shared && "page"}>Shared checkpoint</.link>
      </nav>
    </header>
    <main id="main">{render_slot(@inner_block)}</main>
    """
  end
end
