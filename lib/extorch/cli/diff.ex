defmodule ExTorch.CLI.Diff do
  @moduledoc false
  @behaviour ExTorch.CLI

  alias ExTorch.{CLI, Text}
  alias ExTorch.Diff.Change

  @impl true
  def summary, do: "compare two checkpoints: names, shapes, dtypes, values"

  @impl true
  def usage do
    """
    Usage: extorch diff [OPTIONS] A B

    Compares two checkpoints in any format. The exit status is 0 if they are equal and 1 if they are not. The largest
    differences come last, followed by a summary.

      --rtol X, --atol X     values within these tolerances are equal: |a - b| <= atol + rtol * |b|
      --nan-differs          NaN differs from NaN
      --ignore-dtype         compare only the values of tensors of different dtypes
      --tensors-only         compare only tensors
      --only FILTER          tensors of this name, of a pattern (encoder.*) or of a /regular expression/; may be repeated
      --except FILTER        without these
      --top-level-key KEY    compare what is below this key (state_dict), or auto
      --rename REGEX=TEXT    gives the tensors of A their names in B; may be repeated
      --all                  print all differences instead of the largest
      --json                 as JSON
      --no-color             without colours

    Examples:

      extorch diff before.pt after.pt
      extorch diff model.pt model-fp16.safetensors --ignore-dtype --rtol 1e-3
      extorch diff train.ckpt export.safetensors --top-level-key auto --tensors-only
    """
  end

  @impl true
  def libtorch?, do: true

  @impl true
  def switches do
    [
      rtol: :float,
      atol: :float,
      nan_differs: :boolean,
      ignore_dtype: :boolean,
      tensors_only: :boolean,
      only: [:string, :keep],
      except: [:string, :keep],
      top_level_key: :string,
      rename: [:string, :keep],
      all: :boolean
    ]
  end

  @impl true
  def run([a, b], options) do
    same = & &1

    opts =
      CLI.put([on_progress: :bar], options, [
        {:rtol, :rtol, same},
        {:atol, :atol, same},
        {:nan_differs, :equal_nan, &not/1},
        {:ignore_dtype, :check_dtype, &not/1},
        {:tensors_only, :values, &not/1},
        {:only, :only, &CLI.filter/1},
        {:except, :except, &CLI.filter/1},
        {:top_level_key, :top_level_key, &CLI.auto/1},
        {:rename, :rename, &CLI.rename/1}
      ])

    with {:ok, diff} <- ExTorch.diff(a, b, opts) do
      status = if ExTorch.Diff.equal?(diff), do: 0, else: 1
      {status, if(options.json, do: json(diff), else: text(diff, options))}
    end
  end

  def run(_args, _options), do: :usage

  defp text(diff, options) do
    lines = ExTorch.Diff.lines(diff, if(options[:all], do: :infinity, else: 20))
    {last, lines} = List.pop_at(lines, -1)
    color = if ExTorch.Diff.equal?(diff), do: :green, else: :red
    [Enum.map(lines, &[&1, "\n"]), CLI.color(last, color, options), "\n"]
  end

  defp json(diff) do
    CLI.json(%{
      equal: diff.equal,
      changed: Enum.map(diff.changed, &change/1),
      only_a: diff.only_a,
      only_b: diff.only_b,
      values: Enum.map(diff.values, &value/1)
    })
  end

  defp change(%Change{} = change) do
    change |> Map.from_struct() |> Map.put(:description, Change.describe(change))
  end

  defp value(value) do
    Map.new(value, fn
      {:name, name} -> {:name, name}
      {side, value} -> {side, Text.value(value)}
    end)
  end
end
