defmodule ExTorch.Checkpoint.Hostile.SafetensorsTest do
  use ExTorch.Case
  alias ExTorch.Checkpoint
  import ExTorch.Test.Formats
  import ExTorch.Test.Hostile, only: [load: 1]

  test "a valid safetensors file" do
    assert {:ok, %{"a" => a}} =
             load(
               safetensors("{" <> safetensors_entry("a", "F32", "[2]", 0, 8) <> "}", two_floats())
             )

    assert Tensor.to_list(a) == [1.0, 2.0]
    assert {:ok, map} = load(safetensors("{}"))
    assert map == %{}
    # padded, escaped, metadata
    json =
      ~s( { "__metadata__" : {"a\\u00e9":"\\ud83d\\ude00"} , "x\\n" : {"shape":[],"data_offsets":[0,1],"dtype":"U8"} }   )

    ckpt = Checkpoint.open!({:binary, safetensors(String.trim_leading(json), <<7>>)})
    assert Checkpoint.metadata(ckpt).metadata == %{"aé" => "😀"}
    assert Tensor.to_list(Checkpoint.tensor!(ckpt, "x\n")) == 7
  end

  for {name, json, data, reason, words} <- [
        {"two names",
         ~s({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}),
         "ab", :corrupt, "twice"},
        {"a gap", ~s({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}), "ab", :corrupt,
         "between"},
        {"an overlap",
         ~s({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}),
         "abc", :corrupt, "overlap"},
        {"bytes after the end", ~s({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}), "ab",
         :corrupt, "end at byte"},
        {"a tensor past the end", ~s({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}), "ab",
         :truncated, "incomplete download"},
        {"a shape that does not fit", ~s({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,2]}}),
         "ab", :corrupt, "fit"},
        {"a shape that overflows",
         ~s({"a":{"dtype":"F32","shape":[4611686018427387904,4611686018427387904],"data_offsets":[0,2]}}),
         "ab", :corrupt, "overflow"},
        {"a negative size", ~s({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,2]}}), "ab",
         :corrupt, "negative"},
        {"offsets backwards", ~s({"a":{"dtype":"U8","shape":[0],"data_offsets":[2,0]}}), "ab",
         :corrupt, "range"},
        {"one offset", ~s({"a":{"dtype":"U8","shape":[0],"data_offsets":[2]}}), "ab", :corrupt,
         "JSON"},
        {"an unknown dtype", ~s({"a":{"dtype":"F7","shape":[2],"data_offsets":[0,2]}}), "ab",
         :corrupt, "dtype"},
        {"an unknown field", ~s({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2],"x":1}}),
         "ab", :corrupt, "field"},
        {"a field twice", ~s({"a":{"dtype":"U8","dtype":"U8","shape":[2],"data_offsets":[0,2]}}),
         "ab", :corrupt, "duplicate key"},
        {"a field missing", ~s({"a":{"dtype":"U8","shape":[2]}}), "ab", :corrupt,
         "missing field"},
        {"metadata twice", ~s({"__metadata__":{},"__metadata__":{}}), "", :corrupt,
         "duplicate key"},
        {"metadata of numbers", ~s({"__metadata__":{"a":1}}), "", :corrupt, "string"},
        {"metadata with a key twice", ~s({"__metadata__":{"a":"1","a":"2"}}), "", :corrupt,
         "duplicate key"},
        {"an integer past 64 bits",
         ~s({"a":{"dtype":"U8","shape":[99999999999999999999],"data_offsets":[0,2]}}), "ab",
         :corrupt, "64 bits"},
        {"a fraction", ~s({"a":{"dtype":"U8","shape":[2.0],"data_offsets":[0,2]}}), "ab",
         :corrupt, "fraction"},
        {"a leading zero", ~s({"a":{"dtype":"U8","shape":[02],"data_offsets":[0,2]}}), "ab",
         :corrupt, "begins with 0"},
        {"a trailing comma", ~s({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},}), "ab",
         :corrupt, "comma"},
        {"something after the object", ~s({} x), "", :corrupt, "follows"},
        {"bad UTF-8",
         <<"{\"", 0xFF, "\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}">>, "ab",
         :corrupt, "UTF-8"},
        {"a lone surrogate", ~s({"\\ud800":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}),
         "ab", :corrupt, "escape"},
        {"a control character", <<"{\"a", 1, "\":{}}">>, "", :corrupt, "control"},
        {"an unknown escape", ~S({"\x":{}}), "", :corrupt, "escape"},
        {"no end", ~s({"a), "", :corrupt, "end"},
        {"no end after a backslash", ~S({"a\\), "", :corrupt, "end"},
        {"more than 64 dimensions",
         ~s({"a":{"dtype":"U8","shape":[#{Enum.map_join(1..65, ",", fn _ -> "1" end)}],"data_offsets":[0,1]}}),
         "a", :corrupt, "64"}
      ] do
    test "safetensors: #{name}" do
      assert {unquote(reason), message} = load(safetensors(unquote(json), unquote(data)))
      assert message =~ unquote(words)
    end
  end

  test "safetensors: wrong header lengths" do
    assert {:limit, message} = load([<<200_000_000::little-64>>, "{", String.duplicate(" ", 50)])
    assert message =~ "100000000"
    assert {:truncated, message} = load([<<1000::little-64>>, "{", String.duplicate(" ", 50)])
    assert message =~ "incomplete download"
  end
end
