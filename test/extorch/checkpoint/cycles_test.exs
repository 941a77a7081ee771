defmodule ExTorch.Checkpoint.CyclesTest do
  # Objects that contain themselves: OmegaConf's nodes refer to their parents, and so do lists, dicts and objects here.
  use ExTorch.Case
  alias ExTorch.{Checkpoint, Streaming}
  alias ExTorch.Python.{Dict, Object, Ref}
  alias ExTorch.Test.{FileSource, Python}

  @classes """
  import sys, torch, collections, gzip, pickle
  class Node:
      def __init__(self, parent=None):
          self._parent, self._content, self.weight = parent, {}, torch.arange(3.0)
  def objects():
      config = Node()
      config._content = {"a": Node(config), "b": [Node(config)]}
      config._content["a"]._content["c"] = Node(config._content["a"])
      own_list = [1]; own_list.append(own_list)
      own_dict = {"n": 1}; own_dict["self"] = own_dict
      own_tuple = ([], 2); own_tuple[0].append(own_tuple)
      ordered = collections.OrderedDict(); ordered["o"] = [ordered]
      first = {"name": "first"}; second = {"name": "second", "first": first}; first["second"] = second
      twins = [{"k": 1}]; twins.append(twins[0]); twins[0]["up"] = twins
      return {"config": config, "list": own_list, "dict": own_dict, "tuple": own_tuple, "ordered": ordered,
              "cross": [first, {"second": second}], "twins": twins, "again": config, "w": torch.ones(2)}
  """

  setup_all context do
    dir = Path.join(System.tmp_dir!(), "extorch_cycles_#{System.unique_integer([:positive])}")
    File.mkdir_p!(dir)
    on_exit(fn -> File.rm_rf!(dir) end)

    unless context[:python] == false do
      Python.torch() &&
        Python.run!(
          @classes <>
            """
            dir = sys.argv[1]
            torch.save(objects(), dir + "/zip.pt")
            torch.save(objects(), dir + "/proto4.pt", pickle_protocol=4)
            torch.save(objects(), dir + "/legacy.pt", _use_new_zipfile_serialization=False)
            for protocol in (0, 1, 2, 5):
                pickle.dump(objects(), open(dir + "/plain%d.pkl" % protocol, "wb"), protocol)
            for name in ("zip.pt", "legacy.pt", "plain2.pkl"):
                open(dir + "/" + name + ".gz", "wb").write(gzip.compress(open(dir + "/" + name, "rb").read()))
            a = []; a.append(a); d = {"a": a}; d["d"] = d
            torch.save(d, dir + "/weights_only.pt")
            torch.save({"t": objects()["tuple"]}, dir + "/tuple.pt")
            """,
          [dir]
        )
    end

    {:ok, dir: dir}
  end

  @files ~w(zip.pt proto4.pt legacy.pt plain0.pkl plain1.pkl plain2.pkl plain5.pkl zip.pt.gz legacy.pt.gz plain2.pkl.gz)

  @keys ~w(config._content.a._content.c.weight config._content.a.weight config._content.b.0.weight config.weight
           again._content.a._content.c.weight again._content.a.weight again._content.b.0.weight again.weight w)

  defp load_stream!(path, opts \\ []) do
    stream = file_stream(path, 1000)
    stream = if String.ends_with?(path, ".gz"), do: Streaming.gunzip(stream), else: stream
    {:ok, object, ""} = Streaming.load(stream, opts)
    object
  end

  @tag :python
  test "the references, in every format and by every way in", %{dir: dir} do
    for file <- @files do
      path = Path.join(dir, file)
      lazy = fn source -> source |> Checkpoint.open!() |> Checkpoint.object!() end

      for object <- [
            ExTorch.load!(path),
            ExTorch.load!({:binary, File.read!(path)}),
            ExTorch.load!(%FileSource{path: path}),
            load_stream!(path),
            lazy.(path),
            lazy.({:binary, File.read!(path)})
          ] do
        check(object)
      end
    end
  end

  defp check(object) do
    assert %{"list" => [1, %Ref{path: ["list"], up: 1, down: []}]} = object
    assert %{"dict" => %{"self" => %Ref{path: ["dict"], up: 1}}} = object
    assert %{"tuple" => {[%Ref{path: ["tuple"], up: 2}], 2}} = object
    assert %{"ordered" => %{"o" => [%Ref{path: ["ordered"], up: 2}]}} = object

    assert %{
             "cross" => [
               %{"second" => %{"first" => %Ref{path: ["cross", 0], up: 2, down: []}}},
               %{"second" => %Ref{path: ["cross", 0, "second"], up: 2, down: [0, "second"]}}
             ]
           } = object

    # one object twice in the same list is one term
    assert %{"twins" => [twin, twin]} = object
    assert %{"up" => %Ref{path: ["twins"], up: 2}} = twin

    for name <- ["config", "again"] do
      assert %Object{state: %{"_parent" => nil, "_content" => content}} = object[name]

      # the place is the one where the object comes first; seen from the reference it is right in both places
      assert %Ref{path: ["config"], up: 5} = content["a"].state["_parent"]
      assert %Ref{path: ["config"], up: 6} = hd(content["b"]).state["_parent"]

      assert %Ref{path: ["config", :state, "_content", "a"], up: 5} =
               content["a"].state["_content"]["c"].state["_parent"]
    end
  end

  @tag :python
  test "names, entries, filters and single tensors", %{dir: dir} do
    for file <- @files,
        source <- [Path.join(dir, file), %FileSource{path: Path.join(dir, file)}] do
      ckpt = Checkpoint.open!(source)
      assert Enum.sort(Checkpoint.keys(ckpt)) == Enum.sort(@keys)
      assert length(Checkpoint.entries(ckpt)) == length(@keys)
      tensor = Checkpoint.tensor!(ckpt, "config._content.a._content.c.weight")
      assert Tensor.to_list(tensor) == [0.0, 1.0, 2.0]

      assert %{"w" => %Tensor{} = w} = ExTorch.load!(source, only: "w")
      assert Tensor.to_list(w) == [1.0, 1.0]
      Checkpoint.close(ckpt)
    end

    store = ExTorch.Store.PyTorch.new(Path.join(dir, "zip.pt"))
    assert Enum.sort(ExTorch.Store.keys!(store)) == Enum.sort(@keys)
  end

  @tag :python
  test "dicts that keep their order", %{dir: dir} do
    path = Path.join(dir, "zip.pt")

    for object <- [ExTorch.load!(path, ordered: true), load_stream!(path, ordered: true)] do
      assert {:ok, %Dict{pairs: [{"n", 1}, {"self", %Ref{path: ["dict"], up: 1}}]}} =
               Dict.fetch(object, "dict")
    end
  end

  @tag :python
  test "strict accepts what weights_only accepts", %{dir: dir} do
    assert {:ok, %{"a" => [%Ref{up: 1}], "d" => %Ref{path: [], up: 1}}} =
             ExTorch.load(Path.join(dir, "weights_only.pt"), strict: true)

    # a tuple that contains itself needs the opcode POP
    assert {:error, %{reason: :forbidden}} =
             ExTorch.load(Path.join(dir, "tuple.pt"), strict: true)
  end

  # ---- Saving ----

  # Whether two graphs of objects are the same, with the same identities.
  @same """
  def same(a, b, seen):
      if type(a).__name__ in ("OrderedDict", "dict") and type(b).__name__ in ("OrderedDict", "dict"): pass
      elif type(a) is not type(b): return False
      if isinstance(a, (list, dict, tuple, set, Node)):
          key = id(a)
          if key in seen: return seen[key] is b
          if not isinstance(a, (tuple, set)): seen[key] = b
      if isinstance(a, torch.Tensor): return torch.equal(a, b)
      if isinstance(a, dict): return set(a) == set(b) and all(same(a[k], b[k], seen) for k in a)
      if isinstance(a, (list, tuple)): return len(a) == len(b) and all(same(x, y, seen) for x, y in zip(a, b))
      if isinstance(a, Node): return same(a.__dict__, b.__dict__, seen)
      return a == b
  def check(o):
      c = o["config"]
      assert c._content["a"]._parent is c and c._content["b"][0]._parent is c
      assert c._content["a"]._content["c"]._parent is c._content["a"]
      # an object with tensors that the file has twice becomes two objects, each with its own cycle
      assert o["again"]._content["a"]._parent is o["again"]
      assert o["list"][1] is o["list"] and o["dict"]["self"] is o["dict"]
      assert o["tuple"][0][0] is o["tuple"] and o["tuple"][1] == 2
      assert o["ordered"]["o"][0] is o["ordered"]
      first, other = o["cross"]
      assert first["second"]["first"] is first and other["second"] is first["second"]
      assert o["twins"][0]["up"] is o["twins"] and o["twins"][1]["up"] is o["twins"]
  """

  @tag :python
  @tag :tmp_dir
  test "Python gets the cycles back", %{dir: dir, tmp_dir: tmp} do
    for file <- ~w(zip.pt legacy.pt plain0.pkl), ordered <- [false, true] do
      object = ExTorch.load!(Path.join(dir, file), ordered: ordered)

      for {format, name} <- [zip: "zip.pt", legacy: "legacy.pt"] do
        ExTorch.save!(object, Path.join(tmp, "#{ordered}.#{file}.#{name}"), format: format)
      end

      # again by ExTorch
      again = ExTorch.load!(Path.join(tmp, "#{ordered}.#{file}.zip.pt"))
      check_saved(again)
    end

    Python.run!(
      @classes <>
        @same <>
        """
        import glob
        files = glob.glob(sys.argv[1] + "/*.pt")
        assert len(files) == 12
        for file in files:
            o = torch.load(file, weights_only=False)
            check(o)
            # twins are two objects after a save, as are all terms that are used twice and not referred to
            a = objects()
            for keys in (("again",), ("config", "list", "dict", "tuple", "ordered", "cross", "w")):
                assert same([a[k] for k in keys], [o[k] for k in keys], {}), file
        """,
      [tmp]
    )
  end

  # A reference may have another path after a save, since a map has another order.
  defp check_saved(object) do
    assert %{"list" => [1, %Ref{up: 1}], "dict" => %{"self" => %Ref{up: 1}}} = object
    assert %{"tuple" => {[%Ref{up: 2}], 2}} = object
  end

  @tag :python
  @tag :tmp_dir
  test "tuples, sets, keys and arguments that contain themselves", %{tmp_dir: tmp} do
    ref = fn up -> %Ref{up: up} end
    class = %ExTorch.Python.Global{module: "__main__", name: "C"}
    call = %ExTorch.Python.Global{module: "__main__", name: "make"}

    object = %{
      # t = (l1, l2, (l3,)) and all three lists contain t
      "tuples" => {[ref.(2)], [ref.(2), 5], {[ref.(3)]}},
      # a set whose element refers to the set
      "set" => MapSet.new([%Object{class: class, new: true, state: %{"set" => ref.(3)}}]),
      # a dict whose key refers to the dict, and to itself
      "dict" => %{%Object{class: class, new: true, state: %{"d" => ref.(3), "k" => ref.(2)}} => 1},
      # make(list) where the list contains the result
      "args" => %Object{class: call, args: {[ref.(3)]}, state: %{"own" => ref.(2)}},
      # the container that is referred to comes after the reference
      "a" => %{"x" => %Ref{up: 2, down: ["z", "list"]}},
      "z" => %{"list" => [1, %Ref{up: 3, down: ["a"]}, ref.(1)]},
      "object" => %Object{
        class: class,
        new: true,
        state: %{"s" => [ref.(3)]},
        dict: nil
      }
    }

    for format <- [:zip, :legacy],
        do: ExTorch.save!(object, Path.join(tmp, "#{format}.pt"), format: format)

    Python.run!(
      """
      import sys, torch
      class C:
          pass
      class Made:
          pass
      def make(l):
          m = Made(); m.l = l; return m
      for file in ("zip", "legacy"):
          o = torch.load(sys.argv[1] + "/" + file + ".pt", weights_only=False)
          t = o["tuples"]
          assert type(t) is tuple and len(t) == 3 and t[0][0] is t and t[1][0] is t and t[1][1] == 5 and t[2][0][0] is t
          s = o["set"]
          assert type(s) is set and len(s) == 1 and next(iter(s)).set is s
          d = o["dict"]; k = next(iter(d))
          assert d[k] == 1 and k.d is d and k.k is k
          m = o["args"]
          assert type(m) is Made and m.l[0] is m and m.own is m
          z = o["z"]["list"]
          assert z[0] == 1 and o["a"]["x"] is z and z[1] is o["a"] and z[2] is z
          assert o["object"].s[0] is o["object"]
      """,
      [tmp]
    )

    for format <- [:zip, :legacy] do
      loaded = ExTorch.load!(Path.join(tmp, "#{format}.pt"))
      ExTorch.save!(loaded, Path.join(tmp, "again.pt"))
      assert ExTorch.load!(Path.join(tmp, "again.pt")) == loaded
    end
  end

  @tag :tmp_dir
  test "a part of an object is saved by itself if it has what it refers to", %{tmp_dir: tmp} do
    path = Path.join(tmp, "part.pt")

    object = %{
      "a" => %{"list" => [%Ref{path: ["a", "list"], up: 1}], "up" => %Ref{path: ["a"], up: 1}}
    }

    :ok = ExTorch.save(object["a"], path)

    assert ExTorch.load!(path) == %{
             "list" => [%Ref{path: ["list"], up: 1}],
             "up" => %Ref{path: [], up: 1}
           }

    for {term, words} <- [
          {%Ref{path: [], up: 1}, "not part of the saved term"},
          {[%Ref{path: [], up: 2}], "not part of the saved term"},
          {[%Ref{path: [], up: 1, down: [5]}], "not part of the saved term"},
          {[%Ref{path: [], up: 1, down: ["x"]}], "not part of the saved term"},
          {[1, %Ref{path: [], up: 1, down: [0]}], "does not point to a list"},
          {[%Ref{path: [], up: 0}], "not part of the saved term"},
          {[%Ref{path: [], up: "x"}], "not part of the saved term"}
        ] do
      assert {:error, %{reason: :bad_argument, message: message}} = ExTorch.save(term, path)
      assert message =~ words
    end
  end

  # ---- Written by hand ----

  import ExTorch.Test.Pickle, only: [make: 1, text: 1, dict: 1, list: 1, global: 2]

  defp load(body, opts \\ []), do: ExTorch.load({:binary, IO.iodata_to_binary(make(body))}, opts)

  defp new(state), do: [global("m", "C"), ")", <<0x81>>, state]

  test "an object in the arguments of itself, in its class and in its items" do
    # l = []; obj = C(l); l.append(obj), as Python writes it
    assert {:ok, %Object{args: {[%Ref{path: [], up: 3}]}}} =
             load([
               [global("m", "C"), "]q\0", global("m", "C"), "h\0", <<0x85>>, "Rq", <<1>>, "a"],
               [<<0x85>>, "R0h", <<1>>]
             ])

    assert {:ok, %Object{list: [%Ref{path: [], up: 2}], dict: %{"k" => %Ref{path: [], up: 2}}}} =
             load([new(["q\0"]), "h\0a", text("k"), "h\0s"])
  end

  test "a dict in the state of its own key" do
    assert {:ok, map} = load(["}q\0", new(dict([{"d", "h\0"}])), "b", <<"K", 1, "s">>])
    assert [{%Object{state: %{"d" => %Ref{path: [], up: 3, down: []}}}, 1}] = Map.to_list(map)

    # the key itself, in its own state
    assert {:ok, map} = load(["}", new("q\0"), dict([{"k", "h\0"}]), "b", <<"K", 1, "s">>])
    assert [{%Object{state: %{"k" => %Ref{path: [:key], up: 2}}}, 1}] = Map.to_list(map)
  end

  test "limits count references as leaves" do
    assert {:ok, [%Ref{}]} = load("]q\0h\0a", limits: [depth: 1])
    assert {:ok, [%Ref{}]} = load("]q\0h\0a", limits: [nodes: 2])
    assert {:error, %{reason: :limit}} = load("]q\0h\0a", limits: [nodes: 1])
  end

  test "many references are quick" do
    # a list that contains itself 100,000 times
    assert {:ok, refs} = load(["]q\0(", List.duplicate("h\0", 100_000), "e"])
    assert length(refs) == 100_000
    assert Enum.all?(refs, &(&1 == %Ref{path: [], up: 1, down: []}))

    # every one of 60 lists contains all of them
    lists = for i <- 0..59, do: ["]r", <<i::little-32>>, "0"]
    get = fn i -> ["j", <<i::little-32>>] end
    fill = for i <- 0..59, do: [get.(i), "(", Enum.map(0..59, get), "e0"]
    {time, result} = :timer.tc(fn -> load([lists, fill, get.(0)]) end)
    assert {:ok, object} = result
    assert length(object) == 60
    assert time < 20_000_000

    # 100,000 parents and children, each with a reference
    child = new([dict([{"parent", "h\0"}]), "b"])
    assert {:ok, [children | _]} = load(["]q\0", list(List.duplicate(child, 20_000)), "a"])
    assert %Object{state: %{"parent" => %Ref{path: [], up: 4}}} = List.last(children)
  end

  test "a chain of keys whose references contain the keys before is limited" do
    # each key refers to the dict that it is in, so that its path contains all keys above
    chain = fn n ->
      [
        for(i <- 0..(n - 1), do: ["}q", <<i>>, new([dict([{"d", ["h", <<i>>]}]), "b"])]),
        "N",
        List.duplicate("s", n)
      ]
    end

    assert {:ok, _} = load(chain.(8))
    assert {:error, %{reason: :limit}} = load(chain.(60))
  end

  test "a tuple that is shared with a container of its own cycle" do
    # t = ([],); t[0].append(t); {"t": t, "list": t[0]}
    body = [
      "]q\0",
      "h\0",
      <<0x85>>,
      <<"q", 1>>,
      "a0}(",
      text("t"),
      <<"h", 1>>,
      text("list"),
      "h\0u"
    ]

    assert {:ok, %{"t" => {[%Ref{path: ["t"], up: 2}]}, "list" => list}} = load(body)
    assert %Ref{path: ["t", 0], up: 1, down: ["t", 0]} = list
  end

  test "a tuple, set or object that contains itself directly cannot be saved" do
    terms = [
      {%Ref{up: 1}},
      {{%Ref{up: 2}}},
      MapSet.new([%Ref{up: 1}]),
      MapSet.new([{%Ref{up: 2}}]),
      {{%Ref{up: 2, down: [1]}}, {%Ref{up: 2, down: [0]}}},
      %Object{class: %ExTorch.Python.Global{module: "m", name: "C"}, args: {%Ref{up: 2}}}
    ]

    for term <- terms do
      error = assert_raise ExTorch.Error, fn -> Enum.to_list(Streaming.save(term)) end
      assert error.reason == :bad_argument
      assert error.message =~ "contain itself directly"
    end
  end

  test "references into a long list" do
    n = 30_000
    ring = [%Ref{up: 1}]
    references = for _ <- 1..n, do: [%Ref{up: 2, down: [n]}]
    term = List.duplicate(nil, n) ++ [ring | references]
    bytes = term |> Streaming.save() |> Enum.to_list() |> IO.iodata_to_binary()
    assert {:ok, loaded} = ExTorch.load({:binary, bytes})
    assert [[%Ref{path: [^n], up: 1}]] = List.last(loaded)
  end
end
