defmodule ExTorch.Config do
  @moduledoc """
  The configuration of ExTorch.

  All keys are optional. They are read when the native library is loaded; `:bundle_libtorch` is read when ExTorch is
  compiled.

      config :extorch,
        num_threads: 4,
        budget: 8 * 1024 ** 3,
        collect_after: 256 * 1024 ** 2

  | key | default | meaning |
  |---|---|---|
  | `:num_threads` | LibTorch's default | the number of threads within one operator; each dirty CPU scheduler that runs an operator may use this many |
  | `:budget` | 90 % of the memory that is available when ExTorch is loaded (see below) | the limit of native bytes, or `:infinity`; a call that would exceed it runs a garbage collection and then fails with `:limit` |
  | `:device_budget` | `:infinity` | the limit of bytes of tensors on each device (`ExTorch.Memory.set_budget/2` sets that of one) |
  | `:default_device` | `:cpu` | the device of new tensors (`ExTorch.Device.default/0`) |
  | `:background` | `true` | what may run in the background to make calls faster: `true` for all, `false` for none, or a list (see below) |
  | `:torch` | `true` | whether LibTorch is loaded; `false`, or the environment variable `EXTORCH_TORCH=0`, leaves it out (see below) |
  | `:collect_after` | 256 MiB | the native bytes that a process may allocate before it is garbage collected (`ExTorch.Memory`) |
  | `:bundle_libtorch` | `false` | whether releases contain LibTorch and what else the native libraries need (see the guide *Releases and Docker images*) |

  The default budget is 90 % of the least of: the available memory of the machine (`MemAvailable` of Linux), and for the
  control group of the node and each of its parents (containers, systemd units; version 1 or 2) its limit minus what it
  uses, where file cache counts as free. On systems without `/proc` there is no default: set `:budget`. It is computed
  once. `ExTorch.Memory.set_budget/1` changes the budget of a running node.

  Without LibTorch, tensors are memory: checkpoints, streams, stores, conversion and Nx work as with it, and operators that
  compute return `:unsupported` (`ExTorch`, "Without LibTorch"). A node then starts faster, needs less memory, and Torchx can
  use any LibTorch beside it. A build with `EXTORCH_TORCH=0` has no LibTorch, whatever is configured.

  None of the uses of `:background` is needed, and nothing waits for them. The first two need a thread that runs only
  while a CPU is idle, which exists on Linux 6.4 and newer:

    * `:prefault` touches the memory of a large load, by one thread or of a stream, before it is read into
    * `:checksum` computes the checksums of a large save before they are written
    * `:block_cache` keeps freed blocks of 2 to 32 MiB for about a second, at most 32 MiB in total, and uses them again
  """

  # mix.exs reads it for make. It is read here too, so that Mix compiles ExTorch again when it changes.
  @bundle_libtorch Application.compile_env(:extorch, :bundle_libtorch, false)

  @doc false
  def bundle_libtorch?, do: @bundle_libtorch

  @background_uses [:prefault, :checksum, :block_cache]

  @typedoc "Work that may run in the background."
  @type background_use :: :prefault | :checksum | :block_cache

  @default_key {__MODULE__, :default_budget}

  @doc """
  Returns the configured budget of native bytes.

      iex> budget = ExTorch.Config.budget()
      iex> budget == :infinity or budget > 0
      true
  """
  @spec budget() :: non_neg_integer() | :infinity
  def budget, do: Application.get_env(:extorch, :budget) || default_budget()

  @doc """
  Returns the configured budget of each device.

      iex> ExTorch.Config.device_budget()
      :infinity
  """
  @spec device_budget() :: non_neg_integer() | :infinity
  def device_budget, do: Application.get_env(:extorch, :device_budget, :infinity)

  @doc """
  Returns the configured uses of the background as a list.

      iex> ExTorch.Config.background()
      [:prefault, :checksum, :block_cache]
  """
  @spec background() :: [background_use()]
  def background, do: background(Application.get_env(:extorch, :background, true))

  @doc false
  @spec background(boolean() | [background_use()]) :: [background_use()]
  def background(true), do: @background_uses
  def background(false), do: []

  def background(uses) do
    if is_list(uses) and not List.improper?(uses) and uses -- @background_uses == [] do
      uses
    else
      raise ArgumentError,
            "expected :background to be true, false or a list of #{inspect(@background_uses)}, got #{ExTorch.Error.quoted(uses)}"
    end
  end

  @doc """
  Returns whether LibTorch is to be loaded, where ExTorch was built with it.

      iex> is_boolean(ExTorch.Config.torch?())
      true
  """
  @spec torch?() :: boolean()
  def torch?,
    do: System.get_env("EXTORCH_TORCH") != "0" and Application.get_env(:extorch, :torch, true)

  @doc """
  Returns the number of native bytes that a process may allocate before it is garbage collected.

      iex> ExTorch.Config.collect_after() >= 1
      true
  """
  @spec collect_after() :: pos_integer()
  def collect_after, do: Application.get_env(:extorch, :collect_after, 256 * 1024 * 1024)

  # Computed once: tensors that live when the library is loaded again have not become unavailable memory.
  defp default_budget do
    with nil <- :persistent_term.get(@default_key, nil) do
      budget =
        case ExTorch.Meminfo.available() do
          {:ok, bytes} -> div(bytes * 9, 10)
          :error -> :infinity
        end

      :persistent_term.put(@default_key, budget)
      budget
    end
  end
end
