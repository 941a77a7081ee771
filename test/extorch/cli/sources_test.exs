defmodule ExTorch.CLI.SourcesTest do
  # Every command with everything that a checkpoint can be read from.
  use ExTorch.Case

  # It runs Elixir code whose native calls have their own tests under the sanitizers.
  @moduletag :no_asan
  import ExTorch.Test.CLI
  alias ExTorch.Test.{JSON, Nginx}

  @moduletag :tmp_dir
  @name "encoder.weight"

  setup %{tmp_dir: dir} do
    www = Path.join(dir, "www")
    File.mkdir_p!(www)

    in_task(fn ->
      state = %{
        @name => ExTorch.tensor([[1.0, -2.5], [0.0, 4.0]]),
        "encoder.bias" => ExTorch.ones({3})
      }

      ExTorch.save!(state, Path.join(www, "model.pt"))
      ExTorch.save!(state, Path.join(www, "model.safetensors"))
      ExTorch.save!(state, Path.join(www, "dcp"), format: :dcp)
      ExTorch.convert!(Path.join(www, "model.pt"), Path.join(www, "shards"), max_shard_size: 16)
    end)

    {:ok, www: www, out: Path.join(dir, "out")}
  end

  @places [
    "model.pt",
    "model.safetensors",
    "shards",
    "shards/model.safetensors.index.json",
    "dcp"
  ]
  for place <- @places do
    test("a path: #{place}", %{www: www, out: out},
      do: check(Path.join(www, unquote(place)), Path.join(www, "model.pt"), out)
    )
  end

  test "what torch.distributed.checkpoint has written", %{out: out} do
    for folder <- Path.wildcard("test/fixtures/dcp/*") do
      assert {0, "" <> _, ""} = run(["info", folder])
      name = folder |> ExTorch.Checkpoint.open!() |> ExTorch.Checkpoint.keys() |> hd()
      assert {0, "" <> _, ""} = run(["show", folder, name])
      assert {0, "", _} = run(["convert", folder, out <> ".pt", "--tensors-only"])
      assert {0, _, ""} = run(["diff", folder, out <> ".pt", "--tensors-only"])
      assert {0, _, ""} = run(["verify", folder])
      assert {0, _, ""} = run(["report", folder, "-o", out <> ".html"])
    end
  end

  describe "URLs" do
    @describetag :nginx

    setup %{tmp_dir: dir, www: www} do
      server =
        Nginx.start(Path.join(dir, "nginx"), """
        root #{www};
        location /forward/ { alias #{www}/; max_ranges 0; }
        """)

      on_exit(fn -> Nginx.stop(server) end)
      {:ok, server: server}
    end

    for place <- [
          "model.pt",
          "model.safetensors",
          "shards/model.safetensors.index.json",
          "dcp/",
          "forward/model.pt"
        ] do
      test("#{place}", %{server: server, www: www, out: out},
        do: check(Nginx.url(server, "/#{unquote(place)}"), Path.join(www, "model.pt"), out)
      )
    end
  end

  defp check(source, same, out) do
    assert {0, text, ""} = run(["info", source])
    assert text =~ "2 tensors, 7 parameters, 28 B, float32"
    assert length(json(["info", source])["tensors"]) == 2

    assert {0, text, ""} = run(["show", source, @name])
    assert text =~ "-2.5"

    assert {0, "", _} = run(["convert", source, out <> ".safetensors"])
    assert {0, text, ""} = run(["diff", out <> ".safetensors", same])
    assert text =~ "2 equal"
    assert {0, "", _} = run(["convert", source, out <> ".pt", "--dtype", "float16"])
    assert {1, _, ""} = run(["diff", out <> ".pt", source])
    assert {0, _, ""} = run(["diff", source, same])
    assert {0, _, ""} = run(["diff", same, source, "--json"])

    assert {0, text, ""} = run(["verify", source])
    assert text =~ "2 tensors"

    assert {0, _, ""} = run(["report", source, "-o", out <> ".html"])
    assert File.read!(out <> ".html") =~ "<html"
  end

  defp json(args) do
    {0, text, ""} = run(args ++ ["--json"])
    JSON.decode!(text)
  end
end
