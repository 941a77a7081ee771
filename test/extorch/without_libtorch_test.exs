defmodule ExTorch.WithoutLibTorchTest do
  # A node that leaves LibTorch out, in a build with or without it.
  use ExTorch.Case
  @moduletag :no_asan
  @moduletag :tmp_dir

  defp elixir(script, env) do
    paths = for app <- [:extorch], do: Application.app_dir(app, "ebin")
    args = Enum.flat_map(paths, &["-pa", &1]) ++ ["-e", script]
    {output, status} = System.cmd("elixir", args, stderr_to_stdout: true, env: env)
    assert status == 0, output
    output
  end

  @script """
  import ExTorch.Tensor
  %{version: nil, num_threads: 1} = ExTorch.info()
  [:cpu] = ExTorch.Device.available()
  %{"weight" => t} = ExTorch.load!("test/fixtures/2.14.1/state_dict.pt") |> then(&%{"weight" => hd(Map.values(&1))})
  true = equal?(t, contiguous(t))
  binary = to_binary(t)
  true = byte_size(binary) == nbytes(t)
  path = Path.join(System.fetch_env!("OUT"), "copy.safetensors")
  :ok = ExTorch.save(%{"t" => t}, path)
  true = equal?(ExTorch.load!(path)["t"], t)

  for fun <- [
        fn -> ExTorch.add(t, 1) end,
        fn -> ExTorch.op("mul_", [t, 2]) end,
        fn -> ExTorch.matmul(t, t) end,
        fn -> to(t, :cuda) end
      ] do
    try do
      fun.()
      IO.puts("no error")
    rescue
      e in ExTorch.Error -> IO.puts("\#{e.reason}: \#{e.message}")
    end
  end

  {:error, %{reason: :unsupported}} = ExTorch.Archive.save(%{"t" => t}, Path.join(System.fetch_env!("OUT"), "a"))
  """

  defp check(output) do
    lines = output |> String.split("\n", trim: true) |> Enum.filter(&(&1 =~ "LibTorch"))
    assert length(lines) == 4, output

    for line <- lines do
      assert line =~ ~r/^unsupported: .*LibTorch/
      assert line =~ "EXTORCH_TORCH=0"
    end

    assert hd(lines) =~ "the operator add needs LibTorch"
  end

  test "by the environment", %{tmp_dir: dir} do
    check(elixir(@script, [{"EXTORCH_TORCH", "0"}, {"OUT", dir}]))
  end

  test "by the configuration", %{tmp_dir: dir} do
    script = "Application.put_env(:extorch, :torch, false)\n" <> @script
    check(elixir(script, [{"EXTORCH_TORCH", nil}, {"OUT", dir}]))
  end
end
