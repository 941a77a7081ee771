defmodule ExTorch.Checkpoint.StateDictTest do
  # The flat map of any file, and a checkpoint as Enumerable and Access.
  use ExTorch.Case
  alias ExTorch.{Checkpoint, Store}
  alias ExTorch.Python.Dict
  alias ExTorch.Test.{FileSource, Python}

  @moduletag :tmp_dir

  describe "what Python writes" do
    @describetag :python

    # Writes files with torch, and beside each the names that torch's own state_dict() has.
    defp write!(dir, script) do
      Python.run!(
        """
        import torch, sys, torch.nn as nn
        dir = sys.argv[1] + "/"
        def note(name, keys): open(dir + name + ".txt", "w").write("\\n".join(keys))
        #{script}
        """,
        [dir]
      )

      &{Path.join(dir, &1), dir |> Path.join(&1 <> ".txt") |> File.read!() |> String.split("\n")}
    end

    @tag :torch
    test "a whole module has the names of its state dict", %{tmp_dir: dir} do
      file =
        write!(dir, """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.lin = nn.Linear(2, 3)
                self.norm = nn.BatchNorm1d(3)
                self.layers = nn.ModuleList([nn.Conv1d(2, 2, 1), nn.Sequential(nn.Linear(1, 1))])
                self.plist = nn.ParameterList([nn.Parameter(torch.ones(2), requires_grad=False)])
                self.register_buffer("cache", torch.ones(2), persistent=False)
                self.register_buffer("none", None)
                self.register_parameter("no_parameter", None)
                self.attribute = torch.zeros(4)
                self.nested = {"x": [torch.ones(1)]}
                self.tied = self.lin
        model = Model()
        torch.save(model, dir + "module.pt")
        torch.save(model, dir + "legacy.pt", _use_new_zipfile_serialization=False)
        torch.save({"model": model, "ema": None, "epoch": 3}, dir + "yolo.pt")
        for name in ["module.pt", "legacy.pt", "yolo.pt"]: note(name, model.state_dict().keys())
        torch.save(model.state_dict(), dir + "values.pt")
        """)

      {values, names} = {ExTorch.load!(Path.join(dir, "values.pt")), elem(file.("module.pt"), 1)}

      for {name, opts} <- [
            {"module.pt", []},
            {"legacy.pt", []},
            {"yolo.pt", [top_level_key: "model"]},
            {"yolo.pt", [top_level_key: :auto]}
          ] do
        {path, ^names} = file.(name)
        assert {:ok, %Dict{pairs: pairs}} = Checkpoint.state_dict(path, [ordered: true] ++ opts)
        assert Enum.sort(Enum.map(pairs, &elem(&1, 0))) == Enum.sort(names)
        for {name, tensor} <- pairs, do: assert(Tensor.equal?(tensor, values[name]), name)
        tensors = Map.new(pairs)
        assert Tensor.requires_grad(tensors["lin.weight"])
        refute Tensor.requires_grad(tensors["plist.0"])
        refute Tensor.requires_grad(tensors["norm.running_mean"])
        # tied: a write through one name is seen through the other
        ExTorch.op("fill_", [tensors["tied.weight"], 7.0])
        assert Tensor.to_list(ExTorch.max(tensors["lin.weight"])) == 7.0
      end

      {path, names} = file.("yolo.pt")

      assert Enum.sort(Map.keys(Checkpoint.state_dict!(path))) ==
               Enum.sort(Enum.map(names, &"model.#{&1}"))
    end

    test "a TorchScript file", %{tmp_dir: dir} do
      file =
        write!(dir, """
        model = torch.jit.script(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)))
        torch.jit.save(model, dir + "script.pt")
        note("script.pt", model.state_dict().keys())
        """)

      {path, names} = file.("script.pt")
      tensors = Checkpoint.state_dict!(path)
      assert Enum.sort(Map.keys(tensors)) == Enum.sort(names)
      assert Tensor.requires_grad(tensors["0.weight"])
    end

    test "a training checkpoint", %{tmp_dir: dir} do
      file =
        write!(dir, """
        model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.rand(4, 2)).sum().backward()
        optimizer.step()
        torch.save({"epoch": 1, "state_dict": model.state_dict(), "ema": model.state_dict(),
                    "optimizer": optimizer.state_dict()}, dir + "a.pt")
        torch.save({"generator": model.state_dict(), "discriminator": model.state_dict()}, dir + "b.pt")
        note("a.pt", model.state_dict().keys())
        """)

      {path, names} = file.("a.pt")

      for key <- ["state_dict", :auto],
          do: assert(keys(path, top_level_key: key) == Enum.sort(names))

      assert keys(path, []) == Enum.sort(Checkpoint.keys(Checkpoint.open!(path)))
      assert "optimizer.state.0.exp_avg" in keys(path, [])

      assert keys(path, top_level_key: "optimizer.state", only: ~r/^0/) ==
               ~w(0.exp_avg 0.exp_avg_sq 0.step)

      assert {:error, %Error{reason: :not_found, message: message}} =
               Checkpoint.state_dict(path, top_level_key: "stat_dict")

      assert message =~ ~s("state_dict")
      two = Path.join(dir, "b.pt")

      assert {:error, %Error{reason: :ambiguous} = error} =
               Checkpoint.state_dict(two, top_level_key: :auto)

      assert {error.path, error.message =~ ~s("generator", "discriminator")} == {two, true}
    end
  end

  defp keys(source, opts), do: source |> Checkpoint.state_dict!(opts) |> Map.keys() |> Enum.sort()

  test "every format and source gives the names of keys/1", %{tmp_dir: dir} do
    for file <- Path.wildcard("test/fixtures/*/*.{pt,safetensors,stream}"),
        {:ok, ckpt} <- [Checkpoint.open(file)],
        names = Checkpoint.keys(ckpt),
        names == Enum.uniq(names),
        source <- [file, {:binary, File.read!(file)}, %FileSource{path: file}] do
      tensors = Checkpoint.state_dict!(source)
      # attributes of a pickled module
      assert Map.keys(tensors) -- names == []
      assert map_size(tensors) == length(names) or file =~ "module"

      for entry <- Checkpoint.entries(ckpt), tensor = tensors[entry.name] do
        assert {entry.shape, entry.dtype} == {tensor.shape, tensor.dtype}
      end
    end

    index = Path.join(dir, "model.safetensors.index.json")

    Store.collect_from!(Store.Sharded.new(index, max_shard_size: 4), %{
      "a" => ExTorch.ones({1}),
      "b" => ExTorch.ones({1})
    })

    for source <- [index, dir], do: assert(keys(source, []) == ["a", "b"])
    assert keys(dir, only: "x.b", rename: [{~r/^/, "x."}]) == ["x.b"]
  end

  test "names: filters see the new ones, collisions and ambiguous names are errors", %{
    tmp_dir: dir
  } do
    path = Path.join(dir, "a.pt")
    ExTorch.save!(%{"m" => %{"a.w" => ExTorch.ones({1}), "b.w" => ExTorch.ones({2})}}, path)
    rename = [{~r/^a\./, "x."}]
    assert keys(path, top_level_key: "m", rename: rename, only: {:prefix, "x"}) == ["x.w"]

    assert keys(path, rename: &String.upcase/1, except: fn _, entry -> entry.shape == {2} end) ==
             ["M.A.W"]

    assert {:error, %Error{reason: :ambiguous}} =
             Checkpoint.state_dict(path, rename: [{~r/.*/, "same"}])

    assert reason(fn -> Checkpoint.state_dict(path, rename: fn _ -> 1 end) end) == :bad_argument

    for bad <- [[rename: 1], [rename: [{"(", ""}]], [top_level_key: 1], [except: 1], [x: 1], :x] do
      assert reason(fn -> Checkpoint.state_dict(path, bad) end) == :bad_argument
    end

    ExTorch.save!(%{0 => ExTorch.ones({1}), "0" => ExTorch.ones({1})}, path)
    assert {:error, %Error{reason: :ambiguous} = error} = Checkpoint.state_dict(path)
    assert {error.path, error.message =~ ~s(["0"])} == {path, true}
    assert {:error, %Error{reason: :not_found}} = Checkpoint.state_dict(Path.join(dir, "none.pt"))
    ExTorch.save!(ExTorch.ones({1}), path)
    assert keys(path, []) == [""]
    ExTorch.save!(%{"epoch" => 1}, path)
    assert keys(path, top_level_key: :auto) == []
  end

  describe "a checkpoint" do
    setup %{tmp_dir: dir} do
      path = Path.join(dir, "a.pt")
      in_task(fn -> ExTorch.save!(Map.new(1..5, &{"t#{&1}", ExTorch.full({2}, &1)}), path) end)
      [path: path]
    end

    test "is enumerable, lazily", %{path: path} do
      ckpt = Checkpoint.open!(%FileSource{path: path, log: self()})
      flush()
      assert Enum.count(ckpt) == 5
      assert Enum.map(Enum.take(ckpt, 2), &elem(&1, 0)) == ["t1", "t2"]
      assert length(flush()) <= 4
      assert {"t4", tensor} = Enum.at(ckpt, 3)
      assert Tensor.to_list(tensor) == [4.0, 4.0]
      assert Enum.at(ckpt, 5) == nil
      assert ckpt |> Enum.slice(1..4//2) |> Enum.map(&elem(&1, 0)) == ["t2", "t4"]
      assert for({name, t} <- ckpt, do: {name, t.shape}) == for(i <- 1..5, do: {"t#{i}", {2}})
      assert ckpt |> Stream.map(&elem(&1, 0)) |> Enum.to_list() == Checkpoint.keys(ckpt)
      refute Enum.member?(ckpt, {"t1", 1})

      assert Enum.map(Enum.zip(ckpt, 1..2), fn {{name, _}, i} -> {name, i} end) == [
               {"t1", 1},
               {"t2", 2}
             ]

      Checkpoint.close(ckpt)
      assert reason(fn -> Enum.to_list(ckpt) end) == :released
    end

    test "has access by name", %{path: path} do
      ckpt = Checkpoint.open!(path)
      assert Tensor.to_list(ckpt["t2"]) == [2.0, 2.0]
      assert Tensor.to_list(ckpt[["t3"]]) == [3.0, 3.0]
      assert ckpt["t6"] == nil
      assert get_in(ckpt, ["t1"]).shape == {2}
      assert reason(fn -> put_in(ckpt["t1"], 1) end) == :bad_argument
      assert reason(fn -> pop_in(ckpt["t1"]) end) == :bad_argument
      assert reason(fn -> ckpt[:t1] end) == :bad_argument
      Checkpoint.close(ckpt)
      assert reason(fn -> ckpt["t1"] end) == :released
    end
  end

  defp flush do
    receive do
      message -> [message | flush()]
    after
      0 -> []
    end
  end
end
