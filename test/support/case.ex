defmodule ExTorch.Case do
  @moduledoc false
  # Every test ends with the counters where they began: the test's process is gone by then, and all it held with it.
  use ExUnit.CaseTemplate

  using do
    quote do
      import ExTorch.Case
      alias ExTorch.{Error, Memory, Native, Tensor}
      alias ExTorch.Tensor.{Blob, BlobView}
    end
  end

  setup do
    settle()
    before = ExTorch.Memory.live()
    on_exit(fn -> assert_live(before) end)
  end

  @doc "Waits until the counters are what they were."
  def assert_live(expected, tries \\ 200) do
    settle()
    live = ExTorch.Memory.live()

    cond do
      live == expected ->
        :ok

      tries > 0 ->
        Process.sleep(25)
        assert_live(expected, tries - 1)

      true ->
        ExUnit.Assertions.flunk("left behind: #{inspect(live)}, there were #{inspect(expected)}")
    end
  end

  # The garbage of other processes too: a message or a dead task may hold the last reference.
  defp settle do
    ExTorch.Memory.collect()
  end

  @doc "The reason of the ExTorch.Error that the function raises."
  def reason(fun) do
    fun.()
    :none
  rescue
    error in ExTorch.Error -> error.reason
  end

  @doc "Runs the function in a process of its own, so that nothing of it is left on this heap."
  def aside(fun) do
    Task.async(fun) |> Task.await(:infinity)
  end

  @doc "The binary with one bit turned."
  def turn(binary, at, bit) do
    turned = Bitwise.bxor(:binary.at(binary, at), Bitwise.bsl(1, bit))

    binary_part(binary, 0, at) <>
      <<turned>> <> binary_part(binary, at + 1, byte_size(binary) - at - 1)
  end

  @doc "A file in pieces; the order of arguments differs between versions of Elixir."
  def file_stream(path, bytes) do
    args =
      if Version.match?(System.version(), ">= 1.16.0"), do: [path, bytes], else: [path, [], bytes]

    apply(File, :stream!, args)
  end

  @doc "Bytes of this OS process that are in memory."
  def rss do
    [_, kb] = Regex.run(~r/VmRSS:\s+(\d+) kB/, File.read!("/proc/self/status"))
    String.to_integer(kb) * 1024
  end

  @doc "What a function adds to them while its result lives, at best: other parts of the VM make noise."
  def added(fun) do
    Enum.min(
      for _ <- 1..4 do
        ExTorch.Memory.collect()
        before = rss()
        result = fun.()
        after_ = rss()
        if is_struct(result, ExTorch.Tensor), do: ExTorch.Tensor.release(result)
        after_ - before
      end
    )
  end

  @doc "Are nested lists of numbers equal within a relative tolerance?"
  def close?(a, b, tolerance \\ 1.0e-5)
  def close?(a, b, tolerance) when is_list(a) and is_list(b), do: zip_close?(a, b, tolerance)

  def close?(a, b, tolerance) when is_tuple(a) and is_tuple(b) do
    zip_close?(Tuple.to_list(a), Tuple.to_list(b), tolerance)
  end

  def close?(%{re: r1, im: i1}, %{re: r2, im: i2}, tolerance) do
    close?(r1, r2, tolerance) and close?(i1, i2, tolerance)
  end

  def close?(a, b, tolerance) when is_number(a) and is_number(b) do
    abs(a - b) <= tolerance * Enum.max([abs(a), abs(b), 1.0])
  end

  def close?(a, b, _tolerance), do: a == b

  defp zip_close?(a, b, tolerance) do
    length(a) == length(b) and Enum.all?(Enum.zip(a, b), fn {x, y} -> close?(x, y, tolerance) end)
  end
end
