defmodule ExTorch.Store.ApplyResult do
  @moduledoc """
  What became of every name when a file was applied to a module. Each name of both sides is in exactly one list.

    * `applied` - the module's tensors that were filled
    * `missing` - the module has it, the file not
    * `skipped` - a filter left it out
    * `unused` - the file has it, the module not
    * `errors` - shape, dtype or reading failed: maps of `:name, :reason, :message, :expected, :found`

  In the result that an error carries, `applied` has the names that would have been filled; the module is as it was.

  Names are those the module knows, but for file names that no module name stands for. `module` is the updated module.
  `suggestions` has for a missing name the unused one most like it.
  """

  @type failure :: %{
          name: String.t(),
          reason: atom(),
          message: String.t(),
          expected: map() | nil,
          found: map() | nil
        }
  @type t :: %__MODULE__{
          module: term(),
          applied: [String.t()],
          missing: [String.t()],
          skipped: [String.t()],
          unused: [String.t()],
          errors: [failure()],
          suggestions: %{String.t() => String.t()}
        }

  defstruct [
    :module,
    applied: [],
    missing: [],
    skipped: [],
    unused: [],
    errors: [],
    suggestions: %{}
  ]

  @doc "Is there nothing that the module wanted and did not get?"
  @spec complete?(t()) :: boolean()
  def complete?(%__MODULE__{missing: missing, errors: errors}), do: missing == [] and errors == []

  @doc "The account as text: counts, and the first ten names of each list."
  @spec summary(t()) :: String.t()
  def summary(%__MODULE__{} = result) do
    head = "#{length(result.applied)} applied"

    counts = for {label, list} <- lists(result), list != [], do: "#{length(list)} #{label}"

    [Enum.join([head | counts], ", ") | Enum.flat_map(lists(result), &section(&1, result))]
    |> Enum.join("\n")
  end

  defp lists(result) do
    [
      {"missing", result.missing},
      {"with errors", result.errors},
      {"skipped", result.skipped},
      {"unused", result.unused}
    ]
  end

  defp section({_label, []}, _result), do: []

  defp section({label, list}, result) do
    lines = list |> Enum.take(10) |> Enum.map(&("  " <> line(&1, result)))
    more = if length(list) > 10, do: ["  … and #{length(list) - 10} more"], else: []
    ["#{label}:"] ++ lines ++ more
  end

  defp line(%{name: name, message: message}, _result), do: "#{name}: #{message}"

  defp line(name, result) do
    case result.suggestions do
      %{^name => near} -> "#{name} (the file has #{near})"
      _ -> name
    end
  end

  defimpl Inspect do
    def inspect(result, _opts) do
      [first | rest] = result |> ExTorch.Store.ApplyResult.summary() |> String.split("\n")

      Enum.join(["#ExTorch.Store.ApplyResult<#{first}" | rest], "\n  ") <>
        if(rest == [], do: ">", else: "\n>")
    end
  end
end
