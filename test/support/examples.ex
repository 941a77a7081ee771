defmodule ExTorch.Test.Examples do
  @moduledoc false
  # Runs the examples of the documentation. The state is the binding and the environment of the blocks before.

  import ExUnit.Assertions
  import ExUnit.CaptureIO
  alias ExTorch.Python.Dict

  @doc "The state before the first block."
  def start(file), do: {[], Code.env_for_eval(file: file)}

  @doc "The checkpoints that the examples read: model.pt and training.pt."
  def write_files(dir) do
    model = %Dict{
      pairs: [
        {"encoder.weight", ExTorch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])},
        {"encoder.bias", ExTorch.tensor([0.5, -0.5])}
      ]
    }

    ExTorch.save!(model, Path.join(dir, "model.pt"))
    ExTorch.save!(%{"model" => model, "epoch" => 3}, Path.join(dir, "training.pt"))
  end

  @doc "Runs a block. `#=>` is followed by what the expression before it returns."
  def run(code, state) do
    {:ok, quoted, comments} = Code.string_to_quoted_with_comments(code)
    expressions = with({:__block__, _, list} <- quoted, do: list) |> List.wrap()
    lines = Enum.map(expressions, &line/1) ++ [:infinity]

    expressions
    |> Enum.with_index()
    |> Enum.reduce(state, fn {expression, i}, {binding, env} ->
      {{value, binding, env}, _printed} =
        with_io(fn -> Code.eval_quoted_with_env(expression, binding, env) end)

      for %{text: "#=> " <> expected, line: line} <- comments,
          line >= Enum.at(lines, i) and line < Enum.at(lines, i + 1),
          do: assert(inspect(value) == expected, Macro.to_string(expression))

      {binding, env}
    end)
  end

  defp line(quoted) do
    {_, line} =
      Macro.prewalk(quoted, :infinity, fn
        {_, meta, _} = node, first -> {node, min(first, meta[:line] || first)}
        node, first -> {node, first}
      end)

    line
  end

  @doc "Checks that the functions of ExTorch exist that a block calls, without running it."
  def check(code, {_binding, env} = state) do
    {:ok, quoted} = Code.string_to_quoted(code)

    for {module, name, arity} <- calls(Macro.prewalk(quoted, &unpipe/1), env),
        inspect(module) =~ ~r/^ExTorch\b/ do
      assert Code.ensure_loaded?(module), inspect(module)
      assert function_exported?(module, name, arity), "#{inspect(module)}.#{name}/#{arity}"
    end

    state
  end

  defp calls(quoted, env) do
    {_, calls} =
      Macro.prewalk(quoted, [], fn
        {{:., _, [{:__aliases__, _, _} = alias, name]}, _, args} = call, calls ->
          {call, [{Macro.expand(alias, env), name, length(args)} | calls]}

        {:__aliases__, _, _} = alias, calls ->
          {alias, [{Macro.expand(alias, env), :module_info, 0} | calls]}

        other, calls ->
          {other, calls}
      end)

    calls
  end

  defp unpipe({:|>, _, [left, right]}), do: Macro.pipe(left, right, 0)
  defp unpipe(other), do: other
end
