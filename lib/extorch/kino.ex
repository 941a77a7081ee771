if Code.ensure_loaded?(Kino.Render) do
  defmodule ExTorch.Kino do
    @moduledoc """
    ExTorch in Livebook. Compiled if Kino is a dependency.

    The result of a cell is shown as what it is: a tensor with its statistics, a picture and a histogram; a checkpoint with
    tabs for its tensors, a treemap, its structure and its metadata; an entry, a diff and the result of a store as tables.

    Checkpoints, entries, diffs and results also implement `Table.Reader`, so `Kino.DataTable.new(ckpt)` and
    `Explorer.DataFrame.new(ckpt)` work.
    """

    alias ExTorch.Preview

    @doc """
    Shows a progress bar in the output of the cell. Returns a function for `:on_progress`.

        ExTorch.load!("model.pt", on_progress: ExTorch.Kino.progress())
    """
    @spec progress() :: (non_neg_integer(), non_neg_integer() -> :ok)
    def progress do
      frame = Kino.Frame.new()
      Kino.render(frame)
      start = System.monotonic_time(:millisecond)

      fn done, total ->
        ms = System.monotonic_time(:millisecond) - start
        Kino.Frame.render(frame, Kino.HTML.new(Preview.progress_html(done, total, ms)))
      end
    end

    @doc "Shows the report (`ExTorch.Report`) of an open checkpoint in the output of the cell."
    @spec report(ExTorch.Checkpoint.t()) :: Kino.HTML.t()
    def report(%ExTorch.Checkpoint{} = ckpt), do: Kino.HTML.new(Preview.report_frame(ckpt))
  end

  defimpl Kino.Render, for: ExTorch.Tensor do
    alias ExTorch.Preview

    def to_livebook(tensor) do
      [Preview: Kino.HTML.new(Preview.tensor_html(tensor)), Values: Kino.Inspect.new(tensor)]
      |> Kino.Layout.tabs()
      |> Kino.Render.to_livebook()
    end
  end

  defimpl Kino.Render, for: ExTorch.Checkpoint do
    alias ExTorch.Checkpoint.Handle
    alias ExTorch.Preview

    def to_livebook(ckpt) do
      case Handle.entries(ckpt) do
        {:ok, _} -> Kino.Render.to_livebook(tabs(ckpt))
        # It is closed.
        {:error, _} -> Kino.Render.Any.to_livebook(ckpt)
      end
    end

    defp tabs(ckpt) do
      Kino.Layout.tabs(
        Tensors: Kino.DataTable.new(ckpt, name: inspect(ckpt)),
        Treemap: Kino.HTML.new(Preview.treemap_html(ckpt)),
        Structure: Kino.HTML.new(Preview.structure_html(ckpt)),
        Metadata: Kino.HTML.new(Preview.metadata_html(ckpt))
      )
    end
  end

  defimpl Kino.Render, for: ExTorch.Checkpoint.Entry do
    def to_livebook(entry),
      do: entry |> ExTorch.Preview.entry_html() |> Kino.HTML.new() |> Kino.Render.to_livebook()
  end

  defimpl Kino.Render, for: [ExTorch.Diff, ExTorch.Store.ApplyResult] do
    def to_livebook(term) do
      counts = Kino.HTML.new(ExTorch.Preview.counts_html(term))
      table = Kino.DataTable.new(term, name: "Names")
      Kino.Render.to_livebook(Kino.Layout.grid([counts, table]))
    end
  end
end

if Code.ensure_loaded?(Table.Reader) do
  defimpl Table.Reader,
    for: [
      ExTorch.Checkpoint,
      ExTorch.Checkpoint.Entry,
      ExTorch.Diff,
      ExTorch.Store.ApplyResult
    ] do
    def init(term) do
      {columns, rows} = ExTorch.Preview.table(term)
      {:rows, %{columns: columns, count: length(rows)}, rows}
    end
  end
end
