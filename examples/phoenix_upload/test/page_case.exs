defmodule PhoenixUploadWeb.PageCase do
  @moduledoc "Tests of pages. After each, the native memory is what it was before: nothing of an upload is left."
  use ExUnit.CaseTemplate

  using do
    quote do
      import Phoenix.ConnTest
      import Phoenix.LiveViewTest
      import PhoenixUploadWeb.PageCase
      @endpoint PhoenixUploadWeb.Endpoint
    end
  end

  setup do
    collect()
    before = live()

    on_exit(fn ->
      wait_until(fn -> live() == before end) || raise("not freed: #{inspect({live(), before})}")
    end)

    [conn: Phoenix.ConnTest.build_conn(), before: before]
  end

  def live, do: Map.take(ExTorch.Memory.live(), [:tensors, :bytes])

  # Garbage of other processes is not what the tests look for.
  defp collect do
    for pid <- Process.list(), do: :erlang.garbage_collect(pid)
    ExTorch.Memory.collect()
  end

  def wait_until(fun, tries \\ 200) do
    collect()

    cond do
      fun.() -> true
      tries == 0 -> false
      Process.sleep(25) -> wait_until(fun, tries - 1)
    end
  end

  def saved(term, opts \\ [format: :zip]),
    do: term |> ExTorch.Streaming.save(opts) |> Enum.to_list() |> IO.iodata_to_binary()

  def model, do: saved(PhoenixUpload.Demo.checkpoint())

  def file(name, content), do: %{name: name, content: content, type: "application/octet-stream"}
end
