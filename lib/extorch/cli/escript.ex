defmodule ExTorch.CLI.Escript do
  @moduledoc false
  # An escript is one file, from which the operating system cannot load libraries. They are written to a directory of the
  # user's cache, named by their contents, once.

  @libraries ["extorch.so", "extorch_torch.so"]

  # Makes the libraries available and starts the application.
  @spec prepare() :: :ok
  def prepare do
    with {:ok, sections} <- :escript.extract(:escript.script_name(), []),
         {:archive, archive} <- List.keyfind(sections, :archive, 0),
         {:ok, files} <- :zip.extract(archive, [:memory, {:file_filter, &library?/1}]) do
      Application.put_env(:extorch, :priv_dir, install(files))
    else
      _ -> :ok
    end

    {:ok, _} = Application.ensure_all_started(:extorch)
    :ok
  end

  defp library?(file), do: Path.basename(to_string(elem(file, 1))) in @libraries

  defp install(files) do
    digest = files |> Enum.map(&elem(&1, 1)) |> :erlang.md5() |> Base.encode16(case: :lower)
    directory = Path.join(:filename.basedir(:user_cache, "extorch"), digest)
    File.mkdir_p!(directory)

    for {name, bytes} <- files do
      path = Path.join(directory, Path.basename(to_string(name)))

      unless match?({:ok, %{size: size}} when size == byte_size(bytes), File.stat(path)),
        do: write!(path, bytes)
    end

    directory
  end

  # Renamed into place: another process may be loading it.
  defp write!(path, bytes) do
    temporary = "#{path}.#{System.pid()}"
    File.write!(temporary, bytes)
    File.rename!(temporary, path)
  end
end
