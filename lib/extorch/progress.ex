defmodule ExTorch.Progress do
  @moduledoc false
  # Calls the `on_progress` function about ten times a second and once at the end.

  alias ExTorch.Error

  @interval_ms 100

  defstruct [:fun, :total, :last]

  def check!(nil), do: :ok
  def check!(fun) when is_function(fun, 1) or is_function(fun, 2), do: :ok

  def check!(other) do
    raise Error.new(
            :bad_argument,
            "expected on_progress to be a function of done and total, got #{inspect(other)}"
          )
  end

  def new(fun, total), do: %__MODULE__{fun: fun, total: total, last: now()}

  def report(%{fun: nil} = progress, _done), do: progress

  def report(progress, done) do
    if now() - progress.last >= @interval_ms do
      call(progress, done)
      %{progress | last: now()}
    else
      progress
    end
  end

  def finish(%{fun: nil}), do: :ok

  def finish(progress) do
    call(progress, progress.total)
    :ok
  end

  defp call(%{fun: fun, total: total}, done) when is_function(fun, 2), do: fun.(done, total)
  defp call(%{fun: fun, total: total}, done), do: fun.(%{done: done, total: total})

  defp now, do: System.monotonic_time(:millisecond)
end
