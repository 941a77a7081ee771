defmodule ExTorch.Application do
  @moduledoc false
  # Loads the native library when the application starts. It takes a few hundred milliseconds, which the first call would
  # otherwise wait for, and a node that is stopped while LibTorch is being loaded may crash. Meanwhile the modules are
  # loaded, which takes the first call of a node that is not a release longer than its work.
  use Application

  require Logger

  @impl true
  def start(_type, _args) do
    modules = Task.async(&load_modules/0)
    Code.ensure_loaded(ExTorch.Native)
    Task.await(modules, :infinity)

    case ExTorch.Native.status() do
      :ok -> :ok
      {:error, error} -> Logger.error(Exception.message(error))
    end

    # The readers and workers that other nodes start here.
    children = [{Task.Supervisor, name: ExTorch.Tasks}]
    Supervisor.start_link(children, strategy: :one_for_one, name: ExTorch.Supervisor)
  end

  defp load_modules do
    modules = Application.spec(:extorch, :modules) || []
    :code.ensure_modules_loaded(List.delete(modules, ExTorch.Native))
  end
end
