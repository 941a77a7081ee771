defmodule ExTorch.CLI.Verify do
  @moduledoc false
  @behaviour ExTorch.CLI

  alias ExTorch.{Checkpoint, CLI, DType, Error, Progress, Tensor, Text}
  alias ExTorch.Checkpoint.{BatchLoad, Safety, StateDict}
  alias ExTorch.Tensor.Stats

  @max_names 10

  @impl true
  def summary, do: "check structure, checksums, values and safety"

  @impl true
  def usage do
    """
    Usage: extorch verify [OPTIONS] PATH

    Reads everything in a checkpoint and reports what is wrong with it. The exit status is 1 if there is a problem:

      damage       the file is incomplete, violates its format, or a checksum (zip, gzip) does not fit
      NaN          a tensor contains NaN; infinite values are only reported
      unsafe       torch.load with weights_only=True refuses it; the classes that it would import are listed

      --allow-nan      NaN is not a problem
      --allow-unsafe   classes are not a problem
      --json           as JSON
      --no-color       without colours

    Examples:

      extorch verify model.pt
      extorch verify download.safetensors --json
      for f in *.ckpt; do extorch verify --allow-unsafe "$f" || echo "$f is damaged"; done
    """
  end

  @impl true
  def libtorch?, do: true

  @impl true
  def switches, do: [allow_nan: :boolean, allow_unsafe: :boolean]

  @impl true
  def run([path], options) do
    case StateDict.with_parts(path, [verify: true], &verify(&1, path)) do
      {:ok, report} ->
        report(report, options)

      # A file that is damaged at its beginning or end cannot be opened.
      {:error, %Error{reason: reason} = error} when reason in [:corrupt, :truncated, :limit] ->
        report(
          %{
            path: path,
            damage: [Exception.message(error)],
            nan: [],
            infinite: [],
            unsafe: [],
            tensors: 0,
            bytes: 0,
            format: nil,
            strict: nil
          },
          options
        )

      error ->
        error
    end
  end

  def run(_args, _options), do: :usage

  # ---- Checking ----

  defp verify(parts, path) do
    items = for {ckpt, entries} <- parts, entry <- entries, do: {ckpt, entry}
    total = for {_, entry} <- items, reduce: 0, do: (sum -> sum + entry.nbytes)
    start = {%{damage: [], nan: [], infinite: []}, Progress.new(:bar, total), 0}

    {found, progress, _done} =
      Enum.reduce(items, start, fn {ckpt, entry}, {found, progress, done} ->
        done = done + entry.nbytes
        {add(found, entry.name, check(ckpt, entry)), Progress.report(progress, done), done}
      end)

    Progress.finish(progress)
    {strict, unsafe} = Safety.check(path, parts)

    {:ok,
     found
     |> Map.new(fn {key, list} -> {key, Enum.reverse(list)} end)
     |> Map.merge(%{
       path: path,
       format: parts |> hd() |> elem(0) |> Checkpoint.metadata() |> Map.fetch!(:format),
       tensors: length(items),
       bytes: total,
       strict: if(strict != :unknown, do: strict),
       unsafe: unsafe
     })}
  end

  # Each tensor is read, checked and freed.
  defp check(_ckpt, %{kind: :meta}), do: {0, 0}

  defp check(ckpt, entry) do
    with {:ok, [tensor]} <- BatchLoad.tensors(ckpt, [entry]) do
      counts = if values?(tensor), do: Stats.non_finite(tensor), else: {0, 0}
      if is_struct(tensor, Tensor), do: Tensor.release(tensor)
      counts
    end
  rescue
    error in Error -> {:error, error}
  end

  defp values?(%Tensor{dtype: dtype}), do: DType.kind(dtype) in [:float, :complex]
  defp values?(_raw), do: false

  defp add(found, name, {:error, error}),
    do: %{found | damage: ["#{Text.name(name)}: #{error.message}" | found.damage]}

  defp add(found, name, {nan, infinite}) do
    found = if nan > 0, do: %{found | nan: [{name, nan} | found.nan]}, else: found
    if infinite > 0, do: %{found | infinite: [{name, infinite} | found.infinite]}, else: found
  end

  # ---- Reporting ----

  defp report(report, options) do
    problems = [
      report.damage != [],
      report.nan != [] and not (options[:allow_nan] == true),
      report.strict != nil and not (options[:allow_unsafe] == true)
    ]

    status = if Enum.any?(problems), do: 1, else: 0
    {status, if(options.json, do: json(report, status), else: text(report, status, options))}
  end

  defp text(report, status, options) do
    counted = &Enum.map(&1, fn {name, count} -> "#{Text.name(name)}: #{count}" end)

    [
      section("damaged", report.damage, :red, options),
      section("NaN", counted.(report.nan), :red, options),
      section("infinite", counted.(report.infinite), :yellow, options),
      if(report.strict,
        do: [CLI.color("refused by weights_only", :red, options), ": #{report.strict}\n"],
        else: []
      ),
      section("classes", Enum.map(report.unsafe, &Text.name/1), :yellow, options),
      "#{Text.name(report.path)}: #{report.format || "cannot be opened"}, #{Text.plural(report.tensors, "tensor")}, #{Text.bytes(report.bytes)}: ",
      if(status == 0,
        do: CLI.color("no problem found", :green, options),
        else: CLI.color("problems found", :red, options)
      ),
      "\n"
    ]
  end

  defp section(_title, [], _color, _options), do: []

  defp section(title, lines, color, options) do
    more = length(lines) - @max_names
    more = if more > 0, do: "  … #{more} more\n", else: []

    [
      CLI.color(title, color, options),
      ":\n",
      for(line <- Enum.take(lines, @max_names), do: "  #{line}\n"),
      more
    ]
  end

  defp json(report, status) do
    counts = &Map.new/1

    CLI.json(
      %{
        report
        | nan: counts.(report.nan),
          infinite: counts.(report.infinite)
      }
      |> Map.put(:ok, status == 0)
    )
  end
end
