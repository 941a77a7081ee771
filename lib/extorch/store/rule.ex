defmodule ExTorch.Store.Rule do
  @moduledoc """
  A rule of an adapter: which tensors of the file are which tensors of the module, and how one becomes the other.

    * `file` - the names of the tensors in the file
    * `module` - the names of the tensors in the module
    * `load` - a function that receives the tensors of the file, in the order of `file`, and returns the tensors of the
      module, in the order of `module`, or `{:error, message}` if they do not fit, or `{:ambiguous, tensors}` if this is a
      guess. By default the same tensors.
    * `save` - the inverse, for `ExTorch.Store.collect_from/2`. By default the same tensors.

  The names of the file are those after `:top_level_key`, `:renumber` and `:remap`.

  A rule without tensors of the file is about tensors that only the module has, such as the state of a random generator:
  `apply_to/2` leaves them as they are and lists them in `skipped`, `collect_from/2` does not save them.

  `load` is first called with tensors on the device `:meta`, which have no values, so that shapes are compared before
  anything is read. See `ExTorch.Store.Adapter` for how rules are chosen, and for an example.
  """

  alias ExTorch.Tensor

  @type convert ::
          ([Tensor.t()] -> [Tensor.t()] | {:ambiguous, [Tensor.t()]} | {:error, String.t()})
  @type t :: %__MODULE__{
          file: [String.t()],
          module: [String.t()],
          load: convert(),
          save: convert()
        }

  @enforce_keys [:file, :module]
  defstruct [:file, :module, load: &Function.identity/1, save: &Function.identity/1]
end
