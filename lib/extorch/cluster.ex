defmodule ExTorch.Cluster do
  @moduledoc """
  Loads one checkpoint across several nodes.

      {:ok, cluster} = ExTorch.Cluster.load("/shared/model.pt", [:"a@10.0.0.1", :"b@10.0.0.2"])
      ExTorch.Cluster.summary(cluster)
      #=> %{"a@10.0.0.1": %{tensors: 210, bytes: 1_400_000_000}, "b@10.0.0.2": …}

      ref = ExTorch.Cluster.refs(cluster)["encoder.weight"]     # can be sent to any process
      {:ok, tensor} = ExTorch.Cluster.read(ref)

      {:ok, tensors} = ExTorch.Cluster.gather(cluster)          # name => tensor, all of them here

  Each node opens the source itself: a path on a shared file system, a URL, an `ExTorch.Source.HTTP`, or an
  `ExTorch.Source.Remote` if only one node has the file. The nodes need ExTorch in their code path.

  The tensors are divided into units of about `:unit_bytes`. Each node asks for the next unit when it is ready, so a slow
  node takes fewer. If a node dies, is disconnected, or needs longer than `:unit_timeout` for a unit, everything it had is
  loaded by the others, also after `load/3` has returned.

  The tensors stay on their nodes until `close/1`, or until the process that called `load/3` ends, also if it is killed.
  """

  alias ExTorch.Cluster.{Coordinator, Ref}
  alias ExTorch.{Checkpoint, Error, Options, Progress, Tensor}

  @defaults [
    only: nil,
    unit_bytes: 64 * 1024 * 1024,
    unit_timeout: 120_000,
    on_progress: nil,
    load: []
  ]

  @enforce_keys [:coordinator, :nodes]
  defstruct [:coordinator, :nodes]

  @opaque t :: %__MODULE__{coordinator: pid(), nodes: [node()]}

  defmodule Ref do
    @moduledoc "A tensor on another node. See `ExTorch.Cluster.read/2`."
    @type t :: %__MODULE__{
            name: String.t(),
            node: node(),
            holder: pid(),
            shape: tuple(),
            dtype: ExTorch.DType.dtype(),
            nbytes: non_neg_integer()
          }
    @enforce_keys [:name, :node, :holder, :shape, :dtype, :nbytes]
    defstruct [:name, :node, :holder, :shape, :dtype, :nbytes]
  end

  @doc """
  Loads the tensors of a checkpoint, each on one of the nodes. Returns when all of them are loaded.

      source = ExTorch.Source.Remote.new(node(), "/models/model.pt")
      {:ok, cluster} = ExTorch.Cluster.load(source, [node() | Node.list()], only: ~r/^encoder/)

  ## Options

    * `:only` - which tensors to load, as in `ExTorch.load/2`
    * `:unit_bytes` - the approximate size of a unit. Defaults to 64 MiB.
    * `:unit_timeout` - how long a node may take for a unit, in milliseconds. Defaults to 120,000.
    * `:on_progress` - as in `ExTorch.load/2`, of all nodes together
    * `:load` - options of `ExTorch.Checkpoint.open/2` for the nodes
  """
  @spec load(Checkpoint.source(), [node()], keyword()) :: {:ok, t()} | {:error, Error.t()}
  def load(source, nodes, opts \\ []) do
    opts = Options.validate!(opts, @defaults)
    Progress.check!(opts[:on_progress])
    Checkpoint.Options.check!(opts[:load])

    for key <- [:unit_bytes, :unit_timeout],
        not (is_integer(opts[key]) and opts[key] > 0),
        do: Options.invalid!(key, "a positive integer", opts[key])

    unless is_list(nodes) and nodes != [] and Enum.all?(nodes, &is_atom/1),
      do: Options.invalid!(:nodes, "a list of nodes", nodes)

    with {:ok, source} <- ExTorch.Source.resolve(source),
         {:ok, coordinator} <- Coordinator.start(source, Enum.uniq(nodes), opts) do
      case Coordinator.await(coordinator, opts[:on_progress]) do
        :ok -> {:ok, %__MODULE__{coordinator: coordinator, nodes: nodes}}
        {:error, error} -> {:error, Error.put_path(error, ExTorch.Source.label(source))}
      end
    end
  end

  @doc "Same as `load/3` but raises on error."
  @spec load!(Checkpoint.source(), [node()], keyword()) :: t()
  def load!(source, nodes, opts \\ []), do: Error.unwrap!(load(source, nodes, opts))

  @doc """
  Returns references to all tensors by name.

      ExTorch.Cluster.refs(cluster)["encoder.weight"].node
      #=> :"a@10.0.0.1"
  """
  @spec refs(t()) :: %{String.t() => Ref.t()}
  def refs(cluster), do: Coordinator.refs(coordinator!(cluster))

  @doc """
  Returns how many tensors and bytes each node has.

      ExTorch.Cluster.summary(cluster)
      #=> %{"a@10.0.0.1": %{tensors: 210, bytes: 1_400_000_000}, "b@10.0.0.2": …}
  """
  @spec summary(t()) :: %{
          node() => %{tensors: non_neg_integer(), bytes: non_neg_integer()}
        }
  def summary(cluster) do
    for {node, refs} <- cluster |> refs() |> Map.values() |> Enum.group_by(& &1.node),
        into: %{} do
      {node, %{tensors: length(refs), bytes: Enum.sum(for ref <- refs, do: ref.nbytes)}}
    end
  end

  @doc """
  Brings a tensor to the calling process, on any connected node. `timeout` is for each chunk.

      ref = ExTorch.Cluster.refs(cluster)["encoder.weight"]
      {:ok, tensor} = ExTorch.Cluster.read(ref)
  """
  @spec read(Ref.t(), timeout()) :: {:ok, Tensor.t()} | {:error, Error.t()}
  def read(ref, timeout \\ 30_000) do
    unless is_struct(ref, Ref), do: Options.expected!("an %ExTorch.Cluster.Ref{}", ref)
    timeout = Options.timeout!(timeout)

    with {:ok, tensors} <- Coordinator.fetch(ref.holder, [ref.name], timeout),
         do: {:ok, Map.fetch!(tensors, ref.name)}
  end

  @doc "Same as `read/2` but raises on error."
  @spec read!(Ref.t(), timeout()) :: Tensor.t()
  def read!(ref, timeout \\ 30_000), do: Error.unwrap!(read(ref, timeout))

  @doc """
  Brings all tensors to the calling process. Returns a map of names and tensors.

  If a node dies meanwhile, its tensors are loaded by the others.

      {:ok, tensors} = ExTorch.Cluster.gather(cluster)
      tensors["encoder.weight"]
  """
  @spec gather(t(), timeout()) :: {:ok, %{String.t() => Tensor.t()}} | {:error, Error.t()}
  def gather(cluster, timeout \\ 30_000),
    do: Coordinator.gather(coordinator!(cluster), Options.timeout!(timeout))

  @doc "Same as `gather/2` but raises on error."
  @spec gather!(t(), timeout()) :: %{String.t() => Tensor.t()}
  def gather!(cluster, timeout \\ 30_000), do: Error.unwrap!(gather(cluster, timeout))

  @doc """
  Frees the tensors on all nodes.

      :ok = ExTorch.Cluster.close(cluster)
  """
  @spec close(t()) :: :ok
  def close(cluster), do: Coordinator.stop(coordinator!(cluster))

  defp coordinator!(%__MODULE__{coordinator: coordinator}), do: coordinator

  defp coordinator!(other),
    do: Options.expected!("a cluster, as ExTorch.Cluster.load!/3 returns it", other)
end
