defmodule ExTorch.Store.ApplyResult do
  @moduledoc """
  The result of applying a file to a module.

  `module` is the updated module. Each name of the file and of the module is in exactly one of these lists:

    * `applied` - tensors of the module that were replaced
    * `missing` - tensors of the module that are not in the file
    * `skipped` - tensors that `:only` or `:except` excluded, and tensors that only the module has, as an adapter says
    * `unused` - tensors of the file that are not in the module
    * `errors` - tensors with the wrong shape or dtype, or that could not be read: maps with the keys `:name`,
      `:reason`, `:message`, `:expected` and `:found`

  The names are those of the module, except for tensors of the file that the module does not have. More about them:

    * `sources` - if adapters have rules (see `ExTorch.Store.Adapter`): the tensors of the file that a tensor of the module
      is made of, by the name in the module. These names of the file are in no list, unless nothing is made of them.
    * `ambiguous` - those of `applied` that an adapter changed on a guess, such as a square weight that it has transposed
      because of its name. Compare the outputs of the model, or use an adapter that knows the model.
    * `suggestions` - maps missing names to the most similar unused name
    * `top_level_key` - the key below which the tensors were, such as `"state_dict.model"`: the one that was given, or the
      one that `:auto` has found. `nil` for the root.

  In the `result` of an `ExTorch.Error`, `applied` contains the tensors that would have been replaced, and `module` is
  the unchanged module.
  """

  alias ExTorch.Error

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
          ambiguous: [String.t()],
          sources: %{String.t() => [String.t()]},
          suggestions: %{String.t() => String.t()},
          top_level_key: String.t() | nil
        }

  defstruct [
    :module,
    :top_level_key,
    applied: [],
    missing: [],
    skipped: [],
    unused: [],
    errors: [],
    ambiguous: [],
    sources: %{},
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
    head = if key = result.top_level_key, do: head <> " from #{Error.quoted(key)}", else: head

    counts = for {label, list} <- lists(result), list != [], do: "#{length(list)} #{label}"

    [Enum.join([head | counts], ", ") | Enum.flat_map(lists(result), &section(&1, result))]
    |> Enum.join("\n")
  end

  defp lists(result) do
    [
      {"missing", result.missing},
      {"with errors", result.errors},
      {"ambiguous", result.ambiguous},
      {"skipped", result.skipped},
      {"unused", result.unused}
    ]
  end

  defp section({_label, []}, _result), do: []

  defp section({label, list}, result) do
    lines = list |> Enum.take(10) |> Enum.map(&("  " <> line(label, &1, result)))
    more = if length(list) > 10, do: ["  … and #{length(list) - 10} more"], else: []
    ["#{label}:"] ++ lines ++ more
  end

  defp line(_label, %{name: name, message: message}, _result), do: "#{name}: #{message}"

  defp line("missing", name, result) do
    case note(result, name) do
      nil -> name
      note -> "#{name} (#{note})"
    end
  end

  defp line(_label, name, _result), do: name

  # Says what the file has, or should have, for a missing name.
  @doc false
  @spec note(t(), String.t()) :: String.t() | nil
  def note(result, name) do
    case {result.sources[name], result.suggestions[name]} do
      {nil, nil} -> nil
      {nil, similar} -> "the file has #{similar}"
      {needed, nil} -> "needs #{Enum.join(needed, " and ")}"
      {needed, similar} -> "needs #{Enum.join(needed, " and ")}, the file has #{similar}"
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
