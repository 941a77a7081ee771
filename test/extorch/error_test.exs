defmodule ExTorch.ErrorTest do
  use ExTorch.Case

  describe "public_message/1" do
    # Real errors of a server: each is about something in a directory, on a node, or behind a URL.
    @tag :tmp_dir
    test "has no path, node, URL or token of the server", %{tmp_dir: dir} do
      path = Path.join(dir, "upload 1.pt")
      File.write!(path, "<html><title>Sign in</title>")
      link = Path.join(dir, "loop")
      File.ln_s!(link, link)
      short = Path.join(dir, "short.pt")
      File.write!(short, binary_part(File.read!("test/fixtures/2.14.1/many.pt"), 0, 300))

      url =
        ExTorch.Source.HTTP.new("http://127.0.0.1:1/a.pt?sig=s3cret", token: "s3cret", retries: 0)

      errors =
        for source <- [path, short, link, dir, Path.join(dir, "missing"), url],
            opts <- [[], [strict: true], [mmap: true], [limits: [pickle_bytes: 1]]],
            {:error, error} <- [ExTorch.load(source, opts)],
            do: error

      assert length(errors) > 15
      remote = ExTorch.Source.Remote.new(:"other@10.0.0.5", "/srv/models/a.pt")
      {:error, unreachable} = ExTorch.load(remote)

      for error <- [unreachable | errors] do
        text = Error.public_message(error)
        assert String.valid?(text) and text != ""

        for secret <- [dir, Path.basename(path), "s3cret", "127.0.0.1", "10.0.0.5", "/srv", "@"],
            do: refute(text =~ secret, "#{inspect(secret)} in #{inspect(text)}")
      end
    end

    test "says what is wrong with the data" do
      {:error, error} = ExTorch.load({:binary, "<html><title>Sign in</title>"})

      assert Error.public_message(error) ==
               "the file is an HTML page, not a checkpoint: \"Sign in\" (byte 0)" or
               Error.public_message(error) ==
                 "the file is an HTML page, not a checkpoint: \"Sign in\""
    end

    test "keeps names of the file, whatever they contain" do
      error = Error.new(:corrupt, ~S(the record "a;b \" / c" is damaged; download it again))
      assert Error.public_message(error) == ~S(the record "a;b \" / c" is damaged)
      error = Error.new(:corrupt, "cannot read ~/x/y.pt and /etc/x, C:\\a\\b; see n@h")
      assert Error.public_message(error) == "cannot read … and …, …"
      error = Error.new(:truncated, "an odd \" quote on node a@b")
      refute Error.public_message(error) =~ "@"
    end

    test "every reason has a text" do
      {:ok, types} = Code.Typespec.fetch_types(Error)

      {_, {:reason, {:type, _, :union, atoms}, []}} =
        Enum.find(types, &match?({_, {:reason, _, _}}, &1))

      for {:atom, _, reason} <- atoms do
        assert Error.public_message(Error.new(reason, "at /srv/a")) =~ ~r/\A[^\/]+\z/
      end
    end
  end

  test "a tensor of another node, or a struct that ExTorch did not make, is refused in words" do
    fake = %{ExTorch.ones({2}) | resource: make_ref()}
    error = assert_raise Error, fn -> Tensor.to_list(fake) end
    assert {error.reason, error.message =~ "another node"} == {:bad_argument, true}
    assert inspect(fake) =~ "bad_argument"
  end

  test "the usual mistakes are named" do
    ckpt = ExTorch.Checkpoint.open!("test/fixtures/2.14.1/many.pt")

    for {fun, words} <- [
          {fn -> ExTorch.Checkpoint.tensor(ckpt, :t01) end,
           "expected the name of a tensor to be a string"},
          {fn -> ExTorch.Checkpoint.keys("x.pt") end, ~s(open!/2 returns it, got "x.pt")},
          {fn -> Tensor.to_list("x") end,
           ~s(expected a tensor \(see ExTorch.tensor/2\), got "x")},
          {fn -> ExTorch.ones(-3) end, "expected a shape"},
          {fn -> ExTorch.ones({2, 2.5}) end, "expected a shape"}
        ] do
      assert assert_raise(Error, fun).message =~ words
    end

    ExTorch.Checkpoint.close(ckpt)
  end

  test "names of dtypes and devices, and shapes of one dimension" do
    assert ExTorch.ones(3).shape == {3}

    for {name, dtype} <- [
          f16: :float16,
          bf16: :bfloat16,
          i64: :int64,
          s8: :int8,
          u8: :uint8,
          c64: :complex64
        ],
        do: assert(ExTorch.zeros({1}, dtype: name).dtype == dtype)

    assert ExTorch.zeros({1}, dtype: "torch.float64").dtype == :float64
    assert Tensor.to(ExTorch.ones(1), "cpu").device == :cpu
    assert Tensor.to(ExTorch.ones(1), "half").dtype == :float16

    assert {:ok, _} = ExTorch.load("test/fixtures/2.14.1/many.pt", device: "cpu")
    assert {:ok, _} = ExTorch.load("test/fixtures/2.14.1/many.pt", device: %{"cpu" => "cpu:0"})

    if ExTorch.Device.cuda_count() == 0 do
      for device <- ["cuda:0", {:cuda, 0}] do
        error = assert_raise Error, fn -> ExTorch.ones(1, device: device) end
        assert error.reason != :bad_argument, error.message
      end
    end

    for device <- ["cuda:", "cuda:x", "cuda:-1", "cuda:128", "tpu", ""],
        do: assert(reason(fn -> ExTorch.ones(1, device: device) end) == :bad_argument)
  end

  unless Code.ensure_loaded?(Nx) do
    test "without Nx, ExTorch.Nx says to add it" do
      error = assert_raise Error, fn -> ExTorch.Nx.to_nx(ExTorch.ones(1)) end
      assert error.message =~ ~s({:nx, )
    end
  end
end
