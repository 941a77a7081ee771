defmodule ExTorch.HostileFiles.Fixtures do
  @moduledoc false
  # The files that the other tests read, which tools wrote: what holds for hostile files holds for them too.
  import ExTorch.HostileFiles.Entry

  @root Path.expand("../fixtures", __DIR__)

  # See ExTorch.HostileFiles.Catalogue for the elements.
  def all, do: files() ++ folders()

  defp files do
    for path <- paths("{1,2}.*/*") ++ paths("more/*"), Path.extname(path) != ".json" do
      file(
        "fixture: #{Path.relative_to(path, @root)}",
        1,
        1..1,
        # A dtype may be newer than the linked LibTorch.
        [:ok, :unsupported],
        fn _ -> File.read!(path) end,
        gzip: Path.extname(path) == ".gz",
        # Tar files and NumPy archives cannot be read as streams; a C++ archive of one file after another can.
        stream: [:unsupported, :truncated, :corrupt]
      )
    end
  end

  defp folders do
    for path <- paths("dcp/*") do
      make = fn _ -> for name <- File.ls!(path), do: {name, File.read!(Path.join(path, name))} end
      %{file("fixture: #{Path.relative_to(path, @root)}", 1, 1..1, [:ok], make) | kind: :folder}
    end
  end

  defp paths(pattern), do: @root |> Path.join(pattern) |> Path.wildcard() |> Enum.filter(&file?/1)
  defp file?(path), do: Path.extname(path) not in [".py", ".cpp"]
end
