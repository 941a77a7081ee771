defmodule ExTorch.Error do
  @moduledoc """
  What every failing function of ExTorch returns or raises.

  `message` says what was found and what to do about it; `reason` is for code to match on; `path` and `offset` say
  where, when the trouble is in a file.

  | reason | meaning |
  |---|---|
  | `:truncated` | the input ends too early, most often an incomplete download |
  | `:corrupt` | the input breaks a rule of its format |
  | `:limit` | a published limit, or the budget of native memory, would be exceeded |
  | `:forbidden` | refused by policy: an unsafe operator, a class under `strict: true` |
  | `:unsupported` | valid, but not with this LibTorch, device or kind of tensor |
  | `:io` | the operating system reported an error |
  | `:file_changed` | a file changed while it was read |
  | `:not_found` | no such name, key, operator or file |
  | `:released` | the tensor was released by `ExTorch.Tensor.release/1` |
  | `:frozen` | an operator would write to memory that an Erlang binary sees |
  | `:stale` | an old state was used again |
  | `:busy` | another process is using the state |
  | `:ambiguous` | a name stands for several things |
  | `:bad_argument` | an argument of a function or operator does not fit |
  | `:no_memory` | the operating system has no memory left |
  | `:stopping` | the node is shutting down |
  | `:timeout` | the other side, or a callback, took longer than it was given |
  | `:closed` | the peer closed the connection where a message would begin |
  | `:torch` | LibTorch reported an error of its own |
  """

  @type reason ::
          :truncated
          | :corrupt
          | :limit
          | :forbidden
          | :unsupported
          | :io
          | :file_changed
          | :not_found
          | :released
          | :frozen
          | :stale
          | :busy
          | :ambiguous
          | :bad_argument
          | :no_memory
          | :stopping
          | :timeout
          | :closed
          | :torch

  @type t :: %__MODULE__{
          reason: reason(),
          message: String.t(),
          path: Path.t() | nil,
          offset: non_neg_integer() | nil,
          result: term()
        }

  defexception [:reason, :message, :path, :offset, :result]

  @doc """
  The message, with the file and the byte offset where they are known.

      iex> Exception.message(%ExTorch.Error{reason: :corrupt, message: "no pickle", path: "a.pt", offset: 12})
      "no pickle (a.pt, byte 12)"
  """
  @impl true
  def message(%__MODULE__{message: message, path: path, offset: offset}) do
    case Enum.reject([path && shown(path), offset && "byte #{offset}"], &is_nil/1) do
      [] -> message
      where -> "#{message} (#{Enum.join(where, ", ")})"
    end
  end

  # A file's name may be any bytes, a message is text.
  defp shown(path) do
    path = IO.chardata_to_string(path)
    if String.printable?(path), do: path, else: inspect(path)
  end

  @doc false
  def new(reason, message), do: %__MODULE__{reason: reason, message: message}

  # With the file named where the source is one; answers that are no errors stay as they are.
  @doc false
  def located({:error, error}, source), do: {:error, located(error, source)}

  def located(%__MODULE__{} = error, path) when is_binary(path) do
    if ExTorch.Options.path?(path), do: %{error | path: path}, else: error
  end

  def located(other, _source), do: other

  # What the twins that raise make of an answer.
  @doc false
  def bang!(:ok), do: :ok
  def bang!({:ok, value}), do: value
  def bang!({:ok, value, rest}), do: {value, rest}
  def bang!({:error, error}), do: raise(error)
end
