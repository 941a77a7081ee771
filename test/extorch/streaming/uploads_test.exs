defmodule ExTorch.UploadsTest do
  # Uploads: the writer for LiveView and the body of a Plug, with stubs for both.
  use ExTorch.Case
  alias ExTorch.Streaming.{Body, UploadWriter}

  defmodule Conn do
    defstruct [:chunks, :test]
    def read_body(%{chunks: [:silent | _]}, _opts), do: {:error, :timeout}
    def read_body(%{chunks: [last]} = conn, _opts), do: {:ok, last, %{conn | chunks: []}}

    def read_body(%{chunks: [chunk | chunks]} = conn, opts) do
      send(conn.test, {:read, opts[:length]})
      {:more, chunk, %{conn | chunks: chunks}}
    end
  end

  defp all(term), do: term |> saved(format: :zip) |> chunks([100]) |> Enum.to_list()

  defp model, do: %{"w" => ExTorch.tensor([[1.0, 2.0]]), "b" => ExTorch.tensor([3])}

  test "tensors of an upload are available before it ends" do
    test = self()
    {:ok, state} = UploadWriter.init(on_tensor: fn name, _ -> send(test, name) end)
    assert UploadWriter.meta(state) == %{}

    {:ok, state} =
      Enum.reduce(all(model()), {:ok, state}, fn piece, {:ok, state} ->
        UploadWriter.write_chunk(piece, state)
      end)

    assert_received "w"
    assert {:ok, state} = UploadWriter.write_chunk("behind it", state)
    assert {:ok, state} = UploadWriter.close(state, :done)
    assert %{term: term} = UploadWriter.meta(state)
    assert Tensor.to_list(term["w"]) == [[1.0, 2.0]]
  end

  test "an upload that is not a checkpoint, ends early or is canceled" do
    assert {:error, %Error{reason: :bad_argument}} = UploadWriter.init(nonsense: 1)
    {:ok, state} = UploadWriter.init([])
    page = "<html>" <> String.duplicate(" ", 2000)

    assert {:error, %Error{reason: :corrupt} = error, state} =
             UploadWriter.write_chunk(page, state)

    assert {:error, ^error, state} = UploadWriter.write_chunk("more", state)
    assert %{error: ^error} = UploadWriter.meta(state)
    assert {:error, ^error} = UploadWriter.close(state, :done)
    assert {:ok, _} = UploadWriter.close(state, {:error, :gone})

    {:ok, state} = UploadWriter.init([])
    {:ok, state} = UploadWriter.write_chunk(binary_part(saved(model()), 0, 100), state)
    assert {:error, %Error{reason: :truncated}} = UploadWriter.close(state, :done)

    {:ok, state} = UploadWriter.init([])
    {:ok, state} = UploadWriter.write_chunk(binary_part(saved(model()), 0, 100), state)
    assert {:ok, _} = UploadWriter.close(state, :cancel)
  end

  test "messages of errors contain no paths of the server" do
    whole = saved(model(), format: :zip)

    for bytes <- [binary_part(whole, 0, 300), binary_part(whole, 9, 300), flip_bit(whole, 1, 1)] do
      conn = %Conn{chunks: Enum.to_list(chunks(bytes, [100])) ++ [""], test: self()}
      assert {:error, %Error{path: nil} = error, _conn} = Body.load(conn)
      refute Exception.message(error) =~ "/"
    end

    defmodule BrokenConn do
      defstruct []
      def read_body(_conn, _opts), do: {:error, {:enospc, "/var/tmp/plug-1/multipart-2"}}
    end

    assert {:error, %Error{reason: :io} = error, _conn} = Body.load(struct(BrokenConn))
    refute Exception.message(error) =~ "/"
  end

  test "the body of an HTTP request" do
    conn = %Conn{chunks: all(model()), test: self()}
    assert {:ok, term, %Conn{chunks: []}} = Body.load(conn)
    assert Tensor.to_list(term["b"]) == [3]
    assert_received {:read, 1_048_576}
    assert {:ok, _, _} = Body.load(%{conn | chunks: all(model()) ++ [""]}, length: 5)
    assert_received {:read, 5}

    assert {:error, %Error{reason: :corrupt}, _} =
             Body.load(%{conn | chunks: all(model()) ++ ["x"]})

    assert {:error, %Error{reason: :corrupt}, _} =
             Body.load(%{conn | chunks: [Enum.join(all(model()), "") <> "x"]})

    assert {:error, %Error{reason: :truncated}, _} =
             Body.load(%{conn | chunks: Enum.take(all(model()), 3)})

    assert {:error, %Error{reason: :timeout}, _} = Body.load(%{conn | chunks: [:silent]})
    page = "<html>" <> String.duplicate(" ", 2000)
    assert {:error, %Error{reason: :corrupt}, _} = Body.load(%{conn | chunks: [page, "more"]})
  end

  describe "gzip" do
    defp upload(pieces, opts \\ []) do
      {:ok, state} = UploadWriter.init(opts)

      pieces
      |> Enum.reduce_while({:ok, state}, fn piece, {:ok, state} ->
        case UploadWriter.write_chunk(piece, state) do
          {:ok, state} -> {:cont, {:ok, state}}
          {:error, error, state} -> {:halt, {:error, error, state}}
        end
      end)
      |> case do
        {:ok, state} -> UploadWriter.close(state, :done)
        {:error, error, state} -> {UploadWriter.close(state, {:error, error}), error}
      end
    end

    defp body(pieces, opts \\ []), do: Body.load(%Conn{chunks: pieces, test: self()}, opts)

    test "is decompressed as it arrives, in pieces of any size" do
      packed = :zlib.gzip(saved(model(), format: :zip))
      <<first, rest::binary>> = packed
      two = :zlib.gzip(binary_part(saved(model()), 0, 40))
      members = two <> :zlib.gzip(binary_part(saved(model()), 40, byte_size(saved(model())) - 40))

      for pieces <- [[packed], [<<first>>, "", rest], for(<<b <- packed>>, do: <<b>>), [members]] do
        assert {:ok, state} = upload(pieces)
        assert Tensor.to_list(UploadWriter.meta(state).term["w"]) == [[1.0, 2.0]]
        assert {:ok, term, _conn} = body(pieces)
        assert Tensor.to_list(term["b"]) == [3]
      end

      # a name is known before the rest has arrived
      test = self()
      {:ok, state} = UploadWriter.init(on_tensor: fn name, _ -> send(test, name) end)
      {:ok, state} = UploadWriter.write_chunk(packed, state)
      assert_received "w"
      assert {:ok, _} = UploadWriter.close(state, :done)
    end

    test "errors: cut, damaged, more after the checkpoint, not a checkpoint, too large" do
      whole = saved(model(), format: :zip)
      packed = :zlib.gzip(whole)
      half = binary_part(packed, 0, div(byte_size(packed), 2))
      assert {:error, %Error{reason: :truncated}} = upload([half])
      assert {:error, %Error{reason: :truncated}, _} = body([half])
      assert {:error, %Error{reason: :truncated}} = upload([<<0x1F>>])
      assert {:error, %Error{reason: :truncated}} = upload([])
      assert {:error, %Error{reason: :truncated}, _} = body([""])

      damaged = <<0x1F, 0x8B, 8, 0>> <> String.duplicate("x", 200)

      assert {{:ok, _}, %Error{reason: :corrupt, message: "invalid gzip" <> _}} =
               upload([damaged])

      assert {:error, %Error{reason: :corrupt}, _} = body([damaged, "more"])
      # damage behind the first pieces, when the loader has been fed already
      behind = half <> String.duplicate(<<0xFF>>, 100)
      pieces = Enum.to_list(chunks(behind, [10]))
      assert {{:ok, _}, %Error{reason: :corrupt}} = upload(pieces)
      assert {:error, %Error{reason: :corrupt}, _} = body(pieces)

      assert {:error, %Error{reason: :corrupt, message: message}, _} =
               body([:zlib.gzip(whole <> "x")])

      assert message =~ "more bytes after the end"
      assert {:error, %Error{reason: :corrupt}, _} = body([packed, :zlib.gzip("x")])
      assert {:ok, _term, _} = body([packed, :zlib.gzip(""), ""])
      page = "<html>" <> String.duplicate(" ", 2000)
      assert {{:ok, _}, %Error{reason: :corrupt}} = upload([:zlib.gzip(page)])

      # little data that becomes much
      bomb = :zlib.gzip(saved(%{"w" => ExTorch.zeros({4_000_000})}, format: :zip))
      limits = [limits: [total_bytes: 1_000_000]]
      assert {{:ok, _}, %Error{reason: :limit}} = upload([bomb], limits)
      assert {:error, %Error{reason: :limit}, _} = body([bomb], limits)
    end

    test "a callback that raises, and a cancel, leave nothing" do
      packed = :zlib.gzip(saved(model(), format: :zip))
      {:ok, state} = UploadWriter.init(on_tensor: fn _, _ -> raise "no" end)
      assert_raise RuntimeError, fn -> UploadWriter.write_chunk(packed, state) end
      {:ok, state} = UploadWriter.init([])
      {:ok, state} = UploadWriter.write_chunk(binary_part(packed, 0, 100), state)
      assert {:ok, _} = UploadWriter.close(state, :cancel)
    end
  end
end
