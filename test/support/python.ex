defmodule ExTorch.Test.Python do
  @moduledoc false
  # Runs Python with torch, to compare results.

  @doc "The path of a Python that has torch, or nil."
  def torch do
    case :persistent_term.get(__MODULE__, :unknown) do
      :unknown ->
        python = find()
        :persistent_term.put(__MODULE__, python)
        python

      known ->
        known
    end
  end

  defp find do
    [System.get_env("EXTORCH_PYTHON"), "/usr/bin/python3", "python3"]
    |> Enum.filter(&(&1 && System.find_executable(&1)))
    |> Enum.find(fn python ->
      match?(
        {_, 0},
        System.cmd(python, ["-c", "import torch"], stderr_to_stdout: true, env: env())
      )
    end)
  end

  # A sanitizer that is preloaded into the VM must not be loaded into Python.
  defp env, do: [{"LD_PRELOAD", nil}]

  @doc "Runs a script. Returns what it prints."
  def run!(script, args \\ []) do
    case System.cmd(torch(), ["-c", script | args], env: env()) do
      {output, 0} -> output
      {output, status} -> raise "Python exited with status #{status}: #{output}"
    end
  end

  @doc "The version of torch, such as \"2.6.0\"."
  def torch_version do
    key = {__MODULE__, :version}

    :persistent_term.get(key, nil) ||
      run!("import torch; print(torch.__version__)")
      |> String.trim()
      |> tap(&:persistent_term.put(key, &1))
  end

  @doc """
  Loads pairs of files with torch and compares the objects. A pair is `{first, second, weights_only}`. `dir` is for
  temporary files. Returns the number of pairs that torch could load, and raises when two objects differ.
  """
  def compare!(pairs, dir) do
    list = Path.join(dir, "pairs.txt")
    File.write!(list, for({a, b, weights_only} <- pairs, do: "#{a}|#{b}|#{weights_only}\n"))
    command = ~S("$0" "$1" < "$2" 2>/dev/null)
    args = ["-c", command, torch(), "test/support/compare.py", list]
    {output, 0} = System.cmd("sh", args, env: env())
    [_, compared, differences] = Regex.run(~r/compared: (\d+) differences: (\d+)/, output)
    differences == "0" || raise "Python sees other objects:\n#{output}"
    String.to_integer(compared)
  end

  @doc """
  Evaluates Python expressions after the statements of `setup`. Tensors become nested lists as
  `ExTorch.Tensor.to_list/1` returns them, and tuples of tensors become tuples of lists.
  """
  def eval!(setup, expressions) do
    script = """
    import sys, torch, math
    #{setup}
    def show(x):
        if isinstance(x, torch.Tensor): return show(x.tolist())
        if isinstance(x, tuple): return '{' + ','.join(map(show, x)) + '}'
        if isinstance(x, list): return '[' + ','.join(map(show, x)) + ']'
        if x is True or x is False: return str(x).lower()
        if x is None: return 'nil'
        if isinstance(x, complex): return '%%{re: %s, im: %s}' % (show(x.real), show(x.imag))
        if isinstance(x, float):
            if math.isnan(x): return ':nan'
            if math.isinf(x): return ':infinity' if x > 0 else ':neg_infinity'
            return '%.17e' % x
        return repr(x)
    for line in sys.argv[1:]:
        print(show(eval(line)))
    """

    run!(script, expressions)
    |> String.split("\n", trim: true)
    |> Enum.map(fn line -> line |> Code.eval_string() |> elem(0) end)
  end
end
