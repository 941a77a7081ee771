defmodule ExTorch.CLI do
  @moduledoc """
  The command line: `mix extorch.info`, or `extorch info` as an escript (`mix escript.build`).

      extorch info model.pt                     what a checkpoint contains
      extorch show model.pt encoder.weight      values, statistics and a histogram of one tensor
      extorch convert model.pt model.safetensors
      extorch diff before.pt after.pt
      extorch verify model.pt                   structure, checksums, values, safety
      extorch report model.pt -o model.html     an HTML page with all of this

  `--help` after a command describes its options. `--json` prints the answer as JSON. Standard output contains nothing but
  the answer; errors and progress bars go to standard error, bars and colours only if it is a terminal. The exit status is
  0 if all is well, 1 if a difference or a problem was found, and 2 if the command was wrong or a file could not be read.
  """

  alias ExTorch.CLI.{Convert, Diff, Info, JSON, Report, Show, Verify}
  alias ExTorch.{Error, Native}

  @commands [
    {"info", Info},
    {"show", Show},
    {"convert", Convert},
    {"diff", Diff},
    {"verify", Verify},
    {"report", Report}
  ]

  @typedoc "0: all is well; 1: a difference or a problem was found; 2: wrong usage, or a file could not be read."
  @type status :: 0..2

  @doc false
  @callback summary() :: String.t()
  @doc false
  @callback usage() :: String.t()
  @doc false
  @callback switches() :: keyword()
  # Whether it needs LibTorch whatever the file is. Loading it takes longer than opening a file.
  @doc false
  @callback libtorch?() :: boolean()
  @doc false
  @callback run([String.t()], map()) :: {status(), iodata()} | {:error, Error.t()} | :usage

  @doc """
  Runs a command and ends the VM with its status. The main function of the escript.

      ExTorch.CLI.main(["info", "model.pt"])
  """
  @spec main([String.t()]) :: no_return()
  def main(args) do
    defer_libtorch(List.first(args))
    ExTorch.CLI.Escript.prepare()
    System.halt(run(args))
  end

  @doc """
  Runs a command. Prints the answer and returns the status.

      ExTorch.CLI.run(["diff", "before.pt", "after.pt"])
      #=> 1
  """
  @spec run([String.t()]) :: status()
  def run([help | _]) when help in ["--help", "-h", "help"], do: print(usage())

  def run([name | args]) do
    case List.keyfind(@commands, name, 0) do
      {_, command} -> run_command(command, name, args)
      nil -> wrong("unknown command #{inspect(name)}\n\n#{usage()}")
    end
  end

  def run([]), do: wrong(usage())
  def run(other), do: ExTorch.Options.expected!("the words of the command line in a list", other)

  # Before the native library is loaded: a command that does not need LibTorch does not wait for it.
  @doc false
  @spec defer_libtorch(String.t() | nil) :: :ok
  def defer_libtorch(name) do
    {_, command} = List.keyfind(@commands, name, 0, {name, nil})
    defer? = command == nil or not command.libtorch?()

    if defer? and not :erlang.module_loaded(Native),
      do: Application.put_env(:extorch, :defer_libtorch, true, persistent: true),
      else: :ok
  end

  @doc false
  @spec commands() :: [{String.t(), module()}]
  def commands, do: @commands

  defp run_command(command, name, args) do
    switches = [help: :boolean, json: :boolean, color: :boolean] ++ command.switches()
    aliases = [h: :help, o: if(command.switches()[:output], do: :output, else: :only)]

    case OptionParser.parse(args, strict: switches, aliases: aliases) do
      {opts, args, []} ->
        call(command, name, args, opts)

      {_, _, [{option, _} | _]} ->
        wrong("#{name}: invalid option #{option}; see extorch #{name} --help")
    end
  end

  # Switches that are given several times become lists.
  defp call(command, name, args, opts) do
    if opts[:help] do
      print(command.usage())
    else
      options = Enum.group_by(opts, &elem(&1, 0), &elem(&1, 1))
      options = Map.new(options, fn {key, values} -> {key, several(command, key, values)} end)
      answer(execute(command, args, defaults(options)), name, command)
    end
  end

  # With LibTorch, if it was not loaded and turns out to be needed.
  defp execute(command, args, options) do
    with {:error, %Error{reason: :not_loaded} = error} <- attempt(command, args, options),
         :ok <- if(Native.defer?(), do: Native.load_libtorch(), else: {:error, error}),
         do: attempt(command, args, options)
  end

  defp attempt(command, args, options) do
    command.run(args, options)
  rescue
    error in Error -> {:error, error}
  end

  defp several(command, key, values),
    do: if(command.switches()[key] in [[:string, :keep]], do: values, else: List.last(values))

  defp defaults(options) do
    terminal? = match?({:ok, _}, :io.columns()) and System.get_env("NO_COLOR") in [nil, ""]
    Map.merge(%{json: false, color: terminal?}, options)
  end

  defp answer({status, output}, _name, _command) when is_integer(status) do
    print(output)
    status
  end

  defp answer({:error, error}, _name, _command), do: unreadable(error)
  defp answer(:usage, _name, command), do: wrong(command.usage())

  defp print(output) do
    IO.write(output)
    0
  end

  defp wrong(text) do
    IO.write(:stderr, String.trim_trailing(text) <> "\n")
    2
  end

  defp unreadable(error) do
    IO.puts(:stderr, "extorch: " <> Exception.message(error))
    2
  end

  defp usage do
    lines =
      for {name, command} <- @commands,
          do: "  #{String.pad_trailing(name, 10)}#{command.summary()}\n"

    """
    Usage: extorch COMMAND [OPTIONS] …

    #{lines}
    extorch COMMAND --help describes a command.

    Exit status: 0 if all is well, 1 if a difference or a problem was found, 2 if the command was wrong or a file could
    not be read.
    """
  end

  # ---- For the commands ----

  # Returns a filter: a name, a pattern with *, or a /regular expression/.
  @doc false
  @spec filter([String.t()] | nil) :: [String.t() | Regex.t()] | nil
  def filter(nil), do: nil

  def filter(texts) do
    for text <- texts do
      cond do
        match = Regex.run(~r{^/(.+)/$}, text) -> regex!(Enum.at(match, 1))
        String.contains?(text, "*") -> regex!("\\A" <> glob(text) <> "\\z")
        true -> text
      end
    end
  end

  defp glob(text), do: text |> String.split("*") |> Enum.map_join(".*", &Regex.escape/1)

  defp regex!(text) do
    case Regex.compile(text, "u") do
      {:ok, regex} ->
        regex

      {:error, {reason, at}} ->
        raise Error.new(
                :bad_argument,
                "invalid regular expression #{inspect(text)}: #{reason} at #{at}"
              )
    end
  end

  # Returns the pairs of --rename REGEX=REPLACEMENT.
  @doc false
  @spec rename([String.t()] | nil) :: [{Regex.t(), String.t()}]
  def rename(nil), do: []

  def rename(texts) do
    for text <- texts do
      case String.split(text, "=", parts: 2) do
        [pattern, replacement] ->
          {regex!(pattern), replacement}

        _ ->
          raise Error.new(
                  :bad_argument,
                  "expected --rename REGEX=REPLACEMENT, got #{inspect(text)}"
                )
      end
    end
  end

  # Returns the dtype of that name.
  @doc false
  @spec dtype(String.t()) :: ExTorch.DType.dtype()
  def dtype(text) do
    names = Map.new(ExTorch.DType.names(), &{to_string(&1), &1})
    short = %{"half" => :float16, "float" => :float32, "double" => :float64, "bf16" => :bfloat16}
    short = Map.merge(short, %{"fp16" => :float16, "fp32" => :float32, "fp64" => :float64})

    case Map.merge(names, short) do
      %{^text => dtype} ->
        dtype

      _ ->
        raise Error.new(
                :bad_argument,
                "unknown dtype #{inspect(text)}; known are #{Enum.join(Map.keys(names), ", ")}"
              )
    end
  end

  # Adds the options that were given.
  @doc false
  @spec put(keyword(), map(), [{atom(), atom(), (term() -> term())}]) :: keyword()
  def put(opts, options, table) do
    for {switch, option, convert} <- table, Map.has_key?(options, switch), reduce: opts do
      opts -> Keyword.put(opts, option, convert.(Map.fetch!(options, switch)))
    end
  end

  @doc false
  @spec color(String.t(), atom(), map()) :: iodata()
  def color(text, color, %{color: true}), do: [apply(IO.ANSI, color, []), text, IO.ANSI.reset()]
  def color(text, _color, _options), do: text

  @doc false
  @spec json(term()) :: iolist()
  def json(term), do: [JSON.encode(term), "\n"]

  # An entry as `--json` prints it.
  @doc false
  @spec entry(ExTorch.Checkpoint.Entry.t()) :: map()
  def entry(entry) do
    entry
    |> Map.take([
      :name,
      :dtype,
      :shape,
      :strides,
      :offset,
      :storage,
      :requires_grad,
      :device,
      :kind
    ])
    |> Map.put(:bytes, entry.nbytes)
  end

  @doc false
  @spec auto(String.t()) :: String.t() | :auto
  def auto("auto"), do: :auto
  def auto(key), do: key
end
