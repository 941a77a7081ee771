defmodule ExTorch.CLI.Report do
  @moduledoc false
  @behaviour ExTorch.CLI

  alias ExTorch.CLI

  @stats %{"sample" => :sample, "all" => :all, "none" => :none}

  @impl true
  def summary, do: "an HTML page about a checkpoint"

  @impl true
  def usage do
    """
    Usage: extorch report [OPTIONS] PATH

    Writes one HTML page that needs nothing else: a treemap of the bytes by module, a table of the tensors to search and
    sort, with statistics and a histogram of each, what is shared, what is not a tensor, and whether torch.load with
    weights_only=True accepts the file. PATH is a file in any format, an index of shards, the directory that contains one,
    or a URL. Prints the path of the page.

      -o, --output FILE    where to write it, or - for standard output (default: the name of PATH with .html, in the
                           current directory). A file that exists is replaced.
      --stats WHICH        sample (default): larger tensors are sampled, and those of a URL are not read; all: every value
                           is read; none: no value is read
      --verify             check the checksums of what is read
      --json               print the path and the size of the page as JSON

    Examples:

      extorch report model.pt
      extorch report folder -o report.html --stats all
      extorch report https://example.com/model.safetensors -o - > report.html
    """
  end

  @impl true
  def libtorch?, do: true

  @impl true
  def switches, do: [output: :string, stats: :string, verify: :boolean]

  @impl true
  def run([path], options) do
    case Map.fetch(@stats, options[:stats] || "sample") do
      {:ok, stats} -> report(path, options[:output] || default(path), stats, options)
      :error -> :usage
    end
  end

  def run(_args, _options), do: :usage

  defp report(path, output, stats, options) do
    opts = [stats: stats, verify: options[:verify] == true, on_progress: :bar]

    if output == "-" do
      with {:ok, page} <- ExTorch.Report.html(path, opts), do: {0, page}
    else
      with :ok <- ExTorch.report(path, output, opts) do
        answer = %{path: output, bytes: File.stat!(output).size}
        {0, if(options.json, do: CLI.json(answer), else: [output, "\n"])}
      end
    end
  end

  # model.pt becomes model.pt.html, also from the path of a URL.
  defp default(path) do
    case path |> String.split(["?", "#"]) |> hd() |> Path.expand() |> Path.basename() do
      "" -> "report.html"
      name -> name <> ".html"
    end
  end
end
