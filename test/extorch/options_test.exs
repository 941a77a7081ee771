defmodule ExTorch.OptionsTest do
  # Every function that takes options refuses unknown options, values of the wrong type, and anything but a keyword list.
  use ExTorch.Case

  alias ExTorch.{Archive, Checkpoint, Store, Streaming}
  alias ExTorch.Store.Adapter

  defmodule Conn do
    defstruct []
    def read_body(conn, _opts), do: {:ok, "", conn}
  end

  @fixture "test/fixtures/2.14.1/many.pt"

  # name, function of the options, one of the known options
  defp functions do
    t = ExTorch.tensor([1.0])
    chunks = Enum.to_list(Streaming.save(%{a: 1}))

    creators =
      for name <- [:zeros, :ones, :empty, :rand, :randn],
          do: {name, &apply(ExTorch, name, [{2}, &1]), :dtype}

    reductions =
      for name <- [:sum, :mean, :prod, :amax, :amin, :argmax, :argmin, :any, :all, :max, :min],
          do: {name, &apply(ExTorch, name, [t, &1]), :keepdim}

    stores =
      for store <- [Store.PyTorch, Store.Safetensors, Store.Sharded],
          do: {store, &store.new("x", &1), :remap}

    adapters =
      for {adapter, known} <- [
            {Adapter.Cast, :to},
            {Adapter.Half, :except},
            {Adapter.PyTorchToAxon, :embeddings},
            {Adapter.AxonToPyTorch, :embeddings}
          ],
          do: {adapter, &Store.PyTorch.new("x", adapters: [{adapter, &1}]), known}

    creators ++
      reductions ++
      stores ++
      adapters ++
      [
        {:tensor, &ExTorch.tensor(1, &1), :dtype},
        {:full, &ExTorch.full({2}, 1, &1), :dtype},
        {:arange, &ExTorch.arange(0, 2, &1), :step},
        {:load, &ExTorch.load(@fixture, &1), :mmap},
        {:load!, &ExTorch.load!(@fixture, &1), :limits},
        {:save, &ExTorch.save(1, "x", &1), :fsync},
        {:save!, &ExTorch.save!(1, "x", &1), :format},
        {:open, &Checkpoint.open(@fixture, &1), :offset},
        {:open!, &Checkpoint.open!(@fixture, &1), :verify},
        {:stream, fn opts -> with_checkpoint(&Checkpoint.stream(&1, opts)) end, :only},
        {Streaming, &Streaming.save(1, &1), :chunk},
        {:loader, &Streaming.loader(&1), :on_tensor},
        {:streaming_load, &Streaming.load(chunks, &1), :on_tensor},
        {:streaming_load!, &Streaming.load!(chunks, &1), :on_tensor},
        {:tensors, &Streaming.tensors(chunks, &1), :only},
        {:send, &Streaming.send(1, :socket, &1), :timeout},
        {:send!, &Streaming.send!(1, :socket, &1), :chunk},
        {:recv, &Streaming.recv(:socket, &1), :buffer},
        {:recv!, &Streaming.recv!(:socket, &1), :on_tensor},
        {:body, &Streaming.Body.load(%Conn{}, &1), :read_timeout},
        {:upload, &raise_error(Streaming.UploadWriter.init(&1)), :on_tensor},
        {:archive_save, &Archive.save(t, {:binary, ""}, &1), :chunk},
        {:archive_save!, &Archive.save!(t, {:binary, ""}, &1), :timeout},
        {:archive_load, &Archive.load({:binary, ""}, &1), :as},
        {:archive_load!, &Archive.load!({:binary, ""}, &1), :as}
      ]
  end

  defp with_checkpoint(fun) do
    ckpt = Checkpoint.open!(@fixture)

    try do
      fun.(ckpt)
    after
      Checkpoint.close(ckpt)
    end
  end

  defp raise_error({:error, error}), do: raise(error)
  defp raise_error(other), do: other

  defp error(fun, opts) do
    assert_raise Error, fn -> fun.(opts) end
  end

  test "unknown options are refused with the list of the known ones" do
    for {name, fun, known} <- functions() do
      error = error(fun, nonsense: 1)
      assert error.reason == :bad_argument, inspect(name)
      assert error.message =~ "unknown option :nonsense; known options are ", inspect(name)
      assert error.message =~ inspect(known), inspect(name)
    end

    assert error(&Tensor.to(ExTorch.tensor(1), &1), nonsense: 1).message =~
             "known options are :copy, :device, :dtype, :non_blocking"
  end

  test "options must be a keyword list" do
    for {name, fun, known} <- functions(), opts <- [%{known => nil}, [1], [{"a", 1}], :atom, 5] do
      # the adapters' options are checked by the store
      case error(fun, opts) do
        %{reason: :bad_argument, message: message} ->
          assert message =~ "keyword list" or message =~ "adapters",
                 inspect({name, opts, message})
      end
    end
  end

  test "values of the wrong type are refused" do
    values = %{
      booleans: [nil, 1, "true", :yes],
      numbers: [-1, 1.5, "1", nil, 2 ** 80],
      functions: [5, :fun, fn -> 1 end, fn _, _, _ -> 1 end],
      filters: [123, :name, [1], %{}, ["a" | "b"], fn -> 1 end, [~r/a/, nil]]
    }

    open = &Checkpoint.open(@fixture, &1)
    store = &Store.PyTorch.new("x", &1)
    loader = &Streaming.loader/1
    send = &Streaming.send(1, :socket, &1)
    recv = &Streaming.recv(:socket, &1)

    wrong =
      [
        for(key <- [:mmap, :verify, :strict, :ordered], v <- values.booleans, do: {open, key, v}),
        for(key <- [:fsync, :compact, :duplicate], v <- values.booleans) do
          {&ExTorch.save(1, "x", &1), key, v}
        end,
        for key <- [:renumber, :allow_partial, :validate, :overwrite, :fsync, :compact, :strict],
            v <- values.booleans do
          {store, key, v}
        end,
        for(key <- [:copy, :non_blocking], v <- values.booleans) do
          {&Tensor.to(ExTorch.tensor(1), &1), key, v}
        end,
        for(v <- values.numbers, do: {open, :offset, v}),
        for limit <- [:pickle_bytes, :depth, :tensor_bytes, :total_bytes, :spool_bytes],
            v <- values.numbers,
            fun <- [open, loader, store, &ExTorch.load(@fixture, &1)] do
          {fun, :limits, [{limit, v}]}
        end,
        for(
          v <- [nil, 5, %{depth: 1}, [unknown: 1], [depth: 0], [nodes: 0], [memory: 0]],
          do: {open, :limits, v}
        ),
        for(v <- [0 | values.numbers], do: {&Streaming.save(1, &1), :chunk, v}),
        for(
          v <- [-1, 1.5, "1", nil, :never],
          do: {&Archive.load({:binary, ""}, &1), :timeout, v}
        ),
        for(v <- [0 | values.numbers], do: {&Archive.save(1, {:binary, ""}, &1), :chunk, v}),
        for(v <- [nil, :tuple, "map"], do: {&Archive.load({:binary, ""}, &1), :as, v}),
        for(v <- [:foo, "tpu", {:cuda, -1}, 5, %{"cpu" => :foo}], do: {open, :device, v}),
        for(v <- [:foo, "tpu", {:cuda, -1}, 5], do: {&ExTorch.zeros({1}, &1), :device, v}),
        for(v <- [:foo, "floot32", 5], do: {&ExTorch.zeros({1}, &1), :dtype, v}),
        for v <- values.filters, fun <- [open, loader, store, &ExTorch.load(@fixture, &1)] do
          {fun, :only, v}
        end,
        for(v <- values.filters, do: {store, :except, v}),
        for(v <- values.functions, fun <- [open, loader, store], do: {fun, :on_progress, v}),
        for(v <- values.functions, do: {loader, :on_tensor, v}),
        for(v <- [:pt, "zip", 5], do: {&ExTorch.save(1, "x", &1), :format, v}),
        for v <- [5, %{"a" => 1}, %{1 => "a"}, [:a]],
            fun <- [&ExTorch.save(%{}, "x.safetensors", &1), store] do
          {fun, :metadata, v}
        end,
        for(v <- [5, [1], [{"(", "x"}], [{~r/a/, 5}]], do: {store, :remap, v}),
        for(v <- [5, [5], String, [{String, []}], [{1, 2}]], do: {store, :adapters, v}),
        for(v <- [5, :other, ["a"]], do: {store, :top_level_key, v}),
        for v <- [0, -1, "5XB", "-1GB", nil, 1.5] do
          {&Store.Sharded.new("x", &1), :max_shard_size, v}
        end,
        for(v <- [5, :x], do: {&Store.PyTorch.new("x", adapters: [{Adapter.Half, &1}]), :to, v}),
        for(
          v <- [5, "a"],
          do: {&Store.PyTorch.new("x", adapters: [{Adapter.Half, &1}]), :except, v}
        ),
        for(key <- [:length, :read_length, :read_timeout], v <- [0, -1, "1", :infinity]) do
          {&Streaming.Body.load(%Conn{}, &1), key, v}
        end
      ]
      |> Enum.concat()

    for {fun, key, value} <- wrong do
      error = error(fun, [{key, value}])
      assert error.reason == :bad_argument, inspect({key, value})
      assert error.message =~ ~r/expected|unknown|invalid/, inspect({key, value, error.message})
    end

    for {fun, opts} <- [
          {send, [timeout: -1]},
          {send, [chunk: 0]},
          {recv, [timeout: -1]},
          {recv, [chunk: -1]},
          {recv, [buffer: 5]}
        ] do
      assert error(fun, opts).reason == :bad_argument
    end
  end

  test "options of sockets are checked before the socket is used" do
    {:ok, listen} = :gen_tcp.listen(0, [:binary, active: false])
    {:ok, port} = :inet.port(listen)
    {:ok, socket} = :gen_tcp.connect({127, 0, 0, 1}, port, [:binary, active: false])

    for {opts, words} <- [
          {[timeout: -1], ":timeout to be a number of milliseconds"},
          {[chunk: -1], ":chunk to be a positive number"},
          {[chunk: "1"], ":chunk to be a positive number"},
          {[buffer: :x], ":buffer to be iodata"},
          {[only: 5], ":only to be names"}
        ] do
      assert error(&Streaming.recv(socket, &1), opts).message =~ words
    end

    assert error(&Streaming.send(1, socket, &1), timeout: "1").message =~ ":timeout"
    :gen_tcp.close(socket)
    :gen_tcp.close(listen)
  end

  test "an index refuses unknown options before its shards are opened" do
    dir = Path.join(System.tmp_dir!(), "extorch_options_#{System.pid()}")
    File.mkdir_p!(dir)
    on_exit(fn -> File.rm_rf!(dir) end)
    index = Path.join(dir, "x.index.json")
    File.write!(index, ~s({"weight_map": {}}))
    assert {:ok, %{}} = ExTorch.load(index)
    assert error(&ExTorch.load(index, &1), nonsense: 1).message =~ "known options"
    assert error(&ExTorch.load(index, &1), only: 123).message =~ ":only"
  end

  test "filters may return any term" do
    assert {:ok, loaded} = ExTorch.load(@fixture, only: &if(&1 == "t01", do: 1))
    assert Map.keys(loaded) == ["t01"]
    assert [{"t01", _}] = with_checkpoint(&Enum.to_list(Checkpoint.stream(&1, only: "t01")))
  end

  test "deriving ExTorch.Module refuses unknown options" do
    code = """
    defmodule ExTorch.OptionsTest.Derived do
      @derive {ExTorch.Module, onyl: [:a]}
      defstruct [:a]
    end
    """

    error = assert_raise Error, fn -> Code.eval_string(code) end
    assert error.message =~ "unknown option :onyl; known options are :only"
  end

  test "keyword arguments of operators" do
    for kwargs <- [:dim, 5, [1]] do
      assert reason(fn -> ExTorch.op("sum", [ExTorch.tensor(1)], kwargs) end) == :bad_argument
    end
  end
end
