defmodule ExTorch.Preview.Picture do
  @moduledoc false
  # The values of a tensor as a picture: an image if it looks like one, otherwise a heat map of its last two dimensions.
  # The picture is a PNG of at most 128 pixels in each direction.

  alias ExTorch.{DType, Tensor}
  alias ExTorch.Tensor.Pieces

  @most 128
  # Below this, pixels are drawn larger.
  @shown 320

  # Returns an <img>, or "" for a single value.
  @spec html(Tensor.t(), map()) :: String.t()
  def html(tensor, stats) do
    case pixels(tensor, stats) do
      nil ->
        ""

      {alt, width, height, rgb} ->
        scale = max(min(div(@shown, width), div(@shown, height)), 1)
        source = "data:image/png;base64," <> Base.encode64(png(width, height, rgb))

        ~s(<img alt="#{alt}" src="#{source}" width="#{min(width * scale, @shown)}" height="#{min(height * scale, @shown)}" ) <>
          ~s(style="image-rendering: pixelated; border-radius: 4px">)
    end
  end

  # Returns {description, width, height, bytes of red, green and blue}.
  @spec pixels(Tensor.t(), map()) :: {String.t(), pos_integer(), pos_integer(), binary()} | nil
  def pixels(tensor, stats) do
    cond do
      Tensor.numel(tensor) < 2 or stats.min == nil -> nil
      layout = image(tensor, stats) -> image_pixels(tensor, layout)
      true -> heat_pixels(tensor, stats)
    end
  end

  # Three dimensions, of which one has 1, 3 or 4 channels, and bytes, or numbers from 0 to 1.
  defp image(%{shape: {a, b, c}, dtype: dtype}, stats) do
    bytes? = dtype == :uint8
    unit? = DType.kind(dtype) == :float and stats.min >= 0 and stats.max <= 1
    scale = if bytes?, do: 1.0, else: 255.0

    cond do
      not (bytes? or unit?) -> nil
      a in [1, 3, 4] and b >= 8 and c >= 8 -> {:first, scale}
      c in [1, 3, 4] and a >= 8 and b >= 8 -> {:last, scale}
      true -> nil
    end
  end

  defp image(_tensor, _stats), do: nil

  defp image_pixels(tensor, {position, scale}) do
    tensor = if position == :first, do: ExTorch.op("permute", [tensor, [1, 2, 0]]), else: tensor
    {height, width, _} = tensor.shape
    rows = tensor |> thin(0) |> thin(1) |> Pieces.wide() |> Tensor.to_list()

    rgb =
      for row <- rows, pixel <- row, into: <<>> do
        case Enum.map(pixel, &byte(&1, scale)) do
          [gray] -> <<gray, gray, gray>>
          [red, green, blue | _alpha] -> <<red, green, blue>>
        end
      end

    {"Image of #{width} by #{height}", length(hd(rows)), length(rows), rgb}
  end

  defp byte(value, scale) when is_float(value),
    do: value |> Kernel.*(scale) |> round() |> min(255)

  defp byte(_nan, _scale), do: 0

  defp heat_pixels(tensor, stats) do
    flat = matrix(tensor)
    {height, width} = flat.shape
    values = flat |> thin(0) |> thin(1) |> Pieces.wide()
    values = if values.dtype == :complex128, do: ExTorch.abs(values), else: values
    rows = Tensor.to_list(values)
    rgb = for row <- rows, value <- row, into: <<>>, do: color(value, stats)
    {"Heat map of #{height} rows and #{width} columns", length(hd(rows)), length(rows), rgb}
  end

  # A vector has several rows if it is long.
  defp matrix(%{shape: {size}} = tensor) when size > @most do
    width = size |> :math.sqrt() |> ceil() |> max(1)
    whole = div(size, width) * width
    Tensor.reshape(ExTorch.op("aten::narrow", [tensor, 0, 0, whole]), {-1, width})
  end

  defp matrix(%{shape: {_}} = tensor), do: Tensor.reshape(tensor, {1, -1})
  defp matrix(%{shape: {_, _}} = tensor), do: tensor

  # Of more dimensions, the first rows of the first matrices: a reshape of the whole could copy it.
  defp matrix(%{shape: shape} = tensor) do
    last = elem(shape, tuple_size(shape) - 1)

    0..(tuple_size(shape) - 3)
    |> Enum.reduce(tensor, fn dim, view ->
      ExTorch.op("aten::narrow", [view, dim, 0, min(elem(shape, dim), @most)])
    end)
    |> Tensor.reshape({-1, last})
  end

  # At most @most rows or columns, at equal distances.
  defp thin(view, dim) do
    size = elem(view.shape, dim)
    step = div(size + @most - 1, @most)
    if step == 1, do: view, else: ExTorch.op("aten::slice.Tensor", [view, dim, 0, size, step])
  end

  # Blue below zero and red above it, or from dark to bright if all values have one sign.
  defp color(value, %{min: low, max: high}) when is_float(value) do
    if low < 0 and high > 0 do
      part = value / max(-low, high)

      if part < 0,
        do: mix({247, 247, 247}, {33, 102, 172}, -part),
        else: mix({247, 247, 247}, {178, 24, 43}, part)
    else
      part = if high > low, do: (value - low) / (high - low), else: 0.5

      if part < 0.5,
        do: mix({68, 1, 84}, {33, 145, 140}, part * 2),
        else: mix({33, 145, 140}, {253, 231, 37}, part * 2 - 1)
    end
  end

  # NaN and infinite values
  defp color(_value, _stats), do: <<255, 0, 255>>

  defp mix({r1, g1, b1}, {r2, g2, b2}, part) do
    part = part |> max(0.0) |> min(1.0)
    between = fn a, b -> round(a + (b - a) * part) end
    <<between.(r1, r2), between.(g1, g2), between.(b1, b2)>>
  end

  # ---- PNG ----

  @spec png(pos_integer(), pos_integer(), binary()) :: binary()
  def png(width, height, rgb) do
    size = width * 3
    lines = for row <- 0..(height - 1), do: [0, binary_part(rgb, row * size, size)]

    IO.iodata_to_binary([
      <<137, "PNG\r\n", 26, "\n">>,
      chunk("IHDR", <<width::32, height::32, 8, 2, 0, 0, 0>>),
      chunk("IDAT", :zlib.compress(lines)),
      chunk("IEND", "")
    ])
  end

  defp chunk(type, data),
    do: <<byte_size(data)::32, type::binary, data::binary, :erlang.crc32([type, data])::32>>
end
