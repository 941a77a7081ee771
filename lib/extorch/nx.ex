if Code.ensure_loaded?(Nx) do
  defmodule ExTorch.Nx do
    @moduledoc """
    Converts tensors to and from Nx, without a copy if the backend supports it. Only compiled if Nx is available.

        ExTorch.tensor([[1.0, 2.0]]) |> ExTorch.Nx.to_nx() |> Nx.add(1) |> ExTorch.Nx.from_nx()

    | backend | `to_nx/2` | `from_nx/1` |
    |---|---|---|
    | `Nx.BinaryBackend` | no copy: the binary is `ExTorch.Tensor.to_binary/1` | no copy, frozen |
    | `Torchx.Backend`, or any with `Nx.from_pointer/5`, on the same device | no copy, with a lease | no copy, pins the Nx tensor |
    | `EXLA.Backend` and others | `Nx.from_binary/3` with that binary | with the backend's pointer, or with `Nx.to_binary/1` |

    A tensor that is not contiguous is copied once. Both functions accept nested containers: maps, lists, tuples and
    structs that implement `Nx.Container`.

    ## Leases

    A backend that is given a pointer cannot keep the memory alive. Therefore ExTorch keeps the memory until you release
    the Nx tensor:

        x = ExTorch.Nx.to_nx(tensor, backend: Torchx.Backend)
        …
        ExTorch.Nx.release(x)

    Memory that is never released is kept until the node stops. Use `lease: false` to copy instead.
    """

    alias ExTorch.{DType, Error, Options, Tensor}
    alias ExTorch.Nx.Lease

    @type container :: term()

    @doc """
    Converts a tensor, or a container of tensors, to Nx.

    Tensors of dtype `:bool` become `{:u, 8}`. A dtype that Nx does not support raises `:unsupported`.

        ExTorch.load!("model.pt") |> ExTorch.Nx.to_nx()

    ## Options

      * `:backend` - a backend, or `{backend, options}`. Defaults to `Nx.default_backend/0`.
      * `:names` - the names of the axes
      * `:lease` - if `false`, copies where a lease would be needed. Defaults to `true`.
    """
    @spec to_nx(Tensor.t() | container(), keyword()) :: Nx.Tensor.t() | container()
    def to_nx(tensor_or_container, opts \\ []) do
      opts = Options.validate!(opts, [:backend, :names, lease: true])
      Options.booleans!(opts, [:lease])
      traverse(tensor_or_container, Tensor, &convert(&1, opts))
    end

    @doc """
    Converts an Nx tensor, or a container of them, to ExTorch tensors. Vectorized axes become leading dimensions.

        params |> ExTorch.Nx.from_nx() |> ExTorch.save!("model.pt")
    """
    @spec from_nx(Nx.Tensor.t() | container()) :: Tensor.t() | container()
    def from_nx(nx_or_container) do
      traverse(nx_or_container, Nx.Tensor, fn nx -> nx |> Nx.devectorize() |> to_tensor() end)
    end

    @doc """
    Ends the lease of an Nx tensor that `to_nx/2` returned. The Nx tensor must not be used afterwards.

    Returns true if there was a lease.

        x = ExTorch.Nx.to_nx(tensor, backend: Torchx.Backend)
        sum = x |> Nx.sum() |> Nx.to_number()
        ExTorch.Nx.release(x)
    """
    @spec release(Nx.Tensor.t()) :: boolean()
    def release(%Nx.Tensor{} = nx) do
      case pointer(nx) do
        {:ok, address, _size} -> Lease.release(address)
        :error -> false
      end
    end

    # ---- To Nx ----

    defp convert(tensor, opts) do
      {backend, backend_opts} = backend(opts[:backend])
      type = type!(tensor.dtype)
      names = opts[:names] || List.duplicate(nil, tuple_size(tensor.shape))
      device = backend_opts[:device] || :cpu

      if opts[:lease] and pointers?(backend) and same_device?(tensor.device, device) and
           Tensor.numel(tensor) > 0 do
        from_pointer(Tensor.contiguous(tensor), {backend, backend_opts}, type, names)
      else
        tensor
        |> Tensor.to_binary()
        |> Nx.from_binary(type, backend: {backend, backend_opts})
        |> Nx.reshape(tensor.shape, names: names)
      end
    end

    defp backend(nil), do: Nx.default_backend()
    defp backend({module, opts}), do: {module, opts}
    defp backend(module), do: {module, []}

    defp from_pointer(tensor, backend, type, names) do
      address = Lease.keep(tensor)

      pointer = %{
        __struct__: Nx.Pointer,
        kind: :local,
        address: address,
        data_size: Tensor.nbytes(tensor),
        handle: nil
      }

      try do
        Nx.from_pointer(backend, pointer, type, tensor.shape, names: names)
      rescue
        error ->
          Lease.release(address)
          reraise error, __STACKTRACE__
      end
    end

    defp type!(dtype) do
      type =
        DType.to_nx(dtype) ||
          raise Error.new(
                  :unsupported,
                  "Nx does not support the dtype #{dtype}; convert the tensor with ExTorch.Tensor.to/2 first"
                )

      Nx.Type.normalize!(type)
    rescue
      ArgumentError ->
        reraise Error.new(
                  :unsupported,
                  "this version of Nx does not support the dtype #{dtype}; convert the tensor with ExTorch.Tensor.to/2 first"
                ),
                __STACKTRACE__
    end

    # ---- From Nx ----

    defp to_tensor(%Nx.Tensor{data: %Nx.BinaryBackend{}} = nx), do: from_binary(nx)

    defp to_tensor(nx) do
      with {:ok, address, size} <- pointer(nx),
           dtype = dtype!(nx.type),
           # Some backends store a type as a wider one.
           true <- size == Nx.size(nx) * DType.size(dtype) do
        %{tensor: tensor} =
          Tensor.Blob.from_blob(
            %{ptr: address, shape: nx.shape, dtype: dtype, device: device(nx)},
            owner: nx
          )

        tensor
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

    defp device(%{data: %{ref: {{:cuda, index}, _}}}), do: {:cuda, index}
    defp device(%{data: %{ref: {:cuda, _}}}), do: :cuda
    defp device(_), do: :cpu

    # ---- Pointers, which only newer versions of Nx and some backends support ----

    defp pointers?(Nx.BinaryBackend), do: false
    defp pointers?(EXLA.Backend), do: false

    defp pointers?(backend) do
      Code.ensure_loaded?(backend) and function_exported?(backend, :from_pointer, 5) and
        function_exported?(backend, :to_pointer, 2) and Code.ensure_loaded?(Nx.Pointer)
    end

    defp same_device?(device, device), do: true
    defp same_device?({:cuda, 0}, :cuda), do: true
    defp same_device?(_, _), do: false

    defp pointer(%Nx.Tensor{data: %backend{}} = nx) do
      if function_exported?(backend, :to_pointer, 2) and backend != Nx.BinaryBackend do
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
      # The backend does not support pointers for this device or kind of tensor.
      ArgumentError -> :error
    end

    # ---- Containers ----

    defp traverse(%module{} = leaf, module, fun), do: fun.(leaf)
    defp traverse(%Tensor.BlobView{tensor: tensor}, Tensor, fun), do: fun.(tensor)

    defp traverse(%_{} = struct, module, fun) do
      if Nx.Container.impl_for(struct) in [nil, Nx.Container.Any] do
        struct
      else
        {mapped, nil} =
          Nx.Container.traverse(struct, nil, fn inner, nil ->
            {traverse(inner, module, fun), nil}
          end)

        mapped
      end
    end

    defp traverse(map, module, fun) when is_map(map) do
      Map.new(map, fn {key, value} -> {key, traverse(value, module, fun)} end)
    end

    defp traverse(list, module, fun) when is_list(list),
      do: Enum.map(list, &traverse(&1, module, fun))

    defp traverse(tuple, module, fun) when is_tuple(tuple) do
      tuple |> Tuple.to_list() |> Enum.map(&traverse(&1, module, fun)) |> List.to_tuple()
    end

    defp traverse(other, _module, _fun), do: other
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
