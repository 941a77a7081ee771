defmodule ExTorch.Store.Planned do
  @moduledoc false
  # A tensor that ExTorch.Store.apply_to/2 will read: its name in the file and its entry.
  #
  # Without a rule, it replaces one leaf of the module: its name, the leaf, the shape and dtype that the module expects,
  # and whether an adapter guesses. With a rule, `job` is the number of the job that it is an input of.

  @type t :: %__MODULE__{
          from: String.t(),
          entry: ExTorch.Checkpoint.Entry.t(),
          name: String.t() | nil,
          leaf: term(),
          target: ExTorch.Module.target() | nil,
          ambiguous: boolean(),
          job: non_neg_integer() | nil
        }

  @enforce_keys [:from, :entry]
  defstruct [:from, :entry, :name, :leaf, :target, :job, ambiguous: false]
end
