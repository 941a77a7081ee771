defmodule ExTorch.DType do
  @moduledoc """
  The dtypes of tensors, with the names that torch uses.

      iex> ExTorch.DType.size(:float16)
      2
      iex> ExTorch.DType.normalize!(:half)
      :float16
      iex> ExTorch.DType.normalize!({:bf, 16})
      :bfloat16

      iex> Enum.map([:f16, "float32", "torch.int8", {:s, 64}], &ExTorch.DType.normalize!/1)
      [:float16, :float32, :int8, :int64]

  All functions that take a dtype also accept torch's short names (`:float`, `:long`), Nx types (`{:f, 32}`, `:f32`), and
  all of these names as strings. Using a
  dtype that the linked LibTorch does not support is an `:unsupported` error; see `supported?/1`.
  """

  # The C code is generated from the same table.
  @table Path.expand("../../c_src/core/base/dtypes.def", __DIR__)
  @external_resource @table
  @rows Regex.scan(~r/^XT_DTYPE\(([^)]*)\)/m, File.read!(@table), capture: :all_but_first)
        |> Enum.map(fn [row] ->
          [name, size, _torch, kind, nx, bits, alias | _names_elsewhere] =
            row |> String.split(",") |> Enum.map(&String.trim/1)

          %{
            name: String.to_atom(name),
            size: String.to_integer(size),
            kind: kind |> String.downcase() |> String.to_atom(),
            nx: if(nx != "none", do: {String.to_atom(nx), String.to_integer(bits)}),
            alias: String.to_atom(alias)
          }
        end)
  @names Enum.map(@rows, & &1.name)

  # What else a dtype is called, as text: torch's short names, Nx's (f16, s64), i64 and torch.float32.
  nx_words = fn
    {:s, bits} -> ["s#{bits}", "i#{bits}"]
    {kind, bits} when kind in [:f, :bf, :u, :c] -> ["#{kind}#{bits}"]
    {kind, _bits} -> [kind]
    nil -> []
  end

  @words for row <- @rows,
             word <- [row.name, row.alias, "torch.#{row.name}"] ++ nx_words.(row.nx),
             into: %{},
             do: {to_string(word), row.name}

  @typedoc "The name of a dtype."
  @type dtype ::
          unquote(Enum.reduce(Enum.reverse(@names), fn name, rest -> {:|, [], [name, rest]} end))

  @typedoc "What functions accept as a dtype: its name, torch's short name or an Nx type, also as a string."
  @type input :: dtype() | atom() | {atom(), pos_integer()} | String.t()

  @doc """
  Returns the names of all dtypes.

      iex> ExTorch.DType.names() |> Enum.take(3)
      [:float64, :float32, :float16]
  """
  @spec names() :: [dtype()]
  def names, do: @names

  @doc """
  Returns the size of an element in bytes.

      iex> ExTorch.DType.size(:complex64)
      8
  """
  @spec size(input()) :: pos_integer()
  def size(dtype), do: size_of(normalize!(dtype))

  @doc """
  Returns the kind of a dtype: `:float`, `:int`, `:uint`, `:bool`, `:complex`, `:quant` or `:bits`.

      iex> Enum.map([:bfloat16, :uint8, :bool], &ExTorch.DType.kind/1)
      [:float, :uint, :bool]
  """
  @spec kind(input()) :: atom()
  def kind(dtype), do: kind_of(normalize!(dtype))

  @doc """
  Returns the Nx type of a dtype, or `nil` if Nx does not have it. `:bool` is `{:u, 8}` in Nx.

      iex> ExTorch.DType.to_nx(:float8_e5m2)
      {:f, 8}
      iex> ExTorch.DType.to_nx(:complex32)
      nil
  """
  @spec to_nx(input()) :: {atom(), pos_integer()} | nil
  def to_nx(dtype), do: nx_of(normalize!(dtype))

  @doc """
  Returns true if the linked LibTorch supports the dtype.

      iex> ExTorch.DType.supported?(:bfloat16)
      true
  """
  @spec supported?(input()) :: boolean()
  def supported?(dtype), do: ExTorch.Native.dtype_supported(normalize!(dtype))

  @doc """
  Returns the name of a dtype, which may be given as a name, a short name or an Nx type.

      iex> ExTorch.DType.normalize(:flot32)
      {:error, %ExTorch.Error{reason: :bad_argument, message: "unknown dtype :flot32; did you mean :float32?"}}
  """
  @spec normalize(input()) :: {:ok, dtype()} | {:error, ExTorch.Error.t()}
  for %{name: name, alias: alias, nx: nx} <- @rows do
    def normalize(unquote(name)), do: {:ok, unquote(name)}
    if alias != name, do: def(normalize(unquote(alias)), do: {:ok, unquote(name)})
    if nx, do: def(normalize(unquote(nx)), do: {:ok, unquote(name)})
  end

  def normalize(other) do
    case @words do
      %{^other => name} -> {:ok, name}
      words when is_atom(other) -> with :error <- Map.fetch(words, "#{other}"), do: unknown(other)
      _ -> unknown(other)
    end
  end

  defp unknown(other) do
    similar =
      if is_atom(other) do
        @names
        |> Enum.map(&{String.jaro_distance(Atom.to_string(&1), Atom.to_string(other)), &1})
        |> Enum.max()
      end

    hint =
      case similar do
        {score, name} when score > 0.8 -> "; did you mean #{inspect(name)}?"
        _ -> "; see ExTorch.DType.names/0"
      end

    {:error,
     ExTorch.Error.new(:bad_argument, "unknown dtype #{ExTorch.Error.quoted(other)}" <> hint)}
  end

  @doc "Same as `normalize/1` but raises on error."
  @spec normalize!(input()) :: dtype()
  def normalize!(dtype), do: ExTorch.Error.unwrap!(normalize(dtype))

  for %{name: name, size: size, kind: kind, nx: nx} <- @rows do
    defp size_of(unquote(name)), do: unquote(size)
    defp kind_of(unquote(name)), do: unquote(kind)
    defp nx_of(unquote(name)), do: unquote(if name == :bool, do: {:u, 8}, else: nx)
  end
end
