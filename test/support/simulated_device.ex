defmodule ExTorch.Test.SimulatedDevice do
  @moduledoc false
  # The backend of test/support/simulated_device.cpp, built by `make simulated_device`.

  alias ExTorch.Device

  @doc "Whether it was built. It needs Linux."
  def available?, do: File.exists?(library())

  defp library do
    dir = if System.get_env("EXTORCH_ASAN"), do: "build/asan", else: "build"
    Path.expand("#{dir}/simulated_device.so")
  end

  @doc "Loads the library. Returns the name of its devices: LibTorch before 2.6 is not asked for a name of its own."
  def load! do
    :ok = Device.load_library!(library())
    if pinned?(), do: :simulated, else: :privateuseone
  end

  @doc "Whether there is pinned memory, and so copies that do not wait."
  def pinned? do
    %{version: version} = ExTorch.info()
    [major, minor | _] = version |> String.split(".") |> Enum.map(&elem(Integer.parse(&1), 0))
    {major, minor} >= {2, 6}
  end

  @doc "A number of `Settings`."
  def get(key), do: ExTorch.op("simulated::get", [to_string(key)])

  @doc "Changes a number of `Settings`."
  def set(key, value), do: ExTorch.op("simulated::set", [to_string(key), value])
end
