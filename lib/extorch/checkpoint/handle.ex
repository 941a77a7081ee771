defmodule ExTorch.Checkpoint.Handle do
  @moduledoc false
  # The NIF calls on an open checkpoint, or the same for an open folder (ExTorch.DCP). Each returns {:ok, value} or an error
  # that contains the path of the file.

  alias ExTorch.Checkpoint
  alias ExTorch.Checkpoint.{DeviceLoad, Entry, Options}
  alias ExTorch.{Error, Tensor}
  alias ExTorch.DCP.Folder
  alias ExTorch.Native.Call

  # The same as Checkpoint.t(), which is opaque.
  @type t :: %Checkpoint{
          resource: reference() | Folder.t(),
          source: Checkpoint.source() | nil,
          options: Options.t()
        }
  @type result(value) :: {:ok, value} | {:error, Error.t()}

  @spec keys(t()) :: result([String.t()])
  def keys(%{resource: %Folder{} = folder}), do: Folder.keys(folder)
  def keys(ckpt), do: put_path(Call.checkpoint_keys(ckpt.resource), ckpt)

  @spec entries(t()) :: result([Entry.t()])
  def entries(%{resource: %Folder{} = folder}), do: Folder.entries(folder)
  def entries(ckpt), do: put_path(Call.checkpoint_entries(ckpt.resource, :all), ckpt)

  # Returns, for each dotted name, the list of entries that have it: at most 20.
  @spec entries(t(), [String.t()]) :: result([[Entry.t()]])
  def entries(%{resource: %Folder{} = folder}, names), do: Folder.entries(folder, names)
  def entries(ckpt, names), do: put_path(Call.checkpoint_entries(ckpt.resource, names), ckpt)

  # Returns the index of each leaf's entry and the bytes of all, if the leaves and the entries are the same tensors and each
  # has its own storage; otherwise nil.
  @spec match(t(), [ExTorch.Store.Leaves.leaf()]) ::
          result({[non_neg_integer()], non_neg_integer()} | nil)
  def match(%{resource: %Folder{}}, _leaves), do: {:ok, nil}
  def match(ckpt, leaves), do: put_path(Call.checkpoint_match(ckpt.resource, leaves), ckpt)

  @spec metadata(t()) :: result(map())
  def metadata(%{resource: %Folder{} = folder}), do: Folder.metadata(folder)
  def metadata(ckpt), do: put_path(Call.checkpoint_metadata(ckpt.resource), ckpt)

  @spec storages(t()) :: result([map()])
  def storages(%{resource: %Folder{}}), do: {:ok, []}
  def storages(ckpt), do: put_path(Call.checkpoint_storages(ckpt.resource), ckpt)

  @spec records(t()) :: result([String.t()])
  def records(%{resource: %Folder{}}), do: {:ok, []}
  def records(ckpt), do: put_path(Call.checkpoint_records(ckpt.resource), ckpt)

  # Returns the object with one of the terms, which are in file order, in place of each tensor.
  @spec object(t(), [term()]) :: result(term())
  def object(%{resource: %Folder{} = folder} = ckpt, terms),
    do: put_path(Folder.object(folder, terms, ckpt.options), ckpt)

  def object(ckpt, terms) do
    call = Call.checkpoint_object(ckpt.resource, List.to_tuple(terms), style(ckpt.options))
    put_path(call, ckpt)
  end

  # How the NIFs make containers: whether dicts keep their order, and a set as a template.
  @spec style(Options.t()) :: ExTorch.Native.style()
  def style(options), do: {options.ordered, MapSet.new([0])}

  # Returns the tensor, or the entries with the name if there are none or several.
  @spec tensor(t(), String.t() | non_neg_integer()) :: result(Tensor.t() | [Entry.t()])
  def tensor(%{resource: %Folder{} = folder} = ckpt, name),
    do: put_path(Folder.tensor(folder, name, ckpt.options), ckpt)

  def tensor(ckpt, name),
    do: put_path(Call.checkpoint_tensor(ckpt.resource, name, ckpt.options.verify), ckpt)

  # Returns bytes of a record, or nil if there is no such record.
  @spec read_record(t(), String.t(), non_neg_integer(), non_neg_integer() | nil) ::
          result(binary() | nil)
  def read_record(%{resource: %Folder{}}, _name, _offset, _length), do: {:ok, nil}

  def read_record(ckpt, name, offset, length) do
    verify = ckpt.options.verify
    put_path(Call.checkpoint_read_record(ckpt.resource, name, offset, length, verify), ckpt)
  end

  # Moves a tensor to the device given by the options and keeps its requires_grad flag.
  @spec to_device(t(), Tensor.t() | struct(), Entry.t()) ::
          result(Tensor.t() | struct())
  def to_device(ckpt, tensor, entry), do: move(ckpt, tensor, entry, &DeviceLoad.move/2)

  # The same, but may return a tensor that is not there yet: see DeviceLoad.end_move/1.
  @spec start_to_device(t(), Tensor.t() | struct(), Entry.t()) ::
          result(Tensor.t() | struct() | DeviceLoad.moving())
  def start_to_device(ckpt, tensor, entry),
    do: move(ckpt, tensor, entry, &DeviceLoad.start_move/2)

  # The tensor has the flag of its entry, which the copy gets.
  defp move(ckpt, %Tensor{device: :cpu} = tensor, entry, move) do
    case Options.device_for(ckpt.options, entry.device) do
      :cpu -> {:ok, tensor}
      device -> move.(tensor, device)
    end
    |> put_path(ckpt)
  rescue
    error in Error -> {:error, Error.put_path(error, ckpt.source)}
  end

  defp move(_ckpt, other, _entry, _move), do: {:ok, other}

  defp put_path(result, ckpt), do: Error.put_path(result, ckpt.source)
end
