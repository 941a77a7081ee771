defmodule ExTorch.Store.ApplyResult do
  @moduledoc """
  The result of applying a file to a module.

  `module` is the updated module. Each name of the file and of the module is in exactly one of these lists:

    * `applied` - tensors of the module that were replaced
    * `missing` - tensors of the module that are not in the file
    * `skipped` - tensors that `:only` or `:except` excluded
    * `unused` - tensors of the file that are not in the module
    * `errors` - tensors with the wrong shape or dtype, or that could not be read: maps with the keys `:name`,
      `:reason`, `:message`, `:expected` and `:found`

  The names are those of the module, except for tensors of the file that the module does not have. `suggestions` maps
  missing names to the most similar unused name.

  In the `result` of an `ExTorch.Error`, `applied` contains the tensors that would have been replaced, and `module` is
  the unchanged module.
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

  @doc """
  Returns true if there are no missing tensors and no errors.

      iex> ExTorch.Store.ApplyResult.complete?(%ExTorch.Store.ApplyResult{missing: ["decoder.bias"]})
      false
  """
  @spec complete?(t()) :: boolean()
  def complete?(%__MODULE__{missing: missing, errors: errors}), do: missing == [] and errors == []
  def complete?(other), do: not_a_result!(other)

  @spec not_a_result!(term()) :: no_return()
  defp not_a_result!(other),
    do: ExTorch.Options.expected!("an %ExTorch.Store.ApplyResult{}", other)

  @doc """
  Returns a report as text: the counts and the first ten names of each list.

      iex> ExTorch.Store.ApplyResult.summary(%ExTorch.Store.ApplyResult{applied: ["a"], unused: ["b"]})
      "1 applied, 1 unused\\nunused:\\n  b"
  """
  @spec summary(t()) :: String.t()
  def summary(result) do
    unless is_struct(result, __MODULE__), do: not_a_result!(result)
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
      %{^name => similar} -> "#{name} (the file has #{similar})"
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
