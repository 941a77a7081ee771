defmodule ExTorch.Checkpoint.DeviceLoad do
  @moduledoc false
  # Loads tensors to devices other than the CPU. Native code reads into pinned buffers and starts copies from them; no call
  # waits for a device. While all buffers are in use, and until the last copy is done, this process sleeps.

  alias ExTorch.Checkpoint.{BatchLoad, Entry, Handle, Options, SourceReader}
  alias ExTorch.{Device, Error, Memory, Native, Progress, Source, Tensor}
  alias ExTorch.DCP.Folder
  alias ExTorch.Native.Call

  @step_bytes 64 * 1024 * 1024
  @wait_ms 1

  # Reads the tensors of the entries, which are in file order, to the devices of the options. If `sparing`, reads only the
  # tensors, not their storages, where they are a small part of these.
  @spec load(Handle.t(), [Entry.t()], boolean()) :: Handle.result([Tensor.t() | struct()])
  def load(%{resource: %Folder{}} = ckpt, entries, _sparing) do
    with {:ok, tensors} <- BatchLoad.tensors_at(ckpt, Enum.map(entries, & &1.index), false),
         do: move_all(ckpt, tensors, entries)
  end

  def load(ckpt, entries, sparing) do
    devices = devices(ckpt.options, entries)

    with {:ok, tensors, rest} <- read_all(ckpt, entries, devices, sparing, 1),
         {:ok, others} <- load_rest(ckpt, pick(entries, rest), sparing) do
      {:ok, merge(tensors, others, rest, 0)}
    end
  rescue
    error in Error -> {:error, Error.put_path(error, ckpt.source)}
  end

  # A function or map of the options is asked once for each location.
  defp devices(options, entries) do
    by_location =
      entries
      |> Enum.map(& &1.device)
      |> Enum.uniq()
      |> Map.new(&{&1, Options.device_for(options, &1)})

    Enum.map(entries, &Map.fetch!(by_location, &1.device))
  end

  # ---- Tensors that cannot be staged ----

  defp load_rest(_ckpt, [], _sparing), do: {:ok, []}

  defp load_rest(ckpt, entries, sparing) do
    quiet = %{ckpt | options: %{ckpt.options | on_progress: nil}}
    sparing = sparing and not is_struct(ckpt.source)

    with {:ok, tensors} <- BatchLoad.tensors_at(quiet, Enum.map(entries, & &1.index), sparing),
         do: move_all(ckpt, tensors, entries)
  end

  defp pick(_entries, []), do: []
  defp pick(entries, positions), do: pick(entries, positions, 0)

  defp pick([entry | entries], [at | positions], at),
    do: [entry | pick(entries, positions, at + 1)]

  defp pick([_entry | entries], positions, at), do: pick(entries, positions, at + 1)
  defp pick([], [], _at), do: []

  defp merge(tensors, [], [], _at), do: tensors

  defp merge(tensors, [other | others], [at | rest], at),
    do: [other | merge(tensors, others, rest, at + 1)]

  defp merge([tensor | tensors], others, rest, at),
    do: [tensor | merge(tensors, others, rest, at + 1)]

  defp move_all(ckpt, tensors, entries) do
    entries
    |> Enum.zip(tensors)
    |> Enum.reduce_while([], fn {entry, tensor}, moved ->
      case Handle.to_device(ckpt, tensor, entry) do
        {:ok, tensor} -> {:cont, [tensor | moved]}
        {:error, error} -> {:halt, {:error, error, moved}}
      end
    end)
    |> case do
      {:error, error, moved} ->
        release(tensors ++ moved)
        {:error, error}

      moved ->
        {:ok, Enum.reverse(moved)}
    end
  end

  # Tensors of a load that failed would stay in memory until the next garbage collection.
  defp release(tensors), do: for(%Tensor{} = tensor <- tensors, do: Tensor.release(tensor))

  # ---- Tensors of the checkpoint ----

  # A load that fails cannot continue. If it exceeds a budget, it is started again, once, after a collection.
  defp read_all(ckpt, entries, devices, sparing, tries) do
    case read_once(ckpt, entries, devices, sparing) do
      {:collect, _error} when tries > 0 ->
        Memory.collect()
        read_all(ckpt, entries, devices, sparing, tries - 1)

      {:collect, error} ->
        {:error, Error.put_path(error, ckpt.source)}

      {:error, error} ->
        {:error, Error.put_path(error, ckpt.source)}

      result ->
        result
    end
  end

  # The load is closed, because otherwise the buffers would stay, and the file open, until the next garbage collection.
  defp read_once(%{options: options} = ckpt, entries, devices, sparing) do
    indices = Enum.map(entries, & &1.index)

    with {:ok, {load, total, rest}} <-
           begin(ckpt.resource, indices, devices, options.verify, sparing) do
      try do
        with :ok <- read(ckpt, load, Progress.new(options.on_progress, total)),
             {:ok, tensors} <- Memory.account(finish(load)),
             do: {:ok, tensors, rest}
      after
        close(load)
        Source.prefetch(ckpt.source, fn -> [] end)
      end
    end
  end

  defp begin(resource, indices, devices, verify, sparing),
    do: Call.device_load_begin(resource, indices, devices, verify, sparing)

  defp finish(load), do: Native.device_load_finish(load)
  defp close(load), do: Native.device_load_close(load)

  # The bytes of a source are read here, those of files and binaries by the NIF.
  defp read(ckpt, load, progress, bytes \\ nil) do
    case Memory.account(read_more(ckpt.source, load, bytes)) do
      {:ok, {:more, done}} ->
        read(ckpt, load, Progress.report(progress, done))

      {:ok, {:wait, done}} ->
        progress = Progress.report(progress, done)
        wait()
        read(ckpt, load, progress)

      {:ok, {:wait, again, done}} ->
        progress = Progress.report(progress, done)
        wait()
        read(ckpt, load, progress, if(again, do: bytes))

      {:ok, {:need, offset, size, done}} ->
        progress = Progress.report(progress, done)
        Source.prefetch(ckpt.source, fn -> [{offset, size} | ahead(load)] end)

        with {:ok, bytes} <- SourceReader.read_at(ckpt.source, offset, size),
             do: read(ckpt, load, progress, bytes)

      {:ok, :done} ->
        with :ok <- await(load), do: Progress.finish(progress)

      error ->
        error
    end
  end

  defp read_more(%_{}, load, bytes), do: fill(load, bytes)
  defp read_more(_source, load, nil), do: step(load)

  defp fill(load, bytes), do: Native.device_load_fill(load, bytes)
  defp step(load), do: Native.device_load_step(load, @step_bytes)

  # The ranges that will be needed after the current one.
  defp ahead(load), do: Error.unwrap!(Call.device_load_ahead(load))

  defp wait do
    receive do
    after
      @wait_ms -> :ok
    end
  end

  defp await(load) do
    case ready(load) do
      {:ok, true} ->
        :ok

      {:ok, false} ->
        wait()
        await(load)

      error ->
        error
    end
  end

  defp ready(load), do: Memory.account(Native.device_load_ready(load))

  # ---- Tensors of the CPU ----

  @typedoc "A tensor of the CPU that is being copied: the load, the tensor and the device."
  @type moving :: {:moving, reference(), Tensor.t(), Device.device()}

  # Moves a tensor of the CPU to a device. Returns when the copy is done.
  @spec move(Tensor.t(), Device.device()) :: {:ok, Tensor.t()} | {:error, Error.t()}
  def move(tensor, device), do: move(tensor, device, 1)

  defp move(tensor, device, tries) do
    case move_once(tensor, device) do
      {:collect, _error} when tries > 0 ->
        Memory.collect()
        move(tensor, device, tries - 1)

      {:collect, error} ->
        {:error, error}

      result ->
        result
    end
  end

  defp move_once(tensor, device) do
    case begin_move(tensor, device) do
      {:ok, {:moving, _, _, _} = moving} -> complete(moving)
      result -> result
    end
  end

  # Starts to move a tensor: the last of its bytes, at most what the buffers hold, are copied after the call. The caller
  # keeps nothing else of it, and calls end_move/1 or drop_move/1. A tensor that cannot be staged is moved at once.
  @spec start_move(Tensor.t(), Device.device()) ::
          {:ok, moving() | Tensor.t()} | {:error, Error.t()}
  def start_move(tensor, device) do
    with {:collect, _error} <- begin_move(tensor, device), do: move(tensor, device)
  end

  # Waits until the tensor is on the device.
  @spec end_move(moving()) :: {:ok, Tensor.t()} | {:error, Error.t()}
  def end_move({:moving, _load, tensor, device} = moving) do
    with {:collect, _error} <- complete(moving), do: move(tensor, device)
  end

  @spec drop_move(moving()) :: :ok
  def drop_move({:moving, load, _tensor, _device}), do: close(load)

  defp begin_move(tensor, device) do
    case tensors([tensor], device) do
      {:ok, nil} ->
        requires_grad = Tensor.requires_grad(tensor)
        {:ok, tensor |> Tensor.to(device: device) |> Tensor.requires_grad(requires_grad)}

      {:ok, {load, _bytes}} ->
        case stage(load) do
          :ok ->
            {:ok, {:moving, load, tensor, device}}

          error ->
            close(load)
            error
        end

      error ->
        error
    end
  end

  defp stage(load) do
    case Memory.account(step(load)) do
      {:ok, :done} ->
        :ok

      {:ok, {:more, _done}} ->
        stage(load)

      {:ok, {:wait, _done}} ->
        wait()
        stage(load)

      error ->
        error
    end
  end

  defp complete({:moving, load, _tensor, _device}) do
    with :ok <- await(load),
         {:ok, [moved]} <- Memory.account(finish(load)),
         do: {:ok, moved}
  after
    close(load)
  end

  defp tensors(tensors, device), do: Call.device_load_tensors(tensors, device)
end
