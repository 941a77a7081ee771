defmodule ExTorch.Checkpoint.Handle do
  @moduledoc false
  # The NIF calls on an open checkpoint. Each returns {:ok, value} or an error that contains the path of the file.

  alias ExTorch.Checkpoint
  alias ExTorch.Checkpoint.{Entry, Options}
  alias ExTorch.{Error, Memory, Native, Tensor}

  # The same as Checkpoint.t(), which is opaque.
  @type t :: %Checkpoint{
          resource: reference(),
          source: Checkpoint.source() | nil,
          options: Options.t()
        }
  @type result(value) :: {:ok, value} | {:error, Error.t()}

  @spec keys(t()) :: result([String.t()])
  def keys(ckpt), do: call(ckpt, &Native.checkpoint_keys/1)

  @spec entries(t()) :: result([Entry.t()])
  def entries(ckpt), do: call(ckpt, &Native.checkpoint_entries/1)

  # Returns the entries with the dotted name, at most 20.
  @spec entry(t(), String.t()) :: result([Entry.t()])
  def entry(ckpt, name), do: call(ckpt, &Native.checkpoint_entry(&1, name))

  @spec metadata(t()) :: result(map())
  def metadata(ckpt), do: call(ckpt, &Native.checkpoint_metadata/1)

  @spec storages(t()) :: result([map()])
  def storages(ckpt), do: call(ckpt, &Native.checkpoint_storages/1)

  @spec records(t()) :: result([String.t()])
  def records(ckpt), do: call(ckpt, &Native.checkpoint_records/1)

  # Returns the object with one of the terms, which are in file order, in place of each tensor.
  @spec object(t(), [term()]) :: result(term())
  def object(ckpt, terms) do
    tuple = List.to_tuple(terms)
    call(ckpt, &Native.checkpoint_object(&1, tuple, ckpt.options.ordered, MapSet.new([0])))
  end

  @spec tensor(t(), Entry.t()) :: result(Tensor.t())
  def tensor(ckpt, entry),
    do: call(ckpt, &Native.checkpoint_tensor(&1, entry.index, ckpt.options.verify))

  # Returns bytes of a record, or nil if there is no such record.
  @spec read_record(t(), String.t(), non_neg_integer(), non_neg_integer() | nil) ::
          result(binary() | nil)
  def read_record(ckpt, name, offset, length) do
    call(ckpt, &Native.checkpoint_read_record(&1, name, offset, length, ckpt.options.verify))
  end

  # Moves a tensor to the device given by the options and keeps its requires_grad flag.
  @spec to_device(t(), Tensor.t() | struct(), Entry.t()) ::
          result(Tensor.t() | struct())
  def to_device(ckpt, %Tensor{device: :cpu} = tensor, entry) do
    case Options.device_for(ckpt.options, entry.device) do
      :cpu ->
        {:ok, tensor}

      device ->
        {:ok, tensor |> Tensor.to(device: device) |> Tensor.requires_grad(entry.requires_grad)}
    end
  rescue
    error in Error -> {:error, Error.put_path(error, ckpt.source)}
  end

  def to_device(_ckpt, other, _entry), do: {:ok, other}

  defp call(ckpt, nif),
    do: Error.put_path(Memory.run(fn -> nif.(ckpt.resource) end), ckpt.source)
end
