defmodule ExTorch.ArgumentsTest do
  # Every public function of every public module is called with wrong arguments at each position, and with wrong values
  # of each of its options. It may return anything, and raise ExTorch.Error or an ArgumentError that says what it wants.
  use ExTorch.Case

  import ExUnit.CaptureIO

  alias ExTorch.{Checkpoint, Store, Streaming}

  @fixture "test/fixtures/2.14.1/many.pt"

  # Functions that a call would end the node with.
  @not_called [{ExTorch.CLI, :main, 1}, {ExTorch.Error, :message, 1}]

  @patience 60_000

  # ---- The public functions ----

  defp public_functions do
    {:ok, modules} = :application.get_key(:extorch, :modules)

    for module <- Enum.sort(modules),
        String.starts_with?(inspect(module), "ExTorch"),
        # ExTorch calls the functions of a protocol, users implement them.
        not (Code.ensure_loaded?(module) and function_exported?(module, :__protocol__, 1)),
        {:docs_v1, _, _, _, %{}, _, docs} <- [Code.fetch_docs(module)],
        {{:function, name, arity}, _, [signature | _], doc, meta} <- docs,
        doc != :hidden and not String.starts_with?("#{name}", "__"),
        {module, name, arity} not in @not_called,
        defaults = Map.get(meta, :defaults, 0),
        arity <- (arity - defaults)..arity,
        arity > 0 do
      {module, name, parameters(signature, arity)}
    end
  end

  defp parameters(signature, arity) do
    [_, list] = Regex.run(~r/\((.*)\)$/, signature)
    list |> String.split(", ") |> Enum.map(&hd(String.split(&1, " "))) |> Enum.take(arity)
  end

  # An argument of the right kind, by the name of the parameter.
  defp right(name, right), do: Map.get(right, String.to_atom(name))

  defp right_arguments(_dir, function) when function in [:diff, :diff!],
    do: %{a: @fixture, b: @fixture, opts: []}

  defp right_arguments(dir, _function), do: right_arguments(dir)

  defp right_arguments(dir) do
    ckpt = Checkpoint.open!(@fixture)
    tensor = ExTorch.tensor([[1.0, 2.0], [3.0, 4.0]])

    %{
      ckpt: ckpt,
      checkpoint: ckpt,
      name: "t01",
      names: ["t01"],
      key: "0",
      tensor: tensor,
      tensors: [tensor],
      a: tensor,
      b: tensor,
      dim: 0,
      opts: [],
      source: @fixture,
      sink: Path.join(dir, "sink.pt"),
      path: Path.join(dir, "path.pt"),
      folder: Path.join(dir, "folder"),
      term: %{"a" => 1},
      store: Store.PyTorch.new(@fixture),
      module: %{"t01" => tensor},
      parts: [],
      shape: {2},
      value: 1.0,
      dtype: :float32,
      binary: <<0::64>>,
      n: 2,
      offset: 0,
      length: 1,
      loader: Streaming.loader(),
      chunk: "",
      enumerable: [],
      reader: {:binary, ""},
      writer: {:binary, ""},
      info: ExTorch.Tensor.Blob.to_blob(tensor),
      ranges: [0..0],
      url: "http://localhost:1/a.pt",
      repository: "org/model",
      file: "a.pt",
      node: :nonode@nohost,
      nodes: [],
      start: 0,
      stop: 2,
      numbers: [1],
      args: [tensor],
      timeout: 0
    }
  end

  # Terms of many kinds: wrong for almost every parameter.
  defp terms(dir) do
    dead = spawn(fn -> :ok end)
    ref = Process.monitor(dead)
    assert_receive {:DOWN, ^ref, _, _, _}

    [
      nil,
      true,
      :name,
      3,
      -1,
      2 ** 80,
      1.5,
      "",
      Path.join(dir, "missing"),
      <<255, 0, 1>>,
      <<1::3>>,
      [],
      [1 | 2],
      [:a],
      ["a", 1, nil],
      [a: 1],
      ~c"charlist",
      {},
      {:ok, 1},
      {:cuda, "0"},
      {:binary, nil},
      %{},
      %{"a" => %{b: 1}},
      dead,
      make_ref(),
      fn -> 1 end,
      fn _ -> nil end,
      1..3,
      ~r/a/,
      MapSet.new([1]),
      URI.parse("file:///a"),
      ExTorch.ones({2}),
      %ExTorch.Tensor{resource: make_ref(), shape: {1}, dtype: :float32, device: :cpu},
      %ExTorch.Tensor{resource: nil, shape: nil, dtype: nil, device: nil},
      %Checkpoint{resource: make_ref(), source: nil, options: nil},
      Store.PyTorch.new(dir)
    ]
  end

  # ---- The calls ----

  defp call(module, name, args) do
    apply(module, name, args)
    nil
  rescue
    error in ExTorch.Error ->
      if String.valid?(error.message), do: nil, else: "a message that is not text"

    error in ArgumentError ->
      # What the runtime says of a call into C or a built-in function is not written for the caller.
      if error.message in ["argument error", "bad argument"] or
           String.starts_with?(error.message, "errors were found at the given arguments"),
         do: blame(error, __STACKTRACE__)

    error ->
      blame(error, __STACKTRACE__)
  catch
    kind, reason -> "#{kind} #{inspect(reason, limit: 5)}"
  end

  defp blame(error, stacktrace) do
    {error, stacktrace} = Exception.blame(:error, error, stacktrace)
    text = error |> Exception.message() |> String.split("\n") |> hd()

    frames =
      Enum.map_join(Enum.take(stacktrace, 4), " < ", fn {m, f, a, l} ->
        "#{inspect(m)}.#{f}/#{if is_list(a), do: length(a), else: a}:#{l[:line]}"
      end)

    "#{inspect(error.__struct__)} #{String.slice(text, 0, 200)} #{frames}"
  end

  # One line for each function and problem.
  defp failures(functions, arguments) do
    for {module, name, parameters} <- functions,
        args <- arguments.(module, name, parameters),
        problem = quietly(module, name, args),
        uniq: true do
      {"#{inspect(module)}.#{name}/#{length(args)}", problem, Enum.map_join(args, ", ", &show/1)}
    end
    |> Enum.uniq_by(fn {function, problem, _args} -> {function, problem} end)
    |> Enum.map(fn {function, problem, args} -> "#{function}: #{problem}\n    (#{args})" end)
  end

  defp show(%module{}), do: "%#{inspect(module)}{}"
  defp show(term), do: term |> inspect(limit: 5) |> String.slice(0, 60)

  # In a process of its own: a call may wait for something that never comes.
  defp quietly(module, name, args) do
    task = Task.async(fn -> call(module, name, args) end)

    problem =
      case Task.yield(task, @patience) || Task.shutdown(task, :brutal_kill) do
        {:ok, problem} -> problem
        _ -> "no answer"
      end

    # Some of the calls are right, and change the settings of the node.
    if module == ExTorch.Memory, do: restore()
    problem
  end

  defp restore do
    ExTorch.Memory.set_budget(ExTorch.Config.budget())
    ExTorch.Memory.set_background(ExTorch.Config.background())
  end

  defp assert_none(failures) do
    assert failures == [],
           "#{length(failures)} calls:\n" <> Enum.join(Enum.take(failures, 400), "\n")
  end

  @moduletag timeout: :infinity
  setup %{tmp_dir: dir} do
    functions = public_functions()
    assert length(functions) > 150
    %{functions: functions, dir: dir}
  end

  @tag :tmp_dir
  test "a term of the wrong kind at any position", %{functions: functions, dir: dir} do
    capture_io(:stderr, fn ->
      capture_io(fn ->
        terms = terms(dir)

        failures(functions, fn _module, name, parameters ->
          right = right_arguments(dir, name)
          good = Enum.map(parameters, &right(&1, right))
          last = length(parameters) - 1
          one_wrong = for i <- 0..last, term <- terms, do: List.replace_at(good, i, term)
          all_wrong = for term <- terms, last > 0, do: Enum.map(parameters, fn _ -> term end)
          one_wrong ++ all_wrong
        end)
        |> then(&send(self(), {:failures, &1}))
      end)
    end)

    assert_received {:failures, failures}
    assert_none(failures)
  end

  @tag :tmp_dir
  test "a value of the wrong kind for any option", %{functions: functions, dir: dir} do
    capture_io(:stderr, fn ->
      capture_io(fn ->
        terms = terms(dir)
        functions = Enum.filter(functions, fn {_, _, names} -> List.last(names) == "opts" end)

        failures(functions, fn module, name, parameters ->
          right = right_arguments(dir, name)
          good = Enum.map(parameters, &right(&1, right))

          for option <- known_options(module, name, good), term <- terms do
            List.replace_at(good, -1, [{option, term}])
          end
        end)
        |> then(&send(self(), {:failures, &1}))
      end)
    end)

    assert_received {:failures, failures}
    assert_none(failures)
  end

  # The message about an unknown option lists the known ones.
  defp known_options(module, name, args) do
    message =
      case apply(module, name, List.replace_at(args, -1, nonsense: 1)) do
        {:error, error} -> error.message
        _ -> ""
      end

    names(message)
  rescue
    error -> names(Exception.message(error))
  end

  defp names(message) do
    case String.split(message, "known options are ") do
      [_, list] ->
        for [name] <- Regex.scan(~r/:(\w+)/, list, capture: :all_but_first),
            do: String.to_atom(name)

      _ ->
        []
    end
  end
end
