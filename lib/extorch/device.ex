defmodule ExTorch.Device do
  @moduledoc """
  Devices of tensors: `:cpu`, `:cuda`, `{:cuda, index}`, `:mps` and `:meta`. Meta tensors have a shape but no memory.
  Functions that take a device also accept torch's names: `"cpu"`, `"cuda:0"`.

      iex> :cpu in ExTorch.Device.available()
      true
      iex> t = ExTorch.zeros({1000, 1000}, device: :meta)
      iex> ExTorch.matmul(t, t).shape
      {1000, 1000}
  """

  alias ExTorch.{Error, Meminfo, Native}

  @type device :: :cpu | :meta | :mps | :cuda | {:cuda, non_neg_integer()}

  @typedoc "What functions accept as a device: also torch's name, such as `\"cuda:0\"`."
  @type input :: device() | String.t()

  @doc """
  Returns the available devices, the CPU first: `[:cpu, {:cuda, 0}, …]`.

      iex> hd(ExTorch.Device.available())
      :cpu
  """
  @spec available() :: [device()]
  def available do
    cuda = for index <- cuda_indices(), do: {:cuda, index}
    mps = if count(:mps) > 0, do: [:mps], else: []
    [:cpu] ++ cuda ++ mps
  end

  @doc """
  Returns the number of devices of a type: `:cpu`, `:cuda` or `:mps`.

      iex> ExTorch.Device.count(:cpu)
      1
  """
  @spec count(:cpu | :cuda | :mps) :: non_neg_integer()
  def count(:cpu), do: 1
  def count(type) when type in [:cuda, :mps], do: Native.device_count(type)

  def count(other) when other in ["cpu", "cuda", "mps"],
    do: count(String.to_existing_atom(other))

  def count(other) do
    raise Error.new(
            :bad_argument,
            "unknown device type #{Error.quoted(other)}; expected :cpu, :cuda or :mps"
          )
  end

  @doc """
  Returns the number of CUDA devices.

      iex> ExTorch.Device.cuda_count() == ExTorch.Device.count(:cuda)
      true
  """
  @spec cuda_count() :: non_neg_integer()
  def cuda_count, do: count(:cuda)

  @doc """
  Returns the free and total memory of a device in bytes.

      iex> {:ok, %{free: free, total: total}} = ExTorch.Device.memory(:cpu)
      iex> 0 < free and free <= total
      true
      iex> {:error, error} = ExTorch.Device.memory(:meta)
      iex> error.reason
      :unsupported
  """
  @spec memory(device()) ::
          {:ok, %{free: non_neg_integer(), total: non_neg_integer()}} | {:error, Error.t()}
  def memory(:cpu) do
    with {:ok, total} <- Meminfo.fetch("MemTotal"),
         {:ok, free} <- Meminfo.fetch("MemAvailable") do
      {:ok, %{free: free, total: total}}
    else
      :error ->
        {:error, Error.new(:unsupported, "/proc/meminfo is not available on this system")}
    end
  end

  def memory(:cuda), do: memory({:cuda, 0})

  def memory({:cuda, index}) when is_integer(index) and index in 0..127 do
    case Native.device_memory(index) do
      {:ok, {free, total}, _} -> {:ok, %{free: free, total: total}}
      {_, error} -> {:error, error}
    end
  end

  def memory(other) do
    case normalize(other) do
      {:ok, device} when device != other -> memory(device)
      _ -> {:error, unavailable(other)}
    end
  end

  defp unavailable(device),
    do: Error.new(:unsupported, "the memory of #{Error.quoted(device)} is not available")

  @doc "Same as `memory/1` but raises on error."
  @spec memory!(device()) :: %{free: non_neg_integer(), total: non_neg_integer()}
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
                "unknown device #{Error.quoted(device)}; expected :cpu, :cuda, {:cuda, index}, :mps or :meta"
              )
    end
  end

  # Also torch's own names: "cpu", "cuda:0".
  @doc false
  @spec normalize(term()) :: {:ok, device()} | :error
  def normalize(device) when device in [:cpu, :meta, :mps, :cuda], do: {:ok, device}

  def normalize({:cuda, index} = device) when is_integer(index) and index in 0..127,
    do: {:ok, device}

  def normalize("cuda:" <> index) do
    case Integer.parse(index) do
      {index, ""} -> normalize({:cuda, index})
      _ -> :error
    end
  end

  def normalize(name) when name in ["cpu:0", "mps:0"],
    do: name |> binary_part(0, 3) |> normalize()

  def normalize(name) when name in ["cpu", "meta", "mps", "cuda"],
    do: {:ok, String.to_existing_atom(name)}

  def normalize(_other), do: :error

  defp cuda_indices, do: Enum.take(0..127, cuda_count())
end
