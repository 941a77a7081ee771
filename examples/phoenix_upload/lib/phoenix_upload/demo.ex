defmodule PhoenixUpload.Demo do
  @moduledoc "A small checkpoint to look at, if no other is configured."

  @spec write!(Path.t()) :: Path.t()
  def write!(path \\ Path.join(System.tmp_dir!(), "phoenix_upload_demo.pt")) do
    ExTorch.save!(checkpoint(), path)
    path
  end

  @doc "A language model with a few layers, and what a training saves beside it."
  @spec checkpoint(pos_integer()) :: term()
  def checkpoint(layers \\ 4) do
    embedding = random({2048, 128})

    blocks =
      for i <- 0..(layers - 1),
          {name, shape} <- [
            {"attention.query_key_value.weight", {384, 128}},
            {"attention.query_key_value.bias", {384}},
            {"attention.output.weight", {128, 128}},
            {"mlp.up.weight", {512, 128}},
            {"mlp.up.bias", {512}},
            {"mlp.down.weight", {128, 512}},
            {"norm.weight", {128}}
          ],
          do:
            {"blocks.#{i}.#{name}",
             if(name == "norm.weight", do: ExTorch.ones(shape), else: random(shape))}

    model = [{"embedding.weight", embedding}] ++ blocks ++ [{"head.weight", embedding}]

    %ExTorch.Python.Dict{
      pairs: [
        {"model", %ExTorch.Python.Dict{pairs: model}},
        {"epoch", 12},
        {"loss", 1.8742},
        {"config",
         %{"layers" => layers, "width" => 128, "vocabulary" => 2048, "activation" => "gelu"}}
      ]
    }
  end

  defp random(shape), do: ExTorch.op("randn", [Tuple.to_list(shape)]) |> ExTorch.mul(0.02)
end
