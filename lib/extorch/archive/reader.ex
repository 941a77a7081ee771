defmodule ExTorch.Archive.Reader do
  @moduledoc """
  What `ExTorch.Archive.load/2` can read from: a struct whose module implements these callbacks.

  The reader is a value that each callback gives back, changed or not. Fewer bytes than were asked for are fine: the rest
  is asked for again. The archive begins at the reader's position when `load/2` is called, and ends at its end.

      defmodule Slice do
        @behaviour ExTorch.Archive.Reader
        defstruct [:bytes, at: 0]

        @impl true
        def read(%{at: at, bytes: bytes} = slice, n) do
          case binary_part(bytes, at, min(n, byte_size(bytes) - at)) do
            "" -> {:eof, slice}
            data -> {:ok, data, %{slice | at: at + byte_size(data)}}
          end
        end

        @impl true
        def seek_start(slice, position), do: {:ok, position, %{slice | at: position}}
        @impl true
        def seek_end(slice, offset), do: seek_start(slice, byte_size(slice.bytes) + offset)
        @impl true
        def position(slice), do: {:ok, slice.at, slice}
        @impl true
        def close(_slice), do: :ok
      end
  """

  @type t :: struct()

  @doc "At most n bytes from the position on, which moves behind them."
  @callback read(t(), n :: pos_integer()) ::
              {:ok, binary(), t()} | {:eof, t()} | {:error, term(), t()}

  @doc "Moves to a position, counted from the start."
  @callback seek_start(t(), position :: non_neg_integer()) ::
              {:ok, non_neg_integer(), t()} | {:error, term(), t()}

  @doc "Moves to a position counted from the end: 0 is behind the last byte, -1 before it."
  @callback seek_end(t(), offset :: integer()) ::
              {:ok, non_neg_integer(), t()} | {:error, term(), t()}

  @doc "Where it is."
  @callback position(t()) :: {:ok, non_neg_integer(), t()} | {:error, term(), t()}

  @doc "Called once, when nothing more will be read."
  @callback close(t()) :: :ok | {:error, term()}
end
