defmodule ExTorch.Checkpoint.Hostile.TorchStreamTest do
  use ExTorch.Case
  alias ExTorch.Test.{Formats, Hostile, Pickle}
  import Formats
  import Hostile, only: [load: 1]
  import Pickle, only: [text: 1, int: 1]

  test "invalid streaming checkpoints" do
    pickle = IO.iodata_to_binary(Pickle.make(int(5)))
    size = byte_size(pickle)
    assert {:ok, 5} = load(torch_stream([torch_stream_entry("data.pkl", int(size))], pickle))

    assert {:truncated, message} =
             load(torch_stream([torch_stream_entry("data.pkl", int(size + 1))], pickle))

    assert message =~ "truncated"
    assert {:corrupt, _} = load(torch_stream([torch_stream_entry("data.pkl", int(-1))], pickle))
    assert {:corrupt, _} = load(torch_stream([torch_stream_entry("data.pkl", text("x"))], pickle))
    two = [torch_stream_entry("data.pkl", int(size)), torch_stream_entry("data.pkl", int(0))]
    assert {:corrupt, message} = load(torch_stream(two, pickle))
    assert message =~ "duplicate record name"

    assert {:corrupt, message} =
             load(torch_stream([torch_stream_entry("other", int(size))], pickle))

    assert message =~ "data.pkl"

    assert {:corrupt, message} =
             load(torch_stream([torch_stream_entry("data.pkl", int(size)), int(3)], pickle))

    assert message =~ "class _Entry"

    assert {:truncated, _} =
             load(torch_stream([torch_stream_entry("data.pkl", int(2 ** 62))], pickle))
  end
end
