defmodule ExTorch.DocsTest do
  # Checks the README against the code.
  use ExTorch.Case

  # It runs Elixir code whose native calls have their own tests under the sanitizers.
  @moduletag :no_asan

  import ExUnit.CaptureIO
  alias ExTorch.Test.Examples

  @readme File.read!("README.md")

  test "every module and function in the README exists" do
    for [name, function, arity] <-
          Regex.scan(~r/`(ExTorch(?:\.[A-Z]\w+)*)\.([a-z_]+[?!]?)\/(\d)`/, @readme,
            capture: :all_but_first
          ) do
      module = Module.concat([name])
      assert Code.ensure_loaded?(module), name

      assert function_exported?(module, String.to_atom(function), String.to_integer(arity)),
             "#{name}.#{function}/#{arity}"
    end

    for [name] <- Regex.scan(~r/`(ExTorch(?:\.[A-Z]\w+)*)`/, @readme, capture: :all_but_first),
        name != "ExTorch.Nx" do
      assert Code.ensure_loaded?(Module.concat([name])), name
    end
  end

  test "every image and file of the README exists" do
    for [path] <- Regex.scan(~r/\]\(([\w.\/]+)\)/, @readme, capture: :all_but_first),
        do: assert(File.exists?(path), path)
  end

  test "every make target in the README exists" do
    makefile = File.read!("Makefile")

    for [target] <- Regex.scan(~r/^make ([\w-]+)/m, @readme, capture: :all_but_first) do
      assert makefile =~ ~r/^#{target}:/m
    end
  end

  test "the workflow has the oldest and the newest versions of the README" do
    workflow = File.read!(".github/workflows/ci.yml")

    [_ | versions] = Regex.run(~r/Elixir (\S+) to (\S+), and OTP (\d+) to (\d+)/, @readme)
    for version <- versions, do: assert(workflow =~ ~s("#{version}"), version)
  end

  test "the Dockerfile of the guide installs what the build asks for" do
    guide = File.read!("guides/deployment.md")
    [dockerfile] = Regex.run(~r/```dockerfile\n(.*?)```/s, guide, capture: :all_but_first)
    [_, packages] = Regex.run(~r/apt-get install (.*)/, Mix.Project.config()[:make_error_message])

    for package <- String.split(packages),
        do: assert(dockerfile =~ ~r/\s#{Regex.escape(package)}\s/)

    # scripts/image.sh runs these.
    lines = dockerfile |> String.replace("\\\n", "") |> String.split("\n", trim: true)
    for line <- lines, do: assert(line =~ ~r/^(FROM|RUN|WORKDIR|ENV|COPY|CMD) /, line)
  end

  @elixir ~r/```elixir\n(.*?)```/s

  @tag :tmp_dir
  @tag :torch
  test "the five examples of the README run, and the functions in the others exist", %{
    tmp_dir: dir
  } do
    [section] = Regex.run(~r/^## Five examples$(.*?)^## /ms, @readme, capture: :all_but_first)
    examples = Regex.scan(@elixir, section, capture: :all_but_first)
    assert length(examples) == 5
    Examples.write_files(dir)

    File.cd!(dir, fn ->
      Enum.reduce(examples, Examples.start("README.md"), fn [code], state ->
        Examples.run(code, state)
      end)
    end)

    others = Regex.scan(@elixir, String.replace(@readme, section, ""), capture: :all_but_first)
    assert length(others) > 5
    for [code] <- others, do: Examples.check(code, Examples.start("README.md"))
  end

  @tag :tmp_dir
  test "the five lines of the README work", %{tmp_dir: dir} do
    [section] = Regex.run(~r/^## Five lines$(.*?)^## /ms, @readme, capture: :all_but_first)
    commands = Regex.scan(~r/^\.\/extorch (.*?)(?: +#.*)?$/m, section, capture: :all_but_first)
    assert length(commands) == 4

    for [command] <- commands do
      args = command |> String.replace("/tmp/", dir <> "/") |> String.split()
      test = self()
      answer = capture_io(fn -> send(test, {:status, ExTorch.CLI.run(args)}) end)
      assert_received {:status, 0}, command
      # a conversion prints nothing
      assert answer != "" or hd(args) == "convert", command
    end

    assert File.exists?(Path.join(dir, "model.safetensors"))
    assert File.read!(Path.join(dir, "model.html")) =~ "<html"

    [line] = Regex.run(~r/^ExTorch\.load!.*ExTorch\.Nx\.to_nx\(\)$/m, section)

    if Code.ensure_loaded?(Nx),
      do: assert({%{shape: _, type: _}, _} = Code.eval_string(line)),
      else: assert_raise(Error, ~r/add {:nx, /, fn -> Code.eval_string(line) end)
  end
end
