defmodule ExTorch.CLI.Show do
  @moduledoc false
  @behaviour ExTorch.CLI

  alias ExTorch.{CLI, Text}
  alias ExTorch.Checkpoint.{BatchLoad, Lookup, StateDict}
  alias ExTorch.{Error, Tensor}
  alias ExTorch.Tensor.Stats

  @bins 16
  @width 40
  @fields [:numel, :min, :max, :mean, :std, :zeros, :nan, :infinite]

  @impl true
  def summary, do: "values, statistics and a histogram of one tensor"

  @impl true
  def usage do
    """
    Usage: extorch show [OPTIONS] PATH NAME

    Prints one tensor: its description, some of its values, statistics of the finite ones, and a histogram. Without NAME,
    the file must contain one tensor.

      --values N       how many values to print (default 50)
      --bins N         intervals of the histogram (default #{@bins})
      --json           as JSON; the values are printed only with --values
      --no-color       without colours

    Examples:

      extorch show model.pt encoder.layer.0.weight
      extorch show model.safetensors lm_head.weight --json
    """
  end

  @impl true
  def libtorch?, do: true

  @impl true
  def switches, do: [values: :integer, bins: :integer]

  @impl true
  def run([path | name], options) when length(name) < 2 do
    if (options[:bins] || 1) in 1..1000 and (options[:values] || 1) >= 0 do
      StateDict.with_parts(path, [mmap: true], fn parts ->
        with {:ok, ckpt, entry} <- find(parts, name),
             {:ok, tensor} <- read(ckpt, entry),
             do: {0, show(entry, tensor, options)}
      end)
    else
      :usage
    end
  end

  def run(_args, _options), do: :usage

  defp find([{ckpt, [entry]}], []), do: {:ok, ckpt, entry}

  defp find(_parts, []),
    do:
      {:error,
       Error.new(:bad_argument, "expected the name of a tensor; extorch info prints them")}

  defp find(parts, [name]) do
    found = for {ckpt, entries} <- parts, entry <- entries, entry.name == name, do: {ckpt, entry}

    case {found, parts} do
      {[{ckpt, entry}], _} ->
        {:ok, ckpt, entry}

      {[], [_, _ | _]} ->
        {:error, Error.new(:not_found, "no shard has a tensor named #{inspect(name)}")}

      # The error suggests names, or lists the paths.
      {_, [{ckpt, _} | _]} ->
        with {:ok, entry} <- Lookup.entry(ckpt, name), do: {:ok, ckpt, entry}
    end
  end

  defp read(ckpt, entry) do
    case BatchLoad.tensors(ckpt, [entry]) do
      {:ok, [%Tensor{} = tensor]} ->
        {:ok, tensor}

      {:ok, [_raw]} ->
        {:error,
         Error.new(
           :unsupported,
           "the linked LibTorch does not support the dtype #{entry.dtype}",
           ckpt.source
         )}

      error ->
        error
    end
  end

  defp show(entry, %{device: :meta} = tensor, options) do
    if options.json,
      do: CLI.json(CLI.entry(entry)),
      else: [inspect(entry), "\n", inspect(tensor), "\n"]
  end

  defp show(entry, tensor, options) do
    stats = Stats.of(tensor)
    bins = Stats.histogram(tensor, stats, options[:bins] || @bins)

    if options.json,
      do: json(entry, tensor, stats, bins, options),
      else: text(entry, tensor, stats, bins, options)
  end

  # ---- Text ----

  defp text(entry, tensor, stats, bins, options) do
    [
      CLI.color(Text.name(entry.name), :bright, options),
      ": #{entry.dtype}#{Text.shape(entry.shape)}, #{Text.bytes(entry.nbytes)}",
      if(entry.kind != :tensor, do: ", #{entry.kind}", else: ""),
      if(entry.device != "cpu", do: ", saved on #{Text.name(entry.device)}", else: ""),
      "\n",
      inspect(tensor, limit: max(options[:values] || 50, 1), width: 100),
      "\n",
      for(key <- @fields, value = stats[key], value != nil, do: statistic(key, value, options)),
      if(stats.min != nil, do: histogram(stats, bins, options), else: [])
    ]
  end

  # NaN and infinite values stand out.
  defp statistic(key, value, options) when key in [:nan, :infinite] and value > 0,
    do: CLI.color("#{String.pad_trailing("#{key}", 9)}#{value}\n", :red, options)

  defp statistic(key, value, _options), do: "#{String.pad_trailing("#{key}", 9)}#{value}\n"

  defp histogram(%{min: min, max: max}, bins, options) do
    most = Enum.max([1 | bins])

    for {count, i} <- Enum.with_index(bins) do
      # Between the two, so that it cannot exceed a float64.
      part = i / length(bins)
      from = start(min * (1 - part) + max * part)
      bar = String.duplicate("█", ceil(count * @width / most))
      [String.pad_leading(from, 14), "  ", CLI.color(bar, :cyan, options), " #{count}\n"]
    end
  end

  defp start(number) when abs(number) < 1.0e8, do: :erlang.float_to_binary(number, decimals: 4)
  defp start(number), do: :erlang.float_to_binary(number, scientific: 4)

  # ---- JSON ----

  defp json(entry, tensor, stats, bins, options) do
    base = Map.merge(CLI.entry(entry), Map.put(stats, :histogram, bins))

    CLI.json(
      case options[:values] do
        nil -> base
        count -> Map.put(base, :values, values(tensor, count))
      end
    )
  end

  defp values(tensor, count) do
    dense = Tensor.reshape(ExTorch.Tensor.Pieces.plain(tensor), {-1})
    last = min(count, Tensor.numel(dense)) - 1
    if last < 0, do: [], else: Tensor.to_list(Tensor.slice(dense, 0, 0..last))
  end
end
