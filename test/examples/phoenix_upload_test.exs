defmodule ExTorch.Examples.PhoenixUploadTest do
  # The parts of examples/phoenix_upload that do not need Phoenix, and its script and styles in Chromium. The example's own
  # tests, which need Phoenix, are in its directory.
  use ExTorch.Case
  import ExUnit.CaptureIO
  alias ExTorch.Test.Browser

  @example "examples/phoenix_upload"
  @plain ~w(format contents writer shared isolated demo)
  @modules Enum.map(
             ~w(Format Contents Writer Shared Isolated Demo),
             &Module.concat(PhoenixUpload, &1)
           )
  @compile {:no_warn_undefined, @modules}

  alias PhoenixUpload.{Contents, Demo, Format, Isolated, Shared, Writer}

  setup_all do
    # Without Phoenix there is a warning about its behaviour.
    capture_io(:stderr, fn ->
      for name <- @plain, do: Code.compile_file("#{@example}/lib/phoenix_upload/#{name}.ex")
    end)

    on_exit(fn ->
      for module <- @modules do
        :code.delete(module)
        :code.purge(module)
      end
    end)
  end

  describe "the writer" do
    defp start(opts \\ []) do
      {:ok, state} = Writer.init({self(), "ref", opts})
      state
    end

    defp write(state, pieces) do
      Enum.reduce(pieces, state, fn piece, state ->
        {:ok, state} = Writer.write_chunk(piece, state)
        state
      end)
    end

    @tag :torch
    test "tells the view what is complete, and returns the tensors with their names" do
      bytes = saved(Demo.checkpoint(2), format: :zip)
      [half, rest] = bytes |> chunks([div(byte_size(bytes), 2)]) |> Enum.take(2)
      state = start(verify: true)
      assert_received {:parsed, "ref", %{tensors: 0, newest: []}}
      state = write(state, [half])

      assert_received {:parsed, "ref",
                       %{tensors: some, newest: [%{dtype: "float32"} | _] = newest}}

      assert some in 1..15 and length(newest) <= 8

      state =
        write(state, [
          rest,
          binary_part(
            bytes,
            byte_size(half) + byte_size(rest),
            byte_size(bytes) - byte_size(half) - byte_size(rest)
          )
        ])

      assert_received {:parsed, "ref", %{tensors: 16}}
      # a chunk without a new tensor
      state = write(state, ["behind it"])
      refute_received {:parsed, _, _}
      assert {:ok, state} = Writer.close(state, :done)
      assert %{term: _, tensors: tensors} = Writer.meta(state)
      assert {"model.embedding.weight", %Tensor{shape: {2048, 128}}} = hd(tensors)
    end

    @tag :torch
    test "errors, a cut file, and a cancel" do
      assert {:error, %Error{reason: :bad_argument}} = Writer.init({self(), "ref", nonsense: 1})
      page = "<html>" <> String.duplicate(" ", 2000)
      assert {:error, %Error{reason: :corrupt} = error, state} = Writer.write_chunk(page, start())
      assert {:ok, _} = Writer.close(state, {:error, error})
      bytes = saved(Demo.checkpoint(1), format: :zip)
      half = binary_part(bytes, 0, div(byte_size(bytes), 2))
      assert {:error, %Error{reason: :truncated}} = Writer.close(write(start(), [half]), :done)
      Memory.collect()
      before = Memory.live()
      state = write(start(), [half])
      assert Memory.live().bytes > before.bytes
      assert {:ok, _} = Writer.close(state, :cancel)
      assert_received {:stopped, "ref"}
      assert_live(before)
    end
  end

  describe "the contents" do
    defp contents(term, name \\ "model.pt") do
      {:ok, state} = Writer.init({self(), "ref", []})
      {:ok, state} = Writer.write_chunk(saved(term, format: :zip), state)
      {:ok, state} = Writer.close(state, :done)
      Contents.from_upload(name, Writer.meta(state))
    end

    defp labels(items), do: Enum.map(items, &elem(&1, 1))

    @tag :tmp_dir
    @tag :torch
    test "are the same of an upload and of an open checkpoint", %{tmp_dir: dir} do
      path = Path.join(dir, "model.pt")
      ExTorch.save!(Demo.checkpoint(2), path)
      uploaded = Contents.from_upload("model.pt", uploaded(File.read!(path)))
      ckpt = ExTorch.Checkpoint.open!(path, mmap: true)
      {:ok, opened} = Contents.from_checkpoint("model.pt", ckpt)

      # tensors that share memory are complete at the same time
      rows = fn contents -> contents.rows |> Enum.map(&Map.delete(&1, :index)) |> Enum.sort() end
      assert rows.(uploaded) == rows.(opened)
      assert Contents.figures(uploaded.rows).tensors == 16

      for index <- 0..15, contents <- [uploaded, opened] do
        assert {:ok, %{stats: %{min: _}, values: [[_ | _] | _]}} =
                 Contents.detail(Contents.reader(contents, index))
      end

      # a reader takes nothing but its tensor to another process
      reader = Contents.reader(uploaded, 3)
      assert :erts_debug.flat_size(reader) < 500
      {values, false} = uploaded.values
      assert {"epoch", "12"} in values and {"config.activation", ~s("gelu")} in values
      ExTorch.Checkpoint.close(ckpt)

      assert {:error, "the server could not process the data"} =
               Contents.detail(Contents.reader(opened, 0))
    end

    defp uploaded(bytes) do
      {:ok, state} = Writer.init({self(), "ref", []})
      {:ok, state} = Writer.write_chunk(bytes, state)
      {:ok, state} = Writer.close(state, :done)
      Writer.meta(state)
    end

    test "are browsed by module, searched and sorted" do
      one = fn size -> ExTorch.ones({size}) end

      pairs = [
        {"z.b", one.(1)},
        {"a.x.y", one.(5)},
        {"z", one.(3)},
        {"a.w", one.(2)},
        {"", one.(1)}
      ]

      contents = contents(%ExTorch.Python.Dict{pairs: pairs})

      assert [
               {:tensor, "z", _},
               {:module, "z", %{tensors: 1}},
               {:module, "a", %{tensors: 2, elements: 7, bytes: 28}},
               {:tensor, "", _}
             ] = Contents.level(contents, [])

      assert [{:module, "x", _}, {:tensor, "w", %{shape: "2"}}] = Contents.level(contents, ["a"])
      assert Contents.level(contents, ["none"]) == []
      assert contents |> Contents.search("A. y") |> labels() == ["a.x.y"]
      assert length(Contents.search(contents, "")) == 5
      all = Contents.search(contents, "")
      assert all |> Contents.sort(:name) |> labels() == ["", "a.w", "a.x.y", "z", "z.b"]
      assert all |> Contents.sort(:bytes) |> labels() |> hd() == "a.x.y"
      assert Contents.sort(all, :file) == all
    end

    test "of every kind of tensor and value" do
      kinds = %{
        "scalar" => ExTorch.tensor(3),
        "empty" => ExTorch.zeros({0, 4}),
        "nan" => ExTorch.tensor([:nan, :infinity]),
        "cube" => ExTorch.ones({3, 4, 5, 6}),
        "sparse" => ExTorch.op("to_sparse", [ExTorch.ones({2, 2})]),
        "list" => [1, {nil, true}, %{"deep" => 2.5}],
        "bytes" => %ExTorch.Python.Bytes{data: <<255, 0>>},
        1 => "one"
      }

      contents = contents(kinds)
      rows = Map.new(contents.rows, &{&1.name, &1})
      detail = fn name -> Contents.detail(Contents.reader(contents, rows[name].index)) end
      assert {:ok, %{values: [["3"]]}} = detail.("scalar")
      assert rows["scalar"].shape == "scalar"
      assert {:ok, %{values: [], stats: %{min: nil}}} = detail.("empty")
      assert {:ok, %{values: [[":nan", ":infinity"]]}} = detail.("nan")
      assert {:ok, %{values: values}} = detail.("cube")
      assert length(values) == 5 and length(hd(values)) == 5
      assert {:ok, %{stats: %{mean: 1.0}}} = detail.("sparse")

      {values, false} = contents.values

      for pair <- [{"list.0", "1"}, {"list.1.0", "nil"}, {"list.2.deep", "2.5"}, {"1", ~s("one")}],
          do: assert(pair in values)

      {many, true} = contents(%{"n" => Enum.to_list(1..100_000)}).values
      assert length(many) == 200
    end

    test "errors and figures in words" do
      assert Format.upload_error(:too_large, 4_000_000_000) =~ "at most 4.0 GB"

      secret = %Error{
        reason: :corrupt,
        message: "invalid pickle in /srv/secret; do this",
        path: "/srv/secret"
      }

      assert Format.upload_error({:writer_failure, secret}, 1) ==
               "This checkpoint cannot be read. Invalid pickle in …."

      for error <- [
            :too_many_files,
            :not_accepted,
            :empty,
            :external_client_failure,
            {:writer_failure, :enoent}
          ],
          do: assert(Format.upload_error(error, 1) =~ ~r/^[A-Z][^\/%{]*\.$/)

      assert Enum.map([0, 999, 1000, 999_949, 999_950, 1_234_567_890], &Format.bytes/1) ==
               ["0 B", "999 B", "1.0 kB", "999.9 kB", "1.0 MB", "1.2 GB"]

      assert Enum.map([0.0, 0.123456, 1.0e-20, nil, 7], &Format.number/1) == [
               "0.0",
               "0.1235",
               "1.0e-20",
               "–",
               "7"
             ]

      assert Format.count(12) == "12"
    end
  end

  describe "the shared checkpoint" do
    @describetag :tmp_dir

    defp share(dir, size) do
      path = Path.join(dir, "shared.pt")
      ExTorch.save!(%{"w" => ExTorch.full({size}, size, dtype: :float32)}, path)
      path
    end

    defp owner(path) do
      test = self()

      start_supervised!(
        {Shared, path: path, name: :shared_test, on_change: &send(test, {:changed, &1})}
      )

      assert_receive {:changed, 1}, 60_000
    end

    @tag :torch
    test "is replaced while others read it, and the old one is freed", %{tmp_dir: dir} do
      path = share(dir, 100_000)
      owner(path)
      assert Shared.reload(:shared_test) == {:ok, :unchanged}
      one = Memory.live()

      # Readers ask all the time. Each answer is a whole checkpoint, the old or a new one.
      test = self()

      readers =
        for _ <- 1..4 do
          Task.async(fn ->
            Stream.repeatedly(fn -> look() end)
            |> Enum.reduce_while(0, fn size, count ->
              if count == 0, do: send(test, :reading)
              if size == 300_000, do: {:halt, count}, else: {:cont, count + 1}
            end)
          end)
        end

      for _ <- readers, do: assert_receive(:reading, 60_000)

      for size <- [200_000, 300_000] do
        share(dir, size)
        assert Shared.reload(:shared_test) == {:ok, :reloaded}
      end

      for reader <- readers, do: assert(Task.await(reader, 60_000) >= 1)
      assert Shared.current(:shared_test).generation == 3

      # The file is 800,000 bytes longer than the first one. Each of the others has more than the rest.
      assert wait_until(fn -> Memory.live().mapped - one.mapped < 1_000_000 end, 2000)
    end

    defp look do
      %{contents: contents} = Shared.current(:shared_test)
      {:ok, tensor} = Contents.reader(contents, 0).()
      {size} = tensor.shape

      true =
        Tensor.to_list(ExTorch.min(tensor)) == size and
          Tensor.to_list(ExTorch.max(tensor)) == size

      size
    end

    @tag :torch
    test "stays if the new file cannot be read, and if its owner dies", %{tmp_dir: dir} do
      path = share(dir, 10)
      owner(path)
      File.write!(path <> ".new", "not a checkpoint")
      File.rename!(path <> ".new", path)
      assert {:error, %Error{}} = Shared.reload(:shared_test)
      assert look() == 10

      pid = Process.whereis(:shared_test)
      Process.exit(pid, :kill)
      assert look() == 10
      assert wait_until(fn -> Process.whereis(:shared_test) not in [nil, pid] end)
      share(dir, 20)
      assert Shared.reload(:shared_test) == {:ok, :reloaded}
      assert look() == 20
      stop_supervised!(Shared)
      assert Shared.current(:shared_test) == nil
    end

    @tag :torch
    test "is not there until its file is", %{tmp_dir: dir} do
      path = Path.join(dir, "shared.pt")
      start_supervised!({Shared, path: path, name: :shared_test})
      assert {:error, %Error{reason: :not_found}} = Shared.reload(:shared_test)
      assert Shared.current(:shared_test) == nil
      share(dir, 5)
      assert Shared.reload(:shared_test) == {:ok, :reloaded}
      assert look() == 5
    end
  end

  describe "a request body in a process of its own" do
    defmodule Conn do
      defstruct [:chunks, :owner]
      # As web servers do: only the process of the connection may read.
      def read_body(%{owner: owner}, _opts) when owner != self(),
        do: raise("another process reads")

      def read_body(%{chunks: [:closed | _]}, _opts), do: {:error, :closed}
      def read_body(%{chunks: [:raise | _]}, _opts), do: raise("the client is gone")
      def read_body(%{chunks: [last]} = conn, _opts), do: {:ok, last, %{conn | chunks: []}}

      def read_body(%{chunks: [chunk | rest]} = conn, _opts),
        do: {:more, chunk, %{conn | chunks: rest}}
    end

    defp conn(chunks), do: %Conn{chunks: chunks, owner: self()}
    defp load(conn), do: Isolated.run(conn, &load_body/1)

    defp load_body(body) do
      case ExTorch.Streaming.Body.load(body) do
        {:ok, term, _body} -> {:ok, map_size(term)}
        {:error, error, _body} -> {:error, error}
      end
    end

    test "leaves nothing in the process of the connection" do
      pieces =
        %{"w" => ExTorch.ones({100_000})}
        |> saved(format: :zip)
        |> chunks([65_536])
        |> Enum.to_list()

      Memory.collect()
      before = Memory.live()
      assert {{:ok, 1}, %Conn{chunks: []}} = load(conn(pieces))
      # without a garbage collection of this process, which is alive
      assert Enum.any?(1..3000, fn _ -> Memory.live() == before or Process.sleep(10) != :ok end)
      assert {{:ok, 1}, _} = load(conn([pieces |> Enum.join() |> :zlib.gzip()]))
      assert {{:error, %Error{reason: :truncated}}, _} = load(conn(Enum.take(pieces, 3)))
      assert {{:error, %Error{reason: :io}}, _} = load(conn([hd(pieces), :closed]))
    end

    test "ends with its connection, whatever happens" do
      pieces =
        %{"w" => ExTorch.ones({100_000})}
        |> saved(format: :zip)
        |> chunks([65_536])
        |> Enum.to_list()

      test = self()

      assert_raise RuntimeError, "the client is gone", fn ->
        Isolated.run(conn([hd(pieces), :raise]), fn body ->
          send(test, {:worker, self()})
          load_body(body)
        end)
      end

      # The process of the connection goes on.
      assert_received {:worker, worker}
      monitor = Process.monitor(worker)
      assert_receive {:DOWN, ^monitor, _, _, _}, 60_000

      assert {{:error, %RuntimeError{message: "mine"}}, _} =
               Isolated.run(conn([]), fn _ -> raise "mine" end)

      assert {{:error, %RuntimeError{}}, _} =
               Isolated.run(conn([]), fn _ -> Process.exit(self(), :kill) end)

      connection =
        spawn(fn ->
          Isolated.run(conn([]), fn body ->
            send(test, {:worker, self()})
            receive do: (:read -> send(test, {:read, Isolated.read_body(body, [])}))
          end)
        end)

      assert_receive {:worker, worker}, 60_000
      Process.exit(connection, :kill)
      send(worker, :read)
      assert_receive {:read, {:error, :closed}}, 60_000
    end
  end

  describe "the files of the example" do
    @sources Path.wildcard("#{@example}/**/*.{ex,exs}")
             |> Enum.reject(&(&1 =~ ~r"/(deps|_build)/"))

    test "are Elixir, and every event of a page is handled" do
      assert length(@sources) > 20

      for path <- @sources do
        source = File.read!(path)
        assert {:ok, _} = Code.string_to_quoted(source, file: path)

        for [event] <-
              Regex.scan(~r/phx-(?:click|change|submit)="(\w+)"/, source, capture: :all_but_first) do
          assert source =~ ~s[def handle_event("#{event}"], "#{path}: #{event}"
        end
      end
    end

    test "have a style for every class, and a class for every style" do
      css = File.read!("#{@example}/priv/static/app.css")

      styled =
        MapSet.new(
          Regex.scan(~r/\.([a-z][\w-]*)/, Regex.replace(~r/[:({].*?[;)}]/, css, " ")),
          &Enum.at(&1, 1)
        )

      styled =
        MapSet.union(
          styled,
          MapSet.new(Regex.scan(~r/^\s*(?:[^{]*)\.([a-z][\w-]*)/m, css), &Enum.at(&1, 1))
        )

      pages = Enum.map_join(@sources, "\n", &File.read!/1)

      used =
        for [classes] <- Regex.scan(~r/class="([^"]*)"/, pages, capture: :all_but_first),
            class <- String.split(classes),
            into: MapSet.new(),
            do: class

      assert MapSet.difference(used, styled) == MapSet.new()
      unused = styled |> MapSet.difference(used) |> Enum.reject(&String.starts_with?(&1, "phx-"))
      assert unused == []
    end

    test "are those that the guide shows" do
      guide = File.read!("guides/phoenix.md")

      shown =
        Regex.scan(~r/```elixir\n# (examples\/\S+)\n(.*?)```/s, guide, capture: :all_but_first)

      assert length(shown) >= 5

      for [path, code] <- shown do
        source = unindented(File.read!(path))
        # "…" stands for lines that are left out
        for part <- String.split(unindented(code), "…\n"),
            do: assert(source =~ String.trim(part), "#{path} does not contain:\n#{part}")
      end
    end

    defp unindented(text), do: Regex.replace(~r/^ +/m, text, "")
  end

  describe "in Chromium" do
    @describetag :chromium
    @describetag :no_asan
    @describetag :tmp_dir

    setup %{tmp_dir: dir} do
      browser = Browser.start()
      on_exit(fn -> File.rm_rf(browser.directory) end)

      for file <- ~w(app.css app.js),
          do: File.cp!("#{@example}/priv/static/#{file}", Path.join(dir, file))

      [browser: browser, page: Path.join(dir, "page.html")]
    end

    # The page of the example, as far as the script and the styles see it.
    defp page(path) do
      File.write!(path, """
      <!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><meta name="csrf-token" content="token-1">
      <link rel="icon" href="data:,"><link rel="stylesheet" href="app.css"><script>
      const calls = [];
      const Phoenix = { Socket: class {} };
      const LiveView = { LiveSocket: class {
        constructor(path, socket, options) { calls.push([path, socket === Phoenix.Socket, options.params._csrf_token]); }
        connect() { calls.push("connected"); }
      } };
      </script><script defer src="app.js"></script></head><body>
      <form><input type="hidden" name="empty" value="false"><label class="drop" phx-drop-target="x">
      <input type="file" class="file"><strong>Drop</strong><span>note</span></label></form>
      <input type="file" id="alone">
      <p id="beside">text</p><p class="error"><span>error</span></p><p class="said">said</p><p class="badge">version</p>
      <script defer>addEventListener("load", () => { document.documentElement.dataset.ready = "1" })</script>
      </body></html>
      """)

      path
    end

    defp choose(browser, selector, path) do
      {:ok, %{"root" => %{"nodeId" => root}}} = Browser.call(browser, "DOM.getDocument")
      query = %{nodeId: root, selector: selector}
      {:ok, %{"nodeId" => node}} = Browser.call(browser, "DOM.querySelector", query)
      {:ok, _} = Browser.call(browser, "DOM.setFileInputFiles", %{nodeId: node, files: [path]})
    end

    defp finish(browser) do
      wrong = ["Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled"]
      assert for({method, _} = event <- Browser.events(browser), method in wrong, do: event) == []
      Browser.stop(browser)
    end

    test "the script connects, tells of empty files, and keeps the page if a file is dropped beside",
         %{browser: browser, page: page, tmp_dir: dir} do
      Browser.open(browser, page(page))
      assert Browser.eval(browser, "calls") == [["/live", true, "token-1"], "connected"]

      [empty, full] =
        for {name, data} <- [{"empty", ""}, {"full", "x"}],
            do: Path.join(dir, name) |> tap(&File.write!(&1, data))

      field = "document.querySelector('[name=empty]').value"
      choose(browser, "form input[type=file]", empty)
      Browser.wait(browser, "#{field} === 'true'")
      choose(browser, "form input[type=file]", full)
      Browser.wait(browser, "#{field} === 'false'")
      choose(browser, "#alone", empty)

      prevented = fn selector ->
        Browser.eval(browser, """
        (() => { const event = new Event("drop", { bubbles: true, cancelable: true });
        document.querySelector("#{selector}").dispatchEvent(event); return event.defaultPrevented })()
        """)
      end

      assert prevented.("#beside")
      refute prevented.(".drop strong")
      finish(browser)
    end

    test "text has enough contrast, in light and dark", %{browser: browser, page: page} do
      Browser.open(browser, page(page))

      pairs =
        for text <- ~w(text soft accent), back <- ~w(back panel hover drop), do: [text, back]

      pairs =
        IO.iodata_to_binary(
          ExTorch.CLI.JSON.encode(pairs ++ [["bad", "bad-back"], ["good", "good-back"]])
        )

      for scheme <- ~w(light dark) do
        Browser.scheme(browser, scheme)

        low =
          Browser.eval(browser, """
          (() => {
            const style = getComputedStyle(document.documentElement);
            const probe = document.body.appendChild(document.createElement("i"));
            const light = (name) => {
              probe.style.color = style.getPropertyValue("--" + name);
              const parts = getComputedStyle(probe).color.match(/[\\d.]+/g).slice(0, 3);
              const [r, g, b] = parts.map((c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
              return 0.2126 * r + 0.7152 * g + 0.0722 * b;
            };
            const ratio = (a, b) => { const [x, y] = [light(a), light(b)]; return (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05); };
            return #{pairs}.map(([a, b]) => [a, b, ratio(a, b)]).filter(([, , value]) => !(value >= 4.5));
          })()
          """)

        assert low == [], scheme
      end

      backs =
        for scheme <- ~w(light dark) do
          Browser.scheme(browser, scheme)
          Browser.eval(browser, "getComputedStyle(document.documentElement).backgroundColor")
        end

      assert length(Enum.uniq(backs)) == 2
      finish(browser)
    end
  end
end
