defmodule ExTorch.Device do
  @moduledoc """
  Devices of tensors: `:cpu`, `{:cuda, 0}`, `:mps`, `{:xpu, 0}`, `:meta`, and those of any backend that a library registers
  with LibTorch. Meta tensors have a shape but no memory.

  Functions that take a device accept it without an index (`:cuda` is the first one) and by torch's names: `"cpu"`,
  `"cuda:0"`.

      iex> :cpu in ExTorch.Device.available()
      true
      iex> t = ExTorch.zeros({1000, 1000}, device: :meta)
      iex> ExTorch.matmul(t, t).shape
      {1000, 1000}

  ## Loading to a device

  `ExTorch.load/2`, `ExTorch.Checkpoint`, `ExTorch.Streaming` and the stores take `device:`. The bytes are read into a few
  pinned buffers, 32 MiB together for a load to one device, and copied from there while the next ones are read. The tensors
  are returned when all copies are done. So a file may be larger than the memory of the machine, if it fits the device;
  only compressed records, and sparse and quantized tensors, are in host memory as a whole. Dirty I/O schedulers read, and
  no scheduler waits for the device: the process that loads sleeps until a buffer is free. A tensor of a stream is copied,
  through such buffers, while the next one arrives. Backends without pinned memory or events copy more slowly, on
  the same path.

      {:ok, weights} = ExTorch.load("model.safetensors", device: :cuda)
      ExTorch.save(weights, "copy.safetensors")

  Saving copies 16 MiB at a time to the CPU. `ExTorch.Tensor.to_binary/1`, `ExTorch.Tensor.to_list/1`, `inspect/2` and comparisons copy the values.
  A blob of such a tensor (`ExTorch.Tensor.Blob`) has the device and an address of the device, which the CPU must not read.

  ## Backends from other libraries

  A library that is built for the same LibTorch can register a backend (`PrivateUse1`, or an operator library that
  belongs to `:xpu` or `:hpu`). `load_library/1` loads it, and its devices are then devices like all others, by the name
  that it gives them:

      :ok = ExTorch.Device.load_library("/opt/npu/libtorch_npu.so")
      ExTorch.Device.available()
      #=> [:cpu, {:npu, 0}, {:npu, 1}]
      ExTorch.load("model.pt", device: {:npu, 1})

  LibTorch before 2.0 cannot rename it: the name is `:privateuseone`, which is accepted everywhere else too.

  ## Memory

  `memory/1` returns what the device has. `ExTorch.Memory.live/0` counts what tensors of ExTorch hold on devices, and
  `ExTorch.Memory.set_budget/2` limits it for a device.
  """
  @moduledoc groups: ["Devices", "Memory and synchronization", "Backends"]

  alias ExTorch.{Error, Meminfo, Native, Options}
  alias ExTorch.Native.Call

  @single [:cpu, :meta, :mps]
  @indexed [:cuda, :xpu, :hpu, :mtia, :xla, :ipu, :privateuseone]
  @names Map.new(@single ++ @indexed, &{Atom.to_string(&1), &1})

  @typedoc "`:cpu`, `:meta`, `:mps`, or the type and the index: `{:cuda, 0}`. The type alone means the first one."
  @type device :: atom() | {atom(), non_neg_integer()}

  @typedoc "What functions accept as a device: also torch's name, such as `\"cuda:0\"`."
  @type input :: device() | String.t()

  @doc group: "Devices"
  @doc """
  Returns the available devices, the CPU first: `[:cpu, {:cuda, 0}, …]`.

      iex> hd(ExTorch.Device.available())
      :cpu
  """
  @spec available() :: [device()]
  def available do
    for {type, count} <- types(), type != :meta, index <- Enum.take(0..127, count) do
      if type in @single, do: type, else: {type, index}
    end
  end

  @doc group: "Devices"
  @doc """
  Returns the types of devices that LibTorch has a backend for, with the number of devices of each. A build with CUDA has
  the type `:cuda`, also on a machine without such a device.

      iex> ExTorch.Device.types() |> List.keyfind(:cpu, 0)
      {:cpu, 1}
  """
  @spec types() :: [{atom(), non_neg_integer()}]
  def types, do: Native.device_types()

  @doc group: "Devices"
  @doc """
  Returns the number of devices of a type, such as `:cpu`, `:cuda` or the name of a backend. It is 0 if there is no
  backend.

      iex> ExTorch.Device.count(:cpu)
      1
  """
  @spec count(atom() | String.t()) :: non_neg_integer()
  def count(type) do
    case type(type) do
      nil ->
        raise Error.new(
                :bad_argument,
                "unknown device type #{Error.quoted(type)}; expected :cpu, :cuda, :mps, :xpu or the name of a backend"
              )

      type ->
        case List.keyfind(types(), type, 0) do
          {_type, count} -> count
          nil -> 0
        end
    end
  end

  @doc group: "Devices"
  @doc """
  Returns the number of CUDA devices.

      iex> ExTorch.Device.cuda_count() == ExTorch.Device.count(:cuda)
      true
  """
  @spec cuda_count() :: non_neg_integer()
  def cuda_count, do: count(:cuda)

  @doc group: "Backends"
  @doc """
  Loads a shared library that registers a backend, or operators, with LibTorch, as `torch.ops.load_library` does.

  The library must be built for the LibTorch of ExTorch (`ExTorch.info/0`), and is never unloaded. Its code runs inside the
  node, so load only libraries that you trust.

      iex> {:error, error} = ExTorch.Device.load_library("/nonexistent/backend.so")
      iex> error.reason
      :io
  """
  @spec load_library(Path.t()) :: :ok | {:error, Error.t()}
  def load_library(path) do
    unless is_binary(path) and Options.path?(path), do: Options.expected!("a path", path)

    with {:ok, nil} <- Error.put_path(Call.device_load_library(path), path),
         do: :ok
  end

  @doc group: "Backends"
  @doc "Same as `load_library/1` but raises on error."
  @spec load_library!(Path.t()) :: :ok
  def load_library!(path), do: Error.unwrap!(load_library(path))

  @doc group: "Devices"
  @doc """
  Returns the device on which `ExTorch.tensor/2` and the other functions that create tensors create them, unless they are
  given one.

  It is `:cpu`, or the value of `config :extorch, default_device: …`. Loading does not use it: `device:` of
  `ExTorch.load/2` is `:cpu` by default.

      iex> ExTorch.Device.default()
      :cpu
  """
  @spec default() :: device()
  def default do
    case Application.get_env(:extorch, :default_device, :cpu) do
      :cpu -> :cpu
      device -> check!(device)
    end
  end

  @doc group: "Devices"
  @doc """
  Sets the default device of the running node.

      iex> ExTorch.Device.set_default(:meta)
      iex> ExTorch.zeros({2}).device
      :meta
      iex> ExTorch.Device.set_default(:cpu)
      :ok
  """
  @spec set_default(input()) :: :ok
  def set_default(device), do: Application.put_env(:extorch, :default_device, check!(device))

  @doc group: "Memory and synchronization"
  @doc """
  Waits until the device has finished all work that was started on it.

  Functions of ExTorch that return values wait for the device themselves. This is for measurements, and for memory that is
  shared by address with another library.

      iex> ExTorch.Device.synchronize(:cpu)
      :ok
  """
  @spec synchronize(input()) :: :ok | {:error, Error.t()}
  def synchronize(device) do
    with {:ok, _} <- Call.device_synchronize(check!(device)), do: :ok
  end

  @doc group: "Memory and synchronization"
  @doc "Same as `synchronize/1` but raises on error."
  @spec synchronize!(input()) :: :ok
  def synchronize!(device), do: Error.unwrap!(synchronize(device))

  @doc group: "Memory and synchronization"
  @doc """
  Returns the free and total memory of a device in bytes.

  Backends other than CUDA tell it to LibTorch 2.10 and newer; with an older one, or if the backend does not, this is an
  `:unsupported` error.

      iex> {:ok, %{free: free, total: total}} = ExTorch.Device.memory(:cpu)
      iex> 0 < free and free <= total
      true
      iex> {:error, error} = ExTorch.Device.memory(:meta)
      iex> error.reason
      :unsupported
  """
  @spec memory(input()) ::
          {:ok, %{free: non_neg_integer(), total: non_neg_integer()}} | {:error, Error.t()}
  def memory(device) do
    case normalize(device) do
      {:ok, :cpu} -> cpu_memory()
      {:ok, device} when device != :meta -> device_memory(device)
      _ -> {:error, unavailable(device)}
    end
  end

  defp cpu_memory do
    with {:ok, total} <- Meminfo.fetch("MemTotal"),
         {:ok, free} <- Meminfo.fetch("MemAvailable") do
      {:ok, %{free: free, total: total}}
    else
      :error ->
        {:error, Error.new(:unsupported, "/proc/meminfo is not available on this system")}
    end
  end

  defp device_memory(device) do
    with {:ok, {free, total}} <- Call.device_memory(device),
         do: {:ok, %{free: free, total: total}}
  end

  defp unavailable(device),
    do: Error.new(:unsupported, "the memory of #{Error.quoted(device)} is not available")

  @doc group: "Memory and synchronization"
  @doc "Same as `memory/1` but raises on error."
  @spec memory!(input()) :: %{free: non_neg_integer(), total: non_neg_integer()}
  def memory!(device), do: Error.unwrap!(memory(device))

  @doc false
  @spec check!(term()) :: device()
  def check!(device) do
    case normalize(device) do
      {:ok, device} ->
        device

      :error ->
        raise Error.new(
                :bad_argument,
                "unknown device #{Error.quoted(device)}; expected :cpu, :cuda, {:cuda, index}, :mps, :meta or the name of a backend"
              )
    end
  end

  # Also torch's own names: "cpu", "cuda:0". Whether LibTorch has a backend for it is not checked.
  @doc false
  @spec normalize(term()) :: {:ok, device()} | :error
  def normalize(device) when device in @single, do: {:ok, device}
  def normalize(device) when is_atom(device), do: normalize_type(type(device))

  def normalize({type, index}) when is_atom(type) and is_integer(index) and index in 0..127 do
    case type(type) do
      nil -> :error
      type when type in @single -> :error
      type -> {:ok, {type, index}}
    end
  end

  def normalize(name) when is_binary(name) do
    case String.split(name, ":") do
      [type] ->
        normalize_type(type(type))

      [type, index] ->
        case {type(type), Integer.parse(index)} do
          {nil, _} -> :error
          {type, {0, ""}} when type in [:cpu, :mps] -> {:ok, type}
          {type, {index, ""}} -> normalize({type, index})
          _ -> :error
        end

      _ ->
        :error
    end
  end

  def normalize(_other), do: :error

  defp normalize_type(nil), do: :error
  defp normalize_type(type), do: {:ok, type}

  # The atom of a type. A backend may have given a name to :privateuseone.
  defp type(type) when type in [:privateuseone, "privateuseone"],
    do: Native.device_type("privateuseone")

  defp type(type) when type in @single or type in @indexed, do: type
  defp type(type) when type in [nil, true, false], do: nil
  defp type(type) when is_atom(type), do: Native.device_type(Atom.to_string(type))
  defp type(name) when is_map_key(@names, name), do: Map.fetch!(@names, name)
  defp type(name) when is_binary(name), do: Native.device_type(name)
  defp type(_other), do: nil
end
