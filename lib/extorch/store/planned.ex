defmodule ExTorch.Store.Planned do
  @moduledoc false
  # A tensor that ExTorch.Store.apply_to/2 will read: its names in the file and in the module, its entry, the leaf of the
  # module that it replaces, and the shape and dtype that the module expects.

  @type t :: %__MODULE__{
          from: String.t(),
          name: String.t(),
          entry: ExTorch.Checkpoint.Entry.t(),
          leaf: term(),
          target: ExTorch.Module.target()
        }

  @enforce_keys [:from, :name, :entry, :leaf, :target]
  defstruct [:from, :name, :entry, :leaf, :target]
end
