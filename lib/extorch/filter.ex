defmodule ExTorch.Filter do
  @moduledoc false
  # The filters of the options :only and :except: a name, a regular expression, a function of the name, a function of
  # the name and the entry, or a list of these.

  alias ExTorch.Checkpoint.Entry
  alias ExTorch.Options

  @type t ::
          String.t()
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
      do: Options.invalid!(option, "names, regular expressions or functions", filter)

    :ok
  end

  defp filter?(list) when is_list(list),
    do: List.improper?(list) == false and Enum.all?(list, &filter?/1)

  defp filter?(name) when is_binary(name), do: true
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
  def matches?(%Regex{} = regex, name, _entry), do: Regex.match?(regex, name)
  def matches?(fun, name, _entry) when is_function(fun, 1), do: !!fun.(name)
  def matches?(fun, name, entry) when is_function(fun, 2), do: !!fun.(name, entry.())
end
