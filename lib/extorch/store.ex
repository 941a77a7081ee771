defmodule ExTorch.Store do
  @moduledoc """
  Stores apply the tensors of a checkpoint to a module and save the tensors of a module to a checkpoint, with filters,
  renaming and a report about every tensor.

      store = ExTorch.Store.PyTorch.new("pytorch_model.bin", remap: [{~r/^bert\\./, ""}])
      {:ok, result} = ExTorch.Store.apply_to(store, module)
      result.module

  A module is any value that implements the protocol `ExTorch.Module`: maps, lists and tuples of tensors nested to any
  depth, structs that derive it, Nx tensors, `Axon.ModelState`. Modules are not changed in place: `apply_to/2` returns a
  new one, whose tensors have the shapes, dtypes and backends of the original. Shapes and dtypes are compared before
  tensors are read. Tensors that the module does not have are never read.

  There are three stores:

    * `ExTorch.Store.PyTorch` reads all formats of `ExTorch.Checkpoint` and writes zip files
    * `ExTorch.Store.Safetensors` reads the same formats and writes safetensors
    * `ExTorch.Store.Sharded` reads and writes a Hugging Face index with its shards

  ## Options

    * `:top_level_key` - the key of the tensors in the file: `"state_dict"`, `"model.ema"`. `:auto` determines the key
      that fits the module, such as `"state_dict.model"` of a file of Lightning; the result says which. If there are
      several and they do not have the same tensors, it is an error. Defaults to `nil`, the root.
    * `:only`, `:except` - which tensors to apply or save, and which not: a name, `{:prefix, "encoder."}`, a regular
      expression, a function of the name, a function of the name and the `ExTorch.Checkpoint.Entry`, or a list of these.
      The names are those of the module. Filters that select nothing are an error, except `only: []`.
    * `:renumber` - if `true`, renumbers parts without gaps: `fc.0, fc.2, fc.4` become `fc.0, fc.1, fc.2`. Defaults to
      `false`.
    * `:remap` - a list of `{regex, replacement}`, applied one after another, or a function of the name. Maps names of
      the file to names of the module in `apply_to/2`, and the reverse in `collect_from/2`. It is an error if two names
      become the same.
    * `:adapters` - a list of `ExTorch.Store.Adapter` modules, or functions of entry, tensor and target, applied in
      order: `[ExTorch.Store.Adapter.Cast]`, `[{ExTorch.Store.Adapter.Axon, model}]`
    * `:allow_partial` - if `false`, tensors of the module that are missing in the file are an error. If `true`, they
      are listed in `missing` and stay unchanged. Defaults to `false`.
    * `:validate` - if `false`, accepts shapes that can be broadcast to those of the module, and converts dtypes.
      Defaults to `true`.
    * `:overwrite` - if `false`, `collect_from/2` returns an error if the file exists. Defaults to `false`.
    * `:metadata`, `:fsync`, `:compact`, `:duplicate` - as in `ExTorch.save/3`
    * `:strict`, `:verify`, `:readers`, `:drop_behind`, `:limits`, `:on_progress` - as in `ExTorch.load/2`
  """
  @moduledoc groups: ["Modules", "Tensors"]

  alias ExTorch.{Checkpoint, Error, Tensor}
  alias ExTorch.Store.{Apply, ApplyResult, Lookup}

  @type t :: struct()

  @doc "Saves the tensors of a module."
  @callback collect_from(t(), module :: term()) :: :ok | {:error, Error.t()}

  @doc "Applies the tensors of the file to a module."
  @callback apply_to(t(), module :: term()) :: {:ok, ApplyResult.t()} | {:error, Error.t()}

  @doc "Returns the names of the tensors, as a module names them."
  @callback keys(t()) :: {:ok, [String.t()]} | {:error, Error.t()}

  @doc "Returns the entry of one tensor, without reading the tensor."
  @callback entry(t(), String.t()) :: {:ok, Checkpoint.Entry.t()} | {:error, Error.t()}

  @doc "Reads one tensor."
  @callback tensor(t(), String.t()) :: {:ok, Tensor.t()} | {:error, Error.t()}

  @doc """
  Opens the file of the store, calls the function and closes the file.

  The function receives a map or struct: `keys` contains the names of the tensors in file order, `entry` and `tensor`
  are functions of such a name.

  A module that implements this callback can `use ExTorch.Store`, which defines the callbacks that read. Its struct must
  have the fields `:path` and `:options`.
  """
  @callback with_file(t(), (map() -> result)) :: result | {:error, Error.t()} when result: term()
  @optional_callbacks with_file: 2

  @doc false
  defmacro __using__(_options) do
    quote do
      @behaviour ExTorch.Store

      @impl true
      def apply_to(store, module),
        do: with_file(store, &Apply.apply_to(&1, store.path, store.options, module))

      @impl true
      def keys(store), do: with_file(store, &Lookup.keys(&1, store.options))

      @impl true
      def entry(store, name), do: with_file(store, &Lookup.entry(&1, store.options, name))

      @impl true
      def tensor(store, name), do: with_file(store, &Lookup.tensor(&1, store.options, name))
    end
  end

  @doc group: "Modules"
  @doc """
  Saves the tensors of a module to the store's file.

      store = ExTorch.Store.Safetensors.new("model.safetensors", overwrite: true)
      :ok = ExTorch.Store.collect_from(store, %{"encoder" => %{"weight" => ExTorch.ones({2, 2})}})
  """
  @spec collect_from(t(), term()) :: :ok | {:error, Error.t()}
  def collect_from(store, module), do: impl!(store).collect_from(store, module)

  @doc group: "Modules"
  @doc """
  Applies the tensors of the store's file to a module.

  Returns `{:ok, %ExTorch.Store.ApplyResult{}}` with the new module and a report. If tensors are missing or cannot be
  applied, returns `{:error, %ExTorch.Error{}}` with the report in `error.result`, unless `allow_partial: true` is
  given.

      iex> store = ExTorch.Store.PyTorch.new("test/fixtures/2.14.1/state_dict.pt")
      iex> {:ok, result} = ExTorch.Store.apply_to(store, %{"1" => %{"weight" => ExTorch.zeros({4})}})
      iex> ExTorch.Tensor.to_list(result.module["1"]["weight"])
      [1.0, 1.0, 1.0, 1.0]
      iex> {:error, error} = ExTorch.Store.apply_to(store, %{"1" => %{"weight" => ExTorch.zeros({5})}})
      iex> [%{name: "1.weight", expected: %{shape: {5}}, found: %{shape: {4}}}] = error.result.errors
      iex> error.reason
      :bad_argument
  """
  @spec apply_to(t(), term()) :: {:ok, ApplyResult.t()} | {:error, Error.t()}
  def apply_to(store, module), do: impl!(store).apply_to(store, module)

  @doc group: "Tensors"
  @doc """
  Returns the names of the tensors in the file, as a module names them: after `:top_level_key` and `:remap`, and only
  those that `:only` and `:except` select.

      iex> store = ExTorch.Store.PyTorch.new("test/fixtures/2.14.1/nested.pt", top_level_key: "model", only: ~r/bias/)
      iex> ExTorch.Store.keys(store)
      {:ok, ["0.bias", "1.bias", "2.bias"]}
  """
  @spec keys(t()) :: {:ok, [String.t()]} | {:error, Error.t()}
  def keys(store), do: impl!(store).keys(store)

  @doc group: "Tensors"
  @doc """
  Returns the entry of one tensor, without reading the tensor.

      iex> store = ExTorch.Store.PyTorch.new("test/fixtures/2.14.1/nested.pt", top_level_key: "model")
      iex> {:ok, entry} = ExTorch.Store.entry(store, "0.weight")
      iex> entry.shape
      {3, 4}
  """
  @spec entry(t(), String.t()) :: {:ok, Checkpoint.Entry.t()} | {:error, Error.t()}
  def entry(store, name), do: impl!(store).entry(store, name!(name))

  @doc group: "Tensors"
  @doc """
  Reads one tensor.

      iex> store = ExTorch.Store.PyTorch.new("test/fixtures/2.14.1/nested.pt", top_level_key: "model")
      iex> {:ok, tensor} = ExTorch.Store.tensor(store, "0.bias")
      iex> tensor.shape
      {3}
  """
  @spec tensor(t(), String.t()) :: {:ok, Tensor.t()} | {:error, Error.t()}
  def tensor(store, name), do: impl!(store).tensor(store, name!(name))

  @doc group: "Modules"
  @doc "Same as `collect_from/2` but raises on error."
  @spec collect_from!(t(), term()) :: :ok
  def collect_from!(store, module), do: Error.unwrap!(collect_from(store, module))

  @doc group: "Modules"
  @doc "Same as `apply_to/2` but raises on error."
  @spec apply_to!(t(), term()) :: ApplyResult.t()
  def apply_to!(store, module), do: Error.unwrap!(apply_to(store, module))

  @doc group: "Tensors"
  @doc "Same as `keys/1` but raises on error."
  @spec keys!(t()) :: [String.t()]
  def keys!(store), do: Error.unwrap!(keys(store))

  @doc group: "Tensors"
  @doc "Same as `entry/2` but raises on error."
  @spec entry!(t(), String.t()) :: Checkpoint.Entry.t()
  def entry!(store, name), do: Error.unwrap!(entry(store, name))

  @doc group: "Tensors"
  @doc "Same as `tensor/2` but raises on error."
  @spec tensor!(t(), String.t()) :: Tensor.t()
  def tensor!(store, name), do: Error.unwrap!(tensor(store, name))

  defp impl!(%impl{} = store) do
    if Code.ensure_loaded?(impl) and function_exported?(impl, :apply_to, 2),
      do: impl,
      else: not_a_store!(store)
  end

  defp impl!(other), do: not_a_store!(other)

  @spec not_a_store!(term()) :: no_return()
  defp not_a_store!(other),
    do: ExTorch.Options.expected!("a store, such as ExTorch.Store.PyTorch.new(path)", other)

  defp name!(name) when is_binary(name), do: name
  defp name!(other), do: ExTorch.Options.expected!("the name of a tensor as a string", other)
end
