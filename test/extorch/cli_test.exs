defmodule ExTorch.CLITest do
  use ExTorch.Case

  # It runs Elixir code whose native calls have their own tests under the sanitizers.
  @moduletag :no_asan
  import ExTorch.Test.CLI
  alias ExTorch.CLI
  alias ExTorch.Test.JSON
  import ExUnit.CaptureIO

  @moduletag :tmp_dir

  setup %{tmp_dir: dir} do
    a = Path.join(dir, "a.pt")
    b = Path.join(dir, "b.safetensors")

    in_task(fn ->
      tied = ExTorch.tensor([1.0, 2.0, :nan])
      model = %{"enc.w" => ExTorch.tensor([[1.0, -2.5], [0.0, 4.0]]), "t1" => tied, "t2" => tied}
      ExTorch.save!(%{"model" => model, "epoch" => 3, "bad\e[31m" => "x\e[0m"}, a)

      ExTorch.save!(%{"enc.w" => ExTorch.tensor([[1.0, -2.5], [0.0, 5.0]])}, b,
        metadata: %{"k" => "v"}
      )
    end)

    [a: a, b: b, dir: dir]
  end

  defp json(args) do
    {status, output, ""} = run(args ++ ["--json"])
    {status, JSON.decode!(String.replace(output, ~r/-?\d+\.\d+(e-?\d+)?/, "0"))}
  end

  test "info", %{a: a, b: b} do
    assert {0, text, ""} = run(["info", a])
    assert text =~ ~r/^model +3 tensors/m
    assert text =~ ~r/^  enc.w +float32\[2\]\[2\] +4 +16 B$/m
    assert text =~ "share storage:\n  model.t1, model.t2\n"
    assert text =~ "epoch: 3\n"
    refute text =~ "\e"
    assert {0, text, ""} = run(["info", b, "--table"])
    assert text =~ "metadata:\n  k: \"v\"\n"

    assert {0, text, ""} =
             run(["info", a, "--only", "model.t*", "--sort", "size", "--depth", "1"])

    assert text =~ "2 tensors, 3 parameters, 12 B, float32"
    assert {0, %{"tensors" => tensors, "values" => values, "format" => "zip"}} = json(["info", a])
    assert Enum.sort(Enum.map(tensors, & &1["name"])) == ["model.enc.w", "model.t1", "model.t2"]
    assert %{"name" => "epoch", "value" => 3} in values
    assert {2, "", error} = run(["info", a, "--only", "model"])
    assert error =~ "{:prefix, \"model.\"}"
    assert {2, "", "Usage" <> _} = run(["info", a, "--depth", "0"])
    assert {2, "", "Usage" <> _} = run(["info", a, "--sort", "x"])
    assert {2, "", "Usage" <> _} = run(["info"])
    assert {2, "", "extorch: " <> _} = run(["info", a <> "x"])
    assert {2, "", "extorch: invalid regular" <> _} = run(["info", a, "--only", "/(/"])
  end

  test "show", %{a: a, b: b} do
    assert {0, text, ""} = run(["show", a, "model.t1", "--bins", "2"])

    for part <- ["1.0, 2.0, :nan", "mean     1.5", "std      0.5", "nan      1", "█ 1"],
        do: assert(text =~ part)

    assert {0, text, ""} = run(["show", b])
    assert text =~ "enc.w: float32[2][2]"
    assert {0, %{"histogram" => [3, 1], "shape" => [2, 2]}} = json(["show", b, "--bins", "2"])
    assert {2, "", error} = run(["show", a, "model.t3"])
    assert error =~ ~s("model.t1")
    assert {2, "", error} = run(["show", a])
    assert error =~ "name of a tensor"
    assert {2, "", "Usage" <> _} = run(["show", a, "x", "--bins", "0"])
  end

  test "convert and diff", %{a: a, b: b, dir: dir} do
    out = Path.join(dir, "out.safetensors")
    assert {2, "", error} = run(["convert", a, out])
    assert error =~ "tensors_only"
    key = ["--top-level-key", "model"]

    assert {0, "", ""} =
             run([
               "convert",
               a,
               out,
               "--duplicate",
               "--dtype",
               "bf16",
               "--metadata",
               "by=me" | key
             ])

    assert ExTorch.load!(out)["enc.w"].dtype == :bfloat16
    assert {0, text, ""} = run(["diff", a, out, "--ignore-dtype", "--top-level-key", "auto"])
    assert text == "3 equal\n"
    assert {1, text, ""} = run(["diff", out, b, "--ignore-dtype", "--no-color"])

    assert text =~
             "only in a:\n  t1\n  t2\nchanged:\n  enc.w: max 1.0, mean 0.25, 1 of 4 elements\n"

    assert String.ends_with?(text, "0 equal, 1 changed, 2 only in a\n")
    assert {0, _, ""} = run(["diff", out, b, "--ignore-dtype", "--only", "enc.*", "--atol", "1"])
    assert {1, %{"changed" => [%{"name" => "enc.w"}]}} = json(["diff", out, b, "--only", "enc.*"])

    assert {0, "", ""} =
             run([
               "convert",
               out,
               Path.join(dir, "x.pt"),
               "--rename",
               "^enc=dec",
               "--except",
               "t?",
               "--only",
               "dec*",
               "--format",
               "legacy"
             ])

    assert Map.keys(ExTorch.load!(Path.join(dir, "x.pt"))) == ["dec.w"]

    for bad <- [
          ["--dtype", "x"],
          ["--format", "nonesuch"],
          ["--rename", "x"],
          ["--metadata", "x"]
        ] do
      assert {2, "", "extorch: " <> _} = run(["convert", a, out | bad])
    end

    assert {2, "", "Usage" <> _} = run(["diff", a])
    assert {2, "", "extorch: " <> _} = run(["diff", a, "none"])
  end

  test "verify", %{a: a, b: b, dir: dir} do
    assert {0, text, ""} = run(["verify", b])
    assert text =~ "1 tensor, 16 B: no problem found"
    assert {1, text, ""} = run(["verify", a])
    assert text =~ "NaN:\n  model.t1: 1\n  model.t2: 1\n"
    assert {0, _, ""} = run(["verify", a, "--allow-nan"])
    assert {1, %{"ok" => false, "nan" => %{"model.t1" => 1}}} = json(["verify", a])
    module = "test/fixtures/more/module.pt"
    assert {1, text, ""} = run(["verify", module])
    assert text =~ "refused by weights_only"
    assert text =~ "torch.nn.modules.linear.Linear"
    assert {0, _, ""} = run(["verify", module, "--allow-unsafe"])
    # a bit in the bytes of a storage, and the end of the file missing
    bytes = File.read!(a)
    {at, _} = :binary.match(bytes, <<-2.5::float-32-little>>)
    damaged = Path.join(dir, "damaged.pt")
    File.write!(damaged, flip_bit(bytes, at, 3))
    assert {1, text, ""} = run(["verify", damaged, "--allow-nan"])
    assert text =~ "damaged:\n  model.enc.w: "
    File.write!(damaged, binary_part(bytes, 0, byte_size(bytes) - 100))
    assert {1, text, ""} = run(["verify", damaged])
    assert text =~ "problems found"
    assert {2, "", "extorch: " <> _} = run(["verify", Path.join(dir, "none")])
  end

  test "help, and wrong commands" do
    assert {0, "Usage: extorch COMMAND" <> _, ""} = run(["--help"])
    assert {2, "", "Usage" <> _} = run([])
    assert {2, "", "unknown command" <> _} = run(["x"])

    for {name, command} <- CLI.commands() do
      assert {0, "Usage: extorch " <> _ = text, ""} = run([name, "--help"])
      assert text =~ "Examples:"
      # every option is described
      for {switch, _} <- command.switches(), switch not in [:filter, :fsync] do
        assert text =~ "--" <> String.replace(to_string(switch), "_", "-"), "#{name} #{switch}"
      end

      assert {2, "", error} = run([name, "--nonesuch"])
      assert error =~ "invalid option --nonesuch"
      task = Module.concat(Mix.Tasks.Extorch, String.capitalize(name))
      assert Code.ensure_loaded?(task)
      assert Mix.Task.shortdoc(task) == command.summary()
    end
  end

  test "a Mix task exits with the status", %{a: a} do
    assert capture_io(fn -> assert Mix.Tasks.Extorch.Info.run([a]) == :ok end) =~ "3 tensors"

    assert capture_io(fn ->
             assert catch_exit(Mix.Tasks.Extorch.Verify.run([a])) == {:shutdown, 1}
           end) =~ "NaN"
  end
end
