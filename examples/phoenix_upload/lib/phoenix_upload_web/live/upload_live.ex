defmodule PhoenixUploadWeb.UploadLive do
  @moduledoc "A page to drop a checkpoint on: it is parsed while it is uploaded, and can be browsed afterwards."
  use PhoenixUploadWeb, :live_view

  alias PhoenixUpload.Writer
  alias PhoenixUploadWeb.{Browser, Layouts}

  @max Application.compile_env!(:phoenix_upload, :max_bytes)

  @impl true
  def mount(_params, _session, socket) do
    {:ok,
     socket
     |> assign(page_title: "Upload", contents: nil, parsed: nil, uploading: nil, error: nil)
     |> assign(options: %{"verify" => true, "strict" => false})
     |> allow_upload(:checkpoint,
       accept: ~w(.pt .pth .bin .ckpt .safetensors .pkl .npz .npy .gz),
       max_file_size: @max,
       chunk_size: 512 * 1024,
       chunk_timeout: 60_000,
       auto_upload: true,
       progress: &progress/3,
       writer: &writer/3
     )}
  end

  # This runs in the view, the writer itself in the process of the upload.
  defp writer(_name, entry, socket) do
    %{"verify" => verify, "strict" => strict} = socket.assigns.options
    {Writer, {self(), entry.ref, verify: verify, strict: strict, limits: [total_bytes: @max]}}
  end

  # ---- Events ----

  @impl true
  def handle_event("validate", params, socket) do
    options = Map.new(socket.assigns.options, fn {key, _} -> {key, params[key] == "true"} end)
    socket = assign(socket, options: options)

    cond do
      # The script of LiveView does not send a file without bytes; app.js tells.
      params["_target"] == ["checkpoint"] and params["empty"] == "true" ->
        {:noreply, socket |> reset() |> assign(error: Format.upload_error(:empty, @max))}

      params["_target"] == ["checkpoint"] ->
        {:noreply,
         socket |> assign(contents: nil, parsed: nil, uploading: nil, error: nil) |> collect()}

      true ->
        {:noreply, socket}
    end
  end

  def handle_event("cancel", %{"ref" => ref}, socket) do
    {:noreply,
     socket |> cancel_upload(:checkpoint, ref) |> assign(parsed: nil, uploading: nil) |> collect()}
  end

  def handle_event("reset", _params, socket), do: {:noreply, reset(socket)}

  defp reset(socket) do
    refs = Enum.map(socket.assigns.uploads.checkpoint.entries, & &1.ref)

    refs
    |> Enum.reduce(socket, &cancel_upload(&2, :checkpoint, &1))
    |> assign(contents: nil, parsed: nil, uploading: nil, error: nil)
    |> collect()
  end

  # Frees the tensors of the last upload now: this process may be idle for long.
  defp collect(socket) do
    send(self(), :collect)
    socket
  end

  # ---- While it is uploaded ----

  # A message of an upload that was canceled may come late.
  @impl true
  def handle_info({:parsed, ref, parsed}, socket) do
    current? = Enum.any?(socket.assigns.uploads.checkpoint.entries, &(&1.ref == ref))
    if current?, do: {:noreply, uploading(socket, ref, parsed)}, else: {:noreply, socket}
  end

  # Not by this view: no chunk has arrived for too long.
  def handle_info({:stopped, ref}, %{assigns: %{uploading: ref}} = socket) do
    error = Format.upload_error(:stopped, @max)
    {:noreply, assign(socket, parsed: nil, uploading: nil, error: error)}
  end

  def handle_info({:stopped, _ref}, socket), do: {:noreply, socket}

  def handle_info(:collect, socket) do
    :erlang.garbage_collect()
    {:noreply, socket}
  end

  defp progress(:checkpoint, %{done?: true} = entry, socket) do
    contents =
      consume_uploaded_entry(socket, entry, fn meta ->
        {:ok, Contents.from_upload(entry.client_name, meta)}
      end)

    {:noreply, assign(socket, contents: contents, parsed: nil, uploading: nil, error: nil)}
  end

  defp progress(:checkpoint, _entry, socket), do: {:noreply, socket}

  # A new upload takes the place of the last one.
  defp uploading(socket, ref, parsed) do
    socket = if socket.assigns.contents, do: collect(socket), else: socket
    assign(socket, contents: nil, parsed: parsed, uploading: ref, error: nil)
  end

  # ---- The page ----

  @impl true
  def render(assigns) do
    ~H"""
    <Layouts.app page={:upload}>
      <h1>Look into a checkpoint</h1>
      <p class="lead">
        The file is parsed while it is uploaded. It is not written to a disk, and no code in it is run.
      </p>

      <form id="upload" class="panel" phx-change="validate" phx-submit="validate">
        <input type="hidden" name="empty" value="false" />
        <label class="drop" for={@uploads.checkpoint.ref} phx-drop-target={@uploads.checkpoint.ref}>
          <.live_file_input upload={@uploads.checkpoint} class="file" aria-describedby="accepted" />
          <strong>Drop a checkpoint here, or choose a file</strong>
          <span id="accepted">
            .pt, .pth, .bin, .ckpt, .safetensors, .npz, also with gzip, up to {Format.bytes(max_bytes())}
          </span>
        </label>
        <div class="options">
          <.option name="verify" checked={@options["verify"]}>
            Verify checksums
            <:note>Damage within the values is found.</:note>
          </.option>
          <.option name="strict" checked={@options["strict"]}>
            Only what PyTorch’s <code>weights_only</code> accepts
            <:note>Other classes are inert data otherwise.</:note>
          </.option>
        </div>
      </form>

      <div id="errors" role="alert">
        <p :for={text <- errors(@uploads.checkpoint, @error)} class="error">
          <span>{text}</span>
          <button type="button" class="quiet" phx-click="reset">Dismiss</button>
        </p>
      </div>

      <section
        :for={entry <- @uploads.checkpoint.entries}
        :if={@contents == nil and errors(@uploads.checkpoint, nil) == []}
        id="progress"
        class="panel"
        aria-label="Upload"
      >
        <div class="bar">
          <h2><bdi>{entry.client_name}</bdi></h2>
          <button type="button" class="quiet" phx-click="cancel" phx-value-ref={entry.ref}>Cancel</button>
        </div>
        <progress value={entry.progress} max="100" aria-label="Uploaded">{entry.progress} %</progress>
        <p class="note">
          {entry.progress} % of {Format.bytes(entry.client_size)}
          <span :if={@parsed}>· {@parsed.tensors} {if @parsed.tensors == 1, do: "tensor", else: "tensors"} complete</span>
        </p>
        <ul :if={@parsed} class="newest" aria-hidden="true">
          <li :for={row <- @parsed.newest}><bdi>{row.name}</bdi> <span>{row.dtype} {row.shape}</span></li>
        </ul>
      </section>

      <p class="hidden" role="status">
        {status(@contents, @uploads.checkpoint.entries)}
      </p>

      <section :if={@contents} id="contents" aria-label="Contents of the checkpoint">
        <.live_component module={Browser} id="browser" contents={@contents}>
          <:action><button type="button" class="quiet" phx-click="reset">Close</button></:action>
        </.live_component>
      </section>
    </Layouts.app>
    """
  end

  attr :name, :string, required: true
  attr :checked, :boolean, required: true
  slot(:inner_block, required: true)
  slot(:note, required: true)

  defp option(assigns) do
    ~H"""
    <label class="option">
      <input type="hidden" name={@name} value="false" />
      <input type="checkbox" name={@name} value="true" checked={@checked} />
      <span>{render_slot(@inner_block)}<small>{render_slot(@note)}</small></span>
    </label>
    """
  end

  # Errors of the choice of files, of each file, and our own.
  defp errors(upload, own) do
    of_entries = Enum.flat_map(upload.entries, &upload_errors(upload, &1))

    (upload_errors(upload) ++ of_entries)
    |> Enum.map(&Format.upload_error(&1, @max))
    |> Enum.concat(List.wrap(own))
    |> Enum.uniq()
  end

  # What a screen reader says: the beginning and the end of an upload, not every chunk.
  defp status(nil, [%{valid?: true} | _]), do: "The upload has begun."
  defp status(nil, _entries), do: ""

  defp status(contents, _entries),
    do: "#{contents.name} was read: #{length(contents.rows)} tensors."

  defp max_bytes, do: @max
end
