defmodule ExTorch.BlobTest do
  use ExTorch.Case

  @dtypes for dtype <- ExTorch.DType.names(),
              ExTorch.DType.kind(dtype) not in [:quant, :bits],
              do: dtype

  @tag :torch
  test "to_blob and from_blob share memory" do
    t = ExTorch.arange(6, dtype: :float32)
    blob = Blob.to_blob(t)
    view = Blob.from_blob(blob, owner: :some_owner)
    assert %BlobView{owner: :some_owner} = view
    assert Blob.to_blob(view.tensor).ptr == blob.ptr
    assert Blob.to_blob(view).ptr == blob.ptr
    assert %Tensor{} = bare = Blob.from_blob(blob)
    ExTorch.op("mul_", [bare, 2])
    assert Tensor.to_list(view.tensor) == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    ExTorch.op("zero_", [t])
    assert Tensor.to_list(bare) == [0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
  end

  test "every dtype, every kind of view" do
    for dtype <- @dtypes, ExTorch.DType.supported?(dtype) do
      size = ExTorch.DType.size(dtype)
      bytes = for i <- 1..(24 * size), into: <<>>, do: <<rem(i, 2)>>
      base = Tensor.from_binary(bytes, {2, 3, 4}, dtype)

      for view <- [
            base,
            Tensor.transpose(base, 0, 2),
            Tensor.slice(base, [1, 1..2, 0..-1//2]),
            ExTorch.op("expand", [Tensor.slice(base, [0..0]), [5, 3, 4]]),
            Tensor.slice(base, [0, 0, 0]),
            Tensor.slice(base, 0, 1..0//1)
          ] do
        blob = Blob.to_blob(view)

        assert {blob.shape, blob.strides, blob.dtype, blob.device, blob.element_size} ==
                 {view.shape, Tuple.to_list(Tensor.strides(view)), dtype, :cpu, size}

        assert Tensor.to_list(Blob.from_blob(blob)) == Tensor.to_list(view)
        assert Tensor.to_list(Blob.from_blob(Map.from_struct(blob))) == Tensor.to_list(view)
      end
    end
  end

  test "shape and strides are tuples or lists; strides and device are optional" do
    t = ExTorch.arange(6)
    %{ptr: ptr} = Blob.to_blob(t)
    info = %{ptr: ptr, shape: [2, 3], dtype: {:s, 64}}
    assert Tensor.to_list(Blob.from_blob(info, owner: t).tensor) == [[0, 1, 2], [3, 4, 5]]

    for strides <- [[1, 2], {1, 2}], shape <- [[2, 3], {2, 3}] do
      info = Map.merge(info, %{shape: shape, strides: strides})
      assert Tensor.to_list(Blob.from_blob(info, owner: t).tensor) == [[0, 2, 4], [1, 3, 5]]
    end

    assert Tensor.to_list(Blob.from_blob(%{info | shape: {}}, owner: t).tensor) == 0
  end

  describe "the owner of a blob" do
    @tag :torch
    test "is a tensor that shares the memory" do
      t = Tensor.requires_grad(ExTorch.tensor([[1, 2], [3, 4]]), true)
      blob = Blob.to_blob(t)
      assert is_list(blob.strides)
      assert %Tensor{} = owner = blob.owner

      assert {owner.shape, owner.dtype, owner.device, Tensor.strides(owner)} ==
               {{2, 2}, :int64, :cpu, {2, 1}}

      assert Tensor.equal?(owner, t)
      assert Tensor.requires_grad(owner)
      assert owner.resource != t.resource
      assert Blob.to_blob(owner).ptr == blob.ptr
      assert Blob.to_blob(t) == blob
      ExTorch.op("mul_", [owner, 2])
      assert Tensor.to_list(t) == [[2, 4], [6, 8]]
    end

    @tag :torch
    test "keeps the memory alive after the tensor is released and collected" do
      blob =
        in_task(fn ->
          t = ExTorch.arange(1000)
          blob = Blob.to_blob(t)
          Tensor.release(t)
          blob
        end)

      Memory.collect()
      # allocations that would reuse the memory if it were free
      for _ <- 1..100, do: ExTorch.zeros({1000}, dtype: :int64)
      expected = Enum.to_list(0..999)
      assert Tensor.to_list(blob.owner) == expected
      assert Tensor.to_list(Blob.from_blob(blob)) == expected
      # the address alone, without the owner
      assert Tensor.to_list(Blob.from_blob(%{blob | owner: nil})) == expected
      assert Tensor.to_list(ExTorch.sum(blob.owner)) == 499_500
      assert {:ok, _, false} = ExTorch.Test.Example.take(blob.owner)
      # keeps the blob alive until here
      assert blob.element_size == 8
    end

    test "can be released; blobs and views keep the memory alive" do
      t = ExTorch.arange(1000)
      blob = Blob.to_blob(t)
      other = Blob.to_blob(t)
      view = Blob.from_blob(blob)
      pinned = Blob.from_blob(blob, owner: :some_owner)
      assert Tensor.release(blob.owner) == :ok
      assert Tensor.release(blob.owner) == :ok
      assert reason(fn -> Tensor.to_list(blob.owner) end) == :released
      assert reason(fn -> Blob.to_blob(blob.owner) end) == :released
      # the tensor is not the owner, and its next blob has a valid one
      assert Tensor.to_list(Tensor.slice(t, [999])) == 999
      assert Tensor.to_list(Tensor.slice(Blob.to_blob(t).owner, [999])) == 999
      Tensor.release(t)
      Memory.collect()
      for _ <- 1..100, do: ExTorch.zeros({1000}, dtype: :int64)
      expected = Enum.to_list(0..999)
      assert Tensor.to_list(view) == expected
      assert Tensor.to_list(pinned.tensor) == expected
      assert Tensor.to_list(Blob.from_blob(other)) == expected
      assert Tensor.to_list(Blob.from_blob(blob, owner: :some_owner).tensor) == expected
    end

    test "is freed with the last blob" do
      Memory.collect()
      before = Memory.live()

      in_task(fn ->
        t = ExTorch.ones({1_000_000})
        blobs = for _ <- 1..10, do: Blob.to_blob(t)
        Tensor.release(hd(blobs).owner)
        more = for _ <- 1..10, do: Blob.to_blob(t)
        Tensor.release(t)
        length(blobs ++ more)
      end)

      assert_live(before)
    end
  end

  @tag :torch
  test "tensors without plain memory are refused" do
    z = ExTorch.tensor([%ExTorch.Python.Complex{re: 1, im: 2}])
    conj = ExTorch.op("conj", [z])
    neg = ExTorch.op("imag", [conj])
    quantized = ExTorch.op("quantize_per_tensor", [ExTorch.ones({2}), 0.1, 0, :quint8])

    for t <- [
          conj,
          neg,
          quantized,
          ExTorch.op("to_sparse", [ExTorch.ones({2})]),
          ExTorch.ones({2}, device: :meta)
        ] do
      assert reason(fn -> Blob.to_blob(t) end) == :unsupported
    end

    # conversion to a binary materializes the values, or is refused if they are not bytes
    assert Tensor.to_binary(conj) == <<1.0::float-32-native, -2.0::float-32-native>>
    assert Tensor.to_binary(neg) == <<-2.0::float-32-native>>
    assert reason(fn -> Tensor.to_binary(quantized) end) == :unsupported
    assert reason(fn -> Tensor.to_binary(ExTorch.ones({2}, device: :meta)) end) == :unsupported
  end

  @tag :torch
  test "exported memory does not move" do
    t = ExTorch.ones({4})
    blob = Blob.to_blob(t)

    for view <- [t, Tensor.slice(t, 0, 0..1), Tensor.reshape(t, {2, 2})] do
      assert reason(fn -> ExTorch.op("resize_", [view, [1000]]) end) == :forbidden
      assert reason(fn -> ExTorch.op("set_", [view, ExTorch.zeros({9})]) end) == :forbidden

      assert reason(fn -> ExTorch.op("aten::add.out", [ExTorch.ones({99}), 1], out: view) end) in [
               :forbidden,
               :torch,
               :bad_argument
             ]
    end

    assert Blob.to_blob(t).ptr == blob.ptr
  end

  describe "invalid input" do
    defp memory do
      t = ExTorch.ones({16})
      {t, t |> Blob.to_blob() |> Map.from_struct()}
    end

    test "is an error" do
      {_t, info} = memory()

      for bad <- [
            %{ptr: 0},
            %{ptr: -1},
            %{ptr: 2 ** 64},
            %{ptr: nil},
            %{ptr: "x"},
            %{ptr: info.ptr + 1},
            %{shape: nil},
            %{shape: {-1}},
            %{shape: {4}, strides: {1, 1}},
            %{shape: {4, 4}, strides: {1}},
            %{shape: {4}, strides: {-1}},
            %{shape: {4}, strides: [1, 1]},
            %{shape: {4}, strides: [-1]},
            %{shape: {4}, strides: [1 | 1]},
            %{shape: {4}, strides: [:x]},
            %{shape: {4}, strides: :x},
            %{shape: {2 ** 62, 2 ** 62}, strides: nil},
            %{shape: {2 ** 62}, strides: {4}},
            %{shape: {2 ** 61}, strides: {1}},
            %{shape: {1.5}},
            %{shape: List.to_tuple(List.duplicate(1, 65))},
            %{dtype: :nope},
            %{dtype: nil},
            %{device: :nope},
            %{device: {:cuda, :x}}
          ] do
        assert {bad, reason(fn -> Blob.from_blob(Map.merge(info, bad)) end)} ==
                 {bad, :bad_argument}
      end

      assert reason(fn -> Blob.from_blob(%{info | dtype: :quint8}) end) == :unsupported
      assert reason(fn -> Blob.from_blob(%{info | device: :meta}) end) == :unsupported
      assert reason(fn -> Blob.from_blob(%{info | device: :mps}) end) == :unsupported
      assert reason(fn -> Blob.from_blob(%{}) end) == :bad_argument
      assert reason(fn -> Blob.from_blob(info, onwer: 1) end) == :bad_argument

      if ExTorch.Device.cuda_count() == 0 do
        assert reason(fn -> Blob.from_blob(%{info | device: {:cuda, 0}}) end) == :unsupported
      end
    end

    test "an unmapped address is an error, not a segmentation fault" do
      {_t, info} = memory()

      for ptr <- [16, 4096, 2 ** 47 - 4096, 2 ** 63, 2 ** 64 - 64] do
        assert reason(fn -> Blob.from_blob(%{info | ptr: ptr}) end) == :bad_argument
      end

      # memory that ends before the end of the tensor
      assert reason(fn -> Blob.from_blob(%{info | shape: {2 ** 40}, strides: {1}}) end) ==
               :bad_argument
    end

    test "a released owner is refused, and nothing is pinned" do
      {t, info} = memory()
      other = ExTorch.ones({1})
      Tensor.release(other)
      Memory.collect()
      before = Memory.live()
      assert reason(fn -> Blob.from_blob(info, owner: [other, t]) end) == :released
      assert_live(before)
      # keeps both alive until here
      assert {t.shape, info.shape} == {{16}, {16}}
    end
  end

  describe "frozen memory" do
    test "frozen: true freezes memory while a view of it exists" do
      t = ExTorch.ones({3})
      view = Blob.from_blob(Blob.to_blob(t), frozen: true)

      for tensor <- [t, view],
          do: assert(reason(fn -> ExTorch.op("zero_", [tensor]) end) == :frozen)

      assert reason(fn -> Blob.from_blob(Blob.to_blob(t), frozen: 1) end) == :bad_argument
      Tensor.release(view)
      Memory.collect()
      ExTorch.op("zero_", [t])
      assert Tensor.to_list(t) == [0.0, 0.0, 0.0]
    end

    @tag :torch
    test "memory of from_binary is frozen for every kind of view" do
      for binary <- [
            <<1.0::float-32-native, 2.0::float-32-native>>,
            :binary.copy(<<0, 0, 0, 63>>, 100)
          ] do
        size = div(byte_size(binary), 4)
        t = Tensor.from_binary(binary, {size}, :float32)
        blob = Blob.to_blob(t)

        ways = [
          t,
          Tensor.slice(t, 0, 1..1),
          Blob.from_blob(blob),
          Blob.from_blob(Map.delete(Map.from_struct(blob), :owner), owner: t).tensor,
          ExTorch.op("view", [t, :int32]),
          ExTorch.op("as_strided", [t, [1], [1]])
        ]

        for way <- ways do
          assert reason(fn -> ExTorch.op("zero_", [way]) end) == :frozen

          assert reason(fn ->
                   ExTorch.op("aten::ones.out", [Tuple.to_list(way.shape)], out: way)
                 end) == :frozen
        end

        assert Tensor.to_binary(t) == binary
        assert Tensor.to_list(ExTorch.op("zero_", [Tensor.clone(t)])) == List.duplicate(0.0, size)
      end
    end

    @tag :torch
    test "a binary that is given as the owner is frozen" do
      binary = :binary.copy(<<0, 0, 128, 63>>, 100)
      %{ptr: ptr} = binary |> Tensor.from_binary({100}, :float32) |> Blob.to_blob()
      Memory.collect()
      view = Blob.from_blob(%{ptr: ptr, shape: {100}, dtype: :float32}, owner: binary)
      assert reason(fn -> ExTorch.op("add_", [view, 1]) end) == :frozen
      assert binary == :binary.copy(<<0, 0, 128, 63>>, 100)
    end

    @tag :torch
    test "a binary at any depth of the owner is frozen" do
      bytes = :binary.copy(<<0, 0, 128, 63>>, 100)
      %{ptr: ptr} = bytes |> Tensor.from_binary({100}, :float32) |> Blob.to_blob()
      Memory.collect()
      tensor = ExTorch.tensor([1])
      deep = Enum.reduce(1..1000, bytes, fn _, inner -> [1, {inner}] end)

      for owner <- [
            %{bin: bytes},
            [1, {:a, bytes}],
            %{bytes => 1},
            deep,
            {"other", [bytes | :tail]},
            %{tensor: tensor, bin: bytes},
            %{resource: tensor.resource, bin: bytes}
          ] do
        # in a process of its own, so that no earlier view keeps the memory frozen
        assert in_task(fn ->
                 view =
                   Blob.from_blob(%{ptr: ptr + 40, shape: {20}, dtype: :float32}, owner: owner)

                 reason(fn -> ExTorch.op("add_", [view, 1]) end)
               end) == :frozen

        Memory.collect()
      end

      assert bytes == :binary.copy(<<0, 0, 128, 63>>, 100)
      huge = Enum.to_list(1..200_000)
      info = %{ptr: ptr, shape: {100}, dtype: :float32}
      assert reason(fn -> Blob.from_blob(info, owner: [huge, bytes]) end) == :limit
    end

    @tag :torch
    test "an out= operator does not grow its result into frozen memory" do
      ones = ExTorch.ones({100})
      bytes = :binary.copy(<<0>>, 400)
      from = Tensor.from_binary(bytes, {100}, :float32)
      to = ExTorch.zeros({100})
      binary = Tensor.to_binary(to)
      part = ExTorch.zeros({100})
      second_half = Tensor.to_binary(Tensor.slice(part, 0, 50..99))

      for tensor <- [from, to, part], length <- [0, 1, 50] do
        out = ExTorch.op("narrow", [tensor, 0, 0, length])

        for name <- ["abs", "neg", "exp"] do
          assert reason(fn -> ExTorch.op(name, [ones], out: out) end) == :frozen
        end
      end

      assert bytes == :binary.copy(<<0>>, 400)
      assert binary == :binary.copy(<<0>>, 400)
      assert second_half == :binary.copy(<<0>>, 200)

      # memory after the frozen part, and memory of its own
      ExTorch.op("abs", [ExTorch.ones({50})], out: ExTorch.zeros({50}))
      first = ExTorch.zeros({100})
      held = Tensor.to_binary(Tensor.slice(first, 0, 0..49))
      ExTorch.op("abs", [ExTorch.ones({50})], out: ExTorch.op("narrow", [first, 0, 50, 50]))
      assert held == :binary.copy(<<0>>, 200)
      assert Enum.sum(Tensor.to_list(first)) == 50.0
    end

    @tag :torch
    test "to_binary freezes the memory as long as the binary exists" do
      t = ExTorch.ones({100})
      assert reason(fn -> in_task(fn -> Tensor.to_binary(t) == "" end) end) == :none
      Memory.collect()
      ExTorch.op("add_", [t, 1])
      binary = Tensor.to_binary(t)
      assert reason(fn -> ExTorch.op("add_", [t, 1]) end) == :frozen
      assert reason(fn -> ExTorch.op("add_", [Tensor.slice(t, 0, 5..6), 1]) end) == :frozen
      part = :binary.part(binary, 0, 80)
      assert byte_size(binary) == 400
      send(self(), part)
      # only the sub-binary is left, in the mailbox
      assert_receive ^part
    end

    @tag :torch
    test "only the bytes of the binary are frozen" do
      t = ExTorch.zeros({2, 50})
      binary = Tensor.to_binary(Tensor.slice(t, [0]))
      assert reason(fn -> ExTorch.op("add_", [t, 1]) end) == :frozen
      ExTorch.op("add_", [Tensor.slice(t, [1]), 1])
      assert binary == :binary.copy(<<0>>, 200)
    end

    @tag :torch
    test "to_list, inspect and equal? never freeze" do
      t = ExTorch.ones({2})
      Tensor.to_list(t)
      inspect(t)
      Tensor.equal?(t, t)
      ExTorch.op("add_", [t, 1])
      assert Tensor.to_list(t) == [2.0, 2.0]
    end

    @tag :torch
    test "operators that write without an alias annotation" do
      x = ExTorch.rand({4, 3})
      mean = Tensor.from_binary(:binary.copy(<<0>>, 12), {3}, :float32)
      var = ExTorch.ones({3})

      batch_norm = fn mean, training ->
        ExTorch.op("batch_norm", [x, nil, nil, mean, var, training, 0.1, 1.0e-5, false])
      end

      assert reason(fn -> batch_norm.(mean, true) end) == :frozen
      assert batch_norm.(mean, false).shape == {4, 3}
      assert batch_norm.(Tensor.clone(mean), true).shape == {4, 3}
      noise = Tensor.from_binary(:binary.copy(<<0>>, 48), {4, 3}, :float32)

      assert reason(fn -> ExTorch.op("rrelu_with_noise", [x, noise, 0.1, 0.3, true]) end) ==
               :frozen

      assert reason(fn ->
               ExTorch.op("native_batch_norm", [x, nil, nil, mean, var, true, 0.1, 1.0e-5])
             end) == :frozen

      y = ExTorch.rand({2, 3, 5})

      assert reason(fn ->
               ExTorch.op("instance_norm", [y, nil, nil, mean, var, true, 0.1, 1.0e-5, false])
             end) == :frozen

      # aliases that the schema does not mention
      eval = ExTorch.op("dropout", [noise, 0.5, false])
      assert reason(fn -> ExTorch.op("add_", [eval, 1]) end) == :frozen

      sparse =
        ExTorch.op("aten::_sparse_coo_tensor_unsafe", [ExTorch.tensor([[0, 1, 2]]), mean, [3]])

      assert reason(fn -> ExTorch.op("mul_", [sparse, 2]) end) == :frozen
      # lists of written tensors
      assert reason(fn -> ExTorch.op("aten::_foreach_add_.Scalar", [[var, mean], 1]) end) ==
               :frozen
    end
  end

  describe "binaries" do
    test "share memory with tensors in both directions" do
      binary = :binary.copy(<<7>>, 1000)
      t = Tensor.from_binary(binary, {1000}, :uint8)
      again = Tensor.to_binary(t)
      assert again == binary
      assert Blob.to_blob(Tensor.from_binary(again, {10, 100}, :uint8)).ptr == Blob.to_blob(t).ptr
      # an aligned sub-binary is shared, an unaligned one is copied
      <<_::binary-size(8), aligned::binary>> = binary
      <<_::binary-size(9), odd::binary-size(80), _::binary>> = binary

      assert Blob.to_blob(Tensor.from_binary(aligned, {124}, :int64)).ptr ==
               Blob.to_blob(t).ptr + 8

      copied = Tensor.from_binary(odd, {10}, :int64)
      assert rem(Blob.to_blob(copied).ptr, 8) == 0
      assert Tensor.to_binary(copied) == odd
      assert Tensor.from_binary("", {0, 5}, :float32).shape == {0, 5}
      assert Tensor.to_binary(ExTorch.zeros({0, 3})) == ""
    end

    test "invalid shapes" do
      for {binary, shape} <- [
            {"1234", {-1}},
            {"1234", {2 ** 62, 2 ** 62}},
            {"1234", {5}},
            {"", {}},
            {"1234", {:a}}
          ] do
        assert reason(fn -> Tensor.from_binary(binary, shape, :uint8) end) == :bad_argument
      end

      assert reason(fn -> Tensor.from_binary("1", {1}, :quint8) end) == :unsupported
      assert reason(fn -> Tensor.from_binary("1", {1}, :nope) end) == :bad_argument
    end

    @tag :no_asan
    test "converting 1 GiB in either direction needs no memory" do
      gib = 1024 * 1024 * 1024
      mib = 1024 * 1024
      binary = :binary.copy(<<1>>, gib)
      assert added_rss(fn -> Tensor.from_binary(binary, {gib}, :uint8) end) < mib
      t = Tensor.from_binary(binary, {gib}, :uint8)
      assert Tensor.to_list(Tensor.slice(t, [gib - 1])) == 1
      own = ExTorch.ones({gib}, dtype: :uint8)
      assert added_rss(fn -> byte_size(Tensor.to_binary(own)) end) < mib
      assert byte_size(Tensor.to_binary(own)) == gib
      Tensor.release(own)
    end
  end
end
