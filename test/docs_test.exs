defmodule ExTorch.DocsTest do
  # Checks the README and the documentation against the code.
  use ExTorch.Case

  import ExUnit.CaptureIO

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

  test "every make target in the README exists" do
    makefile = File.read!("Makefile")

    for [target] <- Regex.scan(~r/^make (\w+)/m, @readme, capture: :all_but_first) do
      assert makefile =~ ~r/^#{target}:/m
    end
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

  test "every public function has a spec" do
    {:ok, modules} = :application.get_key(:extorch, :modules)

    for module <- modules,
        String.starts_with?(inspect(module), "ExTorch"),
        {:docs_v1, _, _, _, %{}, _, docs} <- [Code.fetch_docs(module)],
        not (Code.ensure_loaded?(module) and function_exported?(module, :__protocol__, 1)),
        {:ok, specs} <- [Code.Typespec.fetch_specs(module)],
        {{:function, name, arity}, _, _, %{}, _} <- docs,
        {name, arity} not in [message: 1] do
      assert List.keymember?(specs, {name, arity}, 0), "#{inspect(module)}.#{name}/#{arity}"
    end
  end

  test "every public function of the library is documented" do
    {:ok, modules} = :application.get_key(:extorch, :modules)

    for module <- modules,
        String.starts_with?(inspect(module), "ExTorch"),
        not String.contains?(inspect(module), "Test"),
        # the protocol has the documentation of its implementations
        Code.ensure_loaded?(module) and not function_exported?(module, :__impl__, 1) do
      case Code.fetch_docs(module) do
        {:docs_v1, _, _, _, :hidden, _, _} ->
          :ok

        {:docs_v1, _, _, _, doc, _, functions} ->
          assert is_map(doc), "#{inspect(module)} has no moduledoc"

          # a function's other arities may share its documentation
          documented =
            for {{:function, name, _}, _, _, doc, _} <- functions, is_map(doc), do: name

          for {{:function, name, arity}, _, _, :none, _} <- functions,
              name not in [:__struct__, :exception, :message] do
            assert name in documented, "#{inspect(module)}.#{name}/#{arity} has no doc"
          end

        {:error, _} ->
          :ok
      end
    end
  end
end
