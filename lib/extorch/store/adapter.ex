defmodule ExTorch.Store.Adapter do
  @moduledoc """
  Adapters change names and tensors when a store applies a file to a module or saves a module to a file.

  An adapter is a module that implements this behaviour, `{module, options}`, or a function of entry, tensor and target.
  """

  alias ExTorch.{Checkpoint, Options, Tensor}

  @doc """
  Returns the changed tensor.

  The entry describes the tensor in the file or module. The target contains the shape and dtype that the module expects,
  and is `nil` when a module is saved. When a file is applied, this is first called with a tensor on the device `:meta`,
  which has no values, so that shapes are compared before anything is read.
  """
  @callback adapt(Checkpoint.Entry.t() | nil, Tensor.t(), map() | nil, keyword()) :: Tensor.t()

  @doc "Returns the changed name. The map contains the shapes of all tensors by name."
  @callback rename(String.t(), %{String.t() => tuple()}, keyword()) :: String.t()

  @doc "Checks the options when the store is created, and returns the options for the other callbacks."
  @callback init(keyword()) :: keyword()
  @optional_callbacks rename: 3, adapt: 4, init: 1

  @doc false
  def check!(adapter) when is_function(adapter, 3), do: adapter

  def check!(module) when is_atom(module), do: check!({module, []})

  def check!({module, options}) when is_atom(module) and is_list(options) do
    unless Code.ensure_loaded?(module) and
             (function_exported?(module, :adapt, 4) or function_exported?(module, :rename, 3)) do
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

  # Checks an option of the adapters below that is a regular expression.
  @doc false
  def check_regex!(options, key) do
    unless options[key] == nil or is_struct(options[key], Regex),
      do: Options.invalid!(key, "a regular expression", options[key])

    options
  end

  @doc false
  def adapt(adapters, entry, tensor, target) do
    Enum.reduce(adapters, tensor, fn
      {module, options}, tensor ->
        if function_exported?(module, :adapt, 4),
          do: module.adapt(entry, tensor, target, options),
          else: tensor

      fun, tensor ->
        fun.(entry, tensor, target)
    end)
  end

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
  Converts the names and layouts of PyTorch to those of Axon.

    * The `weight` of a linear layer, `{out, in}`, becomes a `kernel`, `{in, out}`.
    * The `weight` of a convolution, `{out, in, …}`, becomes a `kernel`, `{…, in, out}`.
    * `weight`, `bias`, `running_mean` and `running_var` of a normalization layer become `gamma`, `beta`, `mean` and
      `var`.
    * Embeddings keep their layout. These are layers whose name matches the option `:embeddings` (`~r/emb/i` by
      default).

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
  def adapt(entry, tensor, _target, options) do
    embedding? = entry != nil and Regex.match?(options[:embeddings] || ~r/emb/i, entry.name)
    weight? = entry != nil and String.ends_with?(entry.name, "weight")
    rank = tuple_size(tensor.shape)

    if weight? and rank >= 2 and not embedding?,
      do: ExTorch.op("permute", [tensor, Enum.to_list(2..(rank - 1)//1) ++ [1, 0]]),
      else: tensor
  end
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
