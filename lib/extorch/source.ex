defmodule ExTorch.Source do
  @moduledoc """
  Where a checkpoint's bytes come from, when it is neither a path nor a binary: any struct whose module implements this.

      defmodule MySource do
        @behaviour ExTorch.Source
        defstruct [:file]

        @impl true
        def size(%{file: file}), do: {:ok, File.stat!(file).size}

        @impl true
        def read_at(%{file: file}, offset, length) do
          with {:ok, io} <- File.open(file, [:read, :raw, :binary]), {:ok, bytes} <- :file.pread(io, offset, length) do
            File.close(io)
            {:ok, bytes}
          end
        end

        @impl true
        def close(_), do: :ok
      end

      ExTorch.load(%MySource{file: "model.pt"})

  The callbacks run in the process that asks for something; opening reads the end of the file, its directory and its
  pickle, and a tensor just its own bytes, which it then shares with the binary that `c:read_at/3` returned.
  """

  @type t :: struct()

  @doc "How many bytes there are."
  @callback size(t()) :: {:ok, non_neg_integer()} | {:error, term()}

  @doc "Exactly `length` bytes from `offset`."
  @callback read_at(t(), offset :: non_neg_integer(), length :: pos_integer()) ::
              {:ok, binary()} | {:error, term()}

  @doc "Called once, when the checkpoint is closed or could not be opened."
  @callback close(t()) :: :ok | {:error, term()}
end
