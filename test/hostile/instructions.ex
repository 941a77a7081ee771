defmodule ExTorch.HostileFiles.Instructions do
  @moduledoc false
  # Instructions of pickles, beside those of ExTorch.Test.Pickle.
  import ExTorch.Test.Pickle
  import ExTorch.Test.Formats, only: [pickled_bytes: 1, numpy_dtype: 1]

  def put(i) when i < 256, do: <<"q", i>>
  def put(i), do: <<"r", i::little-32>>

  # For values at the bottom of the stack. The catalogue makes a tuple of all that is left there; strict refuses POP.
  def keep(i), do: put(i)
  def get(i) when i < 256, do: <<"h", i>>
  def get(i), do: <<"j", i::little-32>>
  def gets(i, n), do: copies(get(i), n)
  def copies(data, n), do: copies_binary(IO.iodata_to_binary(data), n)
  def copies_binary(_, n) when n <= 0, do: ""
  def copies_binary(data, n), do: :binary.copy(data, n)
  def chars(n), do: :binary.copy("k", n)
  def ints(n), do: for(i <- 1..n, do: int(i))
  def set(items), do: [<<0x8F>>, "(", items, <<0x90>>]
  def long(n), do: [<<0x8B, n::little-32>>, :binary.copy(<<0x55>>, n)]

  def object(state),
    do: [global("m", "C"), ")", <<0x81>>, state, if(state == [], do: [], else: "b")]

  def device(type), do: reduce(global("torch", "device"), [text(type)])

  def complex,
    do: reduce(global("__builtin__", "complex"), [<<"G", 1.0::float>>, <<"G", 2.0::float>>])

  def numpy_scalar,
    do:
      reduce(global("numpy.core.multiarray", "scalar"), [
        numpy_dtype("f4"),
        pickled_bytes(<<0::32>>)
      ])

  @doc "A value, n references to it, and n references to all of these."
  def levels(value, n), do: tuple([value, put(0), list(gets(0, n)), put(1), list(gets(1, n))])
end
