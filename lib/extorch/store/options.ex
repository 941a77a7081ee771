defmodule ExTorch.Store.Options do
  @moduledoc false
  # Validates and applies the options of stores.

  alias ExTorch.{Checkpoint, Error, Filter, Options, Progress, Saver, Source}
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
    readers: nil,
    drop_behind: nil,
    limits: []
  ]
  @reading [:strict, :verify, :readers, :drop_behind, :limits]
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

  @type t :: %{atom() => term()}

  @spec check!(term(), keyword(), keyword()) :: t()
  def check!(path, opts, more \\ []) do
    unless is_binary(path) or is_struct(path) do
      raise Error.new(
              :bad_argument,
              "expected a path, a URL or a source, got #{inspect(path, limit: 3)}"
            )
    end

    options = opts |> Options.validate!(@defaults ++ more) |> Map.new()
    Options.booleans!(options, @booleans)

    unless options.top_level_key in [nil, :auto] or is_binary(options.top_level_key),
      do: Options.invalid!(:top_level_key, "a string or :auto", options.top_level_key)

    Progress.check!(options.on_progress)
    Filter.check!(options.only, :only)
    Filter.check!(options.except, :except)
    Saver.metadata!(options.metadata, :safetensors)
    Checkpoint.Options.check!(reading(options))

    %{
      options
      | only: Filter.prepare(options.only),
        except: Filter.prepare(options.except),
        remap: check_remap!(options.remap, :remap),
        adapters: options.adapters |> List.wrap() |> Enum.map(&Adapter.check!/1)
    }
  end

  # Returns the source of a URL; it may contain secrets, which are not shown.
  @spec source!(term()) :: term()
  def source!(path), do: Error.unwrap!(Source.resolve(path))

  # The options of ExTorch.Checkpoint.open/2.
  @spec reading(t()) :: keyword()
  def reading(options), do: Keyword.new(Map.take(options, @reading))

  # The options of ExTorch.save/3.
  @spec writing(t()) :: keyword()
  def writing(options),
    do: Keyword.new(Map.take(options, [:fsync, :compact, :duplicate, :on_progress]))

  # ---- Filters ----

  # `entry` is a function that returns the entry. It is only called for filters that are functions of name and entry.
  @spec selected?(t(), String.t(), (() -> Checkpoint.Entry.t())) :: boolean()
  def selected?(%{only: nil, except: nil}, _name, _entry), do: true

  def selected?(%{only: only, except: except}, name, entry) do
    (only == nil or Filter.matches?(only, name, entry)) and
      not (except != nil and Filter.matches?(except, name, entry))
  end

  # Returns an error if the filters selected nothing.
  @spec check_selected(t(), [term()], (() -> [String.t()])) :: :ok | {:error, Error.t()}
  def check_selected(%{only: only, except: except}, selected, names),
    do: Filter.check_selected(selected, only, except, names)

  # ---- Renaming ----

  # Checks the pairs of regular expressions and replacements, or the function, that the option gives.
  @spec check_remap!(term(), atom()) :: [{Regex.t(), String.t()}] | (String.t() -> String.t())
  def check_remap!(fun, option) when is_function(fun, 1) do
    fn name ->
      case fun.(name) do
        renamed when is_binary(renamed) ->
          renamed

        other ->
          raise Error.new(
                  :bad_argument,
                  "expected the function #{inspect(option)} to return a string for #{inspect(name)}, got #{inspect(other)}"
                )
      end
    end
  end

  def check_remap!(pairs, option) when is_list(pairs) do
    for pair <- pairs do
      with {pattern, replacement} when is_binary(replacement) or is_function(replacement, 1) <-
             pair,
           {:ok, regex} <- compile(pattern) do
        {regex, replacement}
      else
        {:error, {reason, at}} ->
          raise Error.new(
                  :bad_argument,
                  "invalid regular expression #{inspect(elem(pair, 0))} in #{inspect(option)}: #{reason} at #{at}"
                )

        _ ->
          Options.invalid!(option, "a list of {regex, replacement}", pairs)
      end
    end
  end

  def check_remap!(other, option),
    do: Options.invalid!(option, "a list of {regex, replacement} or a function", other)

  defp compile(%Regex{} = regex), do: {:ok, regex}
  defp compile(text) when is_binary(text), do: Regex.compile(text)
  defp compile(_other), do: :error

  @spec rename(t(), String.t()) :: String.t()
  def rename(%{remap: []}, name), do: name

  def rename(%{remap: fun}, name) when is_function(fun), do: fun.(name)

  def rename(%{remap: pairs}, name) do
    Enum.reduce(pairs, name, fn {regex, replacement}, name ->
      Regex.replace(regex, name, replacement)
    end)
  end
end
