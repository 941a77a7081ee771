defmodule ExTorch.Test.Hostile do
  @moduledoc false
  # Loads handcrafted files, most of which must be refused.
  alias ExTorch.Test.{Pickle, Zip}

  @four_floats <<1.0::float-32-little, 2.0::float-32-little, 3.0::float-32-little,
                 4.0::float-32-little>>

  @doc "The bytes of the storage \"0\" that Pickle.tensor/1 refers to by default."
  def four_floats, do: @four_floats

  @doc "Loads bytes. Returns `{:ok, object}`, or the reason and the message of the error."
  def load(bytes, opts \\ []) do
    case ExTorch.load({:binary, IO.iodata_to_binary(bytes)}, opts) do
      {:ok, object} -> {:ok, object}
      {:error, %ExTorch.Error{} = error} -> {error.reason, error.message}
    end
  end

  @doc "Loads a zip file with this pickle and a storage \"0\" of four floats."
  def load_pickle(pickle, opts \\ []),
    do: load(Zip.checkpoint(IO.iodata_to_binary(pickle), %{"0" => @four_floats}), opts)

  @doc "The same for the instructions of a pickle of protocol 2, without its header and end."
  def load_body(body, opts \\ []), do: load_pickle(Pickle.make(body), opts)

  @doc "The records of a valid zip file, for Zip.make/2."
  def valid_records do
    [
      {"a/data.pkl", Pickle.make(Pickle.tensor())},
      {"a/data/0", @four_floats},
      {"a/version", "3\n"}
    ]
  end
end
