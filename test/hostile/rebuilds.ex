defmodule ExTorch.HostileFiles.Rebuilds do
  @moduledoc false
  # Pickles that call functions: those whose result is a copy of their argument, and those that make tensors.
  import Bitwise
  import ExTorch.HostileFiles.Instructions
  import ExTorch.Test.Pickle, except: [storage: 1, storage: 0]
  import ExTorch.Test.Formats, only: [pickled_bytes: 1, numpy_dtype: 1]

  # See ExTorch.HostileFiles.Catalogue for the elements.
  def all, do: calls() ++ tensors()

  # Calls whose result is a copy of their argument.
  defp calls do
    for {name, function, argument, size} <- [
          {"_codecs.encode of a text", global("_codecs", "encode"),
           fn n -> tuple([text(chars(n)), text("latin1")]) end, 300_000},
          {"bytearray of bytes", global("__builtin__", "bytearray"),
           fn n -> tuple([pickled_bytes(chars(n))]) end, 300_000},
          {"set of a list", global("__builtin__", "set"),
           fn n -> tuple([list(copies("N", n))]) end, 100_000},
          {"frozenset of a list", global("__builtin__", "frozenset"),
           fn n -> tuple([list(copies("N", n))]) end, 100_000},
          {"OrderedDict of a list of pairs", global("collections", "OrderedDict"),
           fn n -> tuple([list(["NN", <<0x86>>, put(9), copies(get(9), n)])]) end, 100_000},
          {"Counter of a dict", global("collections", "Counter"),
           fn n -> tuple([["}(", copies("NN", n), "u"]]) end, 100_000},
          {"defaultdict of a dict", global("collections", "defaultdict"),
           fn n -> tuple(["N", ["}(", copies("NN", n), "u"]]) end, 100_000},
          {"torch.Size of a tuple", global("torch", "Size"),
           fn n -> tuple([["(", copies(<<"K", 1>>, n), "t"]]) end, 100_000},
          {"torch.Size of a list", global("torch", "Size"),
           fn n -> tuple([list(copies(<<"K", 1>>, n))]) end, 100_000},
          {"build_intlist", global("torch.jit._pickle", "build_intlist"),
           fn n -> tuple([list(copies(<<"K", 1>>, n))]) end, 100_000},
          {"an unknown function", global("m", "f"), fn n -> tuple([text(chars(n))]) end, 300_000}
        ],
        {kept, expect} <- [{"kept", [:ok, :limit]}, {"dropped", [:ok, :limit]}] do
      call = fn -> [get(0), get(1), "R"] end

      {"calls of #{name} with one argument, #{kept}", 500, 10, 2000, expect,
       fn _, n ->
         head = [function, keep(0), argument.(size), keep(1)]

         if kept == "kept",
           do: [head, list(copies(call.(), n))],
           else: [head, copies([call.(), "0"], n), "N"]
       end}
    end ++
      [
        {"BUILD with one state again and again", 3000, 10, 20_000, [:ok, :limit],
         fn _, n ->
           [
             "}(",
             copies("NN", 20_000),
             "u",
             keep(1),
             global("collections", "OrderedDict"),
             ")R"
           ] ++
             [copies([get(1), "b"], n)]
         end},
        {"BUILD of an object with one state again and again", 3000, 10, 20_000, [:ok, :limit],
         fn _, n ->
           [
             "}(",
             for(i <- 1..20_000, do: [int(i), "N"]),
             "u",
             keep(1),
             global("m", "C"),
             ")R"
           ] ++ [copies([get(1), "b"], n)]
         end},
        {"items of an object", 200_000, 10, 1_000_000, [:ok, :limit],
         fn _, n -> [global("m", "C"), ")R", copies("Na", n), copies("NNs", n)] end},
        {"objects", 100_000, 10, 500_000, [:ok, :limit],
         fn _, n -> [global("m", "C"), keep(0), list(copies([get(0), ")R"], n))] end},
        {"new objects", 100_000, 10, 500_000, [:ok, :limit],
         fn _, n -> [global("m", "C"), keep(0), list(copies([get(0), ")", <<0x81>>], n))] end},
        {"globals", 50_000, 10, 500_000, [:ok, :limit],
         fn _, n -> list(copies(global("m", "C"), n)) end},
        {"a nested checkpoint that is used again", 1000, 2, 5000, [:ok, :corrupt, :limit],
         fn _, n ->
           [
             global("torch.storage", "_load_from_bytes"),
             keep(0),
             tuple([pickled_bytes(nested())]),
             keep(1)
           ] ++
             list(copies([get(0), get(1), "R"], n))
         end},
        {"NumPy arrays of the same bytes", 500, 2, 1000, [:ok, :limit],
         fn _, n ->
           state =
             tuple([
               int(1),
               tuple([int(250_000)]),
               numpy_dtype("f4"),
               <<0x89>>,
               pickled_bytes(copies_binary(<<0>>, 1_000_000))
             ])

           reconstruct =
             reduce(global("numpy.core.multiarray", "_reconstruct"), [
               global("numpy", "ndarray"),
               tuple([int(0)]),
               pickled_bytes("b")
             ])

           [state, keep(0), list(copies([reconstruct, get(0), "b"], n))]
         end}
      ]
  end

  defp tensors do
    [
      {"tensors of 64 dimensions with one shape", 20_000, 10, 50_000, [:ok, :limit],
       fn tensor, n -> of_one_shape(tensor, 64, n) end},
      {"tensors of one dimension with one shape", 20_000, 10, 50_000, [:ok, :limit],
       fn tensor, n -> of_one_shape(tensor, 1, n) end},
      {"tensors of 65 dimensions", 1, 1, 10, [:corrupt, :limit, :unsupported],
       fn tensor, n -> of_one_shape(tensor, 65, n) end},
      {"a tensor of many dimensions", 100_000, 100, 1_000_000, [:corrupt, :limit, :unsupported],
       fn tensor, n -> of_one_shape(tensor, n, 1) end},
      {"nested parameters", 5000, 10, 20_000, [:ok, :limit, :corrupt],
       fn tensor, n ->
         f = global("torch._utils", "_rebuild_parameter")
         odict = reduce(global("collections", "OrderedDict"), [])

         [
           f,
           keep(0),
           tensor,
           keep(1),
           for(_ <- 1..n, do: [get(0), "(", get(1), <<0x88>>, odict, "tR", keep(1)]),
           get(1)
         ]
       end},
      {"nested subclasses of tensors", 900, 10, 20_000, [:ok, :limit, :corrupt],
       fn tensor, n ->
         f = global("torch._tensor", "_rebuild_from_type_v2")

         args = fn inner ->
           tuple([
             global("m", "identity"),
             global("m", "Sub"),
             tuple([inner]),
             dict([{"a", int(1)}])
           ])
         end

         [
           f,
           keep(0),
           tensor,
           keep(1),
           for(_ <- 1..n, do: [get(0), args.(get(1)), "R", keep(1)]),
           get(1)
         ]
       end},
      {"subclasses of a tensor with one state", 20_000, 10, 40_000, [:ok, :limit],
       fn _tensor, n ->
         rebuild = reduce_args()
         f = global("torch._tensor", "_rebuild_from_type_v2")
         state = dict(for i <- 1..50, do: {"k#{i}", int(i)})

         [
           f,
           keep(0),
           rebuild,
           keep(1),
           state,
           keep(2),
           global("m", "Sub"),
           keep(3),
           global("torch._utils", "_rebuild_tensor_v2"),
           keep(4)
         ] ++
           list(copies([get(0), "(", get(4), get(3), get(1), get(2), "tR"], n))
       end},
      {"sparse tensors with one index", 10_000, 10, 30_000, [:ok, :limit, :corrupt, :unsupported],
       fn tensor, n -> sparse(tensor, n) end},
      {"quantized tensors with one scale", 10_000, 10, 30_000, [:ok, :limit, :corrupt],
       fn _, n ->
         hooks = reduce(global("collections", "OrderedDict"), [])
         parts = [part("DoubleStorage", 2), part("LongStorage", 2)]
         scheme = tuple([global("torch", "per_channel_affine"), parts, int(0)])

         args = [
           storage("QInt8Storage", 16),
           int(0),
           tuple([int(2)]),
           tuple([int(1)]),
           scheme,
           <<0x89>>,
           hooks
         ]

         again("_rebuild_qtensor", tuple(args), n)
       end},
      {"nested tensors of one buffer", 10_000, 10, 30_000, [:ok, :limit, :corrupt, :unsupported],
       fn _, n ->
         again("_rebuild_nested_tensor", tuple(List.duplicate(part("LongStorage", 2), 4)), n)
       end},
      {"meta tensors", 20_000, 10, 50_000, [:ok, :limit],
       fn _, n ->
         f = global("torch._utils", "_rebuild_meta_tensor_no_storage")

         args =
           tuple([global("torch", "float32"), tuple([int(1_000_000)]), tuple([int(1)]), <<0x89>>])

         [f, keep(0), args, keep(1), list(copies([get(0), get(1), "R"], n))]
       end},
      {"expanded tensors", 100, 1, 1000, [:ok, :limit],
       fn tensor, n ->
         [
           expanded(tensor, 1 <<< 30),
           put(7),
           list(copies(expanded(tensor, 1 <<< 30), n)),
           <<0x86>>
         ]
       end},
      {"a tensor expanded to 2^50 elements", 1, 1, 1, [:limit, :corrupt],
       fn tensor, _ -> expanded(tensor, 1 <<< 50) end},
      {"hooks of 1 MB with each tensor", 1000, 10, 5000, [:ok, :limit, :corrupt, :unsupported],
       fn _tensor, n ->
         [
           list(copies("N", 1_000_000)),
           keep(5),
           reduce_args(get(5)),
           keep(1),
           global("torch._utils", "_rebuild_tensor_v2"),
           keep(4)
         ] ++
           list(copies([get(4), get(1), "R"], n))
       end},
      {"tensors that share arguments", 50_000, 10, 100_000, [:ok, :limit],
       fn _tensor, n ->
         [reduce_args(), keep(1), global("torch._utils", "_rebuild_tensor_v2"), keep(4)] ++
           list(copies([get(4), get(1), "R"], n))
       end},
      {"persistent ids of one tuple", 50_000, 10, 100_000, [:ok, :limit],
       fn _tensor, n ->
         id =
           tuple([
             text("storage"),
             global("torch", "FloatStorage"),
             text("0"),
             text("cpu"),
             int(4),
             "N"
           ])

         [id, keep(0), list(copies([get(0), "Q"], n))]
       end}
    ]
  end

  # n calls of a function of torch._utils with the same arguments.
  defp again(function, args, n) do
    head = [global("torch._utils", function), keep(0), args, keep(1)]
    [head, list(copies([get(0), get(1), "R"], n))]
  end

  defp storage(class, numel),
    do: [
      tuple([text("storage"), global("torch", class), text("0"), text("cpu"), int(numel), "N"]),
      "Q"
    ]

  defp part(class, numel) do
    size = tuple([int(numel)])
    args = [storage(class, numel), int(0), size, tuple([int(1)]), <<0x89>>, "}"]
    reduce(global("torch._utils", "_rebuild_tensor_v2"), args)
  end

  # The arguments of _rebuild_tensor_v2. The sixth element of the id is for legacy files; others ignore it.
  defp reduce_args(hooks \\ nil) do
    id =
      tuple([
        text("storage"),
        global("torch", "FloatStorage"),
        text("0"),
        text("cpu"),
        int(4),
        "N"
      ])

    hooks = hooks || reduce(global("collections", "OrderedDict"), [])
    tuple([[id, "Q"], int(0), tuple([int(4)]), tuple([int(1)]), <<0x89>>, hooks])
  end

  defp of_one_shape(_tensor, dims, n) do
    id =
      tuple([
        text("storage"),
        global("torch", "FloatStorage"),
        text("0"),
        text("cpu"),
        int(4),
        "N"
      ])

    ones = ["(", copies(<<"K", 1>>, dims), "t"]

    [
      [id, "Q"],
      keep(0),
      ones,
      keep(1),
      "}",
      keep(2),
      global("torch._utils", "_rebuild_tensor_v2"),
      keep(3)
    ] ++
      list(copies([get(3), "(", get(0), "K", <<0>>, get(1), get(1), <<0x89>>, get(2), "tR"], n))
  end

  defp expanded(_tensor, n) do
    id =
      tuple([
        text("storage"),
        global("torch", "FloatStorage"),
        text("0"),
        text("cpu"),
        int(4),
        "N"
      ])

    reduce(global("torch._utils", "_rebuild_tensor_v2"), [
      [id, "Q"],
      int(0),
      tuple([int(n)]),
      tuple([int(0)]),
      <<0x89>>,
      "}"
    ])
  end

  defp sparse(_tensor, n) do
    layout = reduce(global("torch.serialization", "_get_layout"), [text("torch.sparse_coo")])

    id =
      tuple([text("storage"), global("torch", "LongStorage"), text("0"), text("cpu"), int(2), "N"])

    part = fn size, stride ->
      reduce(global("torch._utils", "_rebuild_tensor_v2"), [
        [id, "Q"],
        int(0),
        tuple(size),
        tuple(stride),
        <<0x89>>,
        "}"
      ])
    end

    args =
      tuple([
        layout,
        tuple([
          part.([int(1), int(1)], [int(1), int(1)]),
          part.([int(1)], [int(1)]),
          tuple([int(1 <<< 40)])
        ])
      ])

    [
      global("torch._utils", "_rebuild_sparse_tensor"),
      keep(0),
      args,
      keep(1),
      list(copies([get(0), get(1), "R"], n))
    ]
  end

  defp nested do
    storage = ExTorch.Test.Formats.legacy_storage()

    IO.iodata_to_binary(
      ExTorch.Test.Formats.legacy(storage, ["0"], [
        <<2::little-64>>,
        ExTorch.Test.Formats.two_floats()
      ])
    )
  end
end
