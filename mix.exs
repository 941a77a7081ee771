defmodule ExTorch.MixProject do
  use Mix.Project

  @version "0.1.0"
  @source_url "https://github.com/extorch/extorch"

  # EXTORCH_HEX=0 is for machines without Hex: there are no dependencies, and `make` must have built the NIF library.
  @hex System.get_env("EXTORCH_HEX") != "0"

  @guides ~w(ten_minutes checkpoints zero_copy nx nx_serving bumblebee streams stores deploying scale)
          |> Enum.map(&"guides/#{&1}.livemd")
          |> Enum.concat(["guides/phoenix.md", "guides/deployment.md"])

  @cheatsheet "guides/cheatsheet.cheatmd"
  @documents ~w(README.md SECURITY.md ARCHITECTURE.md CONTRIBUTING.md CHANGELOG.md)

  def project do
    [
      app: :extorch,
      version: @version,
      elixir: "~> 1.14",
      compilers: [if(@hex, do: :elixir_make, else: :extorch_priv)] ++ Mix.compilers(),
      # Tests implement protocols for their own structs.
      consolidate_protocols: Mix.env() != :test,
      elixirc_paths:
        if(Mix.env() == :test, do: ["lib", "test/support", "test/hostile"], else: ["lib"]),
      deps: if(@hex, do: deps(), else: []),
      # Optional dependencies may come from ERL_LIBS instead of Hex: keep them in the code path.
      prune_code_paths: false,
      make_clean: ["clean"],
      make_env: &make_env/0,
      make_error_message: make_error_message(),
      # ExTorch.CLI starts the application, once the libraries are where they can be loaded from.
      escript: [main_module: ExTorch.CLI, name: "extorch", app: nil, include_priv_for: [:extorch]],
      name: "ExTorch",
      description: "Reads and writes PyTorch checkpoints, and calls LibTorch, from Elixir",
      source_url: @source_url,
      homepage_url: @source_url,
      package: package(),
      docs: docs()
    ]
  end

  def application,
    do: [
      mod: {ExTorch.Application, []},
      extra_applications: [:logger, crypto: :optional, public_key: :optional, ssl: :optional]
    ]

  defp make_env do
    %{"MAKEFLAGS" => make_flags(System.get_env("MAKEFLAGS"))}
    |> Map.merge(torchx_env(Mix.Project.deps_paths()))
    |> Map.merge(bundle_env(Application.get_env(:extorch, :bundle_libtorch)))
  end

  # The jobs of a make that runs mix cannot be shared. The Makefile chooses a number of jobs if there is none.
  defp make_flags(flags), do: if(flags && flags =~ "--jobserver", do: nil, else: flags)

  # scripts/libtorch.sh uses the LibTorch of Torchx if that is a dependency.
  defp torchx_env(%{torchx: dir}), do: %{"TORCHX_DIR" => dir, "TORCHX_PRIV" => torchx_priv()}
  defp torchx_env(_deps), do: %{}

  # It exists if Torchx is compiled.
  defp torchx_priv, do: Path.join(Mix.Project.build_path(), "lib/torchx/priv")

  # Without the configuration, the environment decides.
  defp bundle_env(nil), do: %{}
  defp bundle_env(bundle?), do: %{"EXTORCH_BUNDLE" => if(bundle?, do: "1", else: "0")}

  defp make_error_message do
    """
    The native libraries of ExTorch could not be built. The lines above say what is missing or wrong.

    Needed are make, bash, a C11 and a C++17 compiler, Erlang's headers (erl_nif.h) and libdeflate. LibTorch is \
    downloaded if there is none; see "Use it" in the README of ExTorch.

      Debian, Ubuntu  apt-get install make g++ erlang-dev libdeflate-dev
      Fedora          dnf install make gcc-c++ erlang-erts libdeflate-devel
      macOS           xcode-select --install && brew install libdeflate
    """
  end

  defp deps do
    [
      {:elixir_make, "~> 0.7", runtime: false},
      {:nx, "~> 0.6", optional: true},
      {:axon, "~> 0.6", optional: true},
      # Compiled first, because both must use the same LibTorch. ExTorch itself is developed without it.
      {:torchx, "~> 0.6", optional: true, only: :prod},
      {:telemetry, "~> 1.0", optional: true},
      {:kino, "~> 0.12", optional: true},
      {:table, "~> 0.1.2", optional: true},
      {:ex_doc, "~> 0.30", only: :dev, runtime: false}
    ]
  end

  defp package do
    [
      licenses: ["Apache-2.0"],
      links: %{
        "GitHub" => @source_url,
        "Changelog" => "#{@source_url}/blob/main/CHANGELOG.md"
      },
      files:
        ~w(lib c_src scripts Makefile mix.exs .formatter.exs LICENSE guides) ++
          @documents
    ]
  end

  defp docs do
    [
      main: "readme",
      source_ref: "v#{@version}",
      # The guides refer to images/, as they do in their directory, and the README to guides/images/.
      assets: %{"guides/images" => "images", "guides/images/" => "guides/images"},
      extras: @documents ++ @guides ++ [@cheatsheet, "LICENSE"],
      groups_for_extras: [Guides: [@cheatsheet | @guides]],
      # They describe internal modules.
      skip_undefined_reference_warnings_on: ~w(ARCHITECTURE.md CONTRIBUTING.md CHANGELOG.md),
      groups_for_modules: [
        "Front door": [ExTorch, ExTorch.Error, ExTorch.Config, ExTorch.Telemetry, ExTorch.CLI],
        Tensors: [
          ExTorch.Tensor,
          ExTorch.Tensor.Blob,
          ExTorch.Tensor.BlobView,
          ExTorch.DType,
          ExTorch.Device,
          ExTorch.Memory
        ],
        Checkpoints: [
          ExTorch.Checkpoint,
          ExTorch.Checkpoint.Entry,
          ExTorch.Diff,
          ExTorch.Diff.Change,
          ExTorch.Report,
          ~r/^ExTorch\.(Source|DCP|Cluster)/
        ],
        Streams: ~r/^ExTorch\.Streaming/,
        Stores: [ExTorch.Module, ~r/^ExTorch\.Store/],
        Interop: [ExTorch.Kino, ~r/^ExTorch\.(Nx|Archive)/],
        "Python values": ~r/^ExTorch\.Python/
      ]
    ]
  end
end

defmodule Mix.Tasks.Compile.ExtorchPriv do
  @moduledoc false
  # Without Hex, make has built the libraries into build/priv. They are linked to where elixir_make builds them.
  use Mix.Task.Compiler

  @impl true
  def run(_args) do
    made = Path.join(File.cwd!(), "build/priv")
    priv = Path.join(Mix.Project.app_path(), "priv")
    unless File.read_link(priv) == {:ok, made}, do: link(made, priv)
    {:noop, []}
  end

  defp link(made, priv) do
    File.rm_rf!(priv)
    File.mkdir_p!(Path.dirname(priv))
    File.ln_s!(made, priv)
  end
end
