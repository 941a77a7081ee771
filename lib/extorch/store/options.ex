defmodule ExTorch.Store.Options do
  @moduledoc false
  # Validates and applies the options of stores.

  alias ExTorch.{Error, Progress}
  alias ExTorch.Store.Adapter

  @defaults [
    top_level_key: nil,
    only: nil,
    except: nil,
    renumber: false,
    remap: [],
    adapters: [],
    allow_partial: false,
    validate: true,
    overwrite: false,
    metadata: %{},
    on_progress: nil,
    fsync: true,
    compact: false,
    duplicate: false,
    strict: false,
    verify: false,
    limits: []
  ]
  @booleans [
    :renumber,
    :allow_partial,
    :validate,
    :overwrite,
    :fsync,
    :compact,
    :duplicate,
    :strict,
    :verify
  ]

  def check!(path, opts, more \\ []) do
    unless is_binary(path) do
      raise Error.new(:bad_argument, "expected a path, got #{inspect(path, limit: 3)}")
    end

    options = opts |> ExTorch.Options.validate!(@defaults ++ more) |> Map.new()

    for key <- @booleans, not is_boolean(options[key]) do
      raise Error.new(
              :bad_argument,
              "expected #{key} to be a boolean, got #{inspect(options[key])}"
            )
    end

    unless options.top_level_key in [nil, :auto] or is_binary(options.top_level_key) do
      raise Error.new(
              :bad_argument,
              "expected top_level_key to be a string or :auto, got #{inspect(options.top_level_key)}"
            )
    end

    Progress.check!(options.on_progress)
    Enum.each([options.only, options.except], &check_filter!/1)

    %{
      options
      | remap: check_remap!(options.remap),
        adapters: options.adapters |> List.wrap() |> Enum.map(&Adapter.check!/1)
    }
  end

  # The options of ExTorch.Checkpoint.open/2.
  def reading(options), do: Keyword.new(Map.take(options, [:strict, :verify, :limits]))

  # The options of ExTorch.save/3.
  def writing(options),
    do: Keyword.new(Map.take(options, [:fsync, :compact, :duplicate, :on_progress]))

  # ---- Filters ----

  defp check_filter!(nil), do: :ok
  defp check_filter!(name) when is_binary(name), do: :ok
  defp check_filter!(%Regex{}), do: :ok
  defp check_filter!(fun) when is_function(fun, 1) or is_function(fun, 2), do: :ok
  defp check_filter!(list) when is_list(list), do: Enum.each(list, &check_filter!/1)

  defp check_filter!(other) do
    raise Error.new(
            :bad_argument,
            "expected only and except to be names, regular expressions or functions, got #{inspect(other)}"
          )
  end

  # `entry` is a function that returns the entry. It is only called for filters that are functions of name and entry.
  def selected?(%{only: nil, except: nil}, _name, _entry), do: true

  def selected?(%{only: only, except: except}, name, entry) do
    (only == nil or matches?(only, name, entry)) and
      not (except != nil and matches?(except, name, entry))
  end

  defp matches?(list, name, entry) when is_list(list),
    do: Enum.any?(list, &matches?(&1, name, entry))

  defp matches?(text, name, _entry) when is_binary(text), do: text == name
  defp matches?(%Regex{} = regex, name, _entry), do: Regex.match?(regex, name)
  defp matches?(fun, name, _entry) when is_function(fun, 1), do: fun.(name)
  defp matches?(fun, name, entry) when is_function(fun, 2), do: fun.(name, entry.())

  # ---- Renaming ----

  defp check_remap!(fun) when is_function(fun, 1), do: fun

  defp check_remap!(pairs) when is_list(pairs) do
    for pair <- pairs do
      with {pattern, replacement} when is_binary(replacement) or is_function(replacement, 1) <-
             pair,
           {:ok, regex} <- compile(pattern) do
        {regex, replacement}
      else
        {:error, {reason, at}} ->
          raise Error.new(
                  :bad_argument,
                  "invalid regular expression #{inspect(elem(pair, 0))} in remap: #{reason} at #{at}"
                )

        _ ->
          raise Error.new(
                  :bad_argument,
                  "expected remap to contain {regex, replacement}, got #{inspect(pair)}"
                )
      end
    end
  end

  defp check_remap!(other) do
    raise Error.new(
            :bad_argument,
            "expected remap to be a list of {regex, replacement} or a function of the name, got #{inspect(other)}"
          )
  end

  defp compile(%Regex{} = regex), do: {:ok, regex}
  defp compile(text) when is_binary(text), do: Regex.compile(text)
  defp compile(_other), do: :error

  def rename(%{remap: []}, name), do: name

  def rename(%{remap: fun}, name) when is_function(fun) do
    case fun.(name) do
      renamed when is_binary(renamed) ->
        renamed

      other ->
        raise Error.new(
                :bad_argument,
                "expected the remap function to return a string for #{inspect(name)}, got #{inspect(other)}"
              )
    end
  end

  def rename(%{remap: pairs}, name) do
    Enum.reduce(pairs, name, fn {regex, replacement}, name ->
      Regex.replace(regex, name, replacement)
    end)
  end
end
