defmodule ExTorch.Error do
  @moduledoc """
  The error that all functions of ExTorch return or raise.

    * `reason` - an atom to match on, see the table below
    * `message` - what is wrong and what to do about it
    * `path` - the file, if the error is about a file
    * `offset` - the position in the file or stream in bytes, if it is known
    * `result` - the `ExTorch.Store.ApplyResult` of a failed `ExTorch.Store.apply_to/2`, otherwise `nil`

  | reason | meaning |
  |---|---|
  | `:truncated` | the input ends too early, for example because a download is incomplete |
  | `:corrupt` | the input violates the rules of its format |
  | `:limit` | a limit, or the budget of native memory, would be exceeded |
  | `:forbidden` | not allowed: an unsafe operator, or a class that `strict: true` refuses |
  | `:unsupported` | valid, but not supported by this LibTorch, device or kind of tensor |
  | `:io` | the operating system returned an error |
  | `:file_changed` | a file changed while it was being read |
  | `:not_found` | a name, key, operator or file does not exist |
  | `:released` | the tensor was released with `ExTorch.Tensor.release/1`, or the checkpoint was closed |
  | `:frozen` | an operator would write to memory that an Erlang binary shares |
  | `:stale` | an old state of a loader was used again |
  | `:busy` | another process is using the loader |
  | `:ambiguous` | a name matches several things |
  | `:bad_argument` | an argument or option is invalid |
  | `:no_memory` | the operating system is out of memory |
  | `:stopping` | the node is shutting down |
  | `:timeout` | the peer, or a callback, exceeded the timeout |
  | `:closed` | the peer closed the connection between two messages |
  | `:not_loaded` | the native library could not be loaded; the message says why |
  | `:torch` | LibTorch returned an error |
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
          | :not_loaded
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
  Returns the message, with the file and the byte offset if they are known.

      iex> Exception.message(%ExTorch.Error{reason: :corrupt, message: "invalid pickle", path: "a.pt", offset: 12})
      "invalid pickle (a.pt, byte 12)"
  """
  @impl true
  def message(%__MODULE__{message: message, path: path, offset: offset}) do
    case Enum.reject([path && printable(path), offset && "byte #{offset}"], &is_nil/1) do
      [] -> message
      location -> "#{message} (#{Enum.join(location, ", ")})"
    end
  end

  # File names may contain any bytes, messages must be printable.
  defp printable(path) do
    path = IO.chardata_to_string(path)
    if String.printable?(path), do: path, else: inspect(path)
  end

  @doc """
  Returns what a client of a server may be told about an error, for example about a file that it has uploaded.

  The text says what is wrong with the data, without paths, URLs and node names of the server, and without advice for
  developers. Errors that are not about the data have one sentence each, and so has every other exception. Log
  `Exception.message/1` for yourself.

      iex> error = %ExTorch.Error{reason: :corrupt, message: "the pickle ends early; use verify: true", path: "/srv/u/1", offset: 12}
      iex> ExTorch.Error.public_message(error)
      "the pickle ends early (byte 12)"
      iex> ExTorch.Error.public_message(%ExTorch.Error{reason: :io, message: "cannot write /srv/u/1: no space"})
      "the server could not read or write the data"
      iex> ExTorch.Error.public_message(%RuntimeError{message: "secret"})
      "the server could not process the data"
  """
  @spec public_message(Exception.t()) :: String.t()
  def public_message(error)

  def public_message(%__MODULE__{reason: reason} = error)
      when reason in [:truncated, :corrupt, :limit, :forbidden, :unsupported, :ambiguous] do
    place = if is_integer(error.offset), do: " (byte #{error.offset})", else: ""
    (error.message |> to_string() |> without_path(error.path) |> finding() |> redact()) <> place
  end

  def public_message(%__MODULE__{reason: :not_found}), do: "the data was not found"
  def public_message(%__MODULE__{reason: :timeout}), do: "the data did not arrive in time"
  def public_message(%__MODULE__{reason: :closed}), do: "the connection was closed"
  def public_message(%__MODULE__{reason: :busy}), do: "the server is busy; try again later"
  def public_message(%__MODULE__{reason: :stopping}), do: "the server is being restarted"

  def public_message(%__MODULE__{reason: :no_memory}),
    do: "the server has not enough memory for the data"

  def public_message(%__MODULE__{reason: reason}) when reason in [:io, :file_changed],
    do: "the server could not read or write the data"

  def public_message(error) when is_exception(error), do: "the server could not process the data"
  def public_message(other), do: ExTorch.Options.expected!("an exception", other)

  defp without_path(message, path) when is_binary(path) and path != "",
    do: String.replace(message, path, "…")

  defp without_path(message, _path), do: message

  # Messages have the form "what was found; what to do". Names from files are in quotes.
  defp finding(message) do
    case Regex.run(~r/\A(?:"(?:[^"\\]|\\.)*"|[^";])+/su, message) do
      [found] when found != "" -> String.trim_trailing(found)
      _ -> message
    end
  end

  # URLs, absolute paths, nodes.
  defp redact(message) do
    message
    |> String.replace(~r{\b[a-z][a-z0-9+.-]*://[^\s"]+}iu, "…")
    |> String.replace(~r{(?<![\w.\]])(?:[A-Z]:\\|~?/)[^\s"',;()]+}u, "…")
    |> String.replace(~r{\b[\w.-]+@[\w.-]+}u, "…")
  end

  @doc false
  @spec new(reason(), String.t()) :: t()
  def new(reason, message), do: %__MODULE__{reason: reason, message: message}

  @doc false
  @spec new(reason(), String.t(), term()) :: t()
  def new(reason, message, source), do: put_path(new(reason, message), source)

  # A name, key or path of a file in a message: printable, and at most a few hundred characters.
  @doc false
  @spec quoted(term()) :: String.t()
  def quoted(term) do
    text = inspect(term, limit: 20, printable_limit: 300)
    if byte_size(text) > 1200, do: String.slice(text, 0, 300) <> "…", else: text
  end

  # Sets the path of an error, or of an {:error, error} result, if the source is a path. Returns other results
  # unchanged.
  @doc false
  @spec put_path(result, term()) :: result when result: term()
  def put_path({:error, error}, source), do: {:error, put_path(error, source)}

  def put_path(%__MODULE__{} = error, path) when is_binary(path) do
    if ExTorch.Options.path?(path),
      do: %{error | path: ExTorch.Source.HTTP.URL.without_secrets(path)},
      else: error
  end

  def put_path(other, _source), do: other

  # Implements the functions that raise: returns the value of a result or raises its error.
  @doc false
  def unwrap!(:ok), do: :ok
  def unwrap!({:ok, value}), do: value
  def unwrap!({:ok, value, rest}), do: {value, rest}
  def unwrap!({:error, error}), do: raise(error)
end
