defmodule ExTorch.Checkpoint.Access do
  @moduledoc false
  # What asking and loading share: calls into a handle, with the file named in every error.

  alias ExTorch.Checkpoint.Options
  alias ExTorch.{Error, Memory, Native, Tensor}

  def ask(ckpt, nif) do
    Error.located(Memory.run(fn -> nif.(ckpt.resource) end), ckpt.source)
  end

  # The object with a term in the place of each tensor.
  def build(ckpt, terms) do
    tuple = List.to_tuple(terms)
    ask(ckpt, &Native.checkpoint_object(&1, tuple, ckpt.options.ordered, MapSet.new([0])))
  end

  # To the device it is wanted on, with its mark.
  def place(ckpt, %Tensor{device: :cpu} = tensor, entry) do
    case Options.device_for(ckpt.options, entry.device) do
      :cpu ->
        {:ok, tensor}

      device ->
        {:ok, tensor |> Tensor.to(device: device) |> Tensor.requires_grad(entry.requires_grad)}
    end
  rescue
    error in Error -> {:error, Error.located(error, ckpt.source)}
  end

  def place(_ckpt, other, _entry), do: {:ok, other}
end
