defmodule ExTorch.Progress do
  @moduledoc false
  # Calls the `on_progress` function about ten times a second and once at the end.

  alias ExTorch.Options
  alias ExTorch.Progress.Bar

  @interval_ms 100

  @type callback ::
          (done :: non_neg_integer(), total :: non_neg_integer() -> any())
          | (%{done: non_neg_integer(), total: non_neg_integer()} -> any())
          | :bar
  @type t :: %__MODULE__{fun: callback() | nil, total: non_neg_integer(), last: integer()}

  defstruct [:fun, :total, :last]

  @spec check!(term()) :: :ok
  def check!(nil), do: :ok
  def check!(fun) when is_function(fun, 1) or is_function(fun, 2), do: :ok

  def check!(:bar), do: :ok

  def check!(other),
    do: Options.invalid!(:on_progress, "a function of done and total, or :bar", other)

  @spec new(callback() | nil, non_neg_integer()) :: t()
  def new(:bar, total), do: new(Bar.new(), total)
  def new(fun, total), do: %__MODULE__{fun: fun, total: total, last: now()}

  @spec report(t(), non_neg_integer()) :: t()
  def report(%{fun: nil} = progress, _done), do: progress
  # finish/1 reports the total, once.
  def report(%{total: total} = progress, total), do: progress

  def report(%__MODULE__{} = progress, done) do
    if now() - progress.last >= @interval_ms do
      call(progress, done)
      %{progress | last: now()}
    else
      progress
    end
  end

  @spec finish(t()) :: :ok
  def finish(%{fun: nil}), do: :ok

  def finish(progress) do
    call(progress, progress.total)
    :ok
  end

  defp call(%{fun: fun, total: total}, done) when is_function(fun, 2), do: fun.(done, total)
  defp call(%{fun: fun, total: total}, done), do: fun.(%{done: done, total: total})

  defp now, do: System.monotonic_time(:millisecond)
end
