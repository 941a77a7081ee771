defmodule PhoenixUpload.Contents do
  @moduledoc """
  What a page shows of a checkpoint: figures, modules, tensors, and what is not a tensor.

  A checkpoint is either uploaded, with its tensors in memory, or open, and then a tensor is read when it is looked at.
  """

  alias ExTorch.{Checkpoint, DType, Tensor}
  alias ExTorch.Python.Dict
  alias PhoenixUpload.Format

  @enforce_keys [:name, :rows, :values, :source]
  defstruct [:name, :rows, :values, :source]

  @type row :: %{
          index: non_neg_integer(),
          name: String.t(),
          path: [String.t()],
          dtype: String.t(),
          shape: String.t(),
          elements: non_neg_integer(),
          bytes: non_neg_integer()
        }
  @type t :: %__MODULE__{
          name: String.t(),
          rows: [row()],
          values: {[{String.t(), String.t()}], more? :: boolean()},
          source: {:tensors, tuple()} | {:checkpoint, Checkpoint.t(), tuple()}
        }

  # How many values that are not tensors are listed, and of how many values statistics are made.
  @max_values 200
  @sample 65_536

  @doc "The contents of an upload, as `PhoenixUpload.Writer.meta/1` returns it."
  @spec from_upload(String.t(), map()) :: t()
  def from_upload(name, %{term: term, tensors: tensors}) do
    rows = for {{name, tensor}, i} <- Enum.with_index(tensors), do: row(name, tensor, i)
    source = {:tensors, tensors |> Enum.map(&elem(&1, 1)) |> List.to_tuple()}
    %__MODULE__{name: name, rows: rows, values: values(term), source: source}
  end

  @doc "The contents of an open checkpoint."
  @spec from_checkpoint(String.t(), Checkpoint.t()) :: {:ok, t()} | {:error, ExTorch.Error.t()}
  def from_checkpoint(name, ckpt) do
    with {:ok, object} <- Checkpoint.object(ckpt) do
      entries = Checkpoint.entries(ckpt)
      rows = for {entry, i} <- Enum.with_index(entries), do: row(entry.name, entry, i)
      source = {:checkpoint, ckpt, entries |> Enum.map(& &1.path) |> List.to_tuple()}
      {:ok, %__MODULE__{name: name, rows: rows, values: values(object), source: source}}
    end
  end

  @doc "A line of the table, about a tensor or the entry of one."
  @spec row(String.t(), struct(), non_neg_integer()) :: row()
  def row(name, %{dtype: dtype, shape: shape}, index \\ 0) do
    sizes = Tuple.to_list(shape)
    elements = Enum.product(sizes)

    %{
      index: index,
      name: name,
      path: String.split(name, "."),
      dtype: to_string(dtype),
      shape: if(sizes == [], do: "scalar", else: Enum.join(sizes, " × ")),
      elements: elements,
      bytes: elements * DType.size(dtype)
    }
  end

  # ---- Figures ----

  @doc "Counts for the head of a page."
  @spec figures([row()]) :: %{
          tensors: integer(),
          elements: integer(),
          bytes: integer(),
          dtypes: String.t()
        }
  def figures(rows) do
    dtypes = rows |> Enum.frequencies_by(& &1.dtype) |> Enum.sort_by(fn {_, n} -> -n end)

    %{
      tensors: length(rows),
      elements: rows |> Enum.map(& &1.elements) |> Enum.sum(),
      bytes: rows |> Enum.map(& &1.bytes) |> Enum.sum(),
      dtypes: Enum.map_join(dtypes, ", ", &elem(&1, 0))
    }
  end

  # ---- Browsing ----

  @doc """
  Returns what is directly inside a module: `{:module, name, figures}` and `{:tensor, label, row}`, in file order.
  """
  @spec level(t(), [String.t()]) :: [{:module, String.t(), map()} | {:tensor, String.t(), row()}]
  def level(%__MODULE__{rows: rows}, path) do
    depth = length(path)

    rows
    |> Enum.filter(&List.starts_with?(&1.path, path))
    |> Enum.group_by(&Enum.at(&1.path, depth))
    |> Enum.sort_by(fn {_, [first | _]} -> first.index end)
    |> Enum.flat_map(fn {key, rows} ->
      {here, below} = Enum.split_with(rows, &(length(&1.path) <= depth + 1))
      tensors = for row <- here, do: {:tensor, key || row.name, row}
      if below == [], do: tensors, else: tensors ++ [{:module, key, figures(below)}]
    end)
  end

  @doc "Returns the tensors whose names contain all words of the query, in any case."
  @spec search(t(), String.t()) :: [{:tensor, String.t(), row()}]
  def search(%__MODULE__{rows: rows}, query) do
    words = query |> String.downcase() |> String.split()

    for row <- rows,
        name = String.downcase(row.name),
        Enum.all?(words, &String.contains?(name, &1)),
        do: {:tensor, row.name, row}
  end

  @doc "Sorts what `level/2` or `search/2` returned: by `:file`, `:name` or `:bytes`, the largest first."
  @spec sort([tuple()], :file | :name | :bytes) :: [tuple()]
  def sort(items, :file), do: items
  def sort(items, :name), do: Enum.sort_by(items, &elem(&1, 1))
  def sort(items, :bytes), do: Enum.sort_by(items, &elem(&1, 2).bytes, :desc)

  # ---- One tensor ----

  @doc """
  Returns a function that reads a tensor. It can be called in another process, which then has nothing else of the contents.
  """
  @spec reader(t(), non_neg_integer()) :: (() -> {:ok, Tensor.t()} | {:error, ExTorch.Error.t()})
  def reader(%__MODULE__{source: {:tensors, tensors}}, index) do
    tensor = elem(tensors, index)
    fn -> {:ok, tensor} end
  end

  def reader(%__MODULE__{source: {:checkpoint, ckpt, paths}}, index) do
    path = elem(paths, index)
    fn -> Checkpoint.tensor(ckpt, path) end
  end

  @doc "Reads a tensor and returns its statistics and its first values, or what a visitor is told instead."
  @spec detail((() -> {:ok, Tensor.t()} | {:error, ExTorch.Error.t()})) ::
          {:ok, %{stats: map(), values: [[String.t()]]}} | {:error, String.t()}
  def detail(reader) do
    with {:ok, %Tensor{} = tensor} <- reader.() do
      {:ok, %{stats: Tensor.stats(tensor, sample: @sample), values: corner(tensor)}}
    else
      {:ok, _raw} -> {:error, "the values of this type cannot be shown"}
      {:error, error} -> {:error, ExTorch.Error.public_message(error)}
    end
  rescue
    error in ExTorch.Error -> {:error, ExTorch.Error.public_message(error)}
  end

  # The first rows and columns of the first matrix.
  defp corner(%Tensor{shape: shape} = tensor) do
    dims = tuple_size(shape)
    sizes = Tuple.to_list(shape)
    most = List.duplicate(1, max(dims - 2, 0)) ++ Enum.take([6, 5], -min(dims, 2))

    if 0 in sizes do
      []
    else
      ranges = Enum.zip_with(sizes, most, fn size, most -> 0..(min(size, most) - 1) end)
      part = if dims == 0, do: tensor, else: Tensor.slice(tensor, ranges)
      columns = if dims == 0, do: 1, else: min(5, List.last(sizes))

      part
      |> Tensor.to_list()
      |> List.wrap()
      |> List.flatten()
      |> Enum.map(&value/1)
      |> Enum.chunk_every(columns)
    end
  rescue
    # sparse and quantized tensors have no slices
    ExTorch.Error -> []
  end

  defp value(number) when is_float(number), do: Format.number(number)
  defp value(other), do: text(other)

  # ---- What is not a tensor ----

  defp values(term) do
    {shown, more} = term |> leaves("") |> Enum.take(@max_values + 1) |> Enum.split(@max_values)
    {shown, more != []}
  end

  # Lazily: a file may have very many.
  defp leaves(%Dict{pairs: pairs}, name), do: pairs(pairs, name)
  defp leaves(%Tensor{}, _name), do: []
  defp leaves(%Checkpoint.Entry{}, _name), do: []
  defp leaves(%{__struct__: _} = other, name), do: [{name, text(other)}]
  defp leaves(map, name) when is_map(map), do: pairs(map, name)

  defp leaves(list, name) when is_list(list) do
    list |> Stream.with_index() |> Stream.map(fn {value, i} -> {i, value} end) |> pairs(name)
  end

  defp leaves(tuple, name) when is_tuple(tuple), do: tuple |> Tuple.to_list() |> leaves(name)
  defp leaves(other, name), do: [{name, text(other)}]

  defp pairs(pairs, name) do
    Stream.flat_map(pairs, fn {key, value} ->
      leaves(value, if(name == "", do: key(key), else: "#{name}.#{key(key)}"))
    end)
  end

  defp key(key) when is_binary(key),
    do: if(String.valid?(key), do: key, else: inspect(key, limit: 20))

  defp key(key), do: inspect(key, limit: 5, printable_limit: 60)
  defp text(value), do: inspect(value, limit: 10, printable_limit: 200)
end
