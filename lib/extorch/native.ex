defmodule ExTorch.Native do
  @moduledoc false
  # The stubs of the NIFs: names, arities and specs. c_src/nif/table.h has the same list.
  #
  # A NIF of type result(value) returns {:ok, value, bytes}, where bytes is the number of native bytes it allocated
  # (ExTorch.Memory). {:collect, error} means that the budget is exceeded and a garbage collection may help. Call these
  # NIFs through ExTorch.Native.Call. A term of the wrong type raises ArgumentError.

  use ExTorch.Native.Stub
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
    dir = priv_dir()
    digest = digest(dir)
    running = :persistent_term.get(@digest_key, digest)
    if running != digest, do: Logger.warning("ExTorch: #{@changed}")

    with :ok <- :erlang.load_nif(String.to_charlist(Path.join(dir, "extorch")), 0),
         :persistent_term.put(@digest_key, running),
         {:ok, libraries, 0} <- if(defer?(), do: defer(), else: open_libtorch()) do
      :persistent_term.erase(@reason_key)
      memory_set_budget(ExTorch.Config.budget())
      memory_set_device_budget(:all, ExTorch.Config.device_budget())
      memory_set_background(ExTorch.Config.background())
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

  # Loading LibTorch takes longer than opening a checkpoint, which does not need it. ExTorch.CLI sets :defer_libtorch, and
  # calls load_libtorch/0 if something has returned :not_loaded.
  @doc false
  @spec defer?() :: boolean()
  def defer?, do: Application.get_env(:extorch, :defer_libtorch, false)

  defp defer do
    :ok = native_defer()
    {:ok, [], 0}
  end

  @doc false
  @spec load_libtorch() :: :ok | {:error, ExTorch.Error.t()}
  def load_libtorch do
    case open_libtorch() do
      {:ok, _libraries, _bytes} -> :ok
      {_, error} -> {:error, error}
    end
  end

  defp open_libtorch do
    threads = Application.get_env(:extorch, :num_threads, 0)
    path = if ExTorch.Config.torch?(), do: Path.join(priv_dir(), "extorch_torch.so"), else: ""
    native_load(path, torchx_library(), threads)
  end

  defp not_loaded_message(text) do
    "cannot load the native library of ExTorch: #{text}. #{advice(to_string(text))}" <>
      "Build it again: mix deps.compile extorch --force"
  end

  # nif/libtorch.c has those for the library that is linked with LibTorch.
  defp advice(text) do
    cond do
      text =~ "version `" ->
        "The C library of this system is older than that of the system where ExTorch was built. " <>
          "Build on a system like this one. "

      text =~ "libdeflate" ->
        "Install libdeflate, or put it into the release (config :extorch, bundle_libtorch: true). "

      true ->
        ""
    end
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

  # An escript sets :priv_dir (ExTorch.CLI.Escript).
  defp priv_dir,
    do: Application.get_env(:extorch, :priv_dir) || priv_dir(:code.priv_dir(:extorch))

  # If extorch is not in the code path as an application (`elixir -pa`), priv is in the parent directory of ebin.
  defp priv_dir({:error, :bad_name}),
    do: Path.join(Path.dirname(Path.dirname(:code.which(__MODULE__))), "priv")

  defp priv_dir(dir), do: List.to_string(dir)

  # Returns the LibTorch that Torchx loads when it is used, or an empty string. Torchx is usually loaded later, and the VM
  # would crash then.
  defp torchx_library do
    with dir when is_list(dir) <- :code.priv_dir(:torchx),
         [library | _] <- torchx_libraries(List.to_string(dir)) do
      library
    else
      _ -> ""
    end
  end

  # Torchx has a link to the libraries of its LIBTORCH_DIR. If that is /usr, they are in a directory beside or below.
  defp torchx_libraries(priv) do
    name = needed_libtorch(Path.join(priv, "torchx.so"))

    for dir <- ["libtorch", "libtorch/*-linux-*", "libtorch/../lib64"],
        library <- Path.wildcard(Path.join([priv, dir, name])),
        do: library
  end

  # A library names those that it needs, without their directories.
  defp needed_libtorch(path) do
    with {:ok, library} <- File.read(path),
         [name] <- Regex.run(~r/(?<=\0)libtorch_cpu\.[\w.]+(?=\0)/, library) do
      name
    else
      _ -> "libtorch_cpu.{so,so.*,dylib}"
    end
  end

  defp warn_about_several(libraries) when length(libraries) < 2, do: :ok

  defp warn_about_several(libraries) do
    Logger.warning(
      "ExTorch: several versions of LibTorch are loaded (#{Enum.join(libraries, ", ")}). " <>
        "Build all NIF libraries with the same LibTorch to share memory between them."
    )

    :ok
  end

  nif native_load(path :: String.t(), torchx :: String.t(), threads :: non_neg_integer()) ::
        result([String.t()])

  nif native_defer() :: :ok
  nif info() :: {String.t() | nil, pos_integer()}
  nif manual_seed(seed :: non_neg_integer()) :: :ok
  nif dtype_supported(dtype :: atom()) :: boolean()
  nif device_types() :: [{atom(), non_neg_integer()}]
  nif device_type(name :: String.t()) :: atom()

  nif device_memory(device :: ExTorch.Device.device()) ::
        result({non_neg_integer(), non_neg_integer()})

  nif device_synchronize(device :: ExTorch.Device.device()) :: result(nil)
  nif device_load_library(path :: String.t()) :: result(nil)
  nif memory_live() :: %{atom() => non_neg_integer()}
  nif memory_budget() :: non_neg_integer() | :infinity
  nif memory_set_budget(bytes :: non_neg_integer() | :infinity) :: :ok
  nif memory_device_live(device :: ExTorch.Device.device()) :: non_neg_integer()
  nif memory_device_budget(device :: ExTorch.Device.device()) :: non_neg_integer() | :infinity

  nif memory_set_device_budget(
        device :: ExTorch.Device.device() | :all,
        bytes :: non_neg_integer() | :infinity
      ) :: :ok

  nif memory_set_background(uses :: [ExTorch.Config.background_use()]) :: :ok
  nif memory_collect_begin() :: reference()

  nif memory_collect_wait(
        mark :: reference(),
        rounds :: pos_integer(),
        milliseconds :: non_neg_integer()
      ) :: boolean()

  nif op(name :: String.t(), args :: list(), kwargs :: [{atom() | String.t(), term()}]) ::
        result(term())

  nif tensor(
        list :: number() | boolean() | list(),
        dtype :: atom(),
        device :: ExTorch.Device.device()
      ) :: result(ExTorch.Tensor.t())

  nif tensor_to_list(tensor :: ExTorch.Tensor.t()) :: result(term())

  nif tensor_from_binary(binary :: binary(), shape :: tuple() | list(), dtype :: atom()) ::
        result(ExTorch.Tensor.t())

  nif tensor_to_binary(tensor :: ExTorch.Tensor.t()) :: result(binary())
  nif tensor_strides(tensor :: ExTorch.Tensor.t()) :: result(tuple() | nil)
  nif tensor_equal(a :: ExTorch.Tensor.t(), b :: ExTorch.Tensor.t()) :: result(boolean())

  nif tensor_summary(tensor :: ExTorch.Tensor.t()) ::
        result({
          nan :: non_neg_integer(),
          infinite :: non_neg_integer(),
          zeros :: non_neg_integer(),
          finite :: non_neg_integer(),
          min :: float() | :infinity,
          max :: float() | :neg_infinity,
          mean :: float() | atom(),
          m2 :: float() | atom()
        })

  nif tensor_histogram(
        tensor :: ExTorch.Tensor.t(),
        bins :: pos_integer(),
        low :: float(),
        high :: float()
      ) :: result([non_neg_integer()])

  nif tensor_difference(
        a :: ExTorch.Tensor.t(),
        b :: ExTorch.Tensor.t(),
        rtol :: float(),
        atol :: float(),
        equal_nan :: boolean()
      ) ::
        result({
          differing :: non_neg_integer(),
          beyond :: non_neg_integer(),
          nan :: non_neg_integer(),
          max :: float() | :infinity,
          sum :: float() | :infinity
        })

  nif tensor_requires_grad(tensor :: ExTorch.Tensor.t()) :: result(boolean())

  nif tensor_set_requires_grad(tensor :: ExTorch.Tensor.t(), flag :: boolean()) ::
        result(ExTorch.Tensor.t())

  nif tensor_release(tensor :: ExTorch.Tensor.t()) :: :ok

  nif blob_to_blob(tensor :: ExTorch.Tensor.t() | ExTorch.Tensor.BlobView.t()) ::
        result(ExTorch.Tensor.Blob.t())

  nif blob_from_blob(info :: map(), owner :: term(), validate :: boolean(), frozen :: boolean()) ::
        result(ExTorch.Tensor.t())

  nif lease_keep(tensor :: ExTorch.Tensor.t(), bytes :: pos_integer()) ::
        result(non_neg_integer())

  nif lease_hold(address :: non_neg_integer(), holder :: term()) :: boolean()

  nif lease_release(address :: non_neg_integer() | nil, holder :: term()) ::
        {:ok, holder :: term()} | false

  nif lease_owner(address :: non_neg_integer()) :: result(ExTorch.Tensor.t() | nil)
  nif memory_leases() :: [ExTorch.Memory.lease()]

  # ---- Checkpoints ----

  @type checkpoint :: reference()
  @type checkpoint_options :: ExTorch.Checkpoint.Options.native()
  @type target :: ExTorch.Checkpoint.SourceReader.target()
  @type style :: {ordered :: boolean(), set :: MapSet.t()}
  @type range :: {offset :: non_neg_integer(), size :: pos_integer()}

  nif checkpoint_open(path :: Path.t(), options :: checkpoint_options()) ::
        result(checkpoint() | :directory)

  nif checkpoint_open_binary(binary :: binary(), options :: checkpoint_options()) ::
        result(checkpoint())

  nif source_reader_open(size :: non_neg_integer(), options :: checkpoint_options()) ::
        result({checkpoint(), tuple() | :open})

  nif source_reader_fill(checkpoint :: checkpoint(), bytes :: binary()) :: result(tuple() | :open)
  nif checkpoint_close(checkpoint :: checkpoint()) :: boolean()
  nif checkpoint_keys(checkpoint :: checkpoint()) :: result([String.t()])

  nif checkpoint_entries(checkpoint :: checkpoint(), names :: :all | [String.t()]) ::
        result([ExTorch.Checkpoint.Entry.t()] | [[ExTorch.Checkpoint.Entry.t()]])

  nif checkpoint_match(checkpoint :: checkpoint(), leaves :: [ExTorch.Store.Leaves.leaf()]) ::
        result({[non_neg_integer()], non_neg_integer()} | nil)

  nif checkpoint_metadata(checkpoint :: checkpoint()) :: result(map())
  nif checkpoint_storages(checkpoint :: checkpoint()) :: result([map()])
  nif checkpoint_records(checkpoint :: checkpoint()) :: result([String.t()])

  nif checkpoint_object(checkpoint :: checkpoint(), tensors :: tuple(), style :: style()) ::
        result(term())

  nif checkpoint_tensor(
        checkpoint :: checkpoint(),
        name :: String.t() | non_neg_integer(),
        verify :: boolean()
      ) :: result(ExTorch.Tensor.t() | [ExTorch.Checkpoint.Entry.t()])

  nif checkpoint_read_record(
        checkpoint :: checkpoint(),
        name :: String.t(),
        from :: non_neg_integer(),
        size :: non_neg_integer() | nil,
        verify :: boolean()
      ) :: result(binary() | nil)

  nif source_reader_locate(checkpoint :: checkpoint(), target :: target(), verify :: boolean()) ::
        result([range()] | nil)

  nif device_load_begin(
        checkpoint :: reference(),
        entries :: [non_neg_integer()],
        devices :: [ExTorch.Device.device()],
        verify :: boolean(),
        sparing :: boolean()
      ) :: result({reference(), non_neg_integer(), [non_neg_integer()]})

  nif device_load_tensors(tensors :: [ExTorch.Tensor.t()], device :: ExTorch.Device.device()) ::
        result({reference(), non_neg_integer()} | nil)

  nif device_load_step(load :: reference(), bytes :: pos_integer()) ::
        result({:more | :wait, non_neg_integer()} | :done)

  nif device_load_fill(load :: reference(), bytes :: binary() | nil) ::
        result(
          {:need, non_neg_integer(), pos_integer(), non_neg_integer()}
          | {:wait, boolean(), non_neg_integer()}
          | :done
        )

  nif device_load_ahead(load :: reference()) ::
        result([{non_neg_integer(), pos_integer()}])

  nif device_load_ready(load :: reference()) :: result(boolean())
  nif device_load_finish(load :: reference()) :: result([ExTorch.Tensor.t()])
  nif device_load_close(load :: reference()) :: :ok

  nif source_reader_decode(
        checkpoint :: checkpoint(),
        target :: target(),
        verify :: boolean(),
        pieces :: [{non_neg_integer(), binary()}]
      ) :: result(ExTorch.Tensor.t() | binary())

  nif batch_load_run(
        checkpoint :: checkpoint(),
        indices :: [non_neg_integer()] | :all,
        verify :: boolean(),
        sparing :: boolean(),
        style :: style() | nil
      ) :: result(term())

  nif batch_load_words(checkpoint :: checkpoint()) :: result(non_neg_integer())

  nif batch_load_begin(
        checkpoint :: checkpoint(),
        indices :: [non_neg_integer()] | :all,
        verify :: boolean(),
        sparing :: boolean()
      ) :: result({reference(), non_neg_integer()})

  nif batch_load_step(batch :: reference(), bytes :: non_neg_integer()) ::
        result({:more, non_neg_integer()} | :done)

  nif batch_load_fill(batch :: reference(), bytes :: binary() | nil) ::
        result({:need, non_neg_integer(), non_neg_integer(), non_neg_integer()} | :done)

  nif batch_load_ahead(batch :: reference()) :: result([{non_neg_integer(), pos_integer()}])
  nif batch_load_finish(batch :: reference(), style :: style() | nil) :: result(term())
  nif batch_load_close(batch :: reference()) :: :ok

  # ---- Streams ----

  @type loader :: reference()
  @type ready :: [{non_neg_integer(), ExTorch.Tensor.t() | struct()}]
  @type fed ::
          {:more, non_neg_integer() | nil, non_neg_integer(), non_neg_integer(), ready()}
          | {:again, non_neg_integer(), non_neg_integer(), ready()}
          | :described
          | {:done, non_neg_integer(), ready()}

  nif loader_new(
        options :: checkpoint_options(),
        spool_bytes :: non_neg_integer(),
        flags :: {boolean(), boolean(), boolean()}
      ) :: result({loader(), checkpoint()})

  nif loader_stored(loader :: loader(), bytes :: non_neg_integer()) :: result(:ok)

  nif loader_feed(loader :: loader(), number :: non_neg_integer() | nil, binary :: binary()) ::
        result(fed())

  nif loader_select(loader :: loader(), indices :: [non_neg_integer()] | :all) ::
        result(non_neg_integer())

  nif loader_finish(loader :: loader(), style :: style() | nil) :: result(term())
  nif loader_release(loader :: loader(), ended :: boolean()) :: result(non_neg_integer())
  nif loader_ended(loader :: loader(), number :: non_neg_integer()) :: result(no_return())

  # ---- Received bytes ----
  nif incoming_begin(size :: pos_integer()) :: result(reference())

  nif incoming_receive(incoming :: reference(), descriptor :: integer(), bytes :: binary()) ::
        result(non_neg_integer())

  nif incoming_finish(incoming :: reference()) :: result(binary())

  # ---- JSON ----
  nif json_read(path :: binary(), max_bytes :: non_neg_integer()) :: result(term())

  nif json_parse(text :: binary()) :: result(term())

  # ---- Saving ----
  nif saver_begin(
        term :: term(),
        format :: atom(),
        root :: String.t(),
        flags :: {boolean(), boolean()},
        metadata :: [{String.t(), String.t()}]
      ) :: result({reference(), non_neg_integer()} | nil)

  nif saver_open(saver :: reference(), path :: binary(), fsync :: boolean()) :: result(:ok)

  nif saver_step(saver :: reference(), bytes :: pos_integer()) ::
        result({:more, non_neg_integer()} | :done)

  nif saver_next(saver :: reference(), bytes :: pos_integer()) ::
        result({:more | :done, non_neg_integer(), iodata()})

  # ---- Atomic files ----
  nif atomic_file_open(path :: binary()) :: result(reference())
  nif atomic_file_open_index(path :: binary()) :: result({reference(), String.t()})
  nif atomic_file_claim(path :: binary()) :: result(reference() | nil)
  nif atomic_file_write(file :: reference(), data :: binary()) :: result(:ok)
  nif atomic_file_sync(file :: reference()) :: result(:ok)
  nif atomic_file_close(file :: reference(), commit :: boolean()) :: result(:ok)
  nif atomic_file_discard(file :: reference()) :: result(:ok)

  # ---- Directories ----
  nif directory_lock(path :: binary()) :: result(reference() | nil)
  nif directory_unlock(lock :: reference()) :: result(:ok)

  nif directory_list(path :: binary(), prefix :: binary(), suffix :: binary()) ::
        result([binary()])

  # ---- LibTorch's own archives ----
  nif archive_start(
        tensors :: [{String.t(), ExTorch.Tensor.t()}] | :load,
        ref :: reference(),
        chunk :: pos_integer(),
        timeout :: integer()
      ) :: result(reference())

  nif archive_answer(job :: reference(), answer :: :ok | binary() | non_neg_integer() | :error) ::
        boolean()

  nif archive_result(job :: reference()) :: result([{String.t(), ExTorch.Tensor.t()}])
end
