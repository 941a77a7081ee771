defmodule ExTorch.Preview do
  @moduledoc false
  # Tensors, checkpoints, diffs and results of stores as tables and HTML, for notebooks. It needs neither Kino nor Table:
  # lib/extorch/kino.ex gives these to them. Text from files is escaped everywhere.

  alias ExTorch.{Checkpoint, Diff, Error, Report, Store, Tensor, Text}
  alias ExTorch.Checkpoint.{Entry, Handle, StateDict, Summary, Values}
  alias ExTorch.Preview.Picture
  alias ExTorch.Report.{Data, Histogram, Page}
  alias ExTorch.Tensor.{Pieces, Sample}

  # Larger tensors are sampled for statistics.
  @limit 65_536
  @max_dense 4 * 1024 * 1024
  @max_lines 2_000

  @type table :: {columns :: [atom()], rows :: [[term()]]}

  # ---- Tables ----

  # What can be shown as a table: columns, and rows of plain values that every table library has.
  @spec table(Checkpoint.t() | [Entry.t()] | Entry.t() | Diff.t() | Store.ApplyResult.t()) ::
          table()
  def table(%Checkpoint{} = ckpt), do: ckpt |> Checkpoint.entries() |> table()
  def table(%Entry{} = entry), do: table([entry])

  def table(entries) when is_list(entries) do
    {[:name, :dtype, :shape, :elements, :bytes, :kind, :requires_grad, :device, :storage],
     Enum.map(entries, fn entry ->
       [
         Text.name(entry.name),
         to_string(entry.dtype),
         Text.shape(entry.shape),
         Text.elements(entry),
         entry.nbytes,
         to_string(entry.kind),
         entry.requires_grad,
         Text.name(entry.device),
         entry.storage && Text.name(entry.storage)
       ]
     end)}
  end

  def table(%Diff{} = diff) do
    row = fn status, name, text -> [status, Text.name(name), text] end

    {[:status, :name, :difference],
     Enum.map(diff.changed, &row.("changed", &1.name, Diff.Change.describe(&1))) ++
       Enum.map(diff.only_a, &row.("only in a", &1, "")) ++
       Enum.map(diff.only_b, &row.("only in b", &1, "")) ++
       Enum.map(diff.values, &row.("value", &1.name, values(&1))) ++
       Enum.map(diff.equal, &row.("equal", &1, ""))}
  end

  def table(%Store.ApplyResult{} = result) do
    row = fn status, name, text -> [status, Text.name(name), Text.name(text)] end

    note = fn name -> Store.ApplyResult.note(result, name) || "-" end
    guessed = Map.from_keys(result.ambiguous, "ambiguous")

    {[:status, :name, :note],
     Enum.map(result.errors, &row.("error", &1.name, &1.message)) ++
       Enum.map(result.missing, &row.("missing", &1, note.(&1))) ++
       Enum.map(result.unused, &row.("unused", &1, "-")) ++
       Enum.map(result.skipped, &row.("skipped", &1, "-")) ++
       Enum.map(result.applied, &row.("applied", &1, Map.get(guessed, &1, "-")))}
  end

  defp values(value) do
    [:a, :b]
    |> Enum.map_join(" → ", fn side ->
      case value do
        %{^side => term} -> Text.value(term)
        _ -> "none"
      end
    end)
  end

  # ---- HTML ----

  @style "font: 14px/1.5 system-ui, sans-serif; color: #1c2430;"

  # A tensor: statistics, a picture and a histogram.
  @spec tensor_html(Tensor.t()) :: String.t()
  def tensor_html(%Tensor{} = tensor) do
    head = "#{tensor.dtype}#{Text.shape(tensor.shape)}"

    case describe(tensor) do
      {:ok, stats, counts, sampled, picture} ->
        figures =
          for key <- [:min, :max, :mean, :std], stats[key] != nil, do: {key, number(stats[key])}

        counted = for key <- [:zeros, :nan, :infinite], stats[key] > 0, do: {key, stats[key]}
        sample = if sampled, do: [{:sampled, "#{sampled} values"}], else: []

        div([
          list([{"tensor", head} | figures ++ counted ++ sample]),
          ~s(<div style="display: flex; gap: 24px; align-items: flex-end; flex-wrap: wrap">),
          picture,
          if(stats.min != nil, do: histogram_svg(counts, stats), else: ""),
          "</div>"
        ])

      {:error, message} ->
        div([list([{"tensor", head}, {"values", message}])])
    end
  end

  defp describe(%Tensor{device: :meta}), do: {:error, "a tensor on the device meta has none"}

  defp describe(tensor) do
    if Tensor.strides(tensor) == nil and Tensor.numel(tensor) > @max_dense,
      do: {:error, "the tensor is sparse and would be too large if it were dense"},
      else: describe_plain(tensor)
  rescue
    error in Error -> {:error, error.message}
  end

  defp describe_plain(tensor) do
    plain = tensor |> Pieces.plain() |> Tensor.to(device: :cpu)
    part = Sample.view(plain, @limit)
    {stats, counts} = Histogram.of(part)
    sampled = if Tensor.numel(part) < Tensor.numel(plain), do: Tensor.numel(part)
    {:ok, stats, counts, sampled, Picture.html(plain, stats)}
  end

  # A histogram as SVG.
  @spec histogram_svg([non_neg_integer()], map()) :: String.t()
  def histogram_svg(counts, %{min: min, max: max}) do
    most = Enum.max([1 | counts])

    bars =
      for {count, i} <- Enum.with_index(counts), count > 0 do
        height = max(count * 100 / most, 1.5)

        ~s(<rect x="#{i * 12}" y="#{round2(100 - height)}" width="10.5" height="#{round2(height)}"/>)
      end

    width = length(counts) * 12

    IO.iodata_to_binary([
      ~s(<svg role="img" aria-label="Histogram from #{number(min)} to #{number(max)}" width="#{width}" height="122" ),
      ~s(viewBox="0 0 #{width} 122" style="font: 11px system-ui, sans-serif"><g fill="#655ddb">),
      bars,
      ~s(</g><path d="M0 101h#{width}" stroke="#576373"/><text y="116" fill="#576373">#{number(min)}</text>),
      ~s(<text x="#{width}" y="116" text-anchor="end" fill="#576373">#{number(max)}</text></svg>)
    ])
  end

  # An entry on one line of figures.
  @spec entry_html(Entry.t()) :: String.t()
  def entry_html(%Entry{} = entry) do
    {columns, [row]} = table(entry)
    div([list(for {key, value} <- Enum.zip(columns, row), value != nil, do: {key, value})])
  end

  # The tree of modules, and what is not a tensor.
  @spec structure_html(Checkpoint.t()) :: String.t()
  def structure_html(ckpt) do
    with {:ok, entries} <- Handle.entries(ckpt),
         {:ok, object} <- StateDict.object(ckpt) do
      tree =
        entries |> Summary.lines(%{depth: nil, sort: :file, table: false}) |> Summary.format()

      values =
        for {name, value} <- Values.list(object, nil),
            do: [Text.name(name), ": ", Text.value(value)]

      pre(tree ++ if(values == [], do: [], else: ["", "not tensors:" | values]))
    else
      {:error, error} -> div([Page.escape(error.message)])
    end
  end

  # The format and the file's own metadata.
  @spec metadata_html(Checkpoint.t()) :: String.t()
  def metadata_html(ckpt) do
    {own, metadata} = ckpt |> Checkpoint.metadata() |> Map.pop(:metadata)
    known = for {key, value} <- Enum.sort(metadata), value != nil, do: {key, Text.value(value)}
    own = for {key, value} <- Enum.sort(own || %{}), do: {Text.name(key), Text.value(value)}
    div([list(known ++ own)])
  end

  # The treemap of the report, in a frame of its own.
  @spec treemap_html(Checkpoint.t()) :: String.t()
  def treemap_html(ckpt) do
    {:ok, data} =
      Data.new([{ckpt, Checkpoint.entries(ckpt)}], ckpt.source,
        stats: :none,
        view: :treemap,
        on_progress: nil
      )

    frame("Treemap", 440, Page.render(data))
  end

  # The whole report.
  @spec report_frame(Checkpoint.t()) :: String.t()
  def report_frame(ckpt), do: frame("Report", 900, Report.html!(ckpt))

  # A page in a frame. It has no access to the notebook.
  defp frame(title, height, page) do
    ~s(<iframe title="#{title}" sandbox="allow-scripts" style="width: 100%; height: #{height}px; border: 0" srcdoc=") <>
      Page.escape(page) <> ~s("></iframe>)
  end

  # Counts, before a table of names.
  @spec counts_html(Diff.t() | Store.ApplyResult.t()) :: String.t()
  def counts_html(term) do
    {_, rows} = table(term)
    div([list(Enum.frequencies_by(rows, &hd/1) |> Enum.sort())])
  end

  # A bar, for :on_progress.
  @spec progress_html(non_neg_integer(), non_neg_integer(), non_neg_integer()) :: String.t()
  def progress_html(done, total, ms) do
    share = if total == 0, do: 100, else: round2(100 * done / total)
    rate = if ms > 0, do: ", #{Text.bytes(round(done * 1000 / ms))}/s", else: ""

    div([
      ~s(<progress value="#{share}" max="100" style="width: 60%; accent-color: #655ddb"></progress> ),
      "#{Text.bytes(done)} of #{Text.bytes(total)}#{rate}"
    ])
  end

  defp div(content), do: IO.iodata_to_binary([~s(<div style="#{@style}">), content, "</div>"])

  # Pairs beside each other.
  defp list(pairs) do
    [
      ~s(<dl style="display: flex; flex-wrap: wrap; gap: 4px 28px; margin: 0 0 12px">),
      for {key, value} <- pairs do
        ~s(<div><dt style="color: #576373; font-size: 12px">#{text(key)}</dt><dd style="margin: 0">#{text(value)}</dd></div>)
      end,
      "</dl>"
    ]
  end

  defp pre(lines) do
    {shown, more} = Enum.split(lines, @max_lines)
    more = if more == [], do: [], else: ["… #{length(more)} more lines"]
    text = (shown ++ more) |> Enum.intersperse("\n") |> IO.iodata_to_binary()

    ~s(<pre style="font: 13px/1.5 ui-monospace, monospace; max-height: 480px; overflow: auto; margin: 0">) <>
      Page.escape(text) <> "</pre>"
  end

  defp text(value), do: value |> to_string() |> Page.escape()

  defp number(number) when is_integer(number), do: Integer.to_string(number)

  defp number(number),
    do: number |> :erlang.float_to_binary(scientific: 3) |> String.to_float() |> to_string()

  defp round2(number), do: Float.round(number * 1.0, 2)
end
