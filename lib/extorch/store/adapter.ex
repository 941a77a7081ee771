defmodule ExTorch.Store.Adapter do
  @moduledoc ~S"""
  Adapters change names and tensors when a store applies a file to a module or saves a module to a file.

  An adapter is a module that implements this behaviour, `{module, options}`, or a function of entry, tensor and target.
  There are two kinds:

    * Adapters with `rename/3` or `adapt/4` see one name and one tensor at a time: `ExTorch.Store.Adapter.Cast`,
      `ExTorch.Store.Adapter.Half`, `ExTorch.Store.Adapter.PyTorchToAxon`.
    * Adapters with `rules/2` know the module. They return `ExTorch.Store.Rule` structs, each of which says which tensors
      of the file are which tensors of the module: one for one, one for several, or several for one.
      `ExTorch.Store.Adapter.Axon` is such an adapter.

  ## Rules

  Here the file has one weight for query, key and value, and the module has three:

      iex> defmodule Attention do
      ...>   @behaviour ExTorch.Store.Adapter
      ...>
      ...>   @impl true
      ...>   def rules(_module, _options) do
      ...>     [
      ...>       %ExTorch.Store.Rule{
      ...>         file: ["attn.in_proj_weight"],
      ...>         module: ["attn.query", "attn.key", "attn.value"],
      ...>         load: fn [weight] -> ExTorch.op("chunk", [weight, 3, 0]) end,
      ...>         save: fn parts -> [ExTorch.op("cat", [parts, 0])] end
      ...>       }
      ...>     ]
      ...>   end
      ...> end
      iex> options = [top_level_key: "state_dict", adapters: [Attention]]
      iex> store = ExTorch.Store.PyTorch.new("test/fixtures/zoo/attention.pt", options)
      iex> part = ExTorch.zeros({8, 8})
      iex> module = %{"attn" => %{"query" => part, "key" => part, "value" => part}}
      iex> {:ok, result} = ExTorch.Store.apply_to(store, module)
      iex> {result.applied, result.sources["attn.key"]}
      {["attn.query", "attn.key", "attn.value"], ["attn.in_proj_weight"]}

  `apply_to/2` uses `load`, `collect_from/2` uses `save`. The store does the rest: it reads each tensor of the file once,
  compares shapes and dtypes, and accounts for every name.

    * If several rules are about the same tensor of the module, the first one whose tensors are all in the file is used;
      `collect_from/2` uses the first one. If there is none, the tensor is missing: a rule is used as a whole or not at
      all, and what the file has of it is listed in `unused`.
    * A tensor of the module that has a rule does not take a tensor of the file by its own name. Tensors without a rule
      do, unchanged.
    * No tensor of the file is used by two rules, and no tensor of the module is made twice. The former is an error of
      the adapters, with both names.
    * `sources` of the result says for each tensor with a rule which tensors of the file it is made of.

  ## Order

  The adapters of a list are applied in order. `adapt/4` of an adapter before one with rules sees the tensors that go into
  the rule, `adapt/4` of an adapter after it sees those that come out. So `[Cast, {Axon, model}]` converts the biases of a
  half precision LSTM before it adds them. New names (`rename/3`, then `:remap`) are given before the rules when a file is
  applied, and after them when a module is saved: rules always see the names of their own framework.
  """

  alias ExTorch.{Checkpoint, Options, Tensor}
  alias ExTorch.Store.Rule

  @typedoc "An adapter of the options of a store, checked."
  @type checked :: {module(), term()} | (term(), Tensor.t(), map() | nil -> Tensor.t())

  @doc """
  Returns the changed tensor.

  The entry describes the tensor in the file or module. The target contains the shape and dtype that the module expects,
  and is `nil` when a module is saved. Before a rule, its shape is `nil`. When a file is applied, this is first called
  with a tensor on the device `:meta`, which has no values, so that shapes are compared before anything is read.

  `{:ambiguous, tensor}` says that the tensor was changed on a guess. The result lists its name in `ambiguous`.
  """
  @callback adapt(Checkpoint.Entry.t() | nil, Tensor.t(), map() | nil, options :: term()) ::
              Tensor.t() | {:ambiguous, Tensor.t()}

  @doc "Returns the changed name. The map contains the shapes of all tensors by name."
  @callback rename(String.t(), %{String.t() => tuple()}, options :: term()) :: String.t()

  @doc "Returns the rules for a module. The map contains the shapes and dtypes of its tensors by name."
  @callback rules(module :: %{String.t() => ExTorch.Module.target()}, options :: term()) :: [
              Rule.t()
            ]

  @doc "Checks the options when the store is created, and returns the options for the other callbacks."
  @callback init(options :: term()) :: term()
  @optional_callbacks rename: 3, adapt: 4, rules: 2, init: 1

  @doc false
  @spec check!(term()) :: checked()
  def check!(adapter) when is_function(adapter, 3), do: adapter

  def check!(module) when is_atom(module), do: check!({module, []})

  def check!({module, options}) when is_atom(module) do
    unless Code.ensure_loaded?(module) and
             Enum.any?([adapt: 4, rename: 3, rules: 2], &exports?(module, &1)) do
      raise ExTorch.Error.new(
              :bad_argument,
              "expected a module that implements ExTorch.Store.Adapter, got #{inspect(module)}"
            )
    end

    {module, if(function_exported?(module, :init, 1), do: module.init(options), else: options)}
  end

  def check!(other) do
    Options.invalid!(
      :adapters,
      "modules, {module, options} or functions of entry, tensor and target",
      other
    )
  end

  defp exports?(module, {name, arity}), do: function_exported?(module, name, arity)

  # Checks an option of the adapters below that is a regular expression.
  @doc false
  def check_regex!(options, key) do
    unless options[key] == nil or is_struct(options[key], Regex),
      do: Options.invalid!(key, "a regular expression", options[key])

    options
  end

  # Returns {tensor, ambiguous?}.
  @doc false
  @spec adapt([checked()], term(), Tensor.t(), map() | nil) :: {Tensor.t(), boolean()}
  def adapt(adapters, entry, tensor, target) do
    Enum.reduce(adapters, {tensor, false}, fn adapter, {tensor, ambiguous} ->
      case adapt_one(adapter, entry, tensor, target) do
        {:ambiguous, tensor} -> {tensor, true}
        tensor -> {tensor, ambiguous}
      end
    end)
  end

  defp adapt_one({module, options}, entry, tensor, target) do
    if function_exported?(module, :adapt, 4),
      do: module.adapt(entry, tensor, target, options),
      else: tensor
  end

  defp adapt_one(fun, entry, tensor, target), do: fun.(entry, tensor, target)

  @doc false
  def rename(adapters, name, shapes) do
    Enum.reduce(adapters, name, fn
      {module, options}, name ->
        if function_exported?(module, :rename, 3),
          do: module.rename(name, shapes, options),
          else: name

      _fun, name ->
        name
    end)
  end

  @doc false
  def renames?(adapters),
    do: Enum.any?(adapters, &(is_tuple(&1) and function_exported?(elem(&1, 0), :rename, 3)))

  # Splits a name after its last dot. A name of a file may consist of a million dots.
  @doc false
  def split(name), do: split(name, byte_size(name))

  defp split(name, 0), do: {"", name}

  defp split(name, at) do
    if :binary.at(name, at - 1) == ?.,
      do: {binary_part(name, 0, at), binary_part(name, at, byte_size(name) - at)},
      else: split(name, at - 1)
  end
end

defmodule ExTorch.Store.Adapter.Cast do
  @moduledoc """
  Converts tensors to the dtype of the target, or to a given dtype: `{ExTorch.Store.Adapter.Cast, to: :float16}`.
  """
  @behaviour ExTorch.Store.Adapter

  alias ExTorch.{DType, Options}

  @impl true
  def init(options) do
    options = Options.validate!(options, [:to])
    if options[:to], do: [to: DType.normalize!(options[:to])], else: []
  end

  @impl true
  def adapt(_entry, tensor, target, options) do
    dtype = options[:to] || (target && target.dtype) || tensor.dtype
    if tensor.dtype == dtype, do: tensor, else: ExTorch.Tensor.to(tensor, dtype: dtype)
  end
end

defmodule ExTorch.Store.Adapter.Half do
  @moduledoc """
  Converts floating point tensors to half precision, except those of normalization layers, which need full precision.

  The options are `:to`, the dtype (`:float16` by default), and `:except`, a regular expression for the names of tensors
  that stay unchanged.
  """
  @behaviour ExTorch.Store.Adapter

  alias ExTorch.{DType, Options}
  alias ExTorch.Store.Adapter

  @impl true
  def init(options) do
    options
    |> Options.validate!([:except, to: :float16])
    |> Adapter.check_regex!(:except)
    |> Keyword.update!(:to, &DType.normalize!/1)
  end

  @impl true
  def adapt(entry, tensor, _target, options) do
    norm = options[:except] || ~r/norm|bn\d*\.|ln_|running_(mean|var)|\.(gamma|beta|mean|var)$/i
    float? = tensor.dtype in [:float64, :float32, :bfloat16]

    if float? and not (entry != nil and Regex.match?(norm, entry.name)),
      do: ExTorch.Tensor.to(tensor, dtype: options[:to]),
      else: tensor
  end
end

defmodule ExTorch.Store.Adapter.PyTorchToAxon do
  @moduledoc """
  Converts the names and layouts of PyTorch to those of Axon, by name and shape alone. If you have the model, use
  `ExTorch.Store.Adapter.Axon`, which does not guess.

    * The `weight` of a linear layer, `{out, in}`, becomes a `kernel`, `{in, out}`.
    * The `weight` of a convolution, `{out, in, …}`, becomes a `kernel`, `{…, in, out}`.
    * `weight`, `bias`, `running_mean` and `running_var` of a normalization layer become `gamma`, `beta`, `mean` and
      `var`.
    * Embeddings keep their layout. These are layers whose name matches the option `:embeddings` (`~r/emb/i` by
      default).

  If only one of the two layouts has the shape that the module expects, it is used, whatever the name says. If both have
  it, as for a square weight, the name decides, and the result lists the tensor in `ambiguous`: an embedding that is not
  called one, or a transposed convolution, would be wrong. `:embeddings` settles it for weights of two dimensions.

  The results are views of the tensors that were read.
  """
  @behaviour ExTorch.Store.Adapter

  @impl true
  def init(options) do
    options
    |> ExTorch.Options.validate!([:embeddings])
    |> ExTorch.Store.Adapter.check_regex!(:embeddings)
  end

  @impl true
  def rename(name, shapes, _options) do
    {layer, last} = ExTorch.Store.Adapter.split(name)
    weight = shapes[layer <> "weight"]

    norm? =
      Map.has_key?(shapes, layer <> "running_mean") or (weight != nil and tuple_size(weight) == 1)

    case {last, norm?} do
      {"weight", true} -> layer <> "gamma"
      {"bias", true} -> layer <> "beta"
      {"running_mean", _} -> layer <> "mean"
      {"running_var", _} -> layer <> "var"
      {"weight", false} -> layer <> "kernel"
      _ -> name
    end
  end

  @impl true
  def adapt(entry, tensor, target, options) do
    weight? = entry != nil and String.ends_with?(entry.name, "weight")

    if weight? and tuple_size(tensor.shape) >= 2,
      do: layout(entry, tensor, target, options),
      else: tensor
  end

  # The shape that the module expects decides, otherwise the name.
  defp layout(entry, tensor, target, options) do
    rank = tuple_size(tensor.shape)
    kernel = ExTorch.op("permute", [tensor, Enum.to_list(2..(rank - 1)//1) ++ [1, 0]])

    named =
      if Regex.match?(options[:embeddings] || ~r/emb/i, entry.name), do: tensor, else: kernel

    case Enum.filter([tensor, kernel], &(target != nil and &1.shape == target.shape)) do
      [] -> named
      [fits] -> if guessed?(tensor.shape, options), do: {:ambiguous, fits}, else: fits
      [_, _] -> if guessed?(tensor.shape, options), do: {:ambiguous, named}, else: named
    end
  end

  # A weight with as many channels in as out may belong to a linear layer or an embedding, or to a convolution or a
  # transposed one.
  defp guessed?({n, n}, options), do: n > 1 and options[:embeddings] == nil
  defp guessed?({_, _}, _options), do: false
  defp guessed?(shape, _options), do: elem(shape, 0) == elem(shape, 1)
end

defmodule ExTorch.Store.Adapter.AxonToPyTorch do
  @moduledoc """
  Converts the names and layouts of Axon to those of PyTorch: the inverse of `ExTorch.Store.Adapter.PyTorchToAxon`.
  """
  @behaviour ExTorch.Store.Adapter

  @names %{
    "kernel" => "weight",
    "gamma" => "weight",
    "beta" => "bias",
    "mean" => "running_mean",
    "var" => "running_var"
  }

  @impl true
  defdelegate init(options), to: ExTorch.Store.Adapter.PyTorchToAxon

  @impl true
  def rename(name, _shapes, _options) do
    {layer, last} = ExTorch.Store.Adapter.split(name)
    layer <> Map.get(@names, last, last)
  end

  @impl true
  def adapt(entry, tensor, _target, options) do
    name = (entry && entry.name) || ""
    embedding? = Regex.match?(options[:embeddings] || ~r/emb/i, name)
    rank = tuple_size(tensor.shape)

    if String.ends_with?(name, "kernel") and rank >= 2 and not embedding?,
      do: ExTorch.op("permute", [tensor, [rank - 1, rank - 2] ++ Enum.to_list(0..(rank - 3)//1)]),
      else: tensor
  end
end
