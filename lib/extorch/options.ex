defmodule ExTorch.Options do
  @moduledoc false
  # Checks of options that several functions share. All of them raise ExTorch.Error with the reason :bad_argument.

  alias ExTorch.Error

  @max_value 2 ** 40

  # Same as Keyword.validate!/2 but raises an ExTorch.Error that lists the known options.
  @spec validate!(keyword(), [atom() | {atom(), term()}], String.t()) :: keyword()
  def validate!(opts, known, word \\ "option") do
    unless Keyword.keyword?(opts) do
      raise Error.new(
              :bad_argument,
              "expected #{word}s to be a keyword list, got #{inspect(opts, limit: 5)}"
            )
    end

    case Keyword.validate(opts, known) do
      {:ok, opts} ->
        opts

      {:error, unknown} ->
        raise Error.new(
                :bad_argument,
                "unknown #{word} #{names(unknown)}; known #{word}s are #{names(known)}"
              )
    end
  end

  # Splits off the options :as and :backend, which say what a read returns.
  @spec result!(keyword()) :: {:tensor | {:nx, backend :: term()}, keyword()}
  def result!(opts) do
    {result, others} =
      if Keyword.keyword?(opts), do: Keyword.split(opts, [:as, :backend]), else: {[], opts}

    case Keyword.get(result, :as, :tensor) do
      :nx -> {{:nx, ExTorch.Nx.backend!(result[:backend])}, others}
      :tensor -> {tensor!(result), others}
      other -> invalid!(:as, ":tensor or :nx", other)
    end
  end

  defp tensor!(result) do
    if Keyword.has_key?(result, :backend),
      do: invalid!(:backend, "as: :nx beside it", result[:backend])

    :tensor
  end

  # Converts what was read.
  @spec convert({:ok, term()} | {:error, Error.t()}, :tensor | {:nx, term()}, term()) ::
          {:ok, term()} | {:error, Error.t()}
  def convert({:ok, object}, {:nx, backend}, source) do
    {:ok, ExTorch.Nx.convert_object(object, backend)}
  rescue
    error in Error -> {:error, Error.put_path(error, source)}
  end

  def convert(read, _result, _source), do: read

  defp names(options) do
    options
    |> Enum.map(fn
      {key, _default} -> inspect(key)
      key -> inspect(key)
    end)
    |> Enum.sort()
    |> Enum.join(", ")
  end

  @spec invalid!(atom(), String.t(), term()) :: no_return()
  def invalid!(key, expected, value) do
    raise Error.new(
            :bad_argument,
            "expected #{inspect(key)} to be #{expected}, got #{inspect(value, limit: 5)}"
          )
  end

  # An argument that is not an option.
  @spec expected!(String.t(), term()) :: no_return()
  def expected!(expected, value),
    do: raise(Error.new(:bad_argument, "expected #{expected}, got #{Error.quoted(value)}"))

  @spec booleans!(keyword() | map(), [atom()]) :: :ok
  def booleans!(opts, keys) do
    for key <- keys, not is_boolean(opts[key]), do: invalid!(key, "a boolean", opts[key])
    :ok
  end

  @spec chunk!(term()) :: pos_integer()
  def chunk!(bytes) when bytes in 1..@max_value, do: bytes
  def chunk!(other), do: invalid!(:chunk, "a positive number of bytes", other)

  @spec timeout!(term()) :: timeout()
  def timeout!(:infinity), do: :infinity
  def timeout!(ms) when ms in 0..@max_value, do: ms
  def timeout!(other), do: invalid!(:timeout, "a number of milliseconds or :infinity", other)

  # Returns true if the binary can be a path. File contents passed by mistake contain zero bytes or are longer.
  @spec path?(binary()) :: boolean()
  def path?(path),
    do: path != "" and byte_size(path) < 4096 and not String.contains?(path, <<0>>)
end
