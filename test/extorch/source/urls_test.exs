defmodule ExTorch.Source.UrlsTest do
  # URLs where a path is expected: what cannot use them says what to call instead.
  use ExTorch.Case
  alias ExTorch.{Archive, Checkpoint, Error, Report, Store, Streaming}

  @moduletag :tmp_dir
  @url "https://user:secret@host.invalid/a/x.pt?signature=secret"

  setup %{tmp_dir: dir} do
    path = Path.join(dir, "x.pt")
    ExTorch.save!(%{"a" => ExTorch.tensor([1.0])}, path)
    {:ok, path: path}
  end

  test "nothing is written to a URL", %{path: path} do
    tensors = %{"a" => ExTorch.tensor([1.0])}
    before = File.ls!(".")

    for url <- [@url, "HTTP://host.invalid/x.safetensors", "s3://bucket/x.pt", "file:///x.pt"],
        write <- [
          &ExTorch.save(tensors, &1),
          &ExTorch.save(tensors, &1, format: :dcp),
          &ExTorch.save(tensors, URI.parse(&1), format: :zip),
          &ExTorch.convert(path, &1),
          &ExTorch.convert(path, &1, max_shard_size: 100),
          &Archive.save([ExTorch.tensor(1)], &1),
          &Report.write(path, &1)
        ] do
      assert {:error, %Error{reason: :unsupported, message: message} = error} = write.(url)
      assert message =~ "got a URL"
      assert message =~ "ExTorch.Source.HTTP"
      assert message =~ "ExTorch.Streaming.save/2"
      refute inspect(error) =~ "secret"
    end

    for store <- [Store.PyTorch, Store.Safetensors, Store.Sharded] do
      url = "https://host.invalid/model.safetensors.index.json"

      assert {:error, %Error{message: message}} = Store.collect_from(store.new(url), tensors)
      assert message =~ "URL"
    end

    assert File.ls!(".") == before
  end

  test "readers that need a file or chunks" do
    assert {:error, %Error{message: message}} = Archive.load(@url)
    assert message =~ "ExTorch.load/2"

    assert {:error, %Error{reason: :bad_argument, message: message}} = Streaming.load(@url)
    assert message =~ "ExTorch.load/2 reads paths and URLs"
    assert_raise Error, ~r/enumerable of chunks/, fn -> Streaming.tensors("x.pt") end
    assert_raise Error, ~r/HTTP.new/, fn -> ExTorch.Source.Remote.new(node(), @url) end
  end

  test "other schemes say what to use" do
    for {url, words} <- [
          {"file:///tmp/x.pt", "use the path"},
          {"hf://org/model/x.pt", "ExTorch.Source.HTTP.hub"},
          {"s3://bucket/x.pt?key=secret", "presigned"},
          {"gs://bucket/x.pt", "only http:// and https://"}
        ],
        read <- [
          &ExTorch.load/1,
          &Checkpoint.open/1,
          &Checkpoint.state_dict/1,
          &ExTorch.diff(&1, &1)
        ] do
      assert {:error, %Error{reason: :unsupported, message: message} = error} = read.(url)
      assert message =~ words
      refute inspect(error) =~ "secret"
    end

    assert_raise Error, ~r/presigned/, fn -> Store.PyTorch.new("s3://bucket/x.pt") end
  end

  test "structs that are no source" do
    assert {:error, %Error{reason: :bad_argument, message: message}} =
             ExTorch.load(~D[2024-01-01])

    assert message =~ "implements ExTorch.Source"
    # a URI is the URL that it stands for
    assert {:error, %Error{reason: :unsupported}} = ExTorch.load(URI.parse("s3://b/x.pt"))
    assert {:error, %Error{reason: :io}} = ExTorch.load(URI.parse("http://127.0.0.1:9/x.pt"))
  end
end
