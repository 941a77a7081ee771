defmodule ExTorch.Store.CheckpointFile do
  @moduledoc false
  # A store for one checkpoint file: the struct, new/2 and the callbacks that read. A module that uses it adds
  # collect_from/2.

  alias ExTorch.Checkpoint
  alias ExTorch.Checkpoint.Handle
  alias ExTorch.Store.{File, Options}

  defmacro __using__(_options) do
    quote do
      use ExTorch.Store

      @type t :: %__MODULE__{path: Path.t() | ExTorch.Source.t(), options: map()}
      @enforce_keys [:path, :options]
      defstruct [:path, :options]

      @doc """
      Creates a store. The file is opened when it is needed. Raises if an option is invalid.

          #{inspect(__MODULE__)}.new("model.pt", top_level_key: "state_dict", except: ~r/^head/)
      """
      @spec new(Path.t() | ExTorch.Source.t(), keyword()) :: t()
      def new(path, opts \\ []),
        do: %__MODULE__{
          path: ExTorch.Store.Options.source!(path),
          options: ExTorch.Store.Options.check!(path, opts)
        }

      @impl true
      def with_file(store, fun), do: ExTorch.Store.CheckpointFile.with(store, fun)
    end
  end

  # Opens the checkpoint.
  @spec with(store, (File.t() -> result)) :: result | {:error, ExTorch.Error.t()}
        when result: term(),
             store: %{
               :path => Path.t() | ExTorch.Source.t(),
               :options => Options.t(),
               optional(atom()) => term()
             }
  def with(store, fun) do
    with {:ok, ckpt} <- Checkpoint.open(store.path, Options.reading(store.options)) do
      try do
        with {:ok, keys} <- Handle.keys(ckpt), do: fun.(File.new(keys, %{nil => ckpt}, nil))
      after
        Checkpoint.close(ckpt)
      end
    end
  end
end
