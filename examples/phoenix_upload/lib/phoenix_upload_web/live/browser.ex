defmodule PhoenixUploadWeb.Browser do
  @moduledoc "Shows the contents of a checkpoint: figures, modules and tensors, and the values of one tensor."
  use PhoenixUploadWeb, :live_component

  @page 100

  @impl true
  def mount(socket), do: {:ok, assign(socket, contents: nil, version: nil)}

  # New contents begin at the top; the same module and search are kept if the checkpoint was only reloaded.
  @impl true
  def update(%{contents: contents} = assigns, socket) do
    changed? = not same?(socket.assigns.contents, contents)
    socket = assign(socket, Map.take(assigns, [:id, :contents, :version, :action]))

    cond do
      socket.assigns[:figures] == nil ->
        {:ok, socket |> assign(path: [], query: "", sort: :file) |> restart()}

      changed? ->
        {:ok, restart(socket)}

      true ->
        {:ok, socket}
    end
  end

  # Without a comparison of all rows.
  defp same?(%{source: a}, %{source: b}), do: :erts_debug.same(a, b)
  defp same?(_a, _b), do: false

  defp restart(socket) do
    socket
    |> assign(figures: Contents.figures(socket.assigns.contents.rows), selected: nil, detail: nil)
    |> list()
  end

  defp list(socket) do
    %{contents: contents, path: path, query: query, sort: sort} = socket.assigns

    items =
      if query == "", do: Contents.level(contents, path), else: Contents.search(contents, query)

    assign(socket, items: Contents.sort(items, sort), shown: @page)
  end

  # ---- Events ----

  @impl true
  def handle_event("search", %{"query" => query}, socket),
    do: {:noreply, socket |> assign(query: String.slice(query, 0, 200)) |> list()}

  def handle_event("open", %{"depth" => depth} = params, socket) do
    path = Enum.take(socket.assigns.path, String.to_integer(depth)) ++ List.wrap(params["name"])
    {:noreply, socket |> assign(path: path, query: "") |> list()}
  end

  def handle_event("sort", %{"by" => by}, socket) when by in ~w(file name bytes),
    do: {:noreply, socket |> assign(sort: String.to_existing_atom(by)) |> list()}

  def handle_event("more", _params, socket),
    do: {:noreply, update(socket, :shown, &(&1 + @page))}

  def handle_event("select", %{"index" => index}, socket) do
    %{contents: contents, selected: selected} = socket.assigns
    row = Enum.at(contents.rows, String.to_integer(index))

    cond do
      row == nil ->
        {:noreply, socket}

      selected && selected.index == row.index ->
        {:noreply, assign(socket, selected: nil, detail: nil)}

      true ->
        reader = Contents.reader(contents, row.index)
        socket = socket |> cancel_async(:detail) |> assign(selected: row, detail: :reading)
        {:noreply, start_async(socket, :detail, fn -> {row.index, Contents.detail(reader)} end)}
    end
  end

  # Another tensor may have been selected in the meantime.
  @impl true
  def handle_async(:detail, {:ok, {index, result}}, socket) do
    current? = socket.assigns.selected && socket.assigns.selected.index == index
    {:noreply, if(current?, do: assign(socket, detail: result), else: socket)}
  end

  def handle_async(:detail, {:exit, _reason}, socket) do
    reading? = socket.assigns.detail == :reading

    {:noreply,
     if(reading?,
       do: assign(socket, detail: {:error, "the values could not be read"}),
       else: socket
     )}
  end

  # ---- The page ----

  @impl true
  def render(assigns) do
    ~H"""
    <div>
      <div class="bar">
        <h2><bdi>{@contents.name}</bdi></h2>
        <span :if={@version} class="badge">version {@version}</span>
        {render_slot(@action)}
      </div>
      <dl class="figures">
        <div><dt>Tensors</dt><dd>{@figures.tensors}</dd></div>
        <div><dt>Parameters</dt><dd>{Format.count(@figures.elements)}</dd></div>
        <div><dt>Size of the tensors</dt><dd>{Format.bytes(@figures.bytes)}</dd></div>
        <div><dt>Types</dt><dd>{if @figures.dtypes == "", do: "–", else: @figures.dtypes}</dd></div>
      </dl>

      <div class="panel">
        <form id={"#{@id}-search"} class="search" role="search" phx-change="search" phx-submit="search" phx-target={@myself}>
          <label>
            <span class="hidden">Search tensors by name</span>
            <input type="search" name="query" value={@query} placeholder="Search by name" autocomplete="off" phx-debounce="150" />
          </label>
          <span class="note" role="status">{found(@query, @items)}</span>
        </form>

        <nav :if={@query == ""} class="crumbs" aria-label="Module">
          <button type="button" phx-click="open" phx-value-depth="0" phx-target={@myself} disabled={@path == []}>
            {if @path == [], do: "All modules", else: "All"}
          </button>
          <span :for={{name, depth} <- Enum.with_index(@path, 1)}>
            <button type="button" phx-click="open" phx-value-depth={depth} phx-target={@myself} disabled={depth == length(@path)}>
              <bdi>{name}</bdi>
            </button>
          </span>
        </nav>

        <div class="scroll">
          <table>
            <thead>
              <tr>
                <.heading by="name" sort={@sort} target={@myself}>Name</.heading>
                <th scope="col">Type</th>
                <th scope="col">Shape</th>
                <th scope="col" class="number">Parameters</th>
                <.heading by="bytes" sort={@sort} target={@myself} class="number">Size</.heading>
              </tr>
            </thead>
            <tbody>
              <%= for item <- Enum.take(@items, @shown) do %>
                <.item item={item} path={@path} selected={@selected} target={@myself} total={@figures.bytes} />
                <tr :if={selected?(item, @selected)} class="detail">
                  <td colspan="5"><.detail row={@selected} detail={@detail} /></td>
                </tr>
              <% end %>
              <tr :if={@items == []}><td colspan="5" class="none">{nothing(@query)}</td></tr>
            </tbody>
          </table>
        </div>
        <button :if={length(@items) > @shown} type="button" class="quiet more" phx-click="more" phx-target={@myself}>
          Show more ({length(@items) - @shown} left)
        </button>
      </div>

      <.values values={@contents.values} />
    </div>
    """
  end

  defp found("", _items), do: ""
  defp found(_query, [_]), do: "1 tensor"
  defp found(_query, items), do: "#{length(items)} tensors"

  defp nothing(""), do: "There are no tensors in this checkpoint."
  defp nothing(_query), do: "No tensor has such a name."

  defp selected?({:tensor, _, %{index: index}}, %{index: index}), do: true
  defp selected?(_item, _selected), do: false

  attr :by, :string, required: true
  attr :sort, :atom, required: true
  attr :target, :any, required: true
  attr :class, :string, default: nil
  slot(:inner_block, required: true)

  # A second click returns to the order of the file.
  defp heading(assigns) do
    assigns = assign(assigns, sorted: to_string(assigns.sort) == assigns.by)

    ~H"""
    <th scope="col" class={@class} aria-sort={@sorted && if(@by == "bytes", do: "descending", else: "ascending")}>
      <button type="button" phx-click="sort" phx-value-by={if @sorted, do: "file", else: @by} phx-target={@target}>
        {render_slot(@inner_block)}
      </button>
    </th>
    """
  end

  attr :item, :any, required: true
  attr :path, :list, required: true
  attr :selected, :map, required: true
  attr :target, :any, required: true
  attr :total, :integer, required: true

  defp item(%{item: {:module, name, figures}} = assigns) do
    assigns = assign(assigns, name: name, figures: figures)

    ~H"""
    <tr>
      <th scope="row">
        <button type="button" class="module" phx-click="open" phx-value-name={@name} phx-value-depth={length(@path)} phx-target={@target}>
          <bdi>{@name}</bdi>
        </button>
      </th>
      <td colspan="2" class="soft">{@figures.tensors} {if @figures.tensors == 1, do: "tensor", else: "tensors"}</td>
      <td class="number">{Format.count(@figures.elements)}</td>
      <td class="number"><.share bytes={@figures.bytes} total={@total} /></td>
    </tr>
    """
  end

  defp item(%{item: {:tensor, label, row}} = assigns) do
    assigns =
      assign(assigns, label: label, row: row, open: selected?(assigns.item, assigns.selected))

    ~H"""
    <tr>
      <th scope="row">
        <button type="button" class="tensor" aria-expanded={to_string(@open)} phx-click="select" phx-value-index={@row.index} phx-target={@target}>
          <bdi>{@label}</bdi>
        </button>
      </th>
      <td class="code">{@row.dtype}</td>
      <td class="code">{@row.shape}</td>
      <td class="number">{Format.count(@row.elements)}</td>
      <td class="number"><.share bytes={@row.bytes} total={@total} /></td>
    </tr>
    """
  end

  attr :bytes, :integer, required: true
  attr :total, :integer, required: true

  defp share(assigns) do
    ~H"""
    {Format.bytes(@bytes)}
    <svg class="share" viewBox="0 0 100 4" preserveAspectRatio="none" aria-hidden="true">
      <rect width={if @total > 0, do: Float.round(100 * @bytes / @total, 2), else: 0} height="4" />
    </svg>
    """
  end

  attr :row, :map, required: true
  attr :detail, :any, required: true

  defp detail(%{detail: {:ok, detail}} = assigns) do
    assigns = assign(assigns, stats: detail.stats, values: detail.values)

    ~H"""
    <div class="tensor-detail" role="region" aria-label={"Values of #{@row.name}"}>
      <div>
        <h3>Statistics{if @stats.sampled, do: " of #{Format.count(@stats.numel)} values"}</h3>
        <dl class="stats">
          <div :for={{name, value} <- stats(@stats)}><dt>{name}</dt><dd>{value}</dd></div>
        </dl>
      </div>
      <figure :if={@stats.min}>
        <figcaption>Distribution</figcaption>
        <.histogram counts={@stats.histogram} />
        <p class="axis"><span>{Format.number(@stats.min)}</span><span>{Format.number(@stats.max)}</span></p>
      </figure>
      <div :if={@values != []} class="scroll">
        <h3>First values</h3>
        <table class="values">
          <tr :for={line <- @values}><td :for={value <- line}>{value}</td></tr>
        </table>
      </div>
    </div>
    """
  end

  defp detail(%{detail: {:error, text}} = assigns) do
    assigns = assign(assigns, text: text)
    ~H|<p class="error" role="alert"><span>The values are not shown: {@text}.</span></p>|
  end

  defp detail(assigns),
    do: ~H|<p class="note" role="status" aria-busy="true">Reading the values…</p>|

  defp stats(stats) do
    counts = for key <- [:zeros, :nan, :infinite], stats[key] > 0, do: {label(key), stats[key]}
    for(key <- [:min, :max, :mean, :std], do: {label(key), Format.number(stats[key])}) ++ counts
  end

  defp label(:min), do: "Minimum"
  defp label(:max), do: "Maximum"
  defp label(:mean), do: "Mean"
  defp label(:std), do: "Standard deviation"
  defp label(:zeros), do: "Zeros"
  defp label(:nan), do: "NaN"
  defp label(:infinite), do: "Infinite"

  attr :counts, :list, required: true

  defp histogram(assigns) do
    most = Enum.max([1 | assigns.counts])
    # An interval that is not empty can be seen.
    bars =
      for {count, i} <- Enum.with_index(assigns.counts),
          count > 0,
          do: {i * 10, max(100 * count / most, 1.5)}

    assigns = assign(assigns, bars: bars, width: length(assigns.counts) * 10)

    ~H"""
    <svg class="histogram" viewBox={"0 0 #{@width} 100"} preserveAspectRatio="none" role="img" aria-label="Histogram of the values">
      <rect :for={{x, height} <- @bars} x={x} y={Float.round(100 - height, 2)} width="8.5" height={Float.round(height, 2)} />
    </svg>
    """
  end

  attr :values, :any, required: true

  defp values(%{values: {[], _more}} = assigns), do: ~H""

  defp values(%{values: {values, more?}} = assigns) do
    assigns = assign(assigns, list: values, more?: more?)

    ~H"""
    <section class="panel" aria-labelledby="not-tensors">
      <h2 id="not-tensors">What is not a tensor</h2>
      <dl class="values-list">
        <div :for={{name, value} <- @list}><dt><bdi>{name}</bdi></dt><dd class="code"><bdi>{value}</bdi></dd></div>
      </dl>
      <p :if={@more?} class="note">There are more. Only the first {length(@list)} are shown.</p>
    </section>
    """
  end
end
