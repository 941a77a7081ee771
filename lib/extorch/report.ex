defmodule ExTorch.Report do
  @moduledoc """
  A page about a checkpoint: one HTML file that needs nothing else.

      :ok = ExTorch.report("model.pt", "model.html")

  or `mix extorch.report model.pt -o model.html`. The page has a treemap of the bytes by module, a table of all tensors to
  search and sort, the statistics and a histogram of each tensor, the types of elements, what is shared, what is not a
  tensor, the metadata, and whether torch's `weights_only` accepts the file, with the names that make it unsafe.

  The page contains its data, styles and scripts, and its Content-Security-Policy allows nothing else: it sends no request.
  Text from the checkpoint is only ever text. It can be used with a keyboard and a screen reader, and follows the system's
  light or dark setting, with a switch.

  ## Options

    * `:stats` - which values to read:
        * `:sample` - all values of tensors of up to 65,536 elements, and about so many of larger ones, taken evenly. Larger
          tensors of a source that is not a file (a URL) are not read. The page says so. This is the default.
        * `:all` - all values
        * `:none` - no values
    * `:verify`, `:limits` - as in `ExTorch.load/2`
    * `:on_progress` - as in `ExTorch.load/2`, about the bytes of the tensors
  """

  alias ExTorch.{Checkpoint, Error, Options, Progress}
  alias ExTorch.Archive.AtomicFile
  alias ExTorch.Checkpoint.{Handle, StateDict}
  alias ExTorch.Report.{Data, Page}

  @options [stats: :sample, verify: false, limits: [], on_progress: nil]

  @doc """
  Returns the page.

  The source is as in `ExTorch.Checkpoint.state_dict/2`: a file in any format, an index of shards or its directory, a URL;
  or an open checkpoint.

      iex> file = Path.join(System.tmp_dir!(), "extorch_doc_#{System.unique_integer([:positive])}.pt")
      iex> ExTorch.save!(%{"weight" => ExTorch.ones({2, 3})}, file)
      iex> {:ok, "<!DOCTYPE html>" <> _} = ExTorch.Report.html(file)
      iex> File.rm!(file)
      :ok
  """
  @spec html(Checkpoint.source() | Checkpoint.t(), keyword()) ::
          {:ok, binary()} | {:error, Error.t()}
  def html(source, opts \\ []) do
    opts = check!(opts)
    with {:ok, data} <- data(source, opts), do: {:ok, Page.render(data)}
  end

  defp data(%Checkpoint{} = ckpt, opts) do
    with {:ok, entries} <- Handle.entries(ckpt),
         do: Data.new([{ckpt, entries}], ckpt.source, opts)
  end

  defp data(source, opts) do
    open = [mmap: true, verify: opts[:verify], limits: opts[:limits]]
    StateDict.with_parts(source, open, &Data.new(&1, source, opts))
  end

  @doc "Same as `html/2` but raises on error."
  @spec html!(Checkpoint.source() | Checkpoint.t(), keyword()) :: binary()
  def html!(source, opts \\ []), do: Error.unwrap!(html(source, opts))

  @doc """
  Writes the page to a file, which is replaced atomically. `ExTorch.report/3` is the same.

      :ok = ExTorch.Report.write("model.pt", "model.html", stats: :all)
  """
  @spec write(Checkpoint.source() | Checkpoint.t(), Path.t(), keyword()) ::
          :ok | {:error, Error.t()}
  def write(source, path, opts \\ []) do
    with {:ok, page} <- html(source, opts),
         {:ok, file} <- AtomicFile.open(path) do
      case AtomicFile.write(file, page) do
        {:ok, _, file} ->
          closed(AtomicFile.close(file, :ok))

        {:error, error, file} ->
          AtomicFile.close(file, :error)
          {:error, error}
      end
    end
  end

  defp closed(:ok), do: :ok
  defp closed({:error, error}), do: {:error, error}

  @doc "Same as `write/3` but raises on error."
  @spec write!(Checkpoint.source() | Checkpoint.t(), Path.t(), keyword()) :: :ok
  def write!(source, path, opts \\ []), do: Error.unwrap!(write(source, path, opts))

  defp check!(opts) do
    opts = Options.validate!(opts, @options)
    Progress.check!(opts[:on_progress])

    unless opts[:stats] in [:sample, :all, :none],
      do: Options.invalid!(:stats, ":sample, :all or :none", opts[:stats])

    opts
  end
end
