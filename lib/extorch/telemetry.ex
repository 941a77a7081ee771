defmodule ExTorch.Telemetry do
  @moduledoc """
  Events for `:telemetry`, sent where that library is loaded.

  | event | measurements | metadata |
  |---|---|---|
  | `[:extorch, :store, :apply]` | `duration` (native units), `bytes`, `applied`, `missing`, `errors` | `path` |
  | `[:extorch, :store, :collect]` | `duration`, `tensors` | `path` |
  """

  @doc false
  def execute(event, measurements, metadata) do
    if :erlang.function_exported(:telemetry, :execute, 3) or Code.ensure_loaded?(:telemetry) do
      apply(:telemetry, :execute, [event, measurements, metadata])
    end

    :ok
  end
end
