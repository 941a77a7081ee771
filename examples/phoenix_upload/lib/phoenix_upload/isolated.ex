defmodule PhoenixUpload.Isolated do
  @moduledoc """
  Reads a request body in a process of its own.

  The process of a connection that is kept alive may stay for long, and garbage of a request stays with it. Here a new
  process does the work, and everything it has is freed when it ends. Web servers allow only the process of the
  connection to read from it, so that one reads the body when it is asked, chunk by chunk.

      {result, conn} =
        PhoenixUpload.Isolated.run(conn, fn body ->
          with {:ok, term, _} <- ExTorch.Streaming.Body.load(body), do: {:ok, map_size(term)}
        end)
  """

  @enforce_keys [:owner, :ref]
  defstruct [:owner, :ref]

  @doc """
  Calls the function in a new process, with a struct whose body can be read like that of the connection.

  Returns its result, or `{:error, exception}` if it raised or was killed, and the connection.
  """
  @spec run(conn, (struct() -> result)) :: {result | {:error, Exception.t()}, conn}
        when conn: struct(), result: term()
  def run(conn, fun) do
    owner = self()
    ref = make_ref()

    {pid, monitor} =
      spawn_monitor(fn -> exit({ref, work(fun, %__MODULE__{owner: owner, ref: ref})}) end)

    try do
      serve(conn, pid, monitor, ref)
    after
      # The client may be gone, and the web server has raised.
      Process.exit(pid, :kill)
      Process.demonitor(monitor, [:flush])
      # The chunks were garbage of this process.
      :erlang.garbage_collect()
    end
  end

  defp work(fun, body) do
    fun.(body)
  rescue
    exception -> {:error, exception}
  end

  defp serve(%module{} = conn, pid, monitor, ref) do
    receive do
      {^ref, :read_body, opts} ->
        {answer, conn} =
          case module.read_body(conn, opts) do
            {kind, data, conn} -> {{kind, data}, conn}
            {:error, reason} -> {{:error, reason}, conn}
          end

        send(pid, {ref, answer})
        serve(conn, pid, monitor, ref)

      {:DOWN, ^monitor, _, _, {^ref, result}} ->
        {result, conn}

      {:DOWN, ^monitor, _, _, _reason} ->
        {{:error, %RuntimeError{message: "the process of the request was stopped"}}, conn}
    end
  end

  @doc "Reads a chunk of the body. `ExTorch.Streaming.Body` calls this."
  @spec read_body(%__MODULE__{}, keyword()) ::
          {:ok, binary(), %__MODULE__{}} | {:more, binary(), %__MODULE__{}} | {:error, term()}
  def read_body(%__MODULE__{owner: owner, ref: ref} = body, opts) do
    monitor = Process.monitor(owner)
    send(owner, {ref, :read_body, opts})

    receive do
      {^ref, {:error, reason}} ->
        Process.demonitor(monitor, [:flush])
        {:error, reason}

      {^ref, {kind, data}} ->
        Process.demonitor(monitor, [:flush])
        {kind, data, body}

      {:DOWN, ^monitor, _, _, _} ->
        {:error, :closed}
    end
  end
end
