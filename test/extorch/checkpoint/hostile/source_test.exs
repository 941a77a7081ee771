defmodule ExTorch.Checkpoint.Hostile.SourceTest do
  # Sources that are too short or report an impossible size.
  use ExTorch.Case
  alias ExTorch.Test.FileSource
  import ExTorch.Test.Formats
  import ExTorch.Test.Hostile, only: [load: 1]

  test "files with empty parts" do
    assert {:corrupt, _} = load([<<0::64>>, "{}"])
    assert {:corrupt, _} = load([<<0::64>>, "{"])
    assert {:corrupt, _} = load(["PK", 3, 4, <<0::512>>, "PK", 5, 6, <<0::144>>])
    assert {:truncated, _} = load(tar(tensors: []))
    assert {:truncated, _} = load(tar(pickle: []))
  end

  defmodule EnormousSource do
    @behaviour ExTorch.Source
    defstruct []
    @impl true
    def size(_), do: {:ok, 2 ** 63}
    @impl true
    def read_at(_, _, n), do: {:ok, :binary.copy(<<0>>, n)}
    @impl true
    def close(_), do: :ok
  end

  test "a source that returns an enormous size" do
    assert {:error, %Error{reason: :limit}} = ExTorch.load(%EnormousSource{})
  end

  @tag :tmp_dir
  test "a source that returns too few bytes", %{tmp_dir: dir} do
    for file <-
          ~w(2.14.1/many.legacy.pt 2.14.1/dtypes.safetensors 2.14.1/views.stream more/tar.pt more/state4.pkl) do
      path = Path.join(dir, "short")
      data = File.read!("test/fixtures/" <> file)
      File.write!(path, binary_part(data, 0, div(byte_size(data), 4)))
      assert {:error, %Error{reason: reason}} = ExTorch.load(%FileSource{path: path})
      assert reason in [:truncated, :corrupt]
      assert {:error, %Error{path: ^path}} = ExTorch.load(path)
    end
  end
end
