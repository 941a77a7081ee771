defmodule ExTorch.TelemetryTest do
  # With the real :telemetry if it can be loaded, otherwise with a stand-in that sends every event to the test.
  use ExTorch.Case

  alias ExTorch.{Checkpoint, Store, Streaming}
  alias ExTorch.Test.RawServer

  @operations [:open, :load, :read, :save, :stream, :apply, :collect, :http]
  @moduletag :tmp_dir

  setup %{tmp_dir: dir} do
    test = self()

    if Code.ensure_loaded?(:telemetry), do: attach(test), else: stand_in(test)
    %{path: Path.join(dir, "a.pt")}
  end

  defp attach(test) do
    {:ok, _} = Application.ensure_all_started(:telemetry)
    phases = for o <- @operations, phase <- [:start, :stop, :exception], do: [:extorch, o, phase]

    handler = fn [_ | event], measurements, metadata, _config ->
      send(test, {:event, event, measurements, metadata})
    end

    apply(:telemetry, :attach_many, ["test", [[:extorch, :memory] | phases], handler, nil])
    on_exit(fn -> apply(:telemetry, :detach, ["test"]) end)
  end

  defp stand_in(test) do
    Process.register(test, :extorch_listener)

    body =
      quote do
        def execute([_ | event], measurements, metadata),
          do: send(:extorch_listener, {:event, event, measurements, metadata})
      end

    Module.create(:telemetry, body, Macro.Env.location(__ENV__))

    on_exit(fn ->
      :code.purge(:telemetry)
      :code.delete(:telemetry)
    end)
  end

  defp events do
    receive do
      {:event, event, measurements, metadata} -> [{event, measurements, metadata} | events()]
    after
      0 -> []
    end
  end

  # The measurements and metadata of the only :stop event of an operation.
  defp stop(fun, operation) do
    fun.()
    events = events()
    assert {_, %{system_time: _}, _} = List.keyfind(events, [operation, :start], 0)

    assert [{_, measurements, metadata}] =
             Enum.filter(events, &(elem(&1, 0) == [operation, :stop]))

    assert is_integer(measurements.duration)
    {measurements, metadata}
  end

  test "every operation", %{path: path} do
    term = %{"a" => ExTorch.ones({2}), "b" => [ExTorch.ones({3}, dtype: :int8), 1]}

    assert {%{tensors: 2, bytes: 11}, %{path: ^path, format: :zip, reason: nil}} =
             stop(fn -> :ok = ExTorch.save(term, path) end, :save)

    assert {%{tensors: 2, bytes: 11}, %{source: :file, path: ^path, format: :zip, reason: nil}} =
             stop(fn -> {:ok, _} = ExTorch.load(path) end, :load)

    assert {%{tensors: 2, bytes: 11}, %{source: :file, path: ^path, format: :zip}} =
             stop(fn -> path |> Checkpoint.open!() |> Checkpoint.close() end, :open)

    ckpt = Checkpoint.open!({:binary, File.read!(path)})

    assert {%{tensors: 1, bytes: 8}, %{source: :binary, path: nil, name: "a"}} =
             stop(fn -> {:ok, _} = Checkpoint.tensor(ckpt, "a") end, :read)

    Checkpoint.close(ckpt)

    assert {%{tensors: 2, bytes: 11}, %{direction: :load}} =
             stop(fn -> {:ok, _, _} = Streaming.load(Streaming.save(term)) end, :stream)

    store = Store.PyTorch.new(path, overwrite: true)

    assert {%{tensors: 1}, %{source: :file}} =
             stop(
               fn -> :ok = Store.collect_from(store, %{"a" => ExTorch.ones({2})}) end,
               :collect
             )

    assert {%{tensors: 1, bytes: 8, missing: 0, errors: 0}, %{source: :file, path: ^path}} =
             stop(
               fn -> {:ok, _} = Store.apply_to(store, %{"a" => ExTorch.zeros({2})}) end,
               :apply
             )
  end

  test "errors have their reason, and exceptions an event", %{path: path} do
    assert {%{tensors: 0, bytes: 0}, %{reason: :not_found}} =
             stop(fn -> {:error, _} = ExTorch.load(path) end, :load)

    assert_raise Error, fn -> ExTorch.load(path, nonsense: 1) end
    assert {_, %{duration: _}, found} = List.keyfind(events(), [:load, :exception], 0)
    assert %{kind: :error, reason: %Error{}, stacktrace: [_ | _], path: ^path} = found
  end

  test "no event has a secret", %{path: path} do
    ExTorch.save!(%{"a" => ExTorch.ones({2})}, path)
    body = File.read!(path)

    url =
      RawServer.start(fn _number, _range ->
        [
          "HTTP/1.1 200 OK\r\ncontent-length: #{byte_size(body)}\r\nconnection: close\r\n\r\n",
          body
        ]
      end)

    events()
    uri = URI.parse(url)
    url = "http://user:s3cret@#{uri.host}:#{uri.port}/a.pt?signature=s3cret"

    source =
      ExTorch.Source.HTTP.new(url, token: "s3cret", headers: [{"x-key", "s3cret"}], retries: 0)

    ExTorch.load(source)
    ExTorch.load(url)
    ExTorch.load("ftp://user:s3cret@host/a.pt?s3cret")
    events = events()
    assert Enum.any?(events, &(elem(&1, 0) == [:http, :stop]))
    refute inspect(events, limit: :infinity, printable_limit: :infinity) =~ "s3cret"
  end

  test "gauges of the memory" do
    t = ExTorch.ones({1024})
    assert ExTorch.Telemetry.memory() == :ok

    assert [{[:memory], %{tensors: 1, bytes: bytes, budget: _, mapped: _, threads: _}, %{}}] =
             events()

    assert bytes >= 4096
    Tensor.release(t)
  end

  test "metrics, where Telemetry.Metrics is" do
    if Code.ensure_loaded?(Telemetry.Metrics) do
      metrics = ExTorch.Telemetry.metrics()
      assert length(metrics) > 20
      assert Enum.any?(metrics, &(&1.event_name == [:extorch, :load, :stop]))
    else
      assert assert_raise(Error, fn -> ExTorch.Telemetry.metrics() end).message =~
               "telemetry_metrics"
    end
  end
end
