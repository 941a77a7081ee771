defmodule ExTorch.Checkpoint.Safety do
  @moduledoc false
  # Whether torch's weights_only accepts a file, and what it would import.

  alias ExTorch.{Checkpoint, Error, Python}
  alias ExTorch.Checkpoint.StateDict

  # Returns why weights_only refuses the source, or nil, or :unknown if it cannot be read again; and the classes and
  # functions that the parts refer to, if it is refused.
  @spec check(Checkpoint.source() | nil, [StateDict.part()]) ::
          {String.t() | nil | :unknown, [String.t()]}
  def check(nil, _parts), do: {:unknown, []}

  def check(source, parts) do
    case StateDict.with_parts(source, [strict: true], fn _ -> :ok end) do
      :ok -> {nil, []}
      {:error, %Error{reason: :forbidden, message: message}} -> {message, globals(parts)}
      {:error, _} -> {:unknown, []}
    end
  end

  defp globals(parts) do
    parts
    |> Enum.flat_map(fn {ckpt, _} ->
      case StateDict.object(ckpt) do
        {:ok, object} -> find_globals(object, [])
        _ -> []
      end
    end)
    |> Enum.uniq()
    |> Enum.sort()
  end

  defp find_globals(%Python.Global{module: module, name: name}, acc),
    do: ["#{module}.#{name}" | acc]

  defp find_globals(term, acc), do: Enum.reduce(StateDict.children(term), acc, &find_globals/2)
end
