defmodule ExTorch.Text do
  @moduledoc false
  # Numbers, shapes and names as people read them.

  alias ExTorch.Checkpoint.Entry

  # 1234567 as "1.2 MB".
  @spec bytes(non_neg_integer()) :: String.t()
  def bytes(bytes), do: scaled(bytes, ["B", "kB", "MB", "GB", "TB", "PB", "EB"])

  # 1234567 as "1.2 M".
  @spec count(non_neg_integer()) :: String.t()
  def count(number), do: String.trim_trailing(scaled(number, ["", "k", "M", "G", "T", "P", "E"]))

  defp scaled(number, [unit | _]) when number < 1000, do: "#{number} #{unit}"
  defp scaled(number, [_ | units]), do: scaled_float(number / 1000, units)

  defp scaled_float(number, [_ | [_ | _] = units]) when number >= 999.95,
    do: scaled_float(number / 1000, units)

  defp scaled_float(number, [unit | _]),
    do: "#{:erlang.float_to_binary(number, decimals: 1)} #{unit}"

  # {2, 3} as "[2][3]".
  @spec shape(tuple()) :: String.t()
  def shape(shape), do: shape |> Tuple.to_list() |> Enum.map_join(&"[#{&1}]")

  # Names come from files: what would control a terminal is escaped.
  @spec name(String.t()) :: String.t()
  def name(""), do: ~s("")

  def name(name), do: if(ascii?(name), do: name, else: other_name(name))

  defp other_name(name) do
    if String.valid?(name) and not String.match?(name, controls()),
      do: name,
      else: name |> inspect(printable_limit: :infinity) |> escape()
  end

  # Most names are short and printable ASCII: files have many thousands of them.
  @spec ascii?(String.t()) :: boolean()
  def ascii?(<<char, rest::binary>>) when char in 0x20..0x7E, do: ascii?(rest)
  def ascii?(rest), do: rest == ""

  # inspect/2 leaves characters that change the direction of text as they are.
  defp escape(text) do
    Regex.replace(controls(), text, fn <<code::utf8>> -> "\\u{#{Integer.to_string(code, 16)}}" end)
  end

  # Not a module attribute: a regular expression cannot be one on OTP 28 and newer.
  defp controls, do: ~r/[\p{C}\p{Zl}\p{Zp}]/u

  @spec value(term()) :: String.t()
  def value(value) when is_binary(value) do
    if String.valid?(value),
      do: value |> inspect(printable_limit: 60) |> escape(),
      else: inspect(value, limit: 10)
  end

  def value(%ExTorch.Python.Global{module: module, name: name}), do: name("#{module}.#{name}")

  def value(value),
    do: value |> inspect(limit: 8, printable_limit: 60, width: 1_000_000) |> name()

  @spec plural(non_neg_integer(), String.t()) :: String.t()
  def plural(1, word), do: "1 #{word}"
  def plural(count, word), do: "#{count} #{word}s"

  # ---- Entries ----

  # The number of elements of an entry.
  @spec elements(Entry.t()) :: non_neg_integer()
  def elements(%Entry{shape: {size}}), do: size
  def elements(%Entry{shape: {rows, columns}}), do: rows * columns
  def elements(%Entry{shape: shape}), do: shape |> Tuple.to_list() |> Enum.reduce(1, &*/2)

  # Elements and bytes of the entries. Names of one tensor count once.
  @spec total([Entry.t()]) :: {non_neg_integer(), non_neg_integer()}
  def total(entries) do
    entries
    |> Enum.uniq_by(&view/1)
    |> sum()
  end

  # The same where no storage is shared.
  @spec sum([Entry.t()]) :: {non_neg_integer(), non_neg_integer()}
  def sum(entries) do
    Enum.reduce(entries, {0, 0}, fn entry, {elements, bytes} ->
      {elements + elements(entry), bytes + entry.nbytes}
    end)
  end

  # What is equal for names of one tensor.
  @spec view(Entry.t()) :: term()
  def view(%Entry{storage: nil} = entry), do: entry.index
  def view(entry), do: {entry.storage, entry.offset, entry.shape, entry.strides, entry.dtype}

  # "float32" or "float32 145, int64 3".
  @spec dtypes([Entry.t()]) :: String.t()
  def dtypes(entries) do
    case Enum.sort_by(Enum.frequencies_by(entries, & &1.dtype), fn {dtype, n} -> {-n, dtype} end) do
      [{dtype, _}] -> to_string(dtype)
      counts -> Enum.map_join(counts, ", ", fn {dtype, count} -> "#{dtype} #{count}" end)
    end
  end
end
