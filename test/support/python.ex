defmodule ExTorch.Test.Python do
  @moduledoc false
  # Python's torch, to compare with.

  @doc "The Python that has torch, or nil."
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

  # A sanitizer that is preloaded into the VM must not follow into Python.
  defp env, do: [{"LD_PRELOAD", nil}]

  @doc "What the script prints."
  def run!(script, args \\ []) do
    case System.cmd(torch(), ["-c", script | args], env: env()) do
      {output, 0} -> output
      {output, status} -> raise "Python ended with #{status}: #{output}"
    end
  end

  @doc """
  Values of Python expressions, nested lists of numbers as `ExTorch.Tensor.to_list/1` gives them. A tuple of tensors is
  a tuple of lists.
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
