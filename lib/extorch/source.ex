defmodule ExTorch.Source do
  @moduledoc """
  A behaviour for reading checkpoints from something other than a path or a binary.

  Functions that read checkpoints accept any struct whose module implements this behaviour.

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

  The callbacks run in the process that calls ExTorch. Opening a checkpoint reads the end of the file, the zip directory
  and the pickle. Reading a tensor reads only its own bytes. The tensor shares the memory of the binary that
  `c:read_at/3` returned.
  """

  @type t :: struct()

  @doc "Returns the size in bytes."
  @callback size(t()) :: {:ok, non_neg_integer()} | {:error, term()}

  @doc "Reads exactly `length` bytes at `offset`."
  @callback read_at(t(), offset :: non_neg_integer(), length :: pos_integer()) ::
              {:ok, binary()} | {:error, term()}

  @doc "Closes the source. Called once, when the checkpoint is closed or could not be opened."
  @callback close(t()) :: :ok | {:error, term()}
end
