defmodule ExTorch.Checkpoint.Hostile.GzipTest do
  use ExTorch.Case
  import ExTorch.Test.Hostile, only: [load: 1]

  test "invalid gzip files" do
    whole = :zlib.gzip(File.read!("test/fixtures/2.14.1/many.pt"))
    assert {:ok, _} = load(whole)
    assert {reason, message} = load(binary_part(whole, 0, 500))
    assert reason in [:truncated, :corrupt] and message =~ "gzip"
    assert {reason, _} = load(flip_bit(whole, 300, 1))
    assert reason in [:truncated, :corrupt]
    assert {:unsupported, _} = load(:zlib.gzip(whole))
    assert {:corrupt, _} = load(:zlib.gzip("<html>"))
    assert {:truncated, _} = load(<<0x1F, 0x8B, 8, 0, 0>>)
    # a decompression bomb: 100 KB expand to 100 MB of zeros
    assert {:limit, _} = load(:zlib.gzip(:binary.copy(<<0>>, 100_000_000)))
  end
end
