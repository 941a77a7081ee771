defmodule ExTorch.Archive.Reader do
  @moduledoc """
  A behaviour for structs that `ExTorch.Archive.load/2` can read from.

  Each callback returns the reader, changed or not. `c:read/2` may return fewer bytes than requested; the others are
  requested again. The archive begins at the position of the reader when `ExTorch.Archive.load/2` is called, and extends
  to its end.

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

  @doc "Reads at most `n` bytes at the position and advances it."
  @callback read(t(), n :: pos_integer()) ::
              {:ok, binary(), t()} | {:eof, t()} | {:error, term(), t()}

  @doc "Sets the position, counted from the start."
  @callback seek_start(t(), position :: non_neg_integer()) ::
              {:ok, non_neg_integer(), t()} | {:error, term(), t()}

  @doc "Sets the position, counted from the end: 0 is after the last byte, -1 before it."
  @callback seek_end(t(), offset :: integer()) ::
              {:ok, non_neg_integer(), t()} | {:error, term(), t()}

  @doc "Returns the position, counted from the start."
  @callback position(t()) :: {:ok, non_neg_integer(), t()} | {:error, term(), t()}

  @doc "Closes the reader. Called exactly once, also after errors."
  @callback close(t()) :: :ok | {:error, term()}
end
