defmodule ExTorch.ArchiveTest do
  # LibTorch's own archives through readers and writers of every kind, good and bad.
  use ExTorch.Case
  alias ExTorch.Archive
  alias ExTorch.Test.Python
  import ExTorch.Test.Terms, only: [plain: 1]

  @moduletag :torch

  # ---- Readers and writers with configurable behavior that report their calls to the test ----

  defmodule Reader do
    @behaviour ExTorch.Archive.Reader
    defstruct [:bytes, :test, at: 0, most: nil, lie: 0, on_read: nil]

    @impl true
    def read(%{at: at, bytes: bytes} = r, n) do
      if r.on_read, do: r.on_read.(at)
      n = min(min(n, r.most || n), byte_size(bytes) - at)

      if n <= 0,
        do: {:eof, r},
        else: {:ok, binary_part(bytes, at, n), %{r | at: at + n}}
    end

    @impl true
    def seek_start(r, at), do: {:ok, at, %{r | at: at}}
    @impl true
    def seek_end(r, offset), do: seek_start(r, byte_size(r.bytes) + r.lie + offset)
    @impl true
    def position(r), do: {:ok, r.at, r}

    @impl true
    def close(r) do
      send(r.test, :closed)
      :ok
    end
  end

  defmodule Writer do
    @behaviour ExTorch.Archive.Writer
    defstruct [:test, most: nil, after_bytes: :never, fail: nil, written: 0, close: :ok]

    @impl true
    def write(w, data) do
      if w.fail && w.written >= w.after_bytes do
        case w.fail.() do
          :go_on -> take(w, data)
          reason -> {:error, reason, w}
        end
      else
        take(w, data)
      end
    end

    defp take(w, data) do
      n = min(byte_size(data), w.most || byte_size(data))
      send(w.test, {:wrote, binary_part(data, 0, n)})
      {:ok, n, %{w | written: w.written + n}}
    end

    @impl true
    def close(w) do
      send(w.test, :closed)
      w.close
    end
  end

  defp written(parts \\ []) do
    receive do
      {:wrote, data} -> written([data | parts])
    after
      0 -> parts |> Enum.reverse() |> IO.iodata_to_binary()
    end
  end

  defp assert_closed_once do
    assert_received :closed
    refute_received :closed
  end

  defp tensors,
    do: %{
      "fc.weight" => ExTorch.rand({40, 30}),
      "fc.bias" => ExTorch.tensor([1.5, 2.5]),
      "n" => ExTorch.tensor(3)
    }

  defp archive(what \\ tensors()) do
    {:ok, bytes} = Archive.save(what, {:binary, ""})
    bytes
  end

  # ---- All kinds of readers and writers ----

  test "a tensor, a list and a map are saved and loaded" do
    t = ExTorch.rand({3, 4})
    assert {:ok, back} = Archive.load({:binary, archive(t)})
    assert Tensor.equal?(t, back)

    assert {:ok, [a, b]} =
             Archive.load({:binary, archive([t, ExTorch.tensor([1, 2])])}, as: :list)

    assert Tensor.equal?(a, t) and Tensor.to_list(b) == [1, 2]
    map = tensors()
    assert {:ok, back} = Archive.load({:binary, archive(map)}, as: :map)
    assert plain(back) == plain(map)
    assert {:ok, []} = Archive.load({:binary, archive([])}, as: :list)
    assert {:ok, %{}} = Archive.load({:binary, archive(%{})}, as: :map)
    marked = Tensor.requires_grad(t, true)
    assert {:ok, back} = Archive.load({:binary, archive(marked)})
    assert Tensor.requires_grad(back)

    assert {:error, %Error{reason: :bad_argument}} =
             Archive.load({:binary, archive(map)}, as: :list)

    assert {:error, %Error{reason: :bad_argument}} =
             Archive.load({:binary, archive(map)}, as: :tensor)
  end

  @tag :tmp_dir
  test "save! and load!", %{tmp_dir: dir} do
    path = Path.join(dir, "tensor.pt")
    assert Archive.save!(ExTorch.tensor([1, 2]), path) == :ok
    assert path |> Archive.load!() |> Tensor.to_list() == [1, 2]
    assert reason(fn -> Archive.load!(path <> ".not") end) == :not_found
    assert reason(fn -> Archive.save!(ExTorch.tensor(1), Path.join(path, "x")) end) == :io
  end

  @tag :tmp_dir
  test "paths, devices, functions, collectables and structs", %{tmp_dir: dir} do
    map = tensors()
    file = Path.join(dir, "a.pt")

    assert :ok = Archive.save(map, file)
    assert {:ok, back} = Archive.load(file, as: :map)
    assert plain(back) == plain(map)
    bytes = File.read!(file)

    for modes <- [[:read, :binary], [:read, :raw, :binary], [:read]] do
      {:ok, device} = File.open(file, modes)
      assert {:ok, back} = Archive.load(device, as: :map)
      assert plain(back) == plain(map)
      # the caller's device is still open
      assert {:ok, _} = :file.position(device, 0)
      File.close(device)
    end

    # an archive that starts after other data
    File.write!(file, ["before", bytes])
    {:ok, device} = File.open(file, [:read, :binary])
    {:ok, 6} = :file.position(device, 6)
    assert {:ok, back} = Archive.load(device, as: :map)
    assert plain(back) == plain(map)
    File.close(device)

    {:ok, device} = File.open(file, [:write, :binary])
    assert :ok = Archive.save(map, device)
    File.close(device)
    assert {:ok, back} = Archive.load(file, as: :map)
    assert plain(back) == plain(map)

    {:ok, text} = StringIO.open("", encoding: :latin1)
    assert :ok = Archive.save(map, text)
    {_, written} = StringIO.contents(text)
    assert {:ok, back} = Archive.load({:binary, written}, as: :map)
    assert plain(back) == plain(map)
    {:ok, text} = StringIO.open(bytes, encoding: :latin1)
    assert {:ok, back} = Archive.load(text, as: :map)
    assert plain(back) == plain(map)

    test = self()

    assert :ok =
             Archive.save(
               map,
               fn data ->
                 send(test, {:wrote, data})
                 :ok
               end,
               chunk: 100
             )

    streamed = written()

    read = fn at, n ->
      if at < byte_size(streamed),
        do: {:ok, binary_part(streamed, at, min(n, byte_size(streamed) - at))},
        else: :eof
    end

    assert {:ok, back} = Archive.load({read, byte_size(streamed)}, as: :map)
    assert plain(back) == plain(map)

    assert {:ok, list} = Archive.save(map, [])
    assert {:ok, back} = Archive.load({:binary, IO.iodata_to_binary(list)}, as: :map)
    assert plain(back) == plain(map)
    assert {:ok, %File.Stream{}} = Archive.save(map, file_stream(file, 1000))
    assert {:ok, back} = Archive.load(file, as: :map)
    assert plain(back) == plain(map)
  end

  test "single bytes and chunks of other sizes" do
    map = tensors()
    assert :ok = Archive.save(map, %Writer{test: self(), most: 1}, chunk: 7)
    assert_closed_once()
    bytes = written()

    for {most, chunk} <- [{1, 1000}, {3, 7}, {nil, 1}] do
      assert {:ok, back} =
               Archive.load(%Reader{bytes: bytes, test: self(), most: most},
                 as: :map,
                 chunk: chunk
               )

      assert plain(back) == plain(map)
      assert_closed_once()
    end
  end

  test "archives written by C++" do
    for {name, as} <- [cpp_tensor: :tensor, cpp_list: :list, cpp_named: :map, cpp_module: :map] do
      file = "test/fixtures/more/#{name}.pt"
      assert {:ok, loaded} = Archive.load(file, as: as)
      {:ok, ckpt} = ExTorch.Checkpoint.open(file)

      named =
        case loaded do
          %Tensor{} ->
            %{"0" => loaded}

          list when is_list(list) ->
            for {t, i} <- Enum.with_index(list), into: %{}, do: {"#{i}", t}

          map ->
            map
        end

      assert Enum.sort(Map.keys(named)) == Enum.sort(ExTorch.Checkpoint.keys(ckpt))

      for {key, tensor} <- named,
          do: assert(Tensor.equal?(tensor, ExTorch.Checkpoint.tensor!(ckpt, key)))
    end
  end

  @tag :python
  @tag :tmp_dir
  test "torch reads the archives", %{tmp_dir: dir} do
    file = Path.join(dir, "a.pt")
    map = %{"fc.weight" => ExTorch.tensor([[1.5, 2.5]]), "bias" => ExTorch.tensor([3, 4])}
    :ok = Archive.save(map, file)
    setup = "m = torch.jit.load(#{inspect(file)})"
    assert Python.eval!(setup, ["m.fc.weight", "m.bias"]) == [[[1.5, 2.5]], [3, 4]]

    assert plain(load_safely(file)) == plain(map)
  end

  defp load_safely(file) do
    {:ok, ckpt} = ExTorch.Checkpoint.open(file)
    Map.new(ExTorch.Checkpoint.keys(ckpt), &{&1, ExTorch.Checkpoint.tensor!(ckpt, &1)})
  end

  # ---- Errors ----

  test "a writer that fails or raises at any point" do
    size = byte_size(archive())

    for at <- [0, 1, 64, 500, size - 30] do
      writer = %Writer{test: self(), after_bytes: at, fail: fn -> :disk_full end}

      assert {:error, %Error{reason: :io, message: message}} =
               Archive.save(tensors(), writer, chunk: 50)

      assert message =~ "disk_full"
      assert_closed_once()

      raising = %{writer | fail: fn -> raise ArithmeticError end}
      assert_raise ArithmeticError, fn -> Archive.save(tensors(), raising, chunk: 50) end
      assert_closed_once()
      throwing = %{writer | fail: fn -> throw(:ball) end}
      assert catch_throw(Archive.save(tensors(), throwing, chunk: 50)) == :ball
      assert_closed_once()
      exiting = %{writer | fail: fn -> exit(:gone) end}
      assert catch_exit(Archive.save(tensors(), exiting, chunk: 50)) == :gone
      assert_closed_once()
    end

    written()
    own = Error.new(:limit, "mine")
    assert {:error, ^own} = Archive.save(tensors(), fn _ -> {:error, own} end)
    assert {:error, %Error{reason: :io}} = Archive.save(tensors(), fn _ -> :what end)
    faulty = %Writer{test: self(), most: 0}
    assert {:error, %Error{reason: :io}} = Archive.save(tensors(), faulty)
    assert_closed_once()

    assert {:error, %Error{reason: :io}} =
             Archive.save(tensors(), %Writer{test: self(), close: {:error, :eio}})

    assert_closed_once()
  end

  test "a reader that raises, ends early or returns a wrong size" do
    bytes = archive()
    reader = %Reader{bytes: bytes, test: self()}

    assert_raise RuntimeError, "mine", fn ->
      Archive.load(%{reader | on_read: fn _ -> raise "mine" end}, as: :map)
    end

    assert_closed_once()

    for lie <- [-1, -500, 1, 10_000, 1_000_000_000_000] do
      assert {:error, %Error{}} = Archive.load(%{reader | lie: lie}, as: :map)
      assert_closed_once()
    end

    assert {:error, %Error{reason: :truncated}} = Archive.load({fn _, _ -> :eof end, 1000})

    assert {:error, %Error{}} =
             Archive.load({fn _, n -> {:ok, :binary.copy("x", n + 1)} end, 1000})

    assert {:error, %Error{}} = Archive.load({fn _, _ -> {:ok, ""} end, 1000})
    assert {:error, %Error{reason: :torch}} = Archive.load({:binary, "garbage"})
    assert {:error, %Error{}} = Archive.load({:binary, ""})

    for size <- 0..(byte_size(bytes) - 1)//97 do
      assert {:error, %Error{}} = Archive.load({:binary, binary_part(bytes, 0, size)}, as: :map)
    end
  end

  test "a slow callback is a timeout after it has returned" do
    hang = fn -> Process.sleep(300) && :go_on end
    writer = %Writer{test: self(), after_bytes: 100, fail: hang}

    assert {:error, %Error{reason: :timeout}} =
             Archive.save(tensors(), writer, timeout: 50, chunk: 60)

    assert_closed_once()
    reader = %Reader{bytes: archive(), test: self(), on_read: fn _ -> Process.sleep(200) end}
    assert {:error, %Error{reason: :timeout}} = Archive.load(reader, timeout: 50, as: :map)
    assert_closed_once()
    written()
  end

  @tag :tmp_dir
  test "a killed caller leaves no thread and no file", %{tmp_dir: dir} do
    test = self()
    tensors = tensors()

    pids =
      for _ <- 1..20 do
        spawn(fn ->
          Archive.save(tensors, fn _ ->
            send(test, :inside)
            Process.sleep(:infinity)
          end)
        end)
      end

    for _ <- pids, do: assert_receive(:inside, 5000)
    assert Memory.live().threads == 20
    # other processes are not blocked in the meantime
    assert Task.yield(Task.async(fn -> for _ <- 1..50, do: File.read!("mix.exs") end), 5000)
    assert %Tensor{} = ExTorch.add(ExTorch.tensor([1]), 1)
    Enum.each(pids, &Process.exit(&1, :kill))
    assert wait_until(fn -> Memory.live().threads == 0 end)

    target = Path.join(dir, "a.pt")
    assert :ok = Archive.save(tensors, target)
    # killed while writing to a path
    for _ <- 1..20 do
      pid =
        spawn(fn -> Enum.each(Stream.cycle([target]), &Archive.save(tensors, &1, chunk: 10)) end)

      Process.sleep(:rand.uniform(20))
      Process.exit(pid, :kill)
    end

    assert wait_until(fn -> Memory.live().threads == 0 and File.ls!(dir) == ["a.pt"] end)
    assert {:ok, _} = Archive.load(target, as: :map)
    before = File.read!(target)

    assert {:error, %Error{reason: :not_found}} = Archive.save(tensors, Path.join(dir, "no/a.pt"))

    assert {:error, %Error{reason: :bad_argument}} =
             Archive.save(%{"a" => ExTorch.tensor(1), "a.b" => ExTorch.tensor(1)}, target)

    assert {:error, %Error{reason: :bad_argument}} =
             Archive.save(%{"a..b" => ExTorch.tensor(1)}, target)

    assert File.read!(target) == before
    assert File.ls!(dir) == ["a.pt"]
  end

  test "names with NUL bytes and with many parts" do
    for name <- ["a\0b", "a\0" <> String.duplicate("x", 100_000)] do
      assert elem(Archive.save(%{name => ExTorch.tensor(1)}, {:binary, ""}), 0) in [:ok, :error]
    end

    deep = String.duplicate("a.", 100_000) <> "a"

    assert {:error, %Error{reason: :bad_argument}} =
             Archive.save(%{deep => ExTorch.tensor(1)}, {:binary, ""})

    deep = String.duplicate("a.", 50) <> "a"
    {:ok, bytes} = Archive.save(%{deep => ExTorch.tensor(1)}, {:binary, ""})
    assert {:ok, %{^deep => _}} = Archive.load({:binary, bytes}, as: :map)
  end

  test "a reader that cannot return its size is closed once, also if close raises" do
    defmodule Stubborn do
      defstruct [:test]
      def position(r), do: {:ok, 0, r}
      def seek_end(r, _), do: {:error, :nope, r}

      def close(r) do
        send(r.test, :closed)
        raise "closing"
      end
    end

    assert_raise RuntimeError, "closing", fn ->
      Archive.load(struct(__MODULE__.Stubborn, test: self()))
    end

    assert_closed_once()
  end

  test "invalid arguments" do
    assert reason(fn -> Archive.save(%{{1, 2} => ExTorch.tensor(1)}, {:binary, ""}) end) ==
             :bad_argument

    assert reason(fn -> Archive.load({:binary, ""}, chunk: 2 ** 70) end) == :bad_argument
    assert reason(fn -> Archive.load({:binary, ""}, timeout: 2 ** 70) end) == :bad_argument
    assert reason(fn -> Archive.save([1], {:binary, ""}) end) == :bad_argument

    assert reason(fn -> Archive.save(%{1 => ExTorch.tensor(1)}, {:binary, ""}) end) ==
             :bad_argument

    assert reason(fn -> Archive.save(self(), {:binary, ""}) end) == :bad_argument
    assert reason(fn -> Archive.save(ExTorch.tensor(1), 7) end) == :bad_argument
    assert reason(fn -> Archive.load(7) end) == :bad_argument
    assert reason(fn -> Archive.load({:binary, ""}, as: :set) end) == :bad_argument
    assert reason(fn -> Archive.load({:binary, ""}, chunk: 0) end) == :bad_argument
    assert reason(fn -> Archive.load({:binary, ""}, nonsense: 0) end) == :bad_argument
    assert {:error, %Error{reason: :not_found, path: "/nowhere"}} = Archive.load("/nowhere")
    released = ExTorch.tensor(1)
    Tensor.release(released)
    assert {:error, %Error{reason: :released}} = Archive.save(released, %Writer{test: self()})
    assert_closed_once()
  end

  @tag :no_asan
  test "memory is bounded by the chunk" do
    tensor = ExTorch.op("ones", [[128 * 1024 * 1024]], dtype: :float32)

    most =
      in_task(fn ->
        :ok = Archive.save(ExTorch.tensor(1), fn _ -> :ok end)
        before = rss()
        most = :counters.new(1, [])

        :ok =
          Archive.save(tensor, fn data ->
            if byte_size(data) > 1000,
              do: :counters.put(most, 1, max(:counters.get(most, 1), rss() - before))

            :ok
          end)

        :counters.get(most, 1)
      end)

    assert most < 32 * 1024 * 1024
    Tensor.release(tensor)
  end
end
