defmodule ExTorch.Filter do
  @moduledoc false
  # The filters of the options :only and :except: a name, {:prefix, text}, a regular expression, a function of the name,
  # a function of the name and the entry, or a list of these.

  alias ExTorch.Checkpoint.Entry
  alias ExTorch.{Error, Options, Suggest}

  @type t ::
          String.t()
          | {:prefix, String.t()}
          | Regex.t()
          | (String.t() -> as_boolean(term()))
          | (String.t(), Entry.t() -> as_boolean(term()))
          | [t()]

  @type prepared :: t() | MapSet.t(String.t()) | [prepared()]

  # Checks the value of an option; nil means no filter.
  @spec check!(term(), atom()) :: :ok
  def check!(nil, _option), do: :ok

  def check!(filter, option) do
    unless filter?(filter),
      do:
        Options.invalid!(
          option,
          "names, {:prefix, text}, regular expressions or functions",
          filter
        )

    :ok
  end

  defp filter?(list) when is_list(list),
    do: List.improper?(list) == false and Enum.all?(list, &filter?/1)

  defp filter?(name) when is_binary(name), do: true
  defp filter?({:prefix, text}), do: is_binary(text)
  defp filter?(%Regex{}), do: true
  defp filter?(other), do: is_function(other, 1) or is_function(other, 2)

  # Many names are looked up in a set: a file may have as many names as the filter.
  @spec prepare(t() | nil) :: prepared() | nil
  def prepare(list) when is_list(list) do
    {names, others} = Enum.split_with(list, &is_binary/1)
    [MapSet.new(names) | Enum.map(others, &prepare/1)]
  end

  def prepare(other), do: other

  # `entry` is a function that returns the entry. It is only called for functions of the name and the entry.
  @spec matches?(prepared(), String.t(), (() -> Entry.t())) :: boolean()
  def matches?(%MapSet{} = names, name, _entry), do: MapSet.member?(names, name)

  def matches?(list, name, entry) when is_list(list),
    do: Enum.any?(list, &matches?(&1, name, entry))

  def matches?(text, name, _entry) when is_binary(text), do: text == name
  def matches?({:prefix, text}, name, _entry), do: String.starts_with?(name, text)
  def matches?(%Regex{} = regex, name, _entry), do: Regex.match?(regex, name)
  def matches?(fun, name, _entry) when is_function(fun, 1), do: !!fun.(name)
  def matches?(fun, name, entry) when is_function(fun, 2), do: !!fun.(name, entry.())

  # Returns true if the filter contains a function of the name and the entry.
  @spec takes_entry?(prepared() | nil) :: boolean()
  def takes_entry?(list) when is_list(list), do: Enum.any?(list, &takes_entry?/1)
  def takes_entry?(other), do: is_function(other, 2)

  # ---- Filters that select nothing ----

  # Returns an error if filters selected nothing, unless `only: []` requested it.
  @spec check_selected([term()], prepared() | nil, prepared() | nil, (() -> [String.t()])) ::
          :ok | {:error, Error.t()}
  def check_selected(selected, only, except \\ nil, names)
  def check_selected([_ | _], _only, _except, _names), do: :ok
  def check_selected([], nil, nil, _names), do: :ok

  def check_selected([], only, except, names) do
    if only != nil and texts(only) == [],
      do: :ok,
      else: {:error, nothing_selected(only, except, names.())}
  end

  defp nothing_selected(only, except, names) do
    filters =
      for {option, filter} <- [only: only, except: except],
          filter != nil,
          do: "#{option}: #{describe(texts(filter))}"

    Error.new(
      :not_found,
      "#{Enum.join(filters, " with ")} selects none of the #{length(names)} tensors" <>
        hint(texts(only || []), names)
    )
  end

  # Returns the parts of a filter: texts and prefixes, and :other for each function.
  defp texts(list) when is_list(list), do: Enum.flat_map(list, &texts/1)
  defp texts(%MapSet{} = names), do: names |> Enum.sort() |> Enum.map(&{:name, &1})
  defp texts(name) when is_binary(name), do: [{:name, name}]
  defp texts({:prefix, text}), do: [{:prefix, text}]
  defp texts(%Regex{} = regex), do: [{:regex, regex}]
  defp texts(function), do: [{:function, function}]

  defp describe(parts) do
    shown =
      Enum.map(Enum.take(parts, 3), fn
        {:prefix, text} -> "{:prefix, #{quoted(text)}}"
        {:name, name} -> quoted(name)
        {_kind, value} -> inspect(value)
      end)

    shown = if length(parts) > 3, do: shown ++ ["…"], else: shown
    if match?([_], shown), do: hd(shown), else: "[#{Enum.join(shown, ", ")}]"
  end

  defp hint(_parts, []), do: ""

  # A name may be meant as a prefix. Otherwise shows similar names, or else the first ones.
  defp hint(parts, names) do
    prefix =
      Enum.find_value(parts, fn
        {:name, name} -> Enum.any?(names, &String.starts_with?(&1, name <> ".")) && name <> "."
        _ -> nil
      end)

    cond do
      prefix ->
        inside = Enum.filter(names, &String.starts_with?(&1, prefix))
        "; {:prefix, #{quoted(prefix)}} selects #{listed(inside, length(inside))}"

      (similar = similar(parts, names)) != [] ->
        "; similar names are #{Enum.map_join(similar, ", ", &quoted/1)}"

      true ->
        "; their names are #{listed(names, length(names))}"
    end
  end

  defp similar(parts, names) do
    parts
    |> Enum.take(3)
    |> Enum.flat_map(fn
      {:name, name} -> Suggest.similar(names, name, 0.7, 3)
      {:prefix, text} -> Suggest.similar(names, text, 0.7, 3)
      {:regex, regex} -> Suggest.similar(names, plain_text(regex), 0.7, 3)
      _ -> []
    end)
    |> Enum.uniq()
    |> Enum.take(3)
  end

  defp plain_text(regex),
    do: regex |> Regex.source() |> String.replace("\\.", ".") |> String.replace(~r/[\^$\\*]/, "")

  defp listed(names, count) do
    text = names |> Enum.take(3) |> Enum.map_join(", ", &quoted/1)
    if count > 3, do: text <> " and #{count - 3} more", else: text
  end

  defp quoted(text), do: inspect(text, printable_limit: 100)
end
