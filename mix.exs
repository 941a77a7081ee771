defmodule ExTorch.MixProject do
  use Mix.Project

  @version "0.1.0"
  @source_url "https://github.com/extorch/extorch"

  # EXTORCH_HEX=0 is for machines without Hex: there are no dependencies, and `make` must have built the NIF library.
  @hex System.get_env("EXTORCH_HEX") != "0"

  @guides ~w(ten_minutes checkpoints zero_copy nx nx_serving bumblebee streams stores deploying scale)
          |> Enum.map(&"guides/#{&1}.livemd")
          |> Enum.concat(["guides/phoenix.md"])

  @cheatsheet "guides/cheatsheet.cheatmd"
  @documents ~w(README.md SECURITY.md ARCHITECTURE.md CONTRIBUTING.md CHANGELOG.md)

  def project do
    [
      app: :extorch,
      version: @version,
      elixir: "~> 1.14",
      compilers: if(@hex, do: [:elixir_make], else: []) ++ Mix.compilers(),
      # Tests implement protocols for their own structs.
      consolidate_protocols: Mix.env() != :test,
      elixirc_paths:
        if(Mix.env() == :test, do: ["lib", "test/support", "test/hostile"], else: ["lib"]),
      deps: if(@hex, do: deps(), else: []),
      # Optional dependencies may come from ERL_LIBS instead of Hex: keep them in the code path.
      prune_code_paths: false,
      make_clean: ["clean"],
      make_env: &make_env/0,
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

  # scripts/libtorch.sh uses the LibTorch of Torchx if that is a dependency.
  defp make_env do
    case Mix.Project.deps_paths() do
      %{torchx: dir} -> %{"TORCHX_DIR" => dir}
      _ -> %{}
    end
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
