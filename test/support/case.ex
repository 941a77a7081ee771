defmodule ExTorch.Case do
  @moduledoc false
  # The case template of all tests. After every test the counters of native memory must be what they were before it: the
  # process of the test has ended by then, and with it all references it held. The counters are those of the whole node, so
  # these tests never run beside others.
  #
  # A test with the tag :tmp_dir gets an empty directory (see ExUnit.Case), which is removed after the test.
  use ExUnit.CaseTemplate

  using opts do
    if opts[:async], do: raise(ArgumentError, "tests that count native memory cannot be async")

    quote do
      import ExTorch.Case
      alias ExTorch.{Error, Memory, Native, Tensor}
      alias ExTorch.Tensor.{Blob, BlobView}
    end
  end

  setup context do
    if dir = context[:tmp_dir], do: on_exit(fn -> File.rm_rf!(dir) end)
    ExTorch.Memory.collect()
    before = ExTorch.Memory.live()
    on_exit(fn -> assert_live(before) end)
  end

  # ---- Assertions ----

  @doc "Waits until the memory counters have the expected values."
  def assert_live(expected) do
    wait_until(fn -> ExTorch.Memory.live() == expected end) ||
      ExUnit.Assertions.flunk(
        "native memory was not freed: #{inspect(ExTorch.Memory.live())}, " <>
          "expected #{inspect(expected)}"
      )
  end

  @doc """
  Waits up to thirty seconds, with garbage collections, until the function returns true. Returns whether it did.

  The thread that frees memory also deletes the file of a save that was killed, which can take seconds on a busy disk.
  """
  def wait_until(fun, tries \\ 1200) do
    ExTorch.Memory.collect()

    cond do
      fun.() ->
        true

      tries > 0 ->
        Process.sleep(25)
        wait_until(fun, tries - 1)

      true ->
        false
    end
  end

  @doc "The reason of the ExTorch.Error that the function raises, or :none."
  def reason(fun) do
    fun.()
    :none
  rescue
    error in ExTorch.Error -> error.reason
  end

  @doc "Whether nested lists of numbers are equal within a relative tolerance."
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

  # ---- Processes and memory ----

  @doc "Runs the function in another process, so that none of its references stay on this heap."
  def in_task(fun), do: fun |> Task.async() |> Task.await(:infinity)

  @doc "The resident memory of this OS process in bytes."
  def rss do
    [_, kb] = Regex.run(~r/VmRSS:\s+(\d+) kB/, File.read!("/proc/self/status"))
    String.to_integer(kb) * 1024
  end

  @doc "The resident memory that the function's result adds. The least of four runs, since other processes add noise."
  def added_rss(fun) do
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

  # ---- Bytes ----

  @doc "The binary with one bit flipped."
  def flip_bit(binary, at, bit) do
    flipped = Bitwise.bxor(:binary.at(binary, at), Bitwise.bsl(1, bit))

    binary_part(binary, 0, at) <>
      <<flipped>> <> binary_part(binary, at + 1, byte_size(binary) - at - 1)
  end

  @doc "A stream of the binary in chunks. The list of their sizes repeats."
  def chunks(binary, sizes) do
    sizes
    |> Stream.cycle()
    |> Stream.transform(binary, fn
      _size, "" ->
        {:halt, ""}

      size, binary ->
        size = min(size, byte_size(binary))
        rest = binary_part(binary, size, byte_size(binary) - size)
        {[binary_part(binary, 0, size)], rest}
    end)
  end

  @doc "The bytes that ExTorch.Streaming.save/2 produces."
  def saved(term, opts \\ []),
    do: term |> ExTorch.Streaming.save(opts) |> Enum.to_list() |> IO.iodata_to_binary()

  @doc "A stream of a file in chunks. The order of the arguments of File.stream! differs between versions of Elixir."
  def file_stream(path, bytes) do
    args =
      if Version.match?(System.version(), ">= 1.16.0"), do: [path, bytes], else: [path, [], bytes]

    apply(File, :stream!, args)
  end
end
