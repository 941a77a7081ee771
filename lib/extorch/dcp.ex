defmodule ExTorch.DCP do
  @moduledoc """
  Folders of `torch.distributed.checkpoint`: the file `.metadata` and `*.distcp` files, into which the ranks of a training
  run have written their parts.

  A folder is read like a file. Tensors that are split over ranks (FSDP, tensor parallelism) are put together from their
  chunks, and values that are not tensors come along:

      {:ok, state} = ExTorch.load("checkpoint/step-1000")
      {:ok, ckpt} = ExTorch.Checkpoint.open("checkpoint/step-1000")
      {:ok, tensor} = ExTorch.Checkpoint.tensor(ckpt, "model.embed.weight")
      {:ok, rows} = ExTorch.DCP.slice(ckpt, "model.embed.weight", [0..99, 0..1023])   # reads the chunks it touches

  As in Python, keys of dicts become strings and tuples that contain tensors become lists. `.metadata` is a pickle; nothing
  in it is executed.

  ## Saving

  `ExTorch.save(term, folder, format: :dcp)` writes a folder that Python's `torch.distributed.checkpoint.load` reads. Several
  processes or nodes with a shared file system can each write their part:

      # each writer
      {:ok, part} = ExTorch.DCP.write(%{"model" => %{"weight" => chunk}}, folder, rank: rank)

      # one of them, with the parts of all
      :ok = ExTorch.DCP.commit(folder, parts)

  A part of a tensor is an `%ExTorch.DCP.Chunk{}`. The file `.metadata` is written last, by one rename: until then the
  folder contains the old checkpoint, or none. Files of a checkpoint that was replaced are then removed.
  """

  alias ExTorch.Checkpoint
  alias ExTorch.Checkpoint.Handle
  alias ExTorch.DCP.{Folder, Metadata, Writer}
  alias ExTorch.{Error, Options, Tensor}

  defmodule Chunk do
    @moduledoc """
    A part of a tensor: `tensor` is what `offsets` and the shape of `tensor` select of a tensor of the shape `shape`.
    """
    @type t :: %__MODULE__{tensor: ExTorch.Tensor.t(), offsets: tuple(), shape: tuple()}
    @enforce_keys [:tensor, :offsets, :shape]
    defstruct [:tensor, :offsets, :shape]
  end

  @typedoc "What a writer has written. It can be sent to another node."
  @opaque part :: %{file: String.t(), items: [Metadata.item()]}

  @doc """
  Reads a part of a tensor: one range for each dimension.

  Reads only the chunks of a folder that the ranges touch. Of other checkpoints the whole tensor is read.

      {:ok, ckpt} = ExTorch.Checkpoint.open("checkpoint/step-1000")
      {:ok, rows} = ExTorch.DCP.slice(ckpt, "model.embed.weight", [0..99, 0..1023])
  """
  @spec slice(Checkpoint.t(), Checkpoint.name(), [Range.t()]) ::
          {:ok, Tensor.t()} | {:error, Error.t()}
  def slice(ckpt, name, ranges) do
    unless is_list(ranges) and not List.improper?(ranges),
      do: Options.expected!("a list of ranges", ranges)

    with {:ok, entry} <- Checkpoint.entry(ckpt, name),
         handle = handle(ckpt),
         {:ok, box} <- box(ranges, entry) do
      case handle.resource do
        %Folder{} = folder ->
          with {:ok, tensor} <-
                 Folder.slice(folder, Folder.item(folder, entry), box, handle.options),
               do: Handle.to_device(handle, tensor, entry)

        _ ->
          with {:ok, tensor} <- Checkpoint.tensor(ckpt, name),
               do: {:ok, ExTorch.op("clone", [narrow(tensor, box)])}
      end
    end
  end

  @doc "Same as `slice/3` but raises on error."
  @spec slice!(Checkpoint.t(), Checkpoint.name(), [Range.t()]) :: Tensor.t()
  def slice!(ckpt, name, ranges), do: Error.unwrap!(slice(ckpt, name, ranges))

  @spec handle(term()) :: Handle.t()
  defp handle(ckpt), do: ckpt

  defp box(ranges, entry) do
    shape = Tuple.to_list(entry.shape)

    inside? =
      length(ranges) == length(shape) and
        Enum.all?(Enum.zip(ranges, shape), fn
          {%Range{first: first, last: last, step: 1}, size} ->
            first >= 0 and last >= first and last < size

          _ ->
            false
        end)

    if inside?,
      do:
        {:ok,
         %{
           offsets: ranges |> Enum.map(& &1.first) |> List.to_tuple(),
           sizes: ranges |> Enum.map(&Range.size/1) |> List.to_tuple()
         }},
      else:
        {:error,
         Error.new(
           :bad_argument,
           "expected a range with the step 1 inside each dimension of #{inspect(entry.shape)}, got #{inspect(ranges)}"
         )}
  end

  defp narrow(tensor, box) do
    [box.offsets, box.sizes]
    |> Enum.map(&Tuple.to_list/1)
    |> Enum.zip()
    |> Enum.with_index()
    |> Enum.reduce(tensor, fn {{offset, size}, dim}, tensor ->
      ExTorch.op("aten::narrow", [tensor, dim, offset, size])
    end)
  end

  @doc """
  Writes the part of one writer into a folder, which is created if it does not exist. Returns the part for `commit/3`.

  Leaves of the term may be `%ExTorch.DCP.Chunk{}`. What several writers have, such as a tensor that is not split, is
  written by each and used once.

      chunk = %ExTorch.DCP.Chunk{tensor: rows, offsets: {1000, 0}, shape: {4000, 1024}}
      {:ok, part} = ExTorch.DCP.write(%{"model" => %{"weight" => chunk}}, "checkpoint/step-1000", rank: 1)

  ## Options

    * `:rank` - the number of the writer, part of the name of its file. Defaults to 0.
    * `:fsync` - as in `ExTorch.save/3`
  """
  @spec write(term(), Path.t(), keyword()) :: {:ok, part()} | {:error, Error.t()}
  def write(term, folder, opts \\ []) do
    opts = Options.validate!(opts, rank: 0, fsync: true)
    Options.booleans!(opts, [:fsync])

    unless is_integer(opts[:rank]) and opts[:rank] >= 0,
      do: Options.invalid!(:rank, "a non-negative integer", opts[:rank])

    Writer.write(term, folder, opts[:rank], opts[:fsync])
  end

  @doc "Same as `write/3` but raises on error."
  @spec write!(term(), Path.t(), keyword()) :: part()
  def write!(term, folder, opts \\ []), do: Error.unwrap!(write(term, folder, opts))

  @doc """
  Makes the parts of all writers the checkpoint of the folder. Takes the option `:fsync`.

      :ok = ExTorch.DCP.commit("checkpoint/step-1000", [part_of_rank_0, part_of_rank_1])
  """
  @spec commit(Path.t(), [part()], keyword()) :: :ok | {:error, Error.t()}
  def commit(folder, parts, opts \\ []) do
    opts = Options.validate!(opts, fsync: true)
    Options.booleans!(opts, [:fsync])

    unless is_binary(folder) and Options.path?(folder),
      do: Options.expected!("the path of a folder", folder)

    unless is_list(parts) and not List.improper?(parts) and
             Enum.all?(parts, &match?(%{file: _, items: _}, &1)),
           do: Options.expected!("the parts that ExTorch.DCP.write/3 returned, in a list", parts)

    Writer.commit(folder, parts, opts[:fsync])
  end

  @doc "Same as `commit/3` but raises on error."
  @spec commit!(Path.t(), [part()], keyword()) :: :ok
  def commit!(folder, parts, opts \\ []), do: Error.unwrap!(commit(folder, parts, opts))
end
