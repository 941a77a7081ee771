defmodule ExTorch.Application do
  @moduledoc false
  # Loads the native library when the application starts. It takes a few hundred milliseconds, which the first call would
  # otherwise wait for, and a node that is stopped while LibTorch is being loaded may crash.
  use Application

  require Logger

  @impl true
  def start(_type, _args) do
    Code.ensure_loaded(ExTorch.Native)

    case ExTorch.Native.status() do
      :ok -> :ok
      {:error, error} -> Logger.error(Exception.message(error))
    end

    # The readers and workers that other nodes start here.
    children = [{Task.Supervisor, name: ExTorch.Tasks}]
    Supervisor.start_link(children, strategy: :one_for_one, name: ExTorch.Supervisor)
  end
end
