defmodule ExTorch.CLI.Convert do
  @moduledoc false
  @behaviour ExTorch.CLI

  alias ExTorch.CLI

  @impl true
  def summary, do: "from any format to any other"

  @impl true
  def usage do
    """
    Usage: extorch convert [OPTIONS] SOURCE TARGET

    Converts a checkpoint. The ending of TARGET determines the format: .safetensors, or .pt, .pth, .bin and others for
    the format of torch.save. A directory, or a path that ends in .index.json, gets shards. TARGET is replaced atomically.
    With --max-shard-size, a path without an ending is a directory, which is created.

      --format FORMAT          zip, legacy, streaming or safetensors
      --dtype DTYPE            convert floats to float16, bfloat16, float32 …
      --only FILTER            tensors of this name, of a pattern (encoder.*) or of a /regular expression/; may be repeated
      --except FILTER          leave out these
      --top-level-key KEY      convert only what is below this key (state_dict), or auto
      --rename REGEX=TEXT      rename tensors; may be repeated
      --tensors-only           leave out what is not a tensor
      --max-shard-size SIZE    write shards of at most this size (2GB, 500MB)
      --metadata KEY=VALUE     metadata of a safetensors file; may be repeated
      --duplicate              write tensors that share memory several times, where a format requires it
      --verify                 check the checksums of the source
      --strict                 refuse what torch's weights_only refuses
      --no-fsync               do not wait until the data is on disk
      --json                   print the size of the result as JSON

    Examples:

      extorch convert model.pt model.safetensors
      extorch convert train.ckpt model.safetensors --top-level-key state_dict --dtype bfloat16
      extorch convert model.safetensors folder --max-shard-size 2GB
      extorch convert model.bin out.pt --rename '^bert\\\\.=' --only 'bert.encoder.*'
    """
  end

  @impl true
  def libtorch?, do: true

  @impl true
  def switches do
    [
      format: :string,
      dtype: :string,
      only: [:string, :keep],
      except: [:string, :keep],
      top_level_key: :string,
      rename: [:string, :keep],
      tensors_only: :boolean,
      max_shard_size: :string,
      metadata: [:string, :keep],
      duplicate: :boolean,
      verify: :boolean,
      strict: :boolean,
      fsync: :boolean
    ]
  end

  @impl true
  def run([source, target], options) do
    same = & &1

    opts =
      CLI.put([on_progress: :bar], options, [
        {:format, :format, &format/1},
        {:dtype, :dtype, &CLI.dtype/1},
        {:only, :only, &CLI.filter/1},
        {:except, :except, &CLI.filter/1},
        {:top_level_key, :top_level_key, &CLI.auto/1},
        {:rename, :rename, &CLI.rename/1},
        {:tensors_only, :tensors_only, same},
        {:max_shard_size, :max_shard_size, same},
        {:metadata, :metadata, &metadata/1},
        {:duplicate, :duplicate, same},
        {:verify, :verify, same},
        {:strict, :strict, same},
        {:fsync, :fsync, same}
      ])

    with :ok <- ExTorch.convert(source, target, opts) do
      bytes = if match?({:ok, _}, File.stat(target)), do: File.stat!(target).size
      {0, if(options.json, do: CLI.json(%{target: target, bytes: bytes}), else: [])}
    end
  end

  def run(_args, _options), do: :usage

  # Unknown ones are refused by ExTorch.convert/3, which lists the known ones.
  defp format(text) do
    String.to_existing_atom(text)
  rescue
    ArgumentError -> text
  end

  defp metadata(texts) do
    Map.new(texts, fn text ->
      case String.split(text, "=", parts: 2) do
        [key, value] ->
          {key, value}

        _ ->
          raise ExTorch.Error.new(
                  :bad_argument,
                  "expected --metadata KEY=VALUE, got #{inspect(text)}"
                )
      end
    end)
  end
end
