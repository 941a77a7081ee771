# {name, tensor} in file order; each tensor is read when it is reached.
defimpl Enumerable, for: ExTorch.Checkpoint do
  alias ExTorch.Checkpoint
  alias ExTorch.Checkpoint.Reader
  alias ExTorch.Error

  def count(ckpt), do: {:ok, length(Checkpoint.keys(ckpt))}

  def member?(_ckpt, _pair), do: {:error, __MODULE__}

  def slice(ckpt) do
    entries = ckpt |> Checkpoint.entries() |> List.to_tuple()

    read = fn start, count, step ->
      for i <- Enum.take(Stream.iterate(start, &(&1 + step)), count) do
        entry = elem(entries, i)
        {entry.name, Error.unwrap!(Reader.entry(ckpt, entry))}
      end
    end

    {:ok, tuple_size(entries), read}
  end

  def reduce(ckpt, acc, fun), do: Enumerable.reduce(Checkpoint.stream(ckpt), acc, fun)
end
