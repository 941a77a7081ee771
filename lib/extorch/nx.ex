if Code.ensure_loaded?(Nx) do
  defmodule ExTorch.Nx do
    @moduledoc """
    Converts tensors to and from Nx, and reads checkpoints into Nx. Only compiled if Nx is available.

        ExTorch.tensor([[1.0, 2.0]]) |> ExTorch.Nx.to_nx() |> Nx.add(1) |> ExTorch.Nx.from_nx()

    Nx also takes ExTorch tensors as they are, because they implement `Nx.LazyContainer`:

        Nx.add(ExTorch.tensor([[1.0, 2.0]]), 1)

    ## Memory

    | backend | direction | memory | frozen | freed |
    |---|---|---|---|---|
    | `Nx.BinaryBackend` | `to_nx/2` | shared | yes, while the Nx tensor exists | by the garbage collector, with the last of both |
    | `Nx.BinaryBackend` | `from_nx/1` | shared | yes | by the garbage collector, with the last of both |
    | `Torchx.Backend` | `to_nx/2` | copied | no | each by itself |
    | `Torchx.Backend` | `to_nx/2` with `lease: true` | shared | yes, until `release/1` | by `release/1`, if no ExTorch tensor needs it |
    | `Torchx.Backend` | `from_nx/1` | shared, also after deallocation of the Nx tensor | yes | with the last of both |
    | `EXLA.Backend` and others | `to_nx/2` | copied by the backend | no | each by itself |
    | `EXLA.Backend` and others | `from_nx/1` | copied by the backend, to a binary | yes | each by itself |
    | others with `Nx.to_pointer/2` | `from_nx/1` | as the result of an operation of the backend, which may share or copy | yes | with the last of both |

    Frozen memory cannot be written: operators that would do so raise `:frozen` (see `ExTorch.Tensor`). So an Nx tensor
    never changes. A tensor that is not contiguous, that is a conj or neg view, or that is
    not on the device of the backend is copied first. Torchx stores
    `u16` and `u32` as wider types: these are always copied.

    `EXLA.Backend` never shares memory: bytes go through a binary in both directions.

    Both functions accept nested containers: maps, lists, tuples and structs that implement `Nx.Container`. What is no tensor,
    and what is converted already, stays as it is.

    ## Leases

    Torchx can use memory by its address, but cannot keep it alive. With `lease: true` ExTorch keeps the memory until you
    release the Nx tensor:

        x = ExTorch.Nx.to_nx(tensor, backend: Torchx.Backend, lease: true)
        …
        ExTorch.Nx.release(x)

    A lease also covers what Torchx makes of the tensor without a copy: slices, transposed and reshaped tensors. Release
    it when none of them is used any more. `ExTorch.Memory.leases/0` lists the leases that have not been released; their
    memory is kept until the node stops.
    """

    alias ExTorch.{Checkpoint, DType, Error, Options, Tensor}
    alias ExTorch.Checkpoint.StateDict
    alias ExTorch.Nx.{Lease, LazyTensor}

    @type container :: term()

    @without_values [Nx.TemplateBackend, Nx.Defn.Expr]

    @doc """
    Converts a tensor, or a container of tensors, to Nx.

    Tensors of dtype `:bool` become `{:u, 8}`. A dtype that Nx does not support raises `:unsupported`. A tensor without
    elements raises `:unsupported`, too; in a container, this error takes its place, because such tensors are often
    harmless, and Nx has none.

        ExTorch.load!("model.pt") |> ExTorch.Nx.to_nx()

    ## Options

      * `:backend` - a backend, or `{backend, options}`. Defaults to `Nx.default_backend/0`.
      * `:names` - the names of the axes
      * `:lease` - if `true`, shares the memory with Torchx, until `release/1`. Has no effect for backends that do not need
        it. Defaults to `false`.
    """
    @spec to_nx(Tensor.t() | container(), keyword()) :: Nx.Tensor.t() | container()
    def to_nx(tensor_or_container, opts \\ []) do
      opts = Options.validate!(opts, [:backend, :names, lease: false])
      Options.booleans!(opts, [:lease])

      unless opts[:names] == nil or (is_list(opts[:names]) and not List.improper?(opts[:names])),
        do: Options.invalid!(:names, "a list of the names of the axes", opts[:names])

      {backend, backend_opts} = backend!(opts[:backend])
      options = %{backend: {backend, backend_opts}, names: opts[:names], lease: opts[:lease]}

      case tensor_or_container do
        %Tensor{} = tensor -> convert!(tensor, nil, options)
        %Tensor.BlobView{tensor: tensor} -> convert!(tensor, nil, options)
        %LazyTensor{} = lazy -> convert!(LazyTensor.read!(lazy), lazy.name, options)
        container -> convert_parts(container, options)
      end
    end

    @doc """
    Converts an Nx tensor, or a container of them, to ExTorch tensors. Vectorized axes become leading dimensions.

    Memory that is shared stays valid whatever happens to the Nx tensor (`Nx.backend_deallocate/1`,
    `Nx.backend_transfer/2`).

        params |> ExTorch.Nx.from_nx() |> ExTorch.save!("model.pt")
    """
    @spec from_nx(Nx.Tensor.t() | container()) :: Tensor.t() | container()
    def from_nx(nx_or_container) do
      to_tensor = fn nx, _path, acc -> {nx |> Nx.devectorize() |> to_tensor(), acc} end
      {converted, nil} = traverse(nx_or_container, nil, {Nx.Tensor, to_tensor}, [])
      converted
    end

    @doc """
    Ends the lease of an Nx tensor that `to_nx/2` returned, or of all Nx tensors in a container.

    The Nx tensor is deallocated: using it afterwards is an error. What Torchx made of it without a copy must not be used
    any more. The tensor may be deallocated already, and it may be one that Torchx made of the leased one.

    Returns true if there was a lease.

        x = ExTorch.Nx.to_nx(tensor, backend: Torchx.Backend, lease: true)
        sum = x |> Nx.sum() |> Nx.to_number()
        ExTorch.Nx.release(x)
    """
    @spec release(Nx.Tensor.t() | container()) :: boolean()
    def release(nx_or_container) do
      {_, found} =
        traverse(nx_or_container, false, {Nx.Tensor, &{&1, release_one(&1, &2) or &3}}, [])

      found
    end

    # What has no memory any more must not have an address either.
    defp release_one(nx, _path) do
      with false <- Lease.release(nil, nx.data), false <- release_view(nx) do
        false
      else
        {:ok, holder} ->
          for data <- Enum.uniq([nx.data, holder]),
              data,
              do: Nx.backend_deallocate(%{nx | data: data})

          true
      end
    end

    defp release_view(%{data: %backend{}} = nx) do
      if pointers?(backend) and ExTorch.Memory.leases() != [] do
        nx |> Nx.devectorize() |> views() |> Enum.find_value(false, &release_at/1)
      else
        false
      end
    rescue
      # It is deallocated.
      _error in [ArgumentError, RuntimeError, ErlangError] -> false
    end

    defp release_at(view) do
      with {:ok, address, _size} <- pointer(view),
           do: Lease.release(address, nil),
           else: (_ -> false)
    end

    # The tensor with its axes in every order. Torchx returns the address of one that is contiguous, and copies others.
    defp views(nx) do
      axes = Nx.axes(nx)
      orders = if length(axes) in 2..4, do: permutations(axes), else: [axes]
      Stream.map(orders, &(nx |> Nx.transpose(axes: &1) |> Nx.new_axis(0)))
    end

    defp permutations([]), do: [[]]

    defp permutations(axes),
      do: for(axis <- axes, rest <- permutations(axes -- [axis]), do: [axis | rest])

    @doc """
    Opens a checkpoint and returns a map of names to lazy tensors, which are read when Nx uses them.

        tensors = ExTorch.Nx.read!("pytorch_model.bin")
        Nx.to_tensor(tensors["encoder.weight"])

    The source is any that `ExTorch.Checkpoint.state_dict/2` takes: a file of any format, an index of shards or the
    directory that contains one, a URL. The file is mapped, so that a tensor is copied at most once: not at all to
    `Nx.BinaryBackend`, once to other backends. The result is what Bumblebee's `:safetensors_reader` returns:

        Bumblebee.load_model({:local, "model"}, safetensors_reader: &ExTorch.Nx.read!/1)

    Takes the options of `ExTorch.Checkpoint.state_dict/2`: `:only`, `:except`, `:rename`, `:top_level_key`, and those of
    `ExTorch.Checkpoint.open/2`. `:mmap` defaults to `true`. With `mmap: false` a tensor is read from the file each time
    it is used.

    The file stays open as long as one of the tensors exists.
    """
    @spec read!(Checkpoint.source(), keyword()) :: %{String.t() => LazyTensor.t()}
    def read!(source, opts \\ []) do
      known = Keyword.put(Checkpoint.Options.known_options(), :mmap, true)
      {selection, opts} = StateDict.split!(opts, known)
      Checkpoint.Options.check!(opts)
      parts = Error.unwrap!(StateDict.open_parts(source, opts))
      items = Error.unwrap!(StateDict.items(parts, selection, source))
      Map.new(items, fn {name, ckpt, entry} -> {name, LazyTensor.new(name, ckpt, entry)} end)
    end

    # ---- To Nx ----

    # Converts to what the Nx tensor has: backend, device, names and vectorized axes. A template has none: the default backend.
    @doc false
    @spec convert_like(Tensor.t(), Nx.Tensor.t()) :: Nx.Tensor.t()
    def convert_like(tensor, nx) do
      converted = to_nx(tensor, backend: backend_of(nx.data))
      converted = Nx.vectorize(converted, nx.vectorized_axes)
      if Nx.rank(converted) == Nx.rank(nx), do: %{converted | names: nx.names}, else: converted
    end

    defp backend_of(%{__struct__: Torchx.Backend, ref: {device, _}}),
      do: {Torchx.Backend, device: device}

    defp backend_of(%backend{}),
      do: if(backend in @without_values, do: nil, else: backend)

    # Converts what ExTorch.load/2 returns.
    @doc false
    @spec convert_object(term(), term()) :: term()
    def convert_object(object, backend) do
      convert_parts(object, %{backend: backend!(backend), names: nil, lease: false})
    end

    defp convert_parts(container, options) do
      convert = fn tensor, path, acc -> {convert_part(tensor, path, options), acc} end
      {converted, nil} = traverse(container, nil, {Tensor, convert}, [])
      converted
    end

    # The template of a tensor, or of an entry of a checkpoint.
    @doc false
    @spec template!(Tensor.t() | Checkpoint.Entry.t(), String.t() | nil) :: Nx.Tensor.t()
    def template!(tensor, name) do
      if 0 in Tuple.to_list(tensor.shape), do: raise(empty(tensor, name))
      Nx.template(tensor.shape, type!(tensor.dtype, name))
    end

    defp convert!(tensor, name, options) do
      case convert(tensor, name, options) do
        %Nx.Tensor{} = nx -> nx
        error -> raise error
      end
    end

    defp convert_part(tensor, path, options) do
      name = if path != [], do: path |> Enum.reverse() |> Enum.map_join(".", &text/1)
      convert(tensor, name, options)
    end

    defp text(key) when is_binary(key) or is_atom(key) or is_number(key), do: to_string(key)
    defp text(key), do: inspect(key, limit: 5)

    # Returns the Nx tensor, or an error if there are no elements.
    defp convert(tensor, name, options) do
      type = type!(tensor.dtype, name)

      if Tensor.numel(tensor) == 0 do
        empty(tensor, name)
      else
        template = named_template!(tensor, type, name, options.names)

        if options.lease and leasable?(tensor, type, options.backend),
          do: from_pointer(plain(tensor), template, options.backend),
          else: from_binary(tensor, template, name, options.backend)
      end
    end

    defp named_template!(tensor, type, name, names) do
      Nx.template(tensor.shape, type, names: names)
    rescue
      error in ArgumentError ->
        message =
          "cannot name the axes of #{subject(name)} of the shape #{inspect(tensor.shape)}: "

        reraise Error.new(:bad_argument, message <> error.message), __STACKTRACE__
    end

    defp empty(tensor, name) do
      Error.new(
        :unsupported,
        "#{subject(name)} has the shape #{inspect(tensor.shape)}; Nx has no tensors without elements"
      )
    end

    defp subject(nil), do: "the tensor"
    defp subject(name), do: "the tensor #{Error.quoted(name)}"

    # The template has the shape already: another backend would have to compile a reshape.
    defp from_binary(tensor, template, name, {backend, backend_opts}) do
      binary = binary!(tensor, name)
      from_binary(backend, template, binary, backend_opts, "#{subject(name)} (#{tensor.dtype})")
    end

    # A sparse tensor has no bytes: the error has the name of the tensor.
    defp binary!(tensor, nil), do: Tensor.to_binary(tensor)

    defp binary!(tensor, name) do
      Tensor.to_binary(tensor)
    rescue
      error in Error ->
        reraise %{error | message: "#{subject(name)}: #{error.message}"}, __STACKTRACE__
    end

    defp from_binary(backend, template, binary, backend_opts, subject) do
      backend.from_binary(template, binary, backend_opts)
    rescue
      error in [ArgumentError, FunctionClauseError, RuntimeError] ->
        reason = error |> Exception.message() |> String.split("\n") |> hd()

        reraise Error.new(
                  :unsupported,
                  "#{inspect(backend)} does not take #{subject}: #{reason}"
                ),
                __STACKTRACE__
    end

    # Checks the option :backend.
    @doc false
    @spec backend!(term()) :: {module(), keyword()}
    def backend!(nil), do: Nx.default_backend()

    def backend!({module, opts} = backend) when is_atom(module) and is_list(opts) do
      unless Code.ensure_loaded?(module) and function_exported?(module, :from_binary, 3),
        do: Options.invalid!(:backend, "a backend of Nx that is loaded or can be loaded", backend)

      backend
    end

    def backend!(module) when is_atom(module), do: backend!({module, []})

    def backend!(other),
      do: Options.invalid!(:backend, "a backend of Nx, or a backend and its options", other)

    # Torchx stores u16 and u32 as wider types.
    defp leasable?(tensor, type, {backend, opts}) do
      pointers?(backend) and
        same_device?(tensor.device, opts[:device] || default_device(backend)) and
        type not in [{:u, 16}, {:u, 32}]
    end

    # The configuration of Torchx may say another one.
    defp default_device(Torchx.Backend), do: apply(Torchx, :default_device, [])
    defp default_device(_backend), do: :cpu

    # Conj and neg views are copied: their memory does not have their values.
    defp plain(tensor) do
      resolved = ExTorch.op("resolve_neg", [ExTorch.op("resolve_conj", [tensor])])
      Tensor.contiguous(resolved)
    end

    defp from_pointer(tensor, template, backend) do
      address = Lease.keep(tensor)

      pointer = %{
        __struct__: Nx.Pointer,
        kind: :local,
        address: address,
        data_size: Tensor.nbytes(tensor),
        handle: nil
      }

      try do
        nx =
          Nx.from_pointer(backend, pointer, template.type, template.shape, names: template.names)

        Lease.hold(address, nx.data)
        nx
      rescue
        error ->
          Lease.release(address, nil)
          reraise error, __STACKTRACE__
      end
    end

    defp type!(dtype, name) do
      type = DType.to_nx(dtype) || raise unsupported("Nx", dtype, name)
      Nx.Type.normalize!(type)
    rescue
      ArgumentError ->
        reraise unsupported("this version of Nx", dtype, name), __STACKTRACE__
    end

    defp unsupported(who, dtype, name) do
      Error.new(
        :unsupported,
        "#{who} does not support the dtype #{dtype}#{name && " of #{subject(name)}"}; convert the tensor with " <>
          "ExTorch.Tensor.to/2 first"
      )
    end

    # ---- From Nx ----

    defp to_tensor(%Nx.Tensor{data: %backend{}}) when backend in @without_values do
      raise Error.new(
              :bad_argument,
              "expected an Nx tensor with values, got one of #{inspect(backend)}, which has only a shape and a type"
            )
    end

    defp to_tensor(%Nx.Tensor{data: %backend{}} = nx) do
      if pointers?(backend), do: from_view(nx), else: from_binary(nx)
    end

    # The user may deallocate the Nx tensor, which frees its memory at once. The result of an operation has a reference
    # of its own to the memory, and nobody else knows it.
    defp from_view(nx) do
      view = Nx.new_axis(nx, 0)

      with true <- view.data != nx.data,
           device when device in [:cpu, :cuda] or is_tuple(device) <- device(nx),
           {:ok, address, size} <- pointer(view),
           dtype = dtype!(nx.type),
           # Some backends store a type as a wider one.
           true <- size == Nx.size(nx) * DType.size(dtype) do
        info = %{ptr: address, shape: nx.shape, dtype: dtype, device: device}
        # The memory may be leased: the view does not keep it alive then.
        Tensor.Blob.from_blob(info, owner: {view, Lease.owner(address)}, frozen: true).tensor
      else
        _ -> from_binary(nx)
      end
    end

    defp from_binary(nx), do: Tensor.from_binary(Nx.to_binary(nx), nx.shape, dtype!(nx.type))

    defp dtype!(type) do
      case DType.normalize(type) do
        {:ok, dtype} ->
          dtype

        {:error, _} ->
          raise Error.new(
                  :unsupported,
                  "LibTorch has no dtype for the Nx type #{inspect(type)}; convert it with Nx.as_type/2 first"
                )
      end
    end

    # The device of the memory. Torchx has it beside its reference.
    defp device(%{data: %{ref: {device, _}}}), do: normalize_device(device)
    defp device(_), do: :cpu

    # {type, -1} is the current device.
    defp normalize_device({type, index}) when is_atom(type) and index <= 0, do: type
    defp normalize_device(device), do: device

    # ---- Pointers, which only newer versions of Nx and some backends support ----

    # An operation of EXLA is compiled for each shape, and never shares memory.
    defp pointers?(backend) when backend in [Nx.BinaryBackend, EXLA.Backend], do: false

    defp pointers?(backend) do
      Code.ensure_loaded?(backend) and function_exported?(backend, :from_pointer, 5) and
        function_exported?(backend, :to_pointer, 2) and Code.ensure_loaded?(Nx.Pointer)
    end

    defp same_device?(a, b), do: normalize_device(a) == normalize_device(b)

    defp pointer(%Nx.Tensor{data: %backend{}} = nx) do
      if pointers?(backend) do
        case backend.to_pointer(nx, mode: :local) do
          %{kind: :local, address: address, data_size: size}
          when is_integer(address) and address > 0 ->
            {:ok, address, size}

          _ ->
            :error
        end
      else
        :error
      end
    rescue
      # The backend does not support pointers for this device or kind of tensor, or the tensor is deallocated.
      error in [ArgumentError, RuntimeError] ->
        _ = error
        :error
    end

    # ---- Containers ----

    # Replaces every struct of the module in a container. The function is given the struct, the keys that lead to it, the
    # last one first, and an accumulator.
    defp traverse(%module{} = leaf, acc, {module, fun}, path), do: fun.(leaf, path, acc)

    defp traverse(%Tensor.BlobView{tensor: tensor}, acc, {Tensor, fun}, path),
      do: fun.(tensor, path, acc)

    defp traverse(%LazyTensor{} = lazy, acc, {Tensor, fun}, path),
      do: fun.(LazyTensor.read!(lazy), path, acc)

    # Nx.Container has implementations for these, too. They contain nothing.
    defp traverse(%module{} = leaf, acc, _leaf, _path) when module in [Nx.Tensor, Complex],
      do: {leaf, acc}

    defp traverse(%ExTorch.Python.Dict{} = dict, acc, leaf, path) do
      {pairs, acc} = traverse_pairs(dict.pairs, acc, leaf, path)
      {%{dict | pairs: pairs}, acc}
    end

    defp traverse(%ExTorch.Python.Object{} = object, acc, leaf, path),
      do: traverse_fields(object, [:args, :state, :list, :dict], acc, leaf, path)

    defp traverse(%ExTorch.Python.TensorSubclass{} = subclass, acc, leaf, path),
      do: traverse_fields(subclass, [:tensor, :state], acc, leaf, path)

    defp traverse(%_{} = struct, acc, leaf, path) do
      if Nx.Container.impl_for(struct) in [nil, Nx.Container.Any] do
        {struct, acc}
      else
        Nx.Container.traverse(struct, acc, &traverse(&1, &2, leaf, path))
      end
    end

    defp traverse(map, acc, leaf, path) when is_map(map) do
      {pairs, acc} = map |> Map.to_list() |> traverse_pairs(acc, leaf, path)
      {Map.new(pairs), acc}
    end

    defp traverse([_ | _] = list, acc, leaf, path) do
      if List.improper?(list), do: {list, acc}, else: traverse_list(list, acc, leaf, path)
    end

    defp traverse(tuple, acc, leaf, path) when is_tuple(tuple) do
      {list, acc} = tuple |> Tuple.to_list() |> traverse_list(acc, leaf, path)
      {List.to_tuple(list), acc}
    end

    defp traverse(other, acc, _leaf, _path), do: {other, acc}

    defp traverse_pairs(pairs, acc, leaf, path) do
      Enum.map_reduce(pairs, acc, fn {key, value}, acc ->
        {value, acc} = traverse(value, acc, leaf, [key | path])
        {{key, value}, acc}
      end)
    end

    defp traverse_list(list, acc, leaf, path) do
      {pairs, acc} = list |> Enum.with_index(&{&2, &1}) |> traverse_pairs(acc, leaf, path)
      {Enum.map(pairs, &elem(&1, 1)), acc}
    end

    defp traverse_fields(struct, keys, acc, leaf, path) do
      Enum.reduce(keys, {struct, acc}, fn key, {struct, acc} ->
        {value, acc} = traverse(Map.fetch!(struct, key), acc, leaf, path)
        {Map.put(struct, key, value), acc}
      end)
    end
  end
else
  defmodule ExTorch.Nx do
    @moduledoc """
    Converts tensors to and from Nx, without a copy if the backend supports it.

    Nx was not available when ExTorch was compiled: every function raises an `ExTorch.Error` with the reason `:unsupported`
    that says what to add.
    """

    @doc """
    Converts a tensor, or a container of tensors, to Nx. Needs Nx.

        ExTorch.load!("model.pt") |> ExTorch.Nx.to_nx()
    """
    @spec to_nx(term()) :: no_return()
    @spec to_nx(term(), keyword()) :: no_return()
    def to_nx(tensor_or_container, opts \\ [])
    def to_nx(_tensor_or_container, _opts), do: missing!()

    @doc """
    Converts an Nx tensor, or a container of them, to ExTorch tensors. Needs Nx.

        params |> ExTorch.Nx.from_nx() |> ExTorch.save!("model.pt")
    """
    @spec from_nx(term()) :: no_return()
    def from_nx(_nx_or_container), do: missing!()

    @doc """
    Ends the lease of an Nx tensor. Needs Nx.

        ExTorch.Nx.release(x)
    """
    @spec release(term()) :: no_return()
    def release(_nx), do: missing!()

    @doc """
    Opens a checkpoint and returns a map of names to lazy tensors. Needs Nx.

        ExTorch.Nx.read!("pytorch_model.bin")
    """
    @spec read!(term()) :: no_return()
    @spec read!(term(), keyword()) :: no_return()
    def read!(source, opts \\ [])
    def read!(_source, _opts), do: missing!()

    @doc false
    @spec backend!(term()) :: term()
    def backend!(backend), do: backend

    @doc false
    @spec convert_object(term(), term()) :: no_return()
    def convert_object(_object, _backend), do: missing!()

    @spec missing!() :: no_return()
    defp missing! do
      raise ExTorch.Error.new(
              :unsupported,
              "ExTorch was compiled without Nx; add {:nx, \"~> 0.6\"} to the dependencies in mix.exs, then run " <>
                "mix deps.get and mix deps.compile extorch --force"
            )
    end
  end
end
