defmodule ExTorch.Telemetry do
  @moduledoc """
  Events that ExTorch emits with `:telemetry`, if that library is loaded.

  | event | measurements | metadata |
  |---|---|---|
  | `[:extorch, :store, :apply]` | `duration` (native time unit), `bytes`, `applied`, `missing`, `errors` | `path` |
  | `[:extorch, :store, :collect]` | `duration`, `tensors` | `path` |
  | `[:extorch, :http, :request]` | `duration`, `bytes` | `url` (without query), `status` |
  """

  @doc false
  def execute(event, measurements, metadata) do
    if :erlang.function_exported(:telemetry, :execute, 3) or Code.ensure_loaded?(:telemetry) do
      apply(:telemetry, :execute, [event, measurements, metadata])
    end

    :ok
  end
end
