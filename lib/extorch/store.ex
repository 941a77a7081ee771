defmodule ExTorch.Store do
  @moduledoc """
  Files and modules: a store applies the tensors of a checkpoint to a module, and collects a module's tensors into one,
  with filters, renaming and a full account of what went where.

      store = ExTorch.Store.PyTorch.new("pytorch_model.bin", remap: [{~r/^bert\\./, ""}])
      {:ok, result} = ExTorch.Store.apply_to(store, module)
      result.module

  A module is anything that `ExTorch.Module` can walk: maps, lists and tuples of tensors nested to any depth, structs that
  derive it, Nx tensors, `Axon.ModelState`. Nothing is changed in place; shape, dtype and backend of the result are those
  of the module. Shapes and dtypes are compared before a byte is read; tensors that no name of the module stands for are
  never read; on an error the module is as it was.

  `ExTorch.Store.PyTorch` reads every format of `ExTorch.Checkpoint` and writes zip; `ExTorch.Store.Safetensors` writes
  safetensors; `ExTorch.Store.Sharded` a Hugging Face index with its shards.

  ## Options

    * `:top_level_key` - where in the file the tensors are: `"state_dict"`, `"model.ema"`. `:auto` finds it when only one
      place fits the module.
    * `:only`, `:except` - names, regular expressions, functions of the name (or of name and entry), or lists of such: what
      is applied or collected, and what is not. They see the names the module knows.
    * `:renumber` - `false`. `true` counts numbered parts anew: `fc.0, fc.2, fc.4` become `fc.0, fc.1, fc.2`.
    * `:remap` - pairs of a regular expression and a replacement, tried in order, each on what the one before left; or a
      function of the name. From file names to module names when applying, the other way when collecting. Two names that
      become one are an error.
    * `:adapters` - modules of `ExTorch.Store.Adapter`, or functions of entry, tensor and target, applied in order.
    * `:allow_partial` - `false`: what the module has and the file lacks is an error. `true`: it is in `missing`.
    * `:validate` - `true`. `false` accepts shapes that broadcast to the module's, and converts dtypes.
    * `:overwrite` - `false`: collecting into a file that exists is an error.
    * `:metadata` - a map of strings, for safetensors. `:on_progress` - as in `ExTorch.load/2`.
    * `:fsync`, `:compact`, `:duplicate` - as in `ExTorch.save/3`. `:strict`, `:verify`, `:limits` - as in `ExTorch.load/2`.
  """

  alias ExTorch.{Checkpoint, Error, Tensor}
  alias ExTorch.Store.ApplyResult

  @type t :: struct()

  @doc "Saves a module's tensors."
  @callback collect_from(t(), module :: term()) :: :ok | {:error, Error.t()}

  @doc "Fills a module with the file's tensors."
  @callback apply_to(t(), module :: term()) :: {:ok, ApplyResult.t()} | {:error, Error.t()}

  @doc "The names of the file's tensors, as a module would know them."
  @callback keys(t()) :: {:ok, [String.t()]} | {:error, Error.t()}

  @doc "One tensor, described, by the name a module would know it by."
  @callback entry(t(), String.t()) :: {:ok, Checkpoint.Entry.t()} | {:error, Error.t()}

  @doc "One tensor, read."
  @callback tensor(t(), String.t()) :: {:ok, Tensor.t()} | {:error, Error.t()}

  @doc """
  Opens the store's file for the function and closes it afterwards. The file is a map: `keys`, the names of its tensors in
  their order, and `entry` and `tensor`, functions of such a name.

  With it `use ExTorch.Store` gives a store of your own all that reads; `:path` and `:options` are fields of its struct.
  """
  @callback with_file(t(), (map() -> result)) :: result | {:error, Error.t()} when result: term()
  @optional_callbacks with_file: 2

  @doc false
  defmacro __using__(_options) do
    quote do
      @behaviour ExTorch.Store

      @impl true
      def apply_to(store, module) do
        with_file(store, &ExTorch.Store.Engine.apply_to(&1, store.path, store.options, module))
      end

      @impl true
      def keys(store), do: with_file(store, &ExTorch.Store.Engine.keys(&1, store.options))

      @impl true
      def entry(store, name) do
        with_file(store, fn file ->
          with {:ok, from} <- ExTorch.Store.Engine.find(file, store.options, name),
               do: file.entry.(from)
        end)
      end

      @impl true
      def tensor(store, name) do
        with_file(store, fn file ->
          with {:ok, from} <- ExTorch.Store.Engine.find(file, store.options, name),
               do: file.tensor.(from)
        end)
      end
    end
  end

  @doc "Saves the tensors of a module to the store's file."
  @spec collect_from(t(), term()) :: :ok | {:error, Error.t()}
  def collect_from(%store{} = self, module), do: store.collect_from(self, module)

  @doc """
  Fills a module with the tensors of the store's file.

  `{:ok, %ExTorch.Store.ApplyResult{}}` has the new module and the account. Where the module would stay incomplete the
  answer is `{:error, %ExTorch.Error{}}` with the account in `error.result`, unless `allow_partial: true`.
  """
  @spec apply_to(t(), term()) :: {:ok, ApplyResult.t()} | {:error, Error.t()}
  def apply_to(%store{} = self, module), do: store.apply_to(self, module)

  @doc "The names of the file's tensors, as a module would know them."
  @spec keys(t()) :: {:ok, [String.t()]} | {:error, Error.t()}
  def keys(%store{} = self), do: store.keys(self)

  @doc "One tensor, described."
  @spec entry(t(), String.t()) :: {:ok, Checkpoint.Entry.t()} | {:error, Error.t()}
  def entry(%store{} = self, name), do: store.entry(self, name)

  @doc "One tensor, read."
  @spec tensor(t(), String.t()) :: {:ok, Tensor.t()} | {:error, Error.t()}
  def tensor(%store{} = self, name), do: store.tensor(self, name)

  @doc "`collect_from/2`, raising."
  @spec collect_from!(t(), term()) :: :ok
  def collect_from!(store, module), do: Error.bang!(collect_from(store, module))

  @doc "`apply_to/2`, raising."
  @spec apply_to!(t(), term()) :: ApplyResult.t()
  def apply_to!(store, module), do: Error.bang!(apply_to(store, module))

  @doc "`keys/1`, raising."
  @spec keys!(t()) :: [String.t()]
  def keys!(store), do: Error.bang!(keys(store))

  @doc "`entry/2`, raising."
  @spec entry!(t(), String.t()) :: Checkpoint.Entry.t()
  def entry!(store, name), do: Error.bang!(entry(store, name))

  @doc "`tensor/2`, raising."
  @spec tensor!(t(), String.t()) :: Tensor.t()
  def tensor!(store, name), do: Error.bang!(tensor(store, name))
end
