defmodule ExTorch.Progress.Bar do
  @moduledoc false
  # The bar of `on_progress: :bar`: bytes, rate and time left, on one line of the terminal. It is written to standard
  # error. Nothing is written if that is not a terminal.

  alias ExTorch.Text

  @width 30
  @clear "\r\e[2K"

  # Returns a function for :on_progress, and for when it has ended.
  @spec new() :: (non_neg_integer(), non_neg_integer() -> :ok)
  def new do
    start = now()
    if terminal?(), do: &draw(&1, &2, now() - start), else: fn _done, _total -> :ok end
  end

  defp draw(done, total, ms) do
    ending = if done == total, do: "\n", else: ""
    IO.write(:stderr, [@clear, line(done, total, ms), ending])
  end

  # The text after `ms` milliseconds.
  @spec line(non_neg_integer(), non_neg_integer(), non_neg_integer()) :: String.t()
  def line(done, total, ms) do
    share = if total == 0, do: 1.0, else: done / total
    full = trunc(share * @width)
    bar = String.duplicate("█", full) <> String.duplicate("░", @width - full)
    rate = if ms > 0, do: done * 1000 / ms, else: 0.0

    "#{bar} #{String.pad_leading("#{trunc(share * 100)}", 3)} %  " <>
      "#{Text.bytes(done)} of #{Text.bytes(total)}, #{Text.bytes(round(rate))}/s" <>
      time(done, total, ms, rate)
  end

  defp time(total, total, ms, _rate), do: ", #{seconds(ms / 1000)}"
  defp time(_done, _total, _ms, rate) when rate == 0.0, do: ""
  defp time(done, total, _ms, rate), do: ", #{seconds((total - done) / rate)} left"

  defp seconds(s) when s < 100, do: "#{:erlang.float_to_binary(s * 1.0, decimals: 1)} s"
  defp seconds(s) when s < 6000, do: "#{round(s / 60)} min"
  defp seconds(s), do: "#{round(s / 3600)} h"

  # Whether standard error is a terminal. OTP 26 and newer know it; before, standard output decides.
  @spec terminal?() :: boolean()
  def terminal? do
    if Code.ensure_loaded?(:prim_tty) and function_exported?(:prim_tty, :isatty, 1),
      do: apply(:prim_tty, :isatty, [:stderr]) == true,
      else: match?({:ok, _}, :io.columns())
  end

  defp now, do: System.monotonic_time(:millisecond)
end
