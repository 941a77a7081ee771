defmodule ExTorch.NativeTest do
  use ExTorch.Case

  @stubs Native.__info__(:functions) -- [load: 0, load_libtorch: 0, defer?: 0, status: 0]

  test "the table in C and the stubs in Elixir list the same NIFs" do
    table =
      Regex.scan(~r/(?:X|XT_DECLARE_NIF)\((\w+), (\d+), XT_/, File.read!("c_src/nif/table.h"),
        capture: :all_but_first
      )
      |> Enum.map(fn [name, arity] -> {String.to_atom(name), String.to_integer(arity)} end)

    assert Enum.sort(table) == Enum.sort(@stubs)
  end

  for {name, arity} <- @stubs, arity > 0 do
    test "#{name}/#{arity} refuses invalid arguments" do
      args = List.duplicate(make_ref(), unquote(arity))
      assert_raise ArgumentError, fn -> apply(Native, unquote(name), args) end
    end
  end

  # ExTorch.Checkpoint.metadata → Native.checkpoint_metadata → xt_nif_checkpoint_metadata: the module that calls a NIF, or
  # the module it belongs to (ExTorch.Checkpoint of ExTorch.Checkpoint.Handle), gives the first part of its name, and a
  # function of that module the rest. Functions of ExTorch itself have no prefix.
  test "a NIF is named after the module and function that call it" do
    calls =
      for path <- Path.wildcard("lib/**/*.ex"),
          {module, name, functions} <- native_calls(path),
          do: {module, name, functions}

    assert length(Enum.uniq_by(calls, &elem(&1, 1))) == length(@stubs)

    for {module, name, functions} <- calls do
      assert Enum.any?(functions, &(name in nif_names(module, &1))),
             "#{inspect(module)} calls Native.#{name}, but has no function of that name"
    end
  end

  # Every Native.x and Native.Call.x of a file: the module around it, x, and the functions of that module.
  defp native_calls(path) do
    ast = path |> File.read!() |> Code.string_to_quoted!()

    for {:defmodule, _, [{:__aliases__, _, parts}, [do: body]]} <- subtrees(ast),
        calls = native_names(body),
        calls != [] do
      module = Module.concat(parts)

      functions =
        for {kind, _, [head | _]} when kind in [:def, :defp] <- subtrees(body),
            {name, _, _} when is_atom(name) <- [without_guard(head)],
            do: name |> to_string() |> String.replace(["?", "!"], "")

      Enum.map(calls, &{module, &1, functions})
    end
    |> Enum.concat()
  end

  defp native_names(body) do
    remote =
      for {{:., _, [{:__aliases__, _, aliases}, name]}, _, _} <- subtrees(body),
          List.last(aliases) in [:Native, :Call] and
            name not in [:result, :style, :status, :defer?, :load_libtorch],
          do: to_string(name)

    local =
      for {name, _, args} when name in [:native_load, :native_defer] and is_list(args) <-
            subtrees(body),
          do: to_string(name)

    Enum.uniq(remote ++ local)
  end

  defp subtrees(ast), do: ast |> Macro.prewalk([], &{&1, [&1 | &2]}) |> elem(1)

  defp without_guard({:when, _, [head | _]}), do: head
  defp without_guard(head), do: head

  defp nif_names(ExTorch, function), do: [function]

  defp nif_names(module, function) do
    for part <- module |> Module.split() |> Enum.take(-2) do
      unit = if part == "DType", do: "dtype", else: Macro.underscore(part)
      "#{unit}_#{function}"
    end
  end

  test "every NIF of type result has a function that calls it within the budget, and no other has" do
    {:ok, specs} = Code.Typespec.fetch_specs(Native)

    results =
      for {{name, arity}, [{:type, _, :fun, [_args, {:user_type, _, :result, _}]}]} <- specs,
          do: {name, arity}

    assert length(results) > 40
    assert Enum.sort(Native.Call.__info__(:functions)) == Enum.sort(results)
  end

  test "the statuses in C are the reasons in Elixir" do
    statuses =
      Regex.scan(~r/^  X\((\w+)\)/m, File.read!("c_src/core/base/error.h"),
        capture: :all_but_first
      )

    {:ok, types} = Code.Typespec.fetch_types(Error)

    {:type, {:reason, {:type, _, :union, atoms}, []}} =
      Enum.find(types, &match?({_, {:reason, _, _}}, &1))

    assert statuses |> List.flatten() |> List.delete("ok") |> Enum.sort() ==
             atoms |> Enum.map(fn {:atom, _, name} -> Atom.to_string(name) end) |> Enum.sort()
  end

  test "loading the module again takes over the library, with its tensors" do
    tensor = ExTorch.tensor([1, 2])

    for _ <- 1..3 do
      assert {:module, Native} = :code.load_file(Native)
      assert Tensor.to_list(Tensor.clone(tensor)) == [1, 2]
      :code.purge(Native)
      assert Tensor.to_list(Tensor.clone(tensor)) == [1, 2]
    end

    # as Mix does before it compiles a module again
    :code.purge(Native)
    :code.delete(Native)
    assert Tensor.to_list(Tensor.clone(tensor)) == [1, 2]
    assert Tensor.release(tensor) == :ok
  end

  describe "in another VM" do
    @describetag :tmp_dir
    @describetag :no_asan

    # A copy of the application: <dir>/extorch/{ebin,priv}.
    defp copy(dir) do
      app = Path.join(dir, "extorch")
      File.mkdir_p!(Path.join(app, "priv"))
      File.cp_r!(Application.app_dir(:extorch, "ebin"), Path.join(app, "ebin"))

      for name <- ["extorch.so", "extorch_torch.so"],
          file = Application.app_dir(:extorch, "priv/" <> name),
          File.exists?(file),
          do: File.cp!(file, Path.join([app, "priv", name]))

      app
    end

    defp elixir(app, script) do
      System.cmd("elixir", ["-pa", Path.join(app, "ebin"), "-e", script], stderr_to_stdout: true)
    end

    test "a library that was replaced is used after a restart, and the running one stays", %{
      tmp_dir: dir
    } do
      app = copy(dir)

      {output, 0} =
        elixir(app, """
        t = ExTorch.tensor([1, 2])
        check = fn -> [1, 2] = ExTorch.Tensor.to_list(ExTorch.Tensor.clone(t)) end
        File.write!("#{app}/priv/new.so", [File.read!("#{app}/priv/extorch.so"), 0])
        File.rename!("#{app}/priv/new.so", "#{app}/priv/extorch.so")

        for _ <- 1..3 do
          {:module, _} = :code.load_file(ExTorch.Native)
          check.()
          :code.purge(ExTorch.Native)
          check.()
          # as Mix does before it compiles a module again
          :code.purge(ExTorch.Native)
          :code.delete(ExTorch.Native)
          check.()
          :code.purge(ExTorch.Native)
          check.()
        end

        IO.puts("still works")
        # the warning is logged by another process
        Process.sleep(500)
        """)

      assert output =~ "restart the node"
      assert output =~ "still works"
    end

    # A file that is no library any more stands for a new version with other functions: it cannot be taken over.
    test "a module that does not fit the running library says so in every call", %{tmp_dir: dir} do
      app = copy(dir)

      {output, 0} =
        elixir(app, """
        t = ExTorch.tensor([1, 2])
        File.write!("#{app}/priv/new.so", "not a library")
        File.rename!("#{app}/priv/new.so", "#{app}/priv/extorch.so")

        # the module of another version: it has only some of the functions
        {:ok, {_, [abstract_code: {_, forms}]}} =
          :beam_lib.chunks(~c"#{app}/ebin/Elixir.ExTorch.Native.beam", [:abstract_code])

        forms =
          for form <- forms,
              not match?({:function, _, :manual_seed, _, _}, form),
              not match?({:attribute, _, :spec, {{:manual_seed, _}, _}}, form) do
            case form do
              {:attribute, line, :export, list} -> {:attribute, line, :export, list -- [manual_seed: 1]}
              other -> other
            end
          end

        {:ok, module, beam} = :compile.forms(forms, [:return_errors])
        {:module, ^module} = :code.load_binary(module, ~c"#{app}/ebin/Elixir.ExTorch.Native.beam", beam)
        :code.purge(module)

        for fun <- [fn -> ExTorch.tensor([1]) end, fn -> ExTorch.add(t, 1) end, fn -> ExTorch.Memory.live() end] do
          try do
            fun.()
          rescue
            e in ExTorch.Error -> IO.puts("rescued \#{e.reason}: \#{e.message}")
          end
        end
        """)

      rescued = output |> String.split("\n") |> Enum.filter(&(&1 =~ "rescued not_loaded: "))
      assert length(rescued) == 3, output
      assert Enum.all?(rescued, &(&1 =~ "restart the node"))
    end

    for {name, file} <- [{"the library", "extorch.so"}, {"LibTorch", "extorch_torch.so"}] do
      if name == "LibTorch", do: @tag(:torch)

      test "without #{name} the application starts, and every call says why it fails", %{
        tmp_dir: dir
      } do
        app = copy(dir)
        File.write!(Path.join([app, "priv", unquote(file)]), "not a library")

        {output, 0} =
          elixir(app, """
          {:ok, _} = Application.ensure_all_started(:extorch)

          for fun <- [
                fn -> ExTorch.tensor([1]) end,
                fn -> ExTorch.load("x.pt") end,
                fn -> ExTorch.Memory.live() end,
                fn -> ExTorch.Device.count(:cuda) end
              ] do
            try do
              fun.()
            rescue
              e in ExTorch.Error -> IO.puts("rescued \#{e.reason}: \#{e.message}")
            end
          end
          """)

        rescued = output |> String.split("\n") |> Enum.filter(&(&1 =~ "rescued not_loaded: "))
        assert length(rescued) == 4

        assert Enum.all?(
                 rescued,
                 &(String.contains?(&1, unquote(Path.rootname(file))) and
                     &1 =~ "mix deps.compile extorch --force")
               )

        assert output =~ "[error]"
      end
    end

    # ---- Another system than the one of the build ----

    @attempt """
    try do
      ExTorch.tensor([1])
      IO.puts("loaded")
    rescue
      e in ExTorch.Error -> IO.puts("rescued \#{e.reason}: \#{e.message}")
    end
    """

    # Replaces text in a library of the copy by text of the same length, and loads it.
    defp load_with(app, file, pattern, text) do
      path = Path.join([app, "priv", file])
      bytes = File.read!(path)
      assert bytes =~ pattern
      File.write!(path, String.replace(bytes, pattern, text))
      load(app)
    end

    defp load(app, env \\ []) do
      {output, 0} =
        System.cmd("elixir", ["-pa", Path.join(app, "ebin"), "-e", @attempt],
          env: env,
          stderr_to_stdout: true
        )

      output
    end

    for file <- ["extorch.so", "extorch_torch.so"] do
      @tag :torch
      test "#{file} of a system with a newer C library", %{tmp_dir: dir} do
        output = load_with(copy(dir), unquote(file), ~r/GLIBC_2\.\d\d\0/, "GLIBC_9.99\0")
        assert output =~ ~r/rescued not_loaded: cannot load .*GLIBC_9\.99/
        assert output =~ "older than that of the system where ExTorch was built"
      end
    end

    test "libdeflate is missing", %{tmp_dir: dir} do
      output = load_with(copy(dir), "extorch.so", ~r/libdeflate\.so\.\d/, "libdeflate.so.x")
      assert output =~ "rescued not_loaded: cannot load the native library of ExTorch"
      assert output =~ "Install libdeflate, or put it into the release"
    end

    @tag :torch
    test "LibTorch is missing", %{tmp_dir: dir} do
      output = load_with(copy(dir), "extorch_torch.so", "libtorch_cpu.so", "libtorch_cpx.so")
      assert output =~ "rescued not_loaded: cannot load LibTorch: libtorch_cpx.so"
      assert output =~ ~r/built with LibTorch \d+\.\d+\.\d+ in \/.*libtorch_cpu/
      assert output =~ "bundle_libtorch: true"
    end

    @tag :torch
    test "LibTorch has other symbols", %{tmp_dir: dir} do
      app = copy(dir)
      [name] = Regex.run(~r/libtorch_cpu\.so[.0-9]*/, File.read!("#{app}/priv/extorch_torch.so"))
      # What a release brings along is found first.
      File.mkdir_p!("#{app}/priv/lib")
      args = ["-shared", "-Wl,-soname,#{name}", "-o", "#{app}/priv/lib/#{name}"]
      {_, 0} = System.cmd("cc", args ++ ["-x", "c", "/dev/null"])
      output = load(app)
      assert output =~ ~r/rescued not_loaded: cannot load LibTorch: .*undefined symbol/
      assert output =~ ~r/that was found is not \d+\.\d+\.\d+, with which ExTorch was built/
    end

    @tag :torch
    test "LibTorch has another version", %{tmp_dir: dir} do
      source = """
      #include <string>
      namespace at { std::string show_config() { return "USE_X=1, TORCH_VERSION=9.10.1, USE_Y=0"; } }
      """

      File.write!(Path.join(dir, "version.cpp"), source)

      # One for each ABI of libstdc++.
      stubs =
        for abi <- [0, 1] do
          stub = Path.join(dir, "version#{abi}.so")
          args = ["-D_GLIBCXX_USE_CXX11_ABI=#{abi}", "-shared", "-fPIC", "-o", stub]
          {_, 0} = System.cmd("c++", args ++ [Path.join(dir, "version.cpp")])
          stub
        end

      output = load(copy(dir), [{"LD_PRELOAD", Enum.join(stubs, " ")}])
      assert output =~ "rescued not_loaded: LibTorch 9.10 is loaded, but ExTorch was built with "
    end

    # ---- Two LibTorchs ----

    # A library that only has the name of LibTorch.
    defp other_libtorch(dir) do
      path = Path.join(dir, "libtorch_cpu.so")
      File.mkdir_p!(dir)
      {_, 0} = System.cmd("cc", ["-shared", "-o", path, "-x", "c", "/dev/null"])
      path
    end

    # What another NIF library has loaded is there already when ExTorch starts, as what is preloaded is.
    defp preloaded(library) do
      {output, 0} =
        System.cmd("elixir", ExTorch.Test.VM.args(@attempt, []),
          env: [{"LD_PRELOAD", library}],
          stderr_to_stdout: true
        )

      output
    end

    @tag :torch
    test "is not loaded beside another LibTorch", %{tmp_dir: dir} do
      other = other_libtorch(dir)
      output = preloaded(other)
      assert output =~ "rescued not_loaded: another library has loaded the LibTorch #{other}, but"
      assert output =~ ~r/ExTorch was built with \/.*libtorch_cpu.*LIBTORCH_DIR/
    end

    # EXTORCH_OTHER_LIBTORCH is the libtorch_cpu of another LibTorch than the one that ExTorch is built with.
    test "is not loaded beside a real other LibTorch, where there is one" do
      other = System.get_env("EXTORCH_OTHER_LIBTORCH")
      if other, do: assert(preloaded(other) =~ "rescued not_loaded: another library has loaded")
    end

    @tag :torch
    test "is loaded before a Torchx with the same LibTorch", %{
      tmp_dir: dir
    } do
      {output, 0} =
        ExTorch.Test.VM.run("""
        ExTorch.tensor([1])
        ~r{/\\S+/libtorch_cpu[.]\\S+} |> Regex.run(File.read!("/proc/self/maps")) |> IO.puts()
        """)

      own = output |> String.split("\n", trim: true) |> List.last()
      File.ln_s!(own, Path.join([torchx(dir), "priv/libtorch", Path.basename(own)]))
      {output, 0} = ExTorch.Test.VM.run(@attempt, [], through: ["env", "ERL_LIBS=#{dir}"])
      assert output =~ "loaded\n"
    end

    # An application with the layout of Torchx, which is not loaded yet.
    defp torchx(dir) do
      torchx = Path.join(dir, "torchx")
      for sub <- ["ebin", "priv/libtorch"], do: File.mkdir_p!(Path.join(torchx, sub))
      File.write!(Path.join(torchx, "ebin/torchx.app"), "{application, torchx, []}.")
      torchx
    end

    @tag :torch
    test "is not loaded before a Torchx with another LibTorch", %{tmp_dir: dir} do
      other = dir |> torchx() |> Path.join("priv/libtorch") |> other_libtorch()
      {output, 0} = ExTorch.Test.VM.run(@attempt, [], through: ["env", "ERL_LIBS=#{dir}"])
      assert output =~ "rescued not_loaded: Torchx uses the LibTorch #{other}, but ExTorch was"
    end

    # With LIBTORCH_DIR=/usr, Torchx has a link to /usr/lib, and its library names the one that it needs.
    @tag :torch
    test "is not loaded before a Torchx with another LibTorch of the system", %{tmp_dir: dir} do
      torchx = torchx(dir)
      below = Path.join(torchx, "priv/libtorch/some-linux-gnu")
      library = other_libtorch(below)
      File.rename!(library, library <> ".9.8")
      # the link for developers may be of another version
      File.write!(library, "")
      File.write!(Path.join(torchx, "priv/torchx.so"), "\0libc10.so.9.8\0libtorch_cpu.so.9.8\0")
      {output, 0} = ExTorch.Test.VM.run(@attempt, [], through: ["env", "ERL_LIBS=#{dir}"])
      assert output =~ "rescued not_loaded: Torchx uses the LibTorch #{library}.9.8, but ExTorch"
    end
  end
end
