defmodule ExTorch.Test.Pickle do
  @moduledoc false
  # Writes pickles instruction by instruction. All functions but make/1 return iodata.

  @doc "A pickle of protocol 2 with these instructions."
  def make(body), do: IO.iodata_to_binary([<<0x80, 2>>, body, "."])

  def text(string), do: [<<"X", byte_size(string)::little-32>>, string]
  def int(value) when value in -0x80000000..0x7FFFFFFF, do: <<"J", value::little-signed-32>>
  def int(value), do: [<<0x8A, 8>>, <<value::little-signed-64>>]
  def tuple(items), do: ["(", items, "t"]
  def list(items), do: ["](", items, "e"]
  def dict(pairs), do: ["}(", Enum.map(pairs, fn {key, value} -> [text(key), value] end), "u"]
  def global(module, name), do: ["c", module, "\n", name, "\n"]
  def reduce(callable, args), do: [callable, tuple(args), "R"]

  @doc "The persistent id of a storage. Options (pickled values): `:class`, `:key`, `:location`, `:numel`."
  def storage(opts \\ []) do
    class = Keyword.get(opts, :class, global("torch", "FloatStorage"))
    key = Keyword.get(opts, :key, text("0"))

    [
      tuple([
        text("storage"),
        class,
        key,
        Keyword.get(opts, :location, text("cpu")),
        Keyword.get(opts, :numel, int(4))
      ]),
      "Q"
    ]
  end

  @doc "A tensor. Options (pickled values): `:storage`, `:offset`, `:size`, `:stride`, and those of storage/1."
  def tensor(opts \\ []) do
    reduce(global("torch._utils", "_rebuild_tensor_v2"), [
      Keyword.get(opts, :storage, storage(opts)),
      Keyword.get(opts, :offset, int(0)),
      Keyword.get(opts, :size, tuple([int(4)])),
      Keyword.get(opts, :stride, tuple([int(1)])),
      <<0x89>>,
      reduce(global("collections", "OrderedDict"), [])
    ])
  end
end
