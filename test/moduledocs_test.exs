defmodule ExTorch.ModuledocsTest do
  # Checks the documentation of all public modules, and runs its examples.
  use ExTorch.Case

  {:ok, modules} = :application.get_key(:extorch, :modules)

  # {module, its documentation, the metadata of that, the documentation of its functions}. A protocol has the documentation
  # of its implementations.
  @public for module <- Enum.sort(modules),
              inspect(module) =~ ~r/^(ExTorch|Mix\.Tasks)\b/ and
                not String.contains?(inspect(module), "Test"),
              Code.ensure_loaded?(module) and not function_exported?(module, :__impl__, 1),
              {:docs_v1, _, _, _, doc, metadata, docs} when doc != :hidden <- [
                Code.fetch_docs(module)
              ],
              do: {module, doc, metadata, docs}

  for {module, doc, _, docs} <- @public,
      Enum.any?([doc | Enum.map(docs, &elem(&1, 3))], &(is_map(&1) and &1["en"] =~ "iex>")) do
    # Without LibTorch, without the examples that compute.
    except =
      if ExTorch.info().version do
        []
      else
        computing = ["Elementwise", "Reductions"]

        by_group =
          for {{:function, name, arity}, _, _, _, %{group: group}} <- docs,
              group in computing,
              do: {name, arity}

        by_group ++
          Map.get(
            %{
              ExTorch => [:moduledoc, matmul: 2, softmax: 2, op: 3],
              ExTorch.Device => [:moduledoc, load_library: 1],
              ExTorch.Archive => [:moduledoc, load: 2, save: 3]
            },
            module,
            []
          )
      end

    doctest module, except: except
  end

  test "every public module and function is documented" do
    assert length(@public) > 50

    for {module, doc, _, docs} <- @public do
      assert is_map(doc), "#{inspect(module)} has no moduledoc"
      # a function's other arities may share its documentation
      documented = for {name, _, text, _} <- functions(docs), text != :none, do: name

      for {name, arity, :none, _} <- functions(docs),
          do: assert(name in documented, "#{inspect(module)}.#{name}/#{arity} has no doc")
    end
  end

  test "every public function has a spec" do
    for {module, _, _, docs} <- @public,
        not function_exported?(module, :__protocol__, 1),
        {:ok, specs} <- [Code.Typespec.fetch_specs(module)],
        {name, arity, _, _} <- functions(docs) do
      assert List.keymember?(specs, {name, arity}, 0), "#{inspect(module)}.#{name}/#{arity}"
    end
  end

  # A function that raises where another returns an error refers to it, and an arity without documentation to another one.
  test "every public function has an example" do
    for {module, _, _, docs} <- @public,
        functions = functions(docs),
        with_example =
          for({name, arity, text, _} <- functions, example?(text), do: {name, arity}),
        {name, arity, text, _} <- functions do
      twin =
        if text != :none,
          do: Regex.run(~r/\ASame as `(\w+\??)\/(\d)` but /, text, capture: :all_but_first)

      example? =
        cond do
          text == :none ->
            List.keymember?(with_example, name, 0)

          twin ->
            "#{name}/#{arity}" == hd(twin) <> "!/" <> Enum.at(twin, 1) and
              twin(twin) in with_example

          true ->
            {name, arity} in with_example
        end

      assert example?, "#{inspect(module)}.#{name}/#{arity} has no example"
    end
  end

  defp example?(text), do: is_binary(text) and text =~ ~r/^    \S/m
  defp twin([name, arity]), do: {String.to_existing_atom(name), String.to_integer(arity)}

  # These return a state that the caller goes on with, or are the functions of a behaviour.
  @without_twin [
    {ExTorch.Streaming, :feed, 2},
    {ExTorch.Streaming, :ended, 1},
    {ExTorch.Streaming.Body, :load, 2},
    {ExTorch.Streaming.UploadWriter, :init, 1},
    {ExTorch.Streaming.UploadWriter, :write_chunk, 2},
    {ExTorch.Streaming.UploadWriter, :close, 2}
  ]
  test "every function that returns an error has a twin that raises it" do
    found =
      for {module, _, _, docs} <- @public,
          {:ok, specs} <- [Code.Typespec.fetch_specs(module)],
          {name, arity, _, _} <- functions(docs),
          {_, clauses} <- [List.keyfind(specs, {name, arity}, 0)],
          clauses
          |> Enum.map(&Macro.to_string(Code.Typespec.spec_to_quoted(name, &1)))
          |> Enum.any?(&(&1 =~ "{:error, ")),
          not function_exported?(module, :"#{name}!", arity),
          do: {module, name, arity}

    assert Enum.sort(found) == Enum.sort(@without_twin)
  end

  test "every public module is in one group, and no group has other modules" do
    groups = Mix.Project.config()[:docs][:groups_for_modules]

    for {module, _, _, _} <- @public, not (inspect(module) =~ "Mix.Tasks.") do
      found =
        for {group, patterns} <- groups,
            Enum.any?(List.wrap(patterns), &member?(&1, module)),
            do: group

      assert length(found) == 1, "#{inspect(module)} is in the groups #{inspect(found)}"
    end

    public = for {module, _, _, _} <- @public, do: module

    for {_, patterns} <- groups,
        module <- List.wrap(patterns),
        is_atom(module) and module != ExTorch.Kino,
        do: assert(module in public, inspect(module))
  end

  defp member?(%Regex{} = regex, module), do: inspect(module) =~ regex
  defp member?(other, module), do: other == module

  test "the functions of a module with groups are all in one of them" do
    grouped =
      for {module, _, %{groups: groups}, docs} <- @public do
        for {name, arity, _, metadata} <- functions(docs),
            do: assert(metadata[:group] in groups, "#{inspect(module)}.#{name}/#{arity}")

        module
      end

    # a long list without groups is hard to read
    for {module, _, _, docs} <- @public,
        length(functions(docs)) > 9,
        do: assert(module in grouped, inspect(module))
  end

  # {name, arity, text, metadata} of the functions and macros that are not hidden. The text is :none without documentation.
  defp functions(docs) do
    for {{kind, name, arity}, _, _, doc, metadata} <- docs,
        kind in [:function, :macro] and doc != :hidden,
        {name, arity} not in [message: 1, exception: 1],
        do: {name, arity, with(%{"en" => text} <- doc, do: text), metadata}
  end
end
