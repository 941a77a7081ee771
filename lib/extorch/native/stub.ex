defmodule ExTorch.Native.Stub do
  @moduledoc false
  # `nif name(argument :: type) :: type` defines the stub of a NIF with its spec.
  #
  # A NIF whose type is result(value) also gets a function in ExTorch.Native.Call, which is how it is usually called:
  # it returns {:ok, value} or {:error, error}, accounts for the allocated bytes (ExTorch.Memory), and calls the NIF again
  # after a garbage collection if the budget was exceeded.

  defmacro __using__(_options) do
    quote do
      import ExTorch.Native.Stub
      Module.register_attribute(__MODULE__, :calls, accumulate: true)
      @before_compile ExTorch.Native.Stub
    end
  end

  defmacro nif({:"::", _, [{name, _, args}, type]} = spec) do
    arity = length(args)
    unused = for arg <- args, do: Macro.var(:"_#{argument_name(arg)}", __MODULE__)

    quote do
      @spec unquote(spec)
      def unquote(name)(unquote_splicing(unused)), do: :erlang.nif_error(not_loaded())
      if unquote(match?({:result, _, _}, type)), do: @calls({unquote(name), unquote(arity)})
    end
  end

  defp argument_name({:"::", _, [{name, _, _}, _type]}), do: name

  defmacro __before_compile__(env) do
    functions =
      for {name, arity} <- Module.get_attribute(env.module, :calls) do
        args = Macro.generate_arguments(arity, __MODULE__)

        quote do
          def unquote(name)(unquote_splicing(args)) do
            case ExTorch.Memory.account(unquote(env.module).unquote(name)(unquote_splicing(args))) do
              {:collect, _error} ->
                ExTorch.Memory.collect()
                nif = unquote(env.module).unquote(name)(unquote_splicing(args))
                with {:collect, error} <- ExTorch.Memory.account(nif), do: {:error, error}

              result ->
                result
            end
          rescue
            # A resource of another node, a struct that ExTorch did not make, or an improper list.
            error in ArgumentError ->
              refused!(unquote(name), error, __STACKTRACE__)
          end
        end
      end

    quote do
      defmodule Call do
        @moduledoc false
        import ExTorch.Native.Stub, only: [refused!: 3]
        unquote_splicing(functions)
      end
    end
  end

  # Calls a NIF that is not of type result.
  @spec checked(atom(), (() -> value)) :: value when value: term()
  def checked(name, fun) do
    fun.()
  rescue
    error in ArgumentError -> refused!(name, error, __STACKTRACE__)
  end

  # A NIF says badarg, without words.
  @spec refused!(atom(), Exception.t(), Exception.stacktrace()) :: no_return()
  def refused!(name, %{message: "argument error"}, stacktrace) do
    message =
      "#{name}: an argument is not of the right kind, or it is a tensor, checkpoint or loader of another node"

    reraise ExTorch.Error.new(:bad_argument, message), stacktrace
  end

  def refused!(_name, error, stacktrace), do: reraise(error, stacktrace)
end
