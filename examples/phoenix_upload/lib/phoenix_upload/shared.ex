defmodule PhoenixUpload.Shared do
  @moduledoc """
  One checkpoint for all visitors.

  This process opens the file and publishes it as a persistent term: readers take it from there, without a message and
  without a copy. The file is mapped, so its bytes are in memory once, however many visitors look at them.

  `reload/1` opens the new file first and then replaces the term. Readers have either the old or the new checkpoint; the
  old one is unmapped when the last of them has let go of it. If the new file cannot be read, the old one stays.

  Replace the file by renaming another one over it, as `ExTorch.save/3` does: the old mapping then keeps the old bytes.
  """

  use GenServer

  alias ExTorch.{Checkpoint, Error}
  alias PhoenixUpload.Contents

  @type published :: %{generation: pos_integer(), contents: Contents.t(), seen: term()}

  @doc """
  Starts the owner.

    * `:path` - the file
    * `:name` - the name of the process, and of what it publishes
    * `:on_change` - a function of the generation, called after a reload
  """
  @spec start_link(keyword()) :: GenServer.on_start()
  def start_link(opts) do
    opts = Keyword.merge([name: __MODULE__, on_change: fn _generation -> :ok end], opts)
    GenServer.start_link(__MODULE__, opts, name: opts[:name])
  end

  @doc "Returns what is published, or `nil`. Does not call the owner."
  @spec current(atom()) :: published() | nil
  def current(name \\ __MODULE__), do: :persistent_term.get({__MODULE__, name}, nil)

  @doc "Opens the file again if it has changed."
  @spec reload(atom()) :: {:ok, :reloaded | :unchanged} | {:error, Error.t()}
  def reload(name \\ __MODULE__), do: GenServer.call(name, :reload, :infinity)

  @impl true
  def init(opts) do
    Process.flag(:trap_exit, true)
    {:ok, Map.new(opts), {:continue, :open}}
  end

  # After a crash the readers still have what was published. A file that cannot be read does not stop the server.
  @impl true
  def handle_continue(:open, state) do
    open(state)
    {:noreply, state}
  end

  @impl true
  def handle_call(:reload, _from, state), do: {:reply, open(state), state}

  @impl true
  def terminate(reason, state) do
    if reason in [:normal, :shutdown], do: :persistent_term.erase({__MODULE__, state.name})
  end

  defp open(%{path: path, name: name} = state) do
    seen = fingerprint(path)

    if seen != nil and match?(%{seen: ^seen}, current(name)) do
      {:ok, :unchanged}
    else
      with {:ok, ckpt} <- Checkpoint.open(path, mmap: true),
           {:ok, contents} <- Contents.from_checkpoint(Path.basename(path), ckpt) do
        publish(state, contents, seen)
        {:ok, :reloaded}
      end
    end
  end

  defp publish(%{name: name} = state, contents, seen) do
    generation = (current(name) || %{generation: 0}).generation + 1
    term = %{generation: generation, contents: contents, seen: seen}
    :persistent_term.put({__MODULE__, name}, term)
    state.on_change.(generation)
    # The old checkpoint was garbage of this process, too.
    :erlang.garbage_collect()
  end

  defp fingerprint(path) do
    with {:ok, stat} <- File.stat(path, time: :posix),
         do: {stat.inode, stat.size, stat.mtime},
         else: (_ -> nil)
  end
end
