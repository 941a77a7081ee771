defimpl Inspect, for: ExTorch.Tensor do
  # Prints a few lines for a tensor of any size. Only the elements that are printed are read.
  import Inspect.Algebra

  alias ExTorch.Tensor

  # The maximum number of rows over all dimensions but the last. The option `limit` limits the elements.
  @rows 8

  def inspect(%{shape: shape} = tensor, opts) when not is_tuple(shape),
    do: Inspect.Any.inspect(tensor, opts)

  def inspect(tensor, opts) do
    head = [
      color(to_string(tensor.dtype), :atom, opts),
      sizes(tensor.shape),
      " ",
      device(tensor.device)
    ]

    case values(tensor, opts) do
      {:ok, doc} ->
        group(nest(concat(["#ExTorch.Tensor<" | break_before(head ++ [line(), doc])]), 2))
        |> close()

      {:error, note} ->
        concat(["#ExTorch.Tensor<" | head] ++ [" ", note, ">"])
    end
  end

  defp break_before(docs), do: [line() | docs]
  defp close(doc), do: concat([doc, line(), ">"])

  defp sizes(shape), do: shape |> Tuple.to_list() |> Enum.map_join(&"[#{&1}]")

  defp device({type, index}), do: "#{type}:#{index}"
  defp device(device), do: to_string(device)

  defp values(%Tensor{device: :meta}, _opts), do: {:error, "(no values)"}

  defp values(tensor, opts) do
    limit = if opts.limit == :infinity, do: Tensor.numel(tensor), else: max(opts.limit, 1)

    with {:ok, strides} <- rescue_error(fn -> Tensor.strides(tensor) end),
         true <- strides != nil || {:error, :sparse},
         {:ok, corner} <- corner(tensor, limit, opts.limit == :infinity),
         {:ok, list} <- rescue_error(fn -> Tensor.to_list(corner) end) do
      {:ok, nested(list, Tuple.to_list(corner.shape), Tuple.to_list(tensor.shape), opts)}
    else
      {:error, :sparse} -> {:error, "(sparse)"}
      {:error, %{reason: :released}} -> {:error, "(released)"}
      {:error, %{reason: reason}} -> {:error, "(#{reason})"}
    end
  end

  # Returns a view of the elements that are printed. The last dimension is limited by the number of elements that may
  # still be printed, the others also by the number of rows.
  defp corner(tensor, limit, all?) do
    dims = tensor.shape |> Tuple.to_list() |> Enum.with_index() |> Enum.reverse()
    rows = if all?, do: limit, else: @rows

    Enum.reduce_while(dims, {tensor, limit, :last}, fn {size, dim}, {view, elements, rows_left} ->
      room = if rows_left == :last, do: elements, else: min(elements, rows_left)
      printed = min(size, max(room, 1))

      case narrow(view, dim, size, printed) do
        {:ok, view} ->
          rows_left = if rows_left == :last, do: rows, else: div(rows_left, max(printed, 1))
          {:cont, {view, div(elements, max(printed, 1)), rows_left}}

        {:error, error} ->
          {:halt, {:error, error}}
      end
    end)
    |> case do
      {:error, error} -> {:error, error}
      {view, _, _} -> {:ok, view}
    end
  end

  defp narrow(view, _dim, size, size), do: {:ok, view}

  defp narrow(view, dim, _size, printed),
    do: rescue_error(fn -> ExTorch.op("aten::narrow", [view, dim, 0, printed]) end)

  defp rescue_error(fun) do
    {:ok, fun.()}
  rescue
    error in ExTorch.Error -> {:error, error}
  end

  defp nested(number, [], [], opts), do: to_doc(number, opts)

  defp nested(list, [printed | corner], [size | shape], opts) do
    more = if printed < size, do: ["..."], else: []
    inner = Enum.map(list, &nested(&1, corner, shape, opts)) ++ more

    if corner == [] do
      # Wraps numbers over as many lines as needed.
      group(nest(concat(["[", fold_doc(inner, &flex_glue(concat(&1, ","), &2)), "]"]), 1))
    else
      rows = fold_doc(inner, &concat([&1, ",", line(), &2]))
      concat([nest(concat(["[", line(), rows]), 2), line(), "]"])
    end
  end
end
