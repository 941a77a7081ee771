defmodule ExTorch.Streaming.Pull do
  @moduledoc false
  # Takes one element of an enumerable at a time, by suspending its reduction.

  @opaque t :: (Enumerable.acc() -> Enumerable.result()) | :closed

  @spec start(Enumerable.t()) :: t()
  def start(enumerable),
    do: &Enumerable.reduce(enumerable, &1, fn item, _ -> {:suspend, item} end)

  @type exception :: {:error | :exit | :throw, term(), Exception.stacktrace()}

  # An enumerable that raises has released its resources, so it must not be stopped.
  @spec next(t()) :: {:ok, term(), t()} | {:done, t()} | {:raised, exception(), t()}
  def next(pull) do
    case pull.({:cont, :none}) do
      {:suspended, item, pull} -> {:ok, item, pull}
      {_done_or_halted, _} -> {:done, :closed}
    end
  catch
    kind, reason -> {:raised, {kind, reason, __STACKTRACE__}, :closed}
  end

  @spec reraise(exception()) :: no_return()
  def reraise({kind, reason, stacktrace}), do: :erlang.raise(kind, reason, stacktrace)

  # So has one that is done.
  @spec stop(t()) :: :ok
  def stop(:closed), do: :ok

  def stop(pull) do
    pull.({:halt, :none})
    :ok
  end
end
