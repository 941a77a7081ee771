defmodule ExTorch.Streaming.Pull do
  @moduledoc false
  # Takes one element of an enumerable at a time, by suspending its reduction.

  @opaque t :: (Enumerable.acc() -> Enumerable.result()) | :closed

  @spec start(Enumerable.t()) :: t()
  def start(enumerable),
    do: &Enumerable.reduce(enumerable, &1, fn item, _ -> {:suspend, item} end)

  @spec next(t()) :: {:ok, term(), t()} | {:done, t()}
  def next(pull) do
    case pull.({:cont, :none}) do
      {:suspended, item, pull} -> {:ok, item, pull}
      {_done_or_halted, _} -> {:done, :closed}
    end
  end

  # An enumerable that is done has released its resources.
  @spec stop(t()) :: :ok
  def stop(:closed), do: :ok

  def stop(pull) do
    pull.({:halt, :none})
    :ok
  end
end
