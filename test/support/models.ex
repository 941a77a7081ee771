defmodule ExTorch.Test.Models do
  @moduledoc false
  # Checkpoints that look like those of large models.

  # A file with that many small tensors, in layers and experts.
  def many(dir, count) do
    path = Path.join(dir, "many.pt")

    pairs =
      for i <- 0..(count - 1) do
        name =
          "model.layers.#{div(i, 400)}.mlp.experts.#{rem(div(i, 4), 100)}.w#{rem(i, 4)}.weight"

        {name, ExTorch.tensor([[i * 0.5, 1.0], [-0.25, i / 7]])}
      end

    ExTorch.save!(%ExTorch.Python.Dict{pairs: pairs}, path)
    path
  end
end
