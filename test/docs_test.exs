defmodule ExTorch.DocsTest do
  # Checks the README and the documentation against the code.
  use ExTorch.Case

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
