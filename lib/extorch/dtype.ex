defmodule ExTorch.DType do
  @moduledoc """
  Element types, under torch's own names.

      iex> ExTorch.DType.size(:float16)
      2
      iex> ExTorch.DType.normalize!(:half)
      :float16
      iex> ExTorch.DType.normalize!({:bf, 16})
      :bfloat16

  Wherever ExTorch takes a dtype it also takes torch's short name (`:float`, `:long`) and the type of Nx (`{:f, 32}`).
  A type that the linked LibTorch is too old for is `:unsupported`, never read as another: `supported?/1` tells.
  """

  # The table is the one that the C code is built from.
  @table Path.expand("../../c_src/core/base/dtypes.def", __DIR__)
  @external_resource @table
  @rows Regex.scan(~r/^XT_DTYPE\(([^)]*)\)/m, File.read!(@table), capture: :all_but_first)
        |> Enum.map(fn [row] ->
          [name, size, _torch, kind, nx, bits, alias] =
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

  @typedoc "An element type."
  @type dtype ::
          unquote(Enum.reduce(Enum.reverse(@names), fn name, rest -> {:|, [], [name, rest]} end))

  @typedoc "What is accepted for one: its name, torch's short name, or the type of Nx."
  @type input :: dtype() | atom() | {atom(), pos_integer()}

  @doc "All names, in the order of the table."
  @spec names() :: [dtype()]
  def names, do: @names

  @doc "Bytes of an element."
  @spec size(input()) :: pos_integer()
  def size(dtype), do: size_of(normalize!(dtype))

  @doc "Is it a `:float`, `:int`, `:uint`, `:bool`, `:complex`, `:quant` or `:bits` type?"
  @spec kind(input()) :: atom()
  def kind(dtype), do: kind_of(normalize!(dtype))

  @doc """
  The type of Nx for a dtype, `nil` where Nx has none. Booleans are `{:u, 8}` in Nx.

      iex> ExTorch.DType.to_nx(:float8_e5m2)
      {:f, 8}
      iex> ExTorch.DType.to_nx(:complex32)
      nil
  """
  @spec to_nx(input()) :: {atom(), pos_integer()} | nil
  def to_nx(dtype), do: nx_of(normalize!(dtype))

  @doc "Does the linked LibTorch know the type?"
  @spec supported?(input()) :: boolean()
  def supported?(dtype), do: ExTorch.Native.dtype_supported(normalize!(dtype))

  @doc """
  The name for whatever is accepted as a dtype.

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
    near =
      if is_atom(other) do
        @names
        |> Enum.map(&{String.jaro_distance(Atom.to_string(&1), Atom.to_string(other)), &1})
        |> Enum.max()
      end

    hint =
      case near do
        {score, name} when score > 0.8 -> "; did you mean #{inspect(name)}?"
        _ -> "; ExTorch.DType.names/0 lists them"
      end

    {:error, ExTorch.Error.new(:bad_argument, "unknown dtype #{inspect(other)}" <> hint)}
  end

  @doc "The same, raising."
  @spec normalize!(input()) :: dtype()
  def normalize!(dtype), do: ExTorch.Error.bang!(normalize(dtype))

  for %{name: name, size: size, kind: kind, nx: nx} <- @rows do
    defp size_of(unquote(name)), do: unquote(size)
    defp kind_of(unquote(name)), do: unquote(kind)
    defp nx_of(unquote(name)), do: unquote(if name == :bool, do: {:u, 8}, else: nx)
  end
end
