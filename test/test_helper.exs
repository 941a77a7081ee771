unless ExTorch.Test.Python.torch() do
  IO.puts(
    "Python with torch was not found: tests that compare with it are skipped (EXTORCH_PYTHON)"
  )
end

if Code.ensure_loaded?(Nx) do
  {:ok, _} = Application.ensure_all_started(:nx)
else
  IO.puts("Nx was not found: its tests are skipped (from Hex, or compiled in EXTORCH_NX_PATH)")
end

unless ExTorch.Test.Nginx.available?() do
  IO.puts("nginx was not found: tests of HTTP that need it are skipped")
end

unless ExTorch.Test.Peers.available?() do
  IO.puts("epmd was not found: tests with several nodes are skipped")
end

unless ExTorch.Test.Browser.available?() do
  IO.puts("Chromium was not found: tests of pages are skipped")
end

unless ExTorch.Test.SimulatedDevice.available?() do
  IO.puts("the simulated device was not built: its tests are skipped (make simulated_device)")
end

unless ExTorch.info().version do
  IO.puts("There is no LibTorch (EXTORCH_TORCH=0): tests that compute are skipped")
end

exclude =
  if(ExTorch.Test.Python.torch(), do: [], else: [:python]) ++
    if(Code.ensure_loaded?(Nx), do: [], else: [:nx]) ++
    if(ExTorch.Test.Nginx.available?(), do: [], else: [:nginx]) ++
    if(ExTorch.Test.Peers.available?(), do: [], else: [:peers]) ++
    if(ExTorch.Test.Browser.available?(), do: [], else: [:chromium]) ++
    if(ExTorch.Test.SimulatedDevice.available?(), do: [], else: [:simulated_device]) ++
    if(ExTorch.info().version, do: [], else: [:torch, :simulated_device]) ++
    if(System.get_env("EXTORCH_ASAN"), do: [:no_asan], else: [])

# Tests must not fail only because the machine is slow or busy.
ExUnit.start(exclude: exclude, timeout: 300_000)
