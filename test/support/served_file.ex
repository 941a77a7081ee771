defmodule ExTorch.Test.ServedFile do
  @moduledoc false
  # The checkpoint that the tests of ExTorch.Source.HTTP serve.

  alias ExTorch.Tensor

  def state do
    %{
      "big" => ExTorch.arange(0, 2_500_000, dtype: :float32),
      "table" => ExTorch.arange(0, 800_000, dtype: :float32),
      "small" => ExTorch.tensor([1.0, 2.0, 3.0]),
      "step" => 7
    }
  end

  def same?(loaded, state) do
    loaded["step"] == state["step"] and
      Enum.all?(["big", "table", "small"], &Tensor.equal?(loaded[&1], state[&1]))
  end

  def file(dir, name \\ "model.pt") do
    www = Path.join(dir, "www")
    File.mkdir_p!(www)
    ExTorch.save!(state(), Path.join(www, name))
    www
  end

  def bytes(dir), do: dir |> file() |> Path.join("model.pt") |> File.read!()
end
