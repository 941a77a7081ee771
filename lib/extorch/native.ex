defmodule ExTorch.Native do
  @moduledoc false
  # The stubs of the NIFs: names, arities and specs. c_src/nif/table.h has the same list.
  #
  # A NIF that may allocate memory returns {:ok, value, bytes}, where bytes is the number of native bytes it allocated
  # (ExTorch.Memory). {:collect, error} means that the budget is exceeded and a garbage collection may help. A term of
  # the wrong type raises ArgumentError.

  require Logger

  # load/0 also runs when this module has been compiled, and calls these.
  Enum.each([ExTorch.Config, ExTorch.Error, ExTorch.Meminfo], &Code.ensure_compiled!/1)

  @on_load :load
  @reason_key {__MODULE__, :reason}
  @digest_key {__MODULE__, :digest}
  @changed "the native library has changed on disk, but this node runs the earlier one; restart the node to use it"

  @type result(value) ::
          {:ok, value, non_neg_integer()}
          | {:collect, ExTorch.Error.t()}
          | {:error, ExTorch.Error.t()}

  # If a library cannot be loaded, the module is loaded all the same, and every call raises :not_loaded with the reason:
  # a node can start, and says what is missing. If the module is loaded again, it takes over the library that is running,
  # also if the file has changed: the operating system returns the library that it has loaded from this path, and a
  # module that refused it would be gone once its old code is purged.
  @doc false
  def load do
    dir = :code.priv_dir(:extorch) |> priv_dir()
    threads = Application.get_env(:extorch, :num_threads, 0)
    digest = digest(dir)
    running = :persistent_term.get(@digest_key, digest)
    if running != digest, do: Logger.warning("ExTorch: #{@changed}")

    with :ok <- :erlang.load_nif(String.to_charlist(Path.join(dir, "extorch")), 0),
         :persistent_term.put(@digest_key, running),
         {:ok, libraries, 0} <- native_load(Path.join(dir, "extorch_torch.so"), threads) do
      :persistent_term.erase(@reason_key)
      memory_set_budget(ExTorch.Config.budget())
      warn_about_several(libraries)
    else
      {:error, %{message: message}} ->
        :persistent_term.put(@reason_key, message)

      {:error, {_, text}} when running != digest ->
        :persistent_term.put(@reason_key, "#{@changed} (#{text})")

      {:error, {_, text}} ->
        :persistent_term.put(@reason_key, not_loaded_message(text))
    end
  end

  defp not_loaded_message(text) do
    "cannot load the native library of ExTorch: #{text}. Build it again: mix deps.compile extorch --force"
  end

  defp digest(dir) do
    for name <- ["extorch.so", "extorch_torch.so"] do
      case File.read(Path.join(dir, name)) do
        {:ok, bytes} -> :erlang.md5(bytes)
        {:error, reason} -> reason
      end
    end
  end

  # Returns :ok, or the reason why the library is not loaded.
  @doc false
  @spec status() :: :ok | {:error, ExTorch.Error.t()}
  def status do
    case :persistent_term.get(@reason_key, nil) do
      nil -> :ok
      _reason -> {:error, not_loaded()}
    end
  end

  defp not_loaded do
    reason = :persistent_term.get(@reason_key, "the native library of ExTorch is not loaded")
    ExTorch.Error.new(:not_loaded, reason)
  end

  # If extorch is not in the code path as an application (`elixir -pa`), priv is in the parent directory of ebin.
  defp priv_dir({:error, :bad_name}),
    do: Path.join(Path.dirname(Path.dirname(:code.which(__MODULE__))), "priv")

  defp priv_dir(dir), do: List.to_string(dir)

  defp warn_about_several([_one]), do: :ok

  defp warn_about_several(libraries) do
    Logger.warning(
      "ExTorch: several versions of LibTorch are loaded (#{Enum.join(libraries, ", ")}). " <>
        "Build all NIF libraries with the same LibTorch to share memory between them."
    )

    :ok
  end

  @spec native_load(String.t(), non_neg_integer()) :: result([String.t()])
  def native_load(_path, _threads), do: :erlang.nif_error(not_loaded())

  @spec info() :: {String.t(), pos_integer()}
  def info, do: :erlang.nif_error(not_loaded())

  @spec manual_seed(non_neg_integer()) :: :ok
  def manual_seed(_seed), do: :erlang.nif_error(not_loaded())

  @spec dtype_supported(atom()) :: boolean()
  def dtype_supported(_dtype), do: :erlang.nif_error(not_loaded())

  @spec device_count(:cuda | :mps) :: non_neg_integer()
  def device_count(_type), do: :erlang.nif_error(not_loaded())

  @spec device_memory(non_neg_integer()) :: result({non_neg_integer(), non_neg_integer()})
  def device_memory(_index), do: :erlang.nif_error(not_loaded())

  @spec memory_live() :: %{atom() => non_neg_integer()}
  def memory_live, do: :erlang.nif_error(not_loaded())

  @spec memory_budget() :: non_neg_integer() | :infinity
  def memory_budget, do: :erlang.nif_error(not_loaded())

  @spec memory_set_budget(non_neg_integer() | :infinity) :: :ok
  def memory_set_budget(_bytes), do: :erlang.nif_error(not_loaded())

  @spec memory_collect_begin() :: reference()
  def memory_collect_begin, do: :erlang.nif_error(not_loaded())

  @spec memory_collect_wait(reference(), pos_integer(), non_neg_integer()) :: boolean()
  def memory_collect_wait(_mark, _rounds, _milliseconds), do: :erlang.nif_error(not_loaded())

  @spec op(String.t(), list(), [{atom() | String.t(), term()}]) :: result(term())
  def op(_name, _args, _kwargs), do: :erlang.nif_error(not_loaded())

  @spec tensor(number() | boolean() | list(), atom(), ExTorch.Device.device()) ::
          result(ExTorch.Tensor.t())
  def tensor(_list, _dtype, _device), do: :erlang.nif_error(not_loaded())

  @spec tensor_to_list(ExTorch.Tensor.t()) :: result(term())
  def tensor_to_list(_tensor), do: :erlang.nif_error(not_loaded())

  @spec tensor_from_binary(binary(), tuple() | list(), atom()) :: result(ExTorch.Tensor.t())
  def tensor_from_binary(_binary, _shape, _dtype), do: :erlang.nif_error(not_loaded())

  @spec tensor_to_binary(ExTorch.Tensor.t()) :: result(binary())
  def tensor_to_binary(_tensor), do: :erlang.nif_error(not_loaded())

  @spec tensor_strides(ExTorch.Tensor.t()) :: result(tuple() | nil)
  def tensor_strides(_tensor), do: :erlang.nif_error(not_loaded())

  @spec tensor_equal(ExTorch.Tensor.t(), ExTorch.Tensor.t()) :: result(boolean())
  def tensor_equal(_a, _b), do: :erlang.nif_error(not_loaded())

  @spec tensor_requires_grad(ExTorch.Tensor.t()) :: result(boolean())
  def tensor_requires_grad(_tensor), do: :erlang.nif_error(not_loaded())

  @spec tensor_set_requires_grad(ExTorch.Tensor.t(), boolean()) :: result(ExTorch.Tensor.t())
  def tensor_set_requires_grad(_tensor, _flag), do: :erlang.nif_error(not_loaded())

  @spec tensor_release(ExTorch.Tensor.t()) :: :ok
  def tensor_release(_tensor), do: :erlang.nif_error(not_loaded())

  @spec blob_to_blob(ExTorch.Tensor.t() | ExTorch.Tensor.BlobView.t()) ::
          result(ExTorch.Tensor.Blob.t())
  def blob_to_blob(_tensor), do: :erlang.nif_error(not_loaded())

  @spec blob_from_blob(map(), term(), boolean()) :: result(ExTorch.Tensor.t())
  def blob_from_blob(_info, _owner, _validate), do: :erlang.nif_error(not_loaded())

  @spec lease_keep(ExTorch.Tensor.t()) :: result(non_neg_integer())
  def lease_keep(_tensor), do: :erlang.nif_error(not_loaded())

  @spec lease_release(non_neg_integer()) :: boolean()
  def lease_release(_address), do: :erlang.nif_error(not_loaded())

  @type checkpoint :: reference()
  @type checkpoint_options :: ExTorch.Checkpoint.Options.native()
  @type target :: ExTorch.Checkpoint.SourceReader.target()

  @spec checkpoint_open(Path.t(), checkpoint_options()) :: result(checkpoint())
  def checkpoint_open(_path, _options), do: :erlang.nif_error(not_loaded())

  @spec checkpoint_open_binary(binary(), checkpoint_options()) :: result(checkpoint())
  def checkpoint_open_binary(_binary, _options), do: :erlang.nif_error(not_loaded())

  @spec source_reader_open(non_neg_integer(), checkpoint_options()) ::
          result({checkpoint(), tuple() | :open})
  def source_reader_open(_size, _options), do: :erlang.nif_error(not_loaded())

  @spec source_reader_fill(checkpoint(), binary()) :: result(tuple() | :open)
  def source_reader_fill(_checkpoint, _bytes), do: :erlang.nif_error(not_loaded())

  @spec checkpoint_close(checkpoint()) :: boolean()
  def checkpoint_close(_checkpoint), do: :erlang.nif_error(not_loaded())

  @spec checkpoint_keys(checkpoint()) :: result([String.t()])
  def checkpoint_keys(_checkpoint), do: :erlang.nif_error(not_loaded())

  @spec checkpoint_entries(checkpoint()) :: result([ExTorch.Checkpoint.Entry.t()])
  def checkpoint_entries(_checkpoint), do: :erlang.nif_error(not_loaded())

  @spec checkpoint_entry(checkpoint(), String.t()) :: result([ExTorch.Checkpoint.Entry.t()])
  def checkpoint_entry(_checkpoint, _name), do: :erlang.nif_error(not_loaded())

  @spec checkpoint_metadata(checkpoint()) :: result(map())
  def checkpoint_metadata(_checkpoint), do: :erlang.nif_error(not_loaded())

  @spec checkpoint_storages(checkpoint()) :: result([map()])
  def checkpoint_storages(_checkpoint), do: :erlang.nif_error(not_loaded())

  @spec checkpoint_records(checkpoint()) :: result([String.t()])
  def checkpoint_records(_checkpoint), do: :erlang.nif_error(not_loaded())

  @spec checkpoint_object(checkpoint(), tuple(), boolean(), MapSet.t()) :: result(term())
  def checkpoint_object(_checkpoint, _tensors, _ordered, _set),
    do: :erlang.nif_error(not_loaded())

  @spec checkpoint_tensor(checkpoint(), non_neg_integer(), boolean()) ::
          result(ExTorch.Tensor.t())
  def checkpoint_tensor(_checkpoint, _index, _verify), do: :erlang.nif_error(not_loaded())

  @spec batch_load_begin(checkpoint(), [non_neg_integer()] | :all, boolean()) ::
          result({reference(), non_neg_integer(), non_neg_integer()})
  def batch_load_begin(_checkpoint, _indices, _verify), do: :erlang.nif_error(not_loaded())

  @spec batch_load_step(reference(), non_neg_integer()) ::
          result({:more, non_neg_integer()} | {:done, list()})
  def batch_load_step(_batch, _bytes), do: :erlang.nif_error(not_loaded())

  @spec batch_load_fill(reference(), binary() | nil) ::
          result(
            {:need, non_neg_integer(), non_neg_integer(), non_neg_integer()}
            | {:done, list()}
          )
  def batch_load_fill(_batch, _bytes), do: :erlang.nif_error(not_loaded())

  @spec batch_load_close(reference()) :: :ok
  def batch_load_close(_batch), do: :erlang.nif_error(not_loaded())

  @spec checkpoint_read_record(
          checkpoint(),
          String.t(),
          non_neg_integer(),
          non_neg_integer() | nil,
          boolean()
        ) ::
          result(binary() | nil)
  def checkpoint_read_record(_checkpoint, _name, _from, _size, _verify),
    do: :erlang.nif_error(not_loaded())

  @spec source_reader_locate(checkpoint(), target(), boolean()) :: result(tuple() | nil)
  def source_reader_locate(_checkpoint, _target, _whole), do: :erlang.nif_error(not_loaded())

  @spec source_reader_check_header(checkpoint(), target(), binary()) :: result(:ok)
  def source_reader_check_header(_checkpoint, _target, _header),
    do: :erlang.nif_error(not_loaded())

  @spec source_reader_decode(checkpoint(), target(), boolean(), non_neg_integer(), binary()) ::
          result(ExTorch.Tensor.t() | struct() | binary() | nil)
  def source_reader_decode(_checkpoint, _target, _verify, _offset, _bytes),
    do: :erlang.nif_error(not_loaded())

  # ---- Streams ----

  @type stream :: reference()
  @type ready :: [{non_neg_integer(), ExTorch.Tensor.t() | struct()}]

  @spec loader_new(checkpoint_options(), non_neg_integer()) :: result({stream(), checkpoint()})
  def loader_new(_options, _spool_bytes), do: :erlang.nif_error(not_loaded())

  @spec loader_claim(stream(), non_neg_integer()) :: result(:ok)
  def loader_claim(_loader, _number), do: :erlang.nif_error(not_loaded())

  @spec loader_release(stream(), boolean()) :: non_neg_integer()
  def loader_release(_loader, _over), do: :erlang.nif_error(not_loaded())

  @spec loader_select(stream(), [non_neg_integer()] | :all) ::
          result({non_neg_integer(), non_neg_integer()})
  def loader_select(_loader, _indices), do: :erlang.nif_error(not_loaded())

  @spec loader_feed(stream(), binary()) ::
          result(
            :described
            | {:again | :more, non_neg_integer(), non_neg_integer(), ready()}
            | {:done, non_neg_integer(), ready()}
          )
  def loader_feed(_loader, _binary), do: :erlang.nif_error(not_loaded())

  @spec loader_ended(stream()) :: {:error, ExTorch.Error.t()}
  def loader_ended(_loader), do: :erlang.nif_error(not_loaded())

  # ---- JSON ----

  @spec json_read(binary(), non_neg_integer()) :: result(term())
  def json_read(_path, _max_bytes), do: :erlang.nif_error(not_loaded())

  # ---- Saving ----

  @spec saver_begin(term(), atom(), String.t(), {boolean(), boolean()}, [{String.t(), String.t()}]) ::
          result({reference(), non_neg_integer()})
  def saver_begin(_term, _format, _root, _flags, _metadata), do: :erlang.nif_error(not_loaded())

  @spec saver_open(reference(), binary(), boolean()) :: result(:ok)
  def saver_open(_saver, _path, _fsync), do: :erlang.nif_error(not_loaded())

  @spec saver_step(reference(), pos_integer()) :: result({:more, non_neg_integer()} | :done)
  def saver_step(_saver, _bytes), do: :erlang.nif_error(not_loaded())

  @spec saver_next(reference(), pos_integer()) ::
          result({:more | :done, non_neg_integer(), iodata()})
  def saver_next(_saver, _bytes), do: :erlang.nif_error(not_loaded())

  # ---- Atomic files ----

  @spec atomic_file_open(binary()) :: result(reference())
  def atomic_file_open(_path), do: :erlang.nif_error(not_loaded())

  @spec atomic_file_open_index(binary()) :: result({reference(), String.t()})
  def atomic_file_open_index(_path), do: :erlang.nif_error(not_loaded())

  @spec atomic_file_claim(binary()) :: result(reference() | nil)
  def atomic_file_claim(_path), do: :erlang.nif_error(not_loaded())

  @spec atomic_file_write(reference(), binary()) :: result(:ok)
  def atomic_file_write(_file, _data), do: :erlang.nif_error(not_loaded())

  @spec atomic_file_sync(reference()) :: result(:ok)
  def atomic_file_sync(_file), do: :erlang.nif_error(not_loaded())

  @spec atomic_file_close(reference(), boolean()) :: result(:ok)
  def atomic_file_close(_file, _commit), do: :erlang.nif_error(not_loaded())

  @spec atomic_file_discard(reference()) :: result(:ok)
  def atomic_file_discard(_file), do: :erlang.nif_error(not_loaded())

  # ---- Directories ----

  @spec directory_lock(binary()) :: result(reference() | nil)
  def directory_lock(_path), do: :erlang.nif_error(not_loaded())

  @spec directory_unlock(reference()) :: result(:ok)
  def directory_unlock(_lock), do: :erlang.nif_error(not_loaded())

  @spec directory_list(binary(), binary(), binary()) :: result([binary()])
  def directory_list(_path, _prefix, _suffix), do: :erlang.nif_error(not_loaded())

  # ---- LibTorch's own archives ----

  @spec archive_start(
          [{String.t(), ExTorch.Tensor.t()}] | :load,
          reference(),
          pos_integer(),
          integer()
        ) ::
          result(reference())
  def archive_start(_tensors, _ref, _chunk, _timeout), do: :erlang.nif_error(not_loaded())

  @spec archive_answer(reference(), :ok | binary() | non_neg_integer() | :error) :: boolean()
  def archive_answer(_job, _answer), do: :erlang.nif_error(not_loaded())

  @spec archive_result(reference()) :: result([{String.t(), ExTorch.Tensor.t()}])
  def archive_result(_job), do: :erlang.nif_error(not_loaded())
end
