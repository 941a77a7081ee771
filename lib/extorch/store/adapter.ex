defmodule ExTorch.Store.Adapter do
  @moduledoc """
  Small changes to names and tensors on their way between a file and a module. An adapter is a module of this behaviour,
  `{module, options}`, or a function of entry, tensor and target.

  `adapt/4` gets the entry (what the file says, or `nil` when collecting), the tensor and the target (`%{shape:, dtype:}`
  of the module's tensor, or `nil`), and returns a tensor. It is called first with a tensor without values (on the device
  `:meta`), so that shapes can be compared before anything is read: views such as transposes cost nothing either time.

  `rename/3` gets a name, the shapes of all tensors by name, and the options.
  """

  alias ExTorch.{Checkpoint, Tensor}

  @callback adapt(Checkpoint.Entry.t() | nil, Tensor.t(), map() | nil, keyword()) :: Tensor.t()
  @callback rename(String.t(), %{String.t() => tuple()}, keyword()) :: String.t()
  @optional_callbacks rename: 3, adapt: 4

  @doc false
  def check!(adapter) when is_function(adapter, 3), do: adapter

  def check!(module) when is_atom(module), do: check!({module, []})

  def check!({module, options}) when is_atom(module) and is_list(options) do
    unless Code.ensure_loaded?(module) and
             (function_exported?(module, :adapt, 4) or function_exported?(module, :rename, 3)) do
      raise ExTorch.Error.new(:bad_argument, "#{inspect(module)} is no ExTorch.Store.Adapter")
    end

    {module, options}
  end

  def check!(other) do
    raise ExTorch.Error.new(
            :bad_argument,
            "an adapter is a module, {module, options} or a function of entry, tensor and target, not #{inspect(other)}"
          )
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
end

defmodule ExTorch.Store.Adapter.Cast do
  @moduledoc """
  Converts dtypes: to the target's, or with `{ExTorch.Store.Adapter.Cast, to: :float16}` to one of your choice.
  """
  @behaviour ExTorch.Store.Adapter

  @impl true
  def adapt(_entry, tensor, target, options) do
    wanted = options[:to] || (target && target.dtype) || tensor.dtype
    if tensor.dtype == wanted, do: tensor, else: ExTorch.Tensor.to(tensor, dtype: wanted)
  end
end

defmodule ExTorch.Store.Adapter.Half do
  @moduledoc """
  Half precision, but for norms, whose statistics lose too much: floats become `:float16`, or what `:to` says, unless the
  name matches `:except`.
  """
  @behaviour ExTorch.Store.Adapter

  @impl true
  def adapt(entry, tensor, _target, options) do
    norm = options[:except] || ~r/norm|bn\d*\.|ln_|running_(mean|var)|\.(gamma|beta|mean|var)$/i
    float? = tensor.dtype in [:float64, :float32, :bfloat16]

    if float? and not (entry != nil and Regex.match?(norm, entry.name)),
      do: ExTorch.Tensor.to(tensor, dtype: options[:to] || :float16),
      else: tensor
  end
end

defmodule ExTorch.Store.Adapter.PyTorchToAxon do
  @moduledoc """
  PyTorch's names and layouts to Axon's: a linear `weight` of `{out, in}` becomes a `kernel` of `{in, out}`, a
  convolution's `{out, in, …}` one of `{…, in, out}`, and a norm's `weight`, `bias`, `running_mean`, `running_var` become
  `gamma`, `beta`, `mean`, `var`. Embeddings keep their layout: layers whose name matches `:embeddings`, by default
  `~r/emb/i`. Transposes stay views of what was read.
  """
  @behaviour ExTorch.Store.Adapter

  @impl true
  def rename(name, shapes, _options) do
    {layer, last} = split(name)
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

  defp split(name) do
    case String.split(name, ".") do
      [last] ->
        {"", last}

      parts ->
        {layer, [last]} = Enum.split(parts, -1)
        {Enum.join(layer, ".") <> ".", last}
    end
  end
end

defmodule ExTorch.Store.Adapter.AxonToPyTorch do
  @moduledoc """
  The way back: what `ExTorch.Store.Adapter.PyTorchToAxon` does, undone, for collecting an Axon model into a file that
  PyTorch loads.
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
  def rename(name, _shapes, _options) do
    {layer, [last]} = name |> String.split(".") |> Enum.split(-1)
    Enum.join(layer ++ [Map.get(@names, last, last)], ".")
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
