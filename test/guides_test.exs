defmodule ExTorch.GuidesTest do
  # Runs the cells of the guides, each with the bindings of those before it, and compares the outputs that the guides show.
  # "…" in an output stands for anything. Cells that Livebook shows as text must at least be Elixir.
  use ExTorch.Case

  # It runs Elixir code whose native calls have their own tests under the sanitizers.
  @moduletag :no_asan
  import ExUnit.CaptureIO
  alias ExTorch.Test.Examples

  @moduletag :tmp_dir
  @cell ~r/(?:<!-- livebook:(\{.*?\}) -->\n\n)?```(\w*)\n(.*?)```/s

  setup %{tmp_dir: dir} do
    before = System.get_env("TMPDIR")
    System.put_env("TMPDIR", dir)

    on_exit(fn ->
      if before, do: System.put_env("TMPDIR", before), else: System.delete_env("TMPDIR")
    end)
  end

  # Guides that compute.
  @computing ~w(deploying stores streams ten_minutes zero_copy)

  for path <- Path.wildcard("guides/*.livemd") do
    @external_resource path
    if Path.basename(path, ".livemd") in @computing, do: @tag(:torch)

    test path do
      state = {nil, [], Code.env_for_eval(file: unquote(path))}

      unquote(path)
      |> File.read!()
      |> then(&Regex.scan(@cell, &1, capture: :all_but_first))
      |> Enum.reduce(state, &cell/2)
    end
  end

  defp cell(["", "elixir", "Mix.install" <> _], state), do: state

  defp cell(["", "elixir", code], {_, binding, env}) do
    if available?(code) do
      {:ok, quoted} = Code.string_to_quoted(code, file: env.file)

      {{value, binding, env}, printed} =
        with_io(fn -> Code.eval_quoted_with_env(quoted, binding, env) end)

      {{:done, value, printed, code}, binding, env}
    else
      {:skipped, binding, env}
    end
  end

  defp cell([~s({"output":true}), _, expected], {last, binding, env}) do
    with {:done, value, printed, code} <- last do
      shown = if printed == "", do: inspect(value, pretty: true, width: 98), else: printed

      parts = expected |> String.trim() |> String.split("…") |> Enum.map(&Regex.escape/1)

      assert String.match?(
               String.trim(shown),
               Regex.compile!("\\A#{Enum.join(parts, ".*")}\\z", "s")
             ),
             "#{env.file}:\n#{code}\nshows\n#{shown}\nnot\n#{expected}"
    end

    {nil, binding, env}
  end

  defp cell([~s({"force_markdown":true}), "elixir", code], state) do
    assert {:ok, _} = Code.string_to_quoted(code)
    state
  end

  defp cell(["", language, _text], state) when language != "elixir", do: state

  # These are optional.
  defp available?(code) do
    Enum.all?([Nx, Kino, Torchx, Bumblebee], fn module ->
      not (code =~ ~r/\b#{inspect(module)}\./) or Code.ensure_loaded?(module)
    end)
  end

  # ---- The cheatsheet ----

  # Its blocks run one after another. Those that need a socket, a connection, a server or another node are only checked.
  @cheatsheet "guides/cheatsheet.cheatmd"
  @external_resource @cheatsheet

  @tag :torch
  test @cheatsheet, %{tmp_dir: dir} do
    Examples.write_files(dir)

    blocks =
      Regex.scan(~r/```elixir\n(.*?)```/s, File.read!(@cheatsheet), capture: :all_but_first)

    assert length(blocks) > 12

    File.cd!(dir, fn ->
      Enum.reduce(blocks, Examples.start(@cheatsheet), fn [code], state ->
        if code =~ ~r/\bsocket\b|\bconn\b|https:|@10\.0/ or not available?(code),
          do: Examples.check(code, state),
          else: Examples.run(code, state)
      end)
    end)
  end

  test "the guides are those of the documentation" do
    extras = Mix.Project.config()[:docs][:extras]
    assert @cheatsheet in extras
    for path <- Path.wildcard("guides/*.{livemd,md}"), do: assert(path in extras)
    assert length(Path.wildcard("guides/*.livemd")) >= 7

    for path <- Path.wildcard("guides/*.{livemd,md}"),
        [_, image] <- Regex.scan(~r/!\[.*?\]\((.*?)\)/, File.read!(path)),
        do: assert(File.exists?(Path.join("guides", image)), image)
  end
end
