defmodule ExTorch.BuildTest do
  # What make says to someone who has ExTorch as a dependency.
  use ExUnit.Case, async: true

  @moduletag :tmp_dir
  # Nothing of the native library is used.
  @moduletag :no_asan

  # As elixir_make runs it: in the VM, SIGPIPE is ignored.
  defp make(app, args) do
    command = ["-c", ~s(trap '' PIPE; exec make "$@"), "sh", "MIX_APP_PATH=#{app}" | args]
    env = [{"MAKEFLAGS", nil}, {"MAKELEVEL", nil}, {"EXTORCH_TORCH", nil}, {"SAN", nil}]
    System.cmd("sh", command, env: env, stderr_to_stdout: true)
  end

  test "names what is missing", %{tmp_dir: app} do
    assert {output, 2} = make(app, ["CC=none", "CXX=none", "ERTS_INCLUDE_DIR=/none"])
    assert output =~ "ExTorch: missing on this machine:"
    assert output =~ "a C11 and a C++17 compiler"
    assert output =~ "erl_nif.h of Erlang/OTP (ERTS_INCLUDE_DIR)"
    assert output =~ ~r/apt-get install .*g\+\+ erlang-dev/
    refute output =~ "LibTorch"
  end

  test "EXTORCH_TORCH=0 needs neither LibTorch nor a C++ compiler", %{tmp_dir: dir} do
    without = ["EXTORCH_TORCH=0", "CXX=none", "LIBTORCH_DIR=/none"]
    [app, other] = for name <- ["a", "b"], do: Path.join(dir, name)
    assert {_, 0} = make(app, without ++ [Path.join(app, "priv/.variant")])
    assert File.read!(Path.join(app, "priv/.variant")) =~ "without LibTorch"
    refute File.exists?(Path.join(app, "obj/libtorch.mk"))
    assert {output, 2} = make(other, without ++ ["CC=none", "ERTS_INCLUDE_DIR=/none"])
    assert output =~ "a C11 compiler" and output =~ "apt-get install gcc libc6-dev erlang-dev"
    refute output =~ "C++"
  end

  @tag :torch
  test "prints nothing about pipes", %{tmp_dir: app} do
    assert {output, 0} =
             make(app, [Path.join(app, "priv/.variant"), Path.join(app, "obj/c.flags")])

    refute output =~ ~r/broken pipe/i
    assert File.read!(Path.join(app, "priv/.variant")) =~ Path.join(app, "obj")
  end

  @tag :torch
  test "writes what was linked and how only if it is new", %{tmp_dir: app} do
    variant = Path.join(app, "priv/.variant")
    {_, 0} = make(app, [variant])
    File.touch!(variant, 0)
    {_, 0} = make(app, [variant])
    assert File.stat!(variant, time: :posix).mtime == 0
    {_, 0} = make(app, [variant, "LDFLAGS=-Wl,-z,now"])
    assert File.read!(variant) =~ "-Wl,-z,now \n"
  end

  test "LIBTORCH_DIR is a link to the directory of the system", %{tmp_dir: dir} do
    if File.exists?("/usr/include/ATen/ATen.h") do
      File.ln_s!("/usr", Path.join(dir, "usr"))
      flags = Path.join(dir, "obj/cxx.flags")
      assert {_output, 0} = make(dir, ["LIBTORCH_DIR=#{dir}/usr", flags])
      # The directories of the compiler would be searched in another order.
      refute File.read!(flags) =~ ~r/-isystem \S+include -isystem/
      assert File.read!(flags) =~ "-isystem /usr/include/torch/csrc/api/include"
    end
  end
end
