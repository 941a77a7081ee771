defmodule ExTorch.Store.Adapter.Axon.Layout do
  @moduledoc false
  # The rules of the layouts in which PyTorch and Axon differ.

  alias ExTorch.Store.Rule

  # :same        the same tensor
  # :transposed  {out, in} and {in, out}
  # {op, order}  the kernel of a convolution, channels :first or :last
  # {:flat, n}   a kernel whose inputs are flattened with n channels, first in PyTorch and last in Axon
  # {:flat_vector, n}  the same of a vector
  # {:guess, kind}  it is not known whether this is the right one
  # :gates       one weight of gates below one another, and one transposed kernel for each
  # {:rows, n}   the same with parts of these sizes; nil: of the same size
  # {:parts, n}  the same of biases, which are not transposed
  # :lstm, :gru  the two biases of PyTorch and those of the gates of Axon
  @type kind ::
          :same
          | :transposed
          | {:conv | :depthwise_conv | :conv_transpose, :first | :last}
          | {:flat | :flat_vector, pos_integer()}
          | {:guess, kind()}
          | :gates
          | {:rows | :parts, [pos_integer()] | nil}
          | :lstm
          | :gru

  @spec rule(kind(), [String.t()], [String.t()]) :: Rule.t()
  def rule(:same, file, module), do: %Rule{file: file, module: module}

  def rule(:transposed, file, module), do: one(file, module, &transpose/1, &transpose/1)

  def rule({:guess, kind}, file, module) do
    rule = rule(kind, file, module)

    load = fn tensors ->
      with made when is_list(made) <- rule.load.(tensors), do: {:ambiguous, made}
    end

    %{rule | load: load}
  end

  def rule({:flat, channels}, file, module) do
    one(
      file,
      module,
      fn weight -> weight |> transpose() |> channels_last_rows(channels) end,
      fn kernel -> kernel |> channels_first_rows(channels) |> transpose() end
    )
  end

  def rule({:flat_vector, channels}, file, module) do
    one(file, module, &channels_last_rows(&1, channels), &channels_first_rows(&1, channels))
  end

  def rule({:conv_transpose, :first}, file, module),
    do: one(file, module, &swap_and_flip/1, &swap_and_flip/1)

  def rule({:conv_transpose, :last}, file, module) do
    one(
      file,
      module,
      &(&1 |> swap_and_flip() |> channels_last()),
      &(&1 |> channels_first() |> swap_and_flip())
    )
  end

  def rule({_conv, :first}, file, module), do: rule(:same, file, module)

  def rule({_conv, :last}, file, module),
    do: one(file, module, &channels_last/1, &channels_first/1)

  def rule(:gates, file, module), do: rule({:rows, nil}, file, module)

  def rule({:rows, sizes}, [name] = file, module) do
    %Rule{
      file: file,
      module: module,
      load: fn [weight] ->
        with parts when is_list(parts) <- split(weight, name, sizes || length(module)),
             do: Enum.map(parts, &transpose/1)
      end,
      save: fn kernels -> [kernels |> Enum.map(&transpose/1) |> cat()] end
    }
  end

  def rule({:parts, sizes}, [name] = file, module) do
    %Rule{
      file: file,
      module: module,
      load: fn [bias] -> split(bias, name, sizes || length(module)) end,
      save: fn biases -> [cat(biases)] end
    }
  end

  def rule(:lstm, file, module) do
    %Rule{
      file: file,
      module: module,
      load: fn [input, hidden] ->
        with :ok <- same_shape(input, hidden, file),
             do: split(ExTorch.add(input, hidden), Enum.join(file, " + "), 4)
      end,
      save: fn gates ->
        bias = cat(gates)
        [bias, zeros(bias)]
      end
    }
  end

  def rule(:gru, file, module) do
    %Rule{
      file: file,
      module: module,
      load: fn [input, hidden] ->
        with :ok <- same_shape(input, hidden, file),
             [ir, iz, new] <- split(input, hd(file), 3),
             [hr, hz, hidden_new] <- split(hidden, List.last(file), 3),
             do: [ExTorch.add(ir, hr), ExTorch.add(iz, hz), new, hidden_new]
      end,
      save: fn [reset, update, new, hidden_new] ->
        [cat([reset, update, new]), cat([zeros(reset), zeros(update), hidden_new])]
      end
    }
  end

  defp one(file, module, load, save) do
    %Rule{
      file: file,
      module: module,
      load: fn [tensor] -> [load.(tensor)] end,
      save: fn [tensor] -> [save.(tensor)] end
    }
  end

  # ---- Operations. A tensor of another rank stays as it is: its shape does not fit. ----

  defp transpose(%{shape: {_, _}} = tensor), do: ExTorch.op("permute", [tensor, [1, 0]])
  defp transpose(tensor), do: tensor

  # {out, in, …} to {…, in, out}
  defp channels_last(%{shape: shape} = tensor) when tuple_size(shape) > 2,
    do: ExTorch.op("permute", [tensor, spatial(shape, 2) ++ [1, 0]])

  defp channels_last(tensor), do: tensor

  # {…, in, out} to {out, in, …}
  defp channels_first(%{shape: shape} = tensor) when tuple_size(shape) > 2 do
    rank = tuple_size(shape)
    ExTorch.op("permute", [tensor, [rank - 1, rank - 2 | spatial(shape, 0)]])
  end

  defp channels_first(tensor), do: tensor

  # {in, out, …} to {out, in, …} and back. A transposed convolution is a convolution with the flipped kernel.
  defp swap_and_flip(%{shape: shape} = tensor) when tuple_size(shape) > 2 do
    spatial = spatial(shape, 2)
    ExTorch.op("flip", [ExTorch.op("permute", [tensor, [1, 0 | spatial]]), spatial])
  end

  defp swap_and_flip(tensor), do: tensor

  defp spatial(shape, first), do: Enum.to_list(first..(first + tuple_size(shape) - 3)//1)

  # Rows in the order {channels, spatial} to {spatial, channels}.
  defp channels_last_rows(tensor, channels), do: swap_rows(tensor, &[channels, div(&1, channels)])

  defp channels_first_rows(tensor, channels),
    do: swap_rows(tensor, &[div(&1, channels), channels])

  defp swap_rows(%{shape: shape} = tensor, sizes) when tuple_size(shape) > 0 do
    [rows | rest] = Tuple.to_list(shape)
    [a, b] = sizes.(rows)

    if a * b == rows do
      split = ExTorch.op("reshape", [tensor, [a, b | rest]])
      order = [1, 0 | Enum.to_list(2..(length(rest) + 1)//1)]
      ExTorch.op("reshape", [ExTorch.op("permute", [split, order]), [rows | rest]])
    else
      tensor
    end
  end

  defp swap_rows(tensor, _sizes), do: tensor

  # Splits the rows into parts of these sizes, or into a number of parts of the same size.
  defp split(%{shape: shape}, name, _parts) when shape == {},
    do: {:error, "#{name} has no dimensions, so it cannot be split"}

  defp split(%{shape: shape} = tensor, name, count) when is_integer(count) do
    rows = elem(shape, 0)

    if rem(rows, count) == 0,
      do: split(tensor, name, List.duplicate(div(rows, count), count)),
      else: {:error, "#{name} has shape #{inspect(shape)}: its rows are not #{count} equal parts"}
  end

  defp split(%{shape: shape} = tensor, name, sizes) do
    if Enum.sum(sizes) == elem(shape, 0) do
      {parts, _} =
        Enum.map_reduce(sizes, 0, fn size, at ->
          {ExTorch.op("narrow", [tensor, 0, at, size]), at + size}
        end)

      parts
    else
      {:error,
       "#{name} has shape #{inspect(shape)}, the module needs #{Enum.sum(sizes)} rows: #{Enum.join(sizes, " + ")}"}
    end
  end

  defp same_shape(%{shape: shape}, %{shape: shape}, _names), do: :ok

  defp same_shape(a, b, [first, second]),
    do: {:error, "#{first} has shape #{inspect(a.shape)}, #{second} has #{inspect(b.shape)}"}

  defp cat(tensors), do: ExTorch.op("cat", [tensors, 0])
  defp zeros(tensor), do: ExTorch.op("zeros_like", [tensor])
end
