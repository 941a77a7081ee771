defmodule ExTorch.Checkpoint.FixturesTest do
  # Every tensor of every fixture: its description and its bytes, with every function that reads.
  use ExTorch.Case
  alias ExTorch.{Checkpoint, DType}
  alias ExTorch.Python.{Complex, RawTensor}
  alias ExTorch.Test.{Fixtures, Python}

  # torch 1.13 does not save the conj bit: its file contains other values than the tensor.
  @fixtures Path.wildcard("test/fixtures/[12]*/*.{pt,stream,safetensors}")
            |> Enum.reject(&String.contains?(&1, ["script", "sparse", "1.13.0a0/conj"]))

  for file <- @fixtures do
    test "#{file}" do
      file = unquote(file)
      expected = Fixtures.description(file)

      for {source, opts} <- read_options(file) do
        {:ok, ckpt} = Checkpoint.open(source, opts)
        # tensors of several storages cannot be read from a source
        several = is_struct(source) and String.contains?(file, "quantized")
        loaded = unless several, do: ExTorch.load!(source, opts)

        for %{"kind" => "tensor", "path" => path} = item <- expected do
          {:ok, entry} = Checkpoint.entry(ckpt, path)
          assert entry.path == path
          assert Tuple.to_list(entry.strides) == item["strides"]
          assert entry.offset == item["offset"]
          in_place = loaded && at(loaded, path)

          if loaded,
            do:
              Fixtures.assert_tensor(
                item,
                entry,
                in_place,
                "#{file} #{inspect(path)} loaded, #{inspect(opts)}"
              )

          case Checkpoint.tensor(ckpt, path) do
            {:error, %{reason: :unsupported, message: "cannot read a tensor of several" <> _}} ->
              assert is_struct(source)

            {:ok, tensor} ->
              Fixtures.assert_tensor(
                item,
                entry,
                tensor,
                "#{file} #{inspect(path)}, #{inspect(opts)}"
              )

              assert Tensor.requires_grad(tensor) == item["requires_grad"]

            {:error, error} ->
              assert error.reason == :unsupported
              refute DType.supported?(entry.dtype)
              assert %RawTensor{} = in_place
          end
        end

        assert length(Checkpoint.keys(ckpt)) ==
                 Enum.count(expected, &(&1["kind"] in ["tensor", "meta"]))

        Checkpoint.close(ckpt)
      end
    end
  end

  defp read_options(file) do
    [path, binary, struct] = Fixtures.sources(file)

    for(opts <- [[], [mmap: true], [verify: true], [ordered: true]], do: {path, opts}) ++
      [{binary, []}, {struct, []}]
  end

  defp at(object, []), do: object

  defp at(object, [key | path]) when is_list(object), do: object |> Enum.at(key) |> at(path)

  defp at(object, [key | path]) when is_tuple(object), do: object |> elem(key) |> at(path)

  defp at(%ExTorch.Python.Dict{} = dict, [key | path]),
    do: dict |> ExTorch.Python.Dict.fetch(key) |> elem(1) |> at(path)

  defp at(object, [key | path]), do: object |> Map.fetch!(key) |> at(path)

  test "the values of the nested fixture that are not tensors" do
    for version <- ~w(1.13.0a0 2.6.0 2.14.1), suffix <- ~w(pt proto4.pt) do
      {:ok, object} = ExTorch.load("test/fixtures/#{version}/nested.#{suffix}")
      assert object["epoch"] == 12
      assert object["best"] == 0.25
      assert object["name"] == "ünïcode ✓"
      assert object["done"] == true
      assert object["big"] == 2 ** 80
      assert object["neg"] == -(2 ** 70)
      assert object["inf"] == :infinity
      assert object["nan"] == :nan
      assert object["raw"] == %ExTorch.Python.Bytes{data: <<0, 255, 16>>}
      assert object["size"] == {2, 3}
      assert object["dtype"] == %ExTorch.Python.DType{name: :float16}
      assert object["device"] == %ExTorch.Python.Device{type: "cpu", index: nil}
      assert object["ids"] == MapSet.new([1, 2, 3])
      assert object["z"] == %Complex{re: 1.0, im: -2.0}
      assert object[5] == "integer key"
      assert object[{1, "t"}] == "tuple key"
      assert {%Tensor{}, nil} = object["pair"]
      assert [1.5, 2.5, %Tensor{}] = object["history"]
      assert object["optimizer"]["param_groups"] |> hd() |> Map.get("betas") == {0.9, 0.999}
    end
  end

  @tag :python
  @tag :tmp_dir
  test "random checkpoints of the installed torch", %{tmp_dir: dir} do
    Python.run!(
      """
      import sys, torch, collections, random
      random.seed(5); torch.manual_seed(5)
      dts = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64]
      for n in range(12):
          obj, lines = {}, []
          bases = []
          for i in range(random.randint(1, 30)):
              if bases and random.random() < 0.4:
                  t = random.choice(bases)
                  for _ in range(random.randint(1, 3)):
                      if t.dim() and random.random() < 0.5:
                          d = random.randrange(t.dim()); s = t.size(d)
                          a = random.randint(0, s); b = random.randint(a, s)
                          t = t.narrow(d, a, b - a)
                          if t.size(d) > 1 and random.random() < 0.3: t = t[(slice(None),) * d + (slice(None, None, 2),)]
                      elif t.dim() > 1:
                          t = t.transpose(random.randrange(t.dim()), random.randrange(t.dim()))
                      elif t.dim() == 1 and t.size(0) == 1: t = t.expand(random.randint(1, 4))
              else:
                  shape = [random.randint(0, 6) for _ in range(random.randint(0, 4))]
                  dt = random.choice(dts)
                  t = (torch.randn(shape) * 10).to(dt)
                  bases.append(t)
              obj["k%d" % i] = t
              raw = t.detach().contiguous().clone()
              import ctypes
              h = ctypes.string_at(raw.data_ptr(), raw.numel() * raw.element_size()).hex() if raw.numel() else ""
              lines.append("%s|%s|%s|%s|%d|%s" % ("k%d" % i, str(t.dtype)[6:], ",".join(map(str, t.shape)), ",".join(map(str, t.stride())), t.storage_offset(), h))
          torch.save(obj, "%s/%d.pt" % (sys.argv[1], n))
          open("%s/%d.txt" % (sys.argv[1], n), "w").write("\\n".join(lines))
      """,
      [dir]
    )

    for n <- 0..11 do
      path = Path.join(dir, "#{n}.pt")
      ckpt = Checkpoint.open!(path)
      loaded = ExTorch.load!(path)

      for line <- Path.join(dir, "#{n}.txt") |> File.read!() |> String.split("\n", trim: true) do
        [name, dtype, shape, strides, offset, hex] = String.split(line, "|")
        entry = Checkpoint.entry!(ckpt, name)
        assert to_string(entry.dtype) == dtype
        assert entry.shape |> Tuple.to_list() |> Enum.join(",") == shape
        assert entry.strides |> Tuple.to_list() |> Enum.join(",") == strides
        assert to_string(entry.offset) == offset

        for tensor <- [Checkpoint.tensor!(ckpt, name), loaded[name]] do
          assert Base.encode16(Tensor.to_binary(tensor), case: :lower) == hex, "#{name} of #{n}"
        end
      end
    end
  end
end
