defmodule ExTorch.Checkpoint.Options do
  @moduledoc false
  # Validates the options of ExTorch.Checkpoint.open/2 and ExTorch.load/2.

  alias ExTorch.{Device, Error, Progress}

  @limits [
    pickle_bytes: 64 * 1024 * 1024,
    nodes: nil,
    depth: 1000,
    tensor_bytes: 2 ** 40,
    total_bytes: 2 ** 42,
    spool_bytes: 2 ** 30
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
    limits: []
  ]

  def limits, do: @limits

  def check!(opts) do
    opts = ExTorch.Options.validate!(opts, @defaults)
    limits = ExTorch.Options.validate!(opts[:limits], @limits, "limit")

    for key <- [:mmap, :verify, :strict, :ordered], not is_boolean(opts[key]) do
      raise Error.new(:bad_argument, "expected #{key} to be a boolean, got #{inspect(opts[key])}")
    end

    for {name, value} <- limits,
        not ((is_integer(value) and value in 0..(2 ** 62)) or (name == :nodes and value == nil)) do
      raise Error.new(
              :bad_argument,
              "expected the limit #{name} to be an integer from 0 to 2 ** 62, got #{inspect(value)}"
            )
    end

    unless limits[:depth] in 1..10_000 do
      raise Error.new(
              :bad_argument,
              "expected the limit depth to be from 1 to 10,000, got #{limits[:depth]}"
            )
    end

    unless is_integer(opts[:offset]) and opts[:offset] in 0..(2 ** 62) do
      raise Error.new(
              :bad_argument,
              "expected offset to be a number of bytes, got #{inspect(opts[:offset])}"
            )
    end

    Progress.check!(opts[:on_progress])
    check_device!(opts[:device])
    opts |> Keyword.put(:limits, limits) |> Map.new()
  end

  # Returns the options as the tuple that the NIFs take.
  def native(%{strict: strict, mmap: mmap, verify: verify, limits: limits, offset: offset}) do
    {strict, mmap, verify, limits[:pickle_bytes], limits[:nodes] || 0, limits[:depth],
     limits[:tensor_bytes], offset}
  end

  defp check_device!(fun) when is_function(fun, 1), do: :ok
  defp check_device!(map) when is_map(map), do: Enum.each(Map.values(map), &Device.check!/1)
  defp check_device!(device), do: Device.check!(device)

  # Returns the device for a tensor that was saved on `location`.
  def device_for(%{device: fun}, location) when is_function(fun, 1),
    do: Device.check!(fun.(location))

  def device_for(%{device: map}, location) when is_map(map), do: Map.get(map, location, :cpu)
  def device_for(%{device: device}, _location), do: device

  # Returns true if `only` selects the entry.
  def selected?(%{only: only}, entry), do: selects?(only, entry)

  defp selects?(nil, _entry), do: true
  defp selects?(list, entry) when is_list(list), do: Enum.any?(list, &selects?(&1, entry))
  defp selects?(name, entry) when is_binary(name), do: entry.name == name
  defp selects?(%Regex{} = regex, entry), do: Regex.match?(regex, entry.name)
  defp selects?(fun, entry) when is_function(fun, 1), do: fun.(entry.name)
  defp selects?(fun, entry) when is_function(fun, 2), do: fun.(entry.name, entry)

  defp selects?(other, _entry) do
    raise Error.new(
            :bad_argument,
            "expected only to be names, regular expressions or functions, got #{inspect(other)}"
          )
  end
end
