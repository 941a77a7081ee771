defmodule ExTorch.Streaming.Pull do
  @moduledoc false
  # One element of an enumerable at a time, and no more of it than was asked for.

  def start(enumerable),
    do: &Enumerable.reduce(enumerable, &1, fn item, _ -> {:suspend, item} end)

  def next(pull) do
    case pull.({:cont, :none}) do
      {:suspended, item, pull} -> {:ok, item, pull}
      # it has closed itself
      {_done_or_halted, _} -> {:over, :closed}
    end
  end

  def stop(:closed), do: :ok

  def stop(pull) do
    pull.({:halt, :none})
    :ok
  end
end
