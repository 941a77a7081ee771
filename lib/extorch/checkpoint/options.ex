defmodule ExTorch.Checkpoint.Options do
  @moduledoc false
  # Validates the options of ExTorch.Checkpoint.open/2, ExTorch.load/2 and ExTorch.Streaming.loader/1.

  alias ExTorch.Checkpoint
  alias ExTorch.Checkpoint.Entry
  alias ExTorch.{Device, Error, Filter, Options, Progress}

  @max_bytes 2 ** 62

  @limits [
    pickle_bytes: 64 * 1024 * 1024,
    nodes: nil,
    depth: 1000,
    tensor_bytes: 2 ** 40,
    total_bytes: 2 ** 42,
    spool_bytes: 2 ** 30,
    memory: nil,
    # How many files share the memory of one: shards, and the parts of a folder. Not for callers.
    files: 1
  ]
  @defaults [
    mmap: false,
    verify: false,
    strict: false,
    ordered: false,
    device: :cpu,
    only: nil,
    on_progress: nil,
    offset: 0,
    readers: nil,
    drop_behind: nil,
    limits: []
  ]
  @file_options [:mmap, :offset, :readers, :drop_behind]
  @max_readers 64

  @type t :: %{
          mmap: boolean() | :populate,
          verify: boolean(),
          strict: boolean(),
          ordered: boolean(),
          device: Device.device() | map() | (String.t() -> Device.input()),
          only: Filter.prepared() | nil,
          on_progress: Progress.callback() | nil,
          offset: non_neg_integer(),
          readers: pos_integer() | nil,
          drop_behind: boolean() | nil,
          limits: keyword()
        }

  @typedoc "strict, mmap, verify, pickle_bytes, nodes, depth, tensor_bytes, memory, offset, total_bytes, files, readers, cpus, drop_behind, populate; nodes, memory and readers: 0 if not given; drop_behind: 0 false, 1 true, 2 if large"
  @type native ::
          {boolean(), boolean(), boolean(), non_neg_integer(), non_neg_integer(), pos_integer(),
           non_neg_integer(), non_neg_integer(), non_neg_integer(), non_neg_integer(),
           pos_integer(), 0..64, pos_integer(), 0..2, boolean()}

  # The options with their defaults.
  @spec known_options() :: keyword()
  def known_options, do: @defaults

  # The options of loaders with their defaults, without :on_tensor.
  @spec stream_options() :: keyword()
  def stream_options, do: Keyword.drop(@defaults, @file_options)

  # The options that only files have.
  @spec file_options() :: [atom()]
  def file_options, do: @file_options

  @spec check!(keyword()) :: t()
  def check!(opts) do
    opts = Options.validate!(opts, @defaults)
    Options.booleans!(opts, [:verify, :strict, :ordered])

    unless opts[:mmap] in [false, true, :populate],
      do: Options.invalid!(:mmap, "a boolean or :populate", opts[:mmap])

    unless bytes?(opts[:offset]),
      do: Options.invalid!(:offset, "a number of bytes", opts[:offset])

    check_reading!(opts[:readers], opts[:drop_behind])
    Filter.check!(opts[:only], :only)
    Progress.check!(opts[:on_progress])
    device = device!(opts[:device])
    limits = check_limits!(opts[:limits])

    opts
    |> Map.new()
    |> Map.merge(%{limits: limits, only: Filter.prepare(opts[:only]), device: device})
  end

  defp check_reading!(readers, drop_behind) do
    unless readers == nil or readers in 1..@max_readers,
      do: Options.invalid!(:readers, "nil or an integer from 1 to #{@max_readers}", readers)

    unless drop_behind in [nil, true, false],
      do: Options.invalid!(:drop_behind, "nil or a boolean", drop_behind)
  end

  defp check_limits!(limits) do
    limits = Options.validate!(limits, @limits, "limit")

    for {name, value} <- limits,
        not limit?(name, value),
        do: Options.invalid!(name, limit_range(name), value)

    limits
  end

  defp limit?(:depth, value), do: value in 1..10_000
  defp limit?(:files, value), do: value in 1..@max_bytes
  # 0 is how the NIFs are told that no limit was given.
  defp limit?(name, nil) when name in [:nodes, :memory], do: true
  defp limit?(name, 0) when name in [:nodes, :memory], do: false
  defp limit?(_name, value), do: bytes?(value)

  defp limit_range(:depth), do: "an integer from 1 to 10,000"

  defp limit_range(name) when name in [:nodes, :memory],
    do: "nil or an integer from 1 to 2 ** 62"

  defp limit_range(_name), do: "an integer from 0 to 2 ** 62"

  defp bytes?(value), do: is_integer(value) and value in 0..@max_bytes

  defp device!(fun) when is_function(fun, 1), do: fun

  defp device!(map) when is_map(map) and not is_struct(map),
    do: Map.new(map, fn {location, device} -> {location, Device.check!(device)} end)

  defp device!(device), do: Device.check!(device)

  # Returns the options as the tuple that the NIFs take.
  @spec native(t()) :: native()
  def native(
        %{strict: strict, mmap: mmap, verify: verify, limits: limits, offset: offset} = options
      ) do
    {strict, mmap != false, verify, limits[:pickle_bytes], limits[:nodes] || 0, limits[:depth],
     limits[:tensor_bytes], limits[:memory] || 0, offset, limits[:total_bytes], limits[:files],
     options[:readers] || 0, System.schedulers_online(), drop(options[:drop_behind]),
     mmap == :populate}
  end

  defp drop(false), do: 0
  defp drop(true), do: 1
  defp drop(nil), do: 2

  # Returns the device for a tensor that was saved on `location`.
  @spec device_for(t(), String.t()) :: Device.device()
  def device_for(%{device: fun}, location) when is_function(fun, 1),
    do: Device.check!(fun.(location))

  def device_for(%{device: map}, location) when is_map(map), do: Map.get(map, location, :cpu)
  def device_for(%{device: device}, _location), do: device

  # Returns true if `only` selects the entry.
  @spec selected?(%{:only => Filter.prepared() | nil, optional(atom()) => term()}, Entry.t()) ::
          boolean()
  def selected?(%{only: nil}, _entry), do: true
  def selected?(%{only: only}, entry), do: Filter.matches?(only, entry.name, fn -> entry end)

  # Returns the entries that `only` selects. It is an error if there are none.
  @spec select(Checkpoint.Handle.t(), [Entry.t()]) :: {:ok, [Entry.t()]} | {:error, Error.t()}
  def select(ckpt, entries) do
    selected = Enum.filter(entries, &selected?(ckpt.options, &1))
    names = fn -> Enum.map(entries, & &1.name) end

    with :ok <- Filter.check_selected(selected, ckpt.options.only, names) do
      {:ok, selected}
    else
      error -> Error.put_path(error, ckpt.source)
    end
  end
end
