defmodule ExTorch.Device.LoadTest do
  # Loads to the simulated device, and saves from it.
  use ExTorch.Case
  alias ExTorch.{Checkpoint, Device, Streaming}
  alias ExTorch.Test.{FileSource, SimulatedDevice}

  @moduletag :simulated_device
  @moduletag :tmp_dir

  # more than the buffers hold together
  @big 10_000_019

  setup context do
    name = SimulatedDevice.load!()

    on_exit(fn ->
      Enum.each([bandwidth: 0, fail_after: -1], fn {k, v} -> SimulatedDevice.set(k, v) end)
    end)

    Map.merge(context, %{name: name, device: {name, 0}, other: {name, 1}})
  end

  defp model do
    base = ExTorch.rand({300, 200})

    %{
      "big" => ExTorch.rand({@big}),
      "base" => base,
      "tied" => base,
      "transposed" => Tensor.transpose(base),
      "part" => Tensor.slice(base, 0, 100..101),
      "empty" => ExTorch.zeros({0, 3}),
      "half" => ExTorch.tensor([1.5, -2.5], dtype: :float16),
      "flags" => ExTorch.tensor([true, false, true]),
      "small" => for(i <- 1..50, do: ExTorch.full({i}, i)),
      "step" => 7
    }
  end

  defp plain(model), do: Map.take(model, ["big", "base", "empty", "half", "flags"])

  defp assert_same(loaded, model, device) do
    for {key, value} <- model, do: assert_value(loaded[key], value, {key, device})
    loaded
  end

  defp assert_value(%Tensor{} = a, %Tensor{} = b, {key, device}) do
    assert {key, a.device} == {key, device}
    assert {key, Tensor.strides(a)} == {key, Tensor.strides(b)}
    assert Tensor.equal?(a, b), key
  end

  defp assert_value(a, b, context) when is_list(b),
    do: Enum.zip_with(a, b, &assert_value(&1, &2, context))

  defp assert_value(a, b, _context), do: assert(a == b)

  # A process that calls the function until it is killed after some milliseconds.
  defp killed(ms, fun) do
    {pid, ref} = spawn_monitor(fun)
    Process.sleep(ms)
    Process.exit(pid, :kill)
    assert_receive {:DOWN, ^ref, _, _, _}, 60_000
  end

  test "every format, from files, maps, binaries and sources", %{device: device, tmp_dir: dir} do
    model = model()

    for format <- [:zip, :legacy, :streaming, :safetensors], verify <- [false, true] do
      path = Path.join(dir, "#{format}")
      model = if format == :safetensors, do: plain(model), else: model
      ExTorch.save!(model, path, format: format)

      for source <- [path, {:binary, File.read!(path)}, %FileSource{path: path}] do
        opts = [device: device, verify: verify and format == :zip]
        source |> ExTorch.load!(opts) |> assert_same(model, device)
      end

      path |> ExTorch.load!(device: device, mmap: true) |> assert_same(model, device)
    end
  end

  test "tensors that share memory share it on the device", %{device: device, tmp_dir: dir} do
    path = Path.join(dir, "model.pt")
    ExTorch.save!(Map.drop(model(), ["big"]), path)
    loaded = ExTorch.load!(path, device: device)
    ExTorch.op("fill_", [loaded["base"], 3])
    assert Tensor.to_list(loaded["part"]) |> List.flatten() |> Enum.uniq() == [3.0]
    assert Tensor.to_list(Tensor.slice(loaded["transposed"], [0..0, 0..0])) == [[3.0]]
    assert Tensor.to_list(Tensor.slice(loaded["tied"], [0..0, 0..0])) == [[3.0]]
  end

  test "deflated records and other byte orders", %{device: device} do
    for path <- Path.wildcard("test/fixtures/**/*{big_endian,deflate,swapped}*"),
        {:ok, cpu} <- [ExTorch.load(path)],
        is_map(cpu) do
      loaded = ExTorch.load!(path, device: device)

      for {key, %Tensor{} = tensor} <- cpu,
          do: assert(Tensor.to_binary(loaded[key]) == Tensor.to_binary(tensor))
    end
  end

  test "every fixture loads to the device as it does to the CPU", %{device: device} do
    paths =
      for path <- Path.wildcard("test/fixtures/**/*"),
          File.regular?(path),
          Path.extname(path) not in [".py", ".json", ".cpp", ".exs", ".md"],
          do: path

    compared =
      for path <- paths, {:ok, ckpt} <- [Checkpoint.open(path)] do
        there = Checkpoint.open!(path, device: device)

        for {:ok, entries} <- [Checkpoint.entries(ckpt)], entry <- entries do
          compare(
            Checkpoint.tensor(ckpt, entry.path),
            Checkpoint.tensor(there, entry.path),
            device
          )
        end

        case {ExTorch.load(path), ExTorch.load(path, device: device)} do
          {{:ok, _}, {:ok, _}} -> :ok
          {{:ok, cpu}, {:error, error}} -> assert composite?(cpu), "#{path}: #{error.message}"
          {{:error, a}, {:error, b}} -> assert a.reason == b.reason
        end

        Enum.each([ckpt, there], &Checkpoint.close/1)
      end

    assert length(compared) > 50
  end

  # The simulated backend has no kernels for sparse and quantized tensors.
  defp composite?(term), do: inspect(term, limit: :infinity) =~ ~r/sparse|qint|quint/

  defp compare({:ok, %{device: :meta}}, {:ok, there}, device),
    do: assert(there.device in [:meta, device])

  defp compare({:ok, cpu}, {:ok, there}, device) do
    assert there.device == device
    assert {there.shape, there.dtype} == {cpu.shape, cpu.dtype}
    assert Tensor.requires_grad(there) == Tensor.requires_grad(cpu)
    if Tensor.strides(cpu), do: assert(Tensor.to_list(there) == Tensor.to_list(cpu))
  end

  defp compare({:ok, cpu}, {:error, _error}, _device),
    do: assert(Tensor.strides(cpu) == nil or ExTorch.DType.kind(cpu.dtype) == :quant)

  defp compare({:error, a}, {:error, b}, _device), do: assert(a.reason == b.reason)

  test "a map or a function chooses the devices", %{device: device, other: other, tmp_dir: dir} do
    path = Path.join(dir, "model.pt")
    location = Enum.join(Tuple.to_list(other), ":")
    a = ExTorch.tensor([1, 2])
    ExTorch.save!(%{"a" => a, "b" => Tensor.to(a, other)}, path)
    ckpt = Checkpoint.open!(path)
    assert Checkpoint.entry!(ckpt, "b").device == location

    for choice <- [
          %{location => other, "cpu" => device},
          &if(&1 == "cpu", do: device, else: other)
        ] do
      loaded = ExTorch.load!(path, device: choice)
      assert {loaded["a"].device, loaded["b"].device} == {device, other}
      assert Tensor.equal?(loaded["a"], loaded["b"])
    end

    loaded = ExTorch.load!(path, device: %{location => :cpu})
    assert {loaded["a"].device, loaded["b"].device} == {:cpu, :cpu}
    loaded = ExTorch.load!(path, device: %{location => :meta, "cpu" => device})
    assert {loaded["a"].device, loaded["b"].device} == {device, :meta}
  end

  test "single tensors, and a part of a storage", %{device: device, tmp_dir: dir} do
    path = Path.join(dir, "model.pt")
    big = ExTorch.rand({@big})
    ExTorch.save!(%{"row" => Tensor.slice(big, 0, 5_000_000..5_000_009), "all" => big}, path)

    for source <- [path, %FileSource{path: path}] do
      ckpt = Checkpoint.open!(source, device: device)
      before = Memory.live(device)
      row = Checkpoint.tensor!(ckpt, "row")
      assert Tensor.equal?(row, Tensor.slice(big, 0, 5_000_000..5_000_009))
      if is_binary(source), do: assert(Memory.live(device) == before + 40)

      assert Enum.map(Checkpoint.stream(ckpt), fn {name, t} -> {name, t.device} end) ==
               [{"row", device}, {"all", device}] or
               Enum.sort(Enum.map(Checkpoint.stream(ckpt), &elem(&1, 0))) == ["all", "row"]

      Checkpoint.close(ckpt)
    end
  end

  test "host memory is bounded and pinned, and no scheduler waits", %{
    device: device,
    tmp_dir: dir
  } do
    path = Path.join(dir, "model.safetensors")

    ExTorch.save!(
      %{"a" => ExTorch.zeros({16, 1024, 1024}), "b" => ExTorch.ones({8, 1024, 1024})},
      path
    )

    Memory.collect()
    SimulatedDevice.set(:most_pinned, 0)
    before = Map.new([:waits, :async, :waited], &{&1, SimulatedDevice.get(&1)})
    # slower than reading, so that all buffers are in use
    SimulatedDevice.set(:bandwidth, 400_000_000)
    live = Memory.live().bytes
    most = :atomics.new(1, [])

    loaded =
      ExTorch.load!(path,
        device: device,
        on_progress: fn _progress ->
          :atomics.put(most, 1, max(:atomics.get(most, 1), Memory.live().bytes - live))
        end
      )

    # the buffers of one load are 32 MiB
    assert :atomics.get(most, 1) <= 33 * 1024 * 1024
    assert Memory.live(device) >= 96 * 1024 * 1024

    if SimulatedDevice.pinned?() do
      assert SimulatedDevice.get(:most_pinned) == 32 * 1024 * 1024
      assert SimulatedDevice.get(:async) > before.async
      assert SimulatedDevice.get(:waited) == before.waited
      assert SimulatedDevice.get(:waits) == before.waits
    end

    assert SimulatedDevice.get(:normal_waits) == 0
    SimulatedDevice.set(:bandwidth, 0)
    assert Tensor.to_list(ExTorch.op("sum", [loaded["b"]])) == 8 * 1024 * 1024.0
    assert wait_until(fn -> SimulatedDevice.get(:pinned) == 0 end)
  end

  test "progress", %{device: device, tmp_dir: dir} do
    path = Path.join(dir, "model.pt")
    ExTorch.save!(%{"a" => ExTorch.zeros({@big})}, path)
    me = self()
    ExTorch.load!(path, device: device, on_progress: &send(me, {:progress, &1}))
    assert_received {:progress, %{done: bytes, total: total}} when bytes <= total
  end

  test "an error of the device leaves nothing", %{device: device, tmp_dir: dir} do
    path = Path.join(dir, "model.pt")
    ExTorch.save!(%{"a" => ExTorch.zeros({@big}), "b" => ExTorch.zeros({@big})}, path)
    Memory.collect()
    before = SimulatedDevice.get("allocated:0")

    for copies <- [0, 1, 5, 19] do
      SimulatedDevice.set(:fail_after, copies)
      assert {:error, error} = ExTorch.load(path, device: device)
      assert {error.reason, error.path} == {:torch, path}
      assert error.message =~ "a copy of the simulated device failed"
      SimulatedDevice.set(:fail_after, -1)
      assert wait_until(fn -> SimulatedDevice.get("allocated:0") == before end)
    end

    assert SimulatedDevice.get(:pinned) == 0
    assert {:ok, _} = ExTorch.load(path, device: device)
  end

  test "a budget or a full device ends the load", %{device: device, tmp_dir: dir} do
    path = Path.join(dir, "model.pt")
    ExTorch.save!(%{"a" => ExTorch.zeros({@big}), "b" => ExTorch.zeros({@big})}, path)
    before = Memory.live(device)
    Memory.set_budget(device, before + 5 * @big)
    assert {:error, %{reason: :limit, path: ^path}} = ExTorch.load(path, device: device)
    Memory.set_budget(device, before + 8 * @big)
    assert {:ok, _} = ExTorch.load(path, device: device)
    # what is garbage now is collected first
    assert {:ok, kept} = ExTorch.load(path, device: device)
    Memory.set_budget(device, :infinity)

    capacity = SimulatedDevice.get(:capacity)
    SimulatedDevice.set(:capacity, SimulatedDevice.get("allocated:0") + 5 * @big)
    assert {:error, %{reason: :no_memory, path: ^path}} = ExTorch.load(path, device: device)
    SimulatedDevice.set(:capacity, capacity)
    assert map_size(kept) == 2
  after
    Memory.set_budget({SimulatedDevice.load!(), 0}, :infinity)
  end

  test "a file that is damaged or truncated", %{device: device, tmp_dir: dir} do
    path = Path.join(dir, "model.pt")
    ExTorch.save!(%{"a" => ExTorch.rand({3_000_000}), "b" => ExTorch.zeros({10})}, path)
    bytes = File.read!(path)
    File.write!(path, flip_bit(bytes, div(byte_size(bytes), 2), 3))
    assert {:error, %{reason: :corrupt}} = ExTorch.load(path, device: device, verify: true)
    assert {:ok, _} = ExTorch.load(path, device: device)

    File.write!(path, bytes)
    ckpt = Checkpoint.open!(path, device: device)
    File.write!(path, binary_part(bytes, 0, 1000))
    assert {:error, %{reason: reason}} = Checkpoint.tensor(ckpt, "a")
    assert reason in [:file_changed, :truncated]
  end

  test "a killed process leaves nothing", %{device: device, tmp_dir: dir} do
    path = Path.join(dir, "model.pt")
    ExTorch.save!(%{"a" => ExTorch.zeros({@big}), "b" => ExTorch.zeros({@big})}, path)
    Memory.collect()
    before = SimulatedDevice.get("allocated:0")
    SimulatedDevice.set(:bandwidth, 200_000_000)

    for ms <- [1, 20, 60, 120, 250],
        load <- [
          fn -> ExTorch.load(path, device: device) end,
          fn -> ExTorch.load(%FileSource{path: path}, device: device) end
        ],
        do: killed(ms, load)

    SimulatedDevice.set(:bandwidth, 0)
    assert wait_until(fn -> SimulatedDevice.get("allocated:0") == before end)
    assert wait_until(fn -> SimulatedDevice.get(:pinned) == 0 end)
    assert SimulatedDevice.get(:normal_frees) == 0
    assert SimulatedDevice.get(:normal_waits) == 0
  end

  test "saving", %{device: device, tmp_dir: dir} do
    model = model()
    path = Path.join(dir, "model.pt")
    ExTorch.save!(model, path)
    loaded = ExTorch.load!(path, device: device)

    for format <- [:zip, :legacy, :streaming, :safetensors] do
      {loaded, model} =
        if format == :safetensors, do: {plain(loaded), plain(model)}, else: {loaded, model}

      copy = Path.join(dir, "copy.#{format}")
      ExTorch.save!(loaded, copy, format: format)

      for {key, value} <- ExTorch.load!(copy),
          is_struct(value, Tensor),
          do: assert(Tensor.equal?(value, model[key]))

      assert {:ok, term, ""} = Streaming.load([saved(loaded, format: format)])
      assert Tensor.equal?(term["big"], model["big"])
    end

    ckpt = Checkpoint.open!(Path.join(dir, "copy.zip"))
    assert Checkpoint.entry!(ckpt, "big").device == "#{elem(device, 0)}:0"

    # what shares memory on the device is written once
    sizes = fn file ->
      file |> Checkpoint.open!() |> Checkpoint.storages() |> Enum.map(& &1.nbytes)
    end

    assert Enum.sort(sizes.(Path.join(dir, "copy.zip"))) == Enum.sort(sizes.(path))
    part = %{"part" => loaded["part"]}
    ExTorch.save!(part, path, compact: true)
    assert sizes.(path) == [1600]
    shared = %{"a" => loaded["base"], "b" => loaded["part"]}
    safetensors = Path.join(dir, "shared.safetensors")
    assert {:error, %{reason: :bad_argument}} = ExTorch.save(shared, safetensors)
    assert :ok = ExTorch.save(shared, safetensors, duplicate: true)
    assert Tensor.equal?(ExTorch.load!(safetensors)["b"], model["part"])
  end

  test "saving needs little memory on the CPU", %{device: device, tmp_dir: dir} do
    tensor = ExTorch.zeros({64, 1024, 1024}, dtype: :uint8, device: device)
    live = Memory.live().bytes
    most = :atomics.new(1, [])

    for format <- [:zip, :safetensors] do
      ExTorch.save!(%{"t" => tensor}, Path.join(dir, "#{format}"),
        format: format,
        on_progress: fn _ ->
          :atomics.put(most, 1, max(:atomics.get(most, 1), Memory.live().bytes - live))
        end
      )
    end

    assert :atomics.get(most, 1) <= 33 * 1024 * 1024
  end

  test "streams", %{device: device, other: other} do
    model = model()
    bytes = saved(model)

    for sizes <- [[byte_size(bytes)], [1_000_003]] do
      assert {:ok, loaded, ""} = Streaming.load(chunks(bytes, sizes), device: device)

      for key <- ["big", "base", "half", "empty"],
          do: assert_value(loaded[key], model[key], {key, device})
    end

    me = self()

    {:ok, _, ""} =
      Streaming.load(chunks(bytes, [700_001]),
        device: other,
        on_tensor: fn name, tensor ->
          send(me, {name, tensor.device, Tensor.equal?(tensor, tensor)})
        end
      )

    assert_received {"big", ^other, true}
    assert_received {"small.49", ^other, true}
  end

  test "a stream that fails, ends early or is killed leaves nothing", %{device: device} do
    bytes =
      saved(%{
        "a" => ExTorch.zeros({@big}),
        "b" => ExTorch.zeros({@big}),
        "c" => ExTorch.zeros({9})
      })

    Memory.collect()
    before = SimulatedDevice.get("allocated:0")
    load = fn bytes -> Streaming.load(chunks(bytes, [3_000_017]), device: device) end

    for copies <- [0, 4, 9, 15, 20] do
      SimulatedDevice.set(:fail_after, copies)
      assert {:error, %{reason: :torch}} = load.(bytes)
      SimulatedDevice.set(:fail_after, -1)
    end

    assert {:error, %{reason: :truncated}} = load.(binary_part(bytes, 0, 60_000_000))
    SimulatedDevice.set(:bandwidth, 200_000_000)
    for ms <- [10, 100, 300], do: killed(ms, fn -> load.(bytes) end)
    SimulatedDevice.set(:bandwidth, 0)

    assert wait_until(fn -> SimulatedDevice.get("allocated:0") == before end)
    assert wait_until(fn -> SimulatedDevice.get(:pinned) == 0 end)
    assert {:ok, %{"c" => _}, ""} = load.(bytes)
  end

  test "stores", %{device: device, tmp_dir: dir} do
    path = Path.join(dir, "model.pt")
    model = %{"w" => ExTorch.rand({100, 100}), "b" => ExTorch.rand({100})}
    ExTorch.save!(model, path)
    target = Map.new(model, fn {key, t} -> {key, ExTorch.zeros(t.shape, device: device)} end)

    store = ExTorch.Store.PyTorch.new(path)
    assert {:ok, %{module: applied, errors: []}} = ExTorch.Store.apply_to(store, target)
    assert_same(applied, model, device)

    copy = Path.join(dir, "copy.safetensors")
    assert :ok = ExTorch.Store.collect_from(ExTorch.Store.Safetensors.new(copy), applied)
    assert_same(ExTorch.load!(copy), model, :cpu)
    assert ExTorch.convert(path, Path.join(dir, "c.safetensors")) == :ok
  end

  test "folders of torch.distributed.checkpoint", %{device: device, tmp_dir: dir} do
    model = %{"w" => ExTorch.rand({100, 100}), "b" => ExTorch.rand({100})}
    folder = Path.join(dir, "folder")

    ExTorch.save!(Map.new(model, fn {k, t} -> {k, Tensor.to(t, device)} end), folder, format: :dcp)

    folder |> ExTorch.load!(device: device) |> assert_same(model, device)
    folder |> ExTorch.load!() |> assert_same(model, :cpu)
  end

  test "many processes load at the same time", %{device: device, other: other, tmp_dir: dir} do
    path = Path.join(dir, "model.pt")
    tensor = ExTorch.rand({1_000_000})
    ExTorch.save!(%{"a" => tensor}, path)

    1..20
    |> Task.async_stream(
      fn i ->
        place = if rem(i, 2) == 0, do: device, else: other
        loaded = ExTorch.load!(path, device: place)
        loaded["a"].device == place and Tensor.equal?(loaded["a"], tensor)
      end,
      max_concurrency: 8,
      timeout: :infinity
    )
    |> Enum.each(&assert &1 == {:ok, true})

    assert Device.synchronize(device) == :ok
  end
end
