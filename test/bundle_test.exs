defmodule ExTorch.BundleTest do
  # scripts/bundle.sh collects what a release needs. Here it is small libraries that need each other.
  use ExUnit.Case, async: true

  @moduletag :tmp_dir
  # Nothing of the native library is used.
  @moduletag :no_asan

  # The names of the tests have no comma: they are directories that -Wl gets.
  # top.so needs libmiddle.so.1 and libm, libmiddle.so.1 needs libbottom.so.2.
  setup %{tmp_dir: dir} do
    torch = Path.join(dir, "torch")
    priv = Path.join(dir, "priv")
    for path <- [torch, priv], do: File.mkdir_p!(path)

    library(torch, "libbottom.so.2.0", "int bottom(void) { return 42; }", soname: "libbottom.so.2")

    File.ln_s!("libbottom.so.2.0", Path.join(torch, "libbottom.so.2"))

    library(torch, "libmiddle.so.1", "int bottom(void); int middle(void) { return bottom(); }",
      soname: "libmiddle.so.1",
      with: [Path.join(torch, "libbottom.so.2")]
    )

    library(
      priv,
      "top.so",
      "#include <math.h>\nint middle(void); int top(double x) { return middle() + (int)cos(x); }",
      with: [Path.join(torch, "libmiddle.so.1"), "-lm"],
      rpath: [torch]
    )

    [torch: torch, priv: priv, lib: Path.join(priv, "lib")]
  end

  # Linked as in the Makefile.
  defp library(dir, name, source, opts) do
    path = Path.join(dir, name)
    File.write!(path <> ".c", source)
    soname = if opts[:soname], do: ["-Wl,-soname,#{opts[:soname]}"], else: []
    rpath = for r <- ["$ORIGIN/lib" | opts[:rpath] || []], do: "-Wl,-rpath,#{r}"
    rpath = if opts[:rpath], do: ["-Wl,--disable-new-dtags" | rpath], else: []
    with_libraries = ["-Wl,--no-as-needed" | opts[:with] || []]
    args = ["-shared", "-fPIC", "-o", path, path <> ".c", "-Wl,--allow-shlib-undefined"]
    {output, status} = cc(args ++ soname ++ rpath ++ with_libraries)
    assert status == 0, output
  end

  defp cc(args), do: System.cmd("cc", args, stderr_to_stdout: true)

  defp bundle(c, env \\ []) do
    env = [{"TORCH_LIB", c.torch}, {"TORCH_CUDA", nil}, {"TORCHX_DIR", nil}] ++ env
    args = [c.lib, Path.join(c.priv, "top.so")]
    System.cmd(Path.expand("scripts/bundle.sh"), args, env: env, stderr_to_stdout: true)
  end

  defp names(c), do: c.lib |> File.ls!() |> Enum.sort()

  test "what is needed under the names by which it is needed", c do
    assert {output, 0} = bundle(c)
    assert names(c) == ["libbottom.so.2", "libmiddle.so.1"]
    assert output =~ ~r/releases will contain .*: 2 libraries, \d+ MB/
  end

  test "a copy as in a release is enough", c do
    {_, 0} = bundle(c)
    release = Path.join(c.tmp_dir, "release")
    File.cp_r!(c.priv, release, dereference_symlinks: true)
    File.rm_rf!(c.torch)
    File.rm_rf!(c.priv)

    File.write!(Path.join(c.tmp_dir, "main.c"), """
    #include <dlfcn.h>
    int main(int n, char **args) {
      int (*top)(double);
      void *library = dlopen(args[1], RTLD_NOW);
      *(void **)&top = library ? dlsym(library, "top") : 0;
      return top ? top(0) : 1;
    }
    """)

    main = Path.join(c.tmp_dir, "main")
    {_, 0} = cc([main <> ".c", "-ldl", "-o", main])
    assert {_, 43} = System.cmd(main, [Path.join(release, "top.so")])
  end

  test "again after LibTorch has moved", c do
    {_, 0} = bundle(c)
    File.rm!(Path.join(c.torch, "libbottom.so.2"))
    assert {output, 1} = bundle(c)
    assert output =~ "libbottom.so.2, which #{c.priv}/top.so need, was not found"
    refute File.exists?(c.lib)
  end

  test "LibTorch of Torchx is in the release already", c do
    {_, 0} = bundle(c, [{"TORCHX_DIR", c.tmp_dir}])
    assert names(c) == []
  end

  test "all libraries of LibTorch for CUDA", c do
    for name <- ["libcudnn_ops.so.9", "libtorch_python.so"],
        do: File.write!(Path.join(c.torch, name), "")

    File.ln_s!("libcudnn_ops.so.9", Path.join(c.torch, "libcudnn_ops.so"))
    for file <- Path.wildcard(c.torch <> "/*.c"), do: File.rm!(file)
    {_, 0} = bundle(c, [{"TORCH_CUDA", "yes"}])

    assert names(c) ==
             ["libbottom.so.2", "libbottom.so.2.0", "libcudnn_ops.so.9", "libmiddle.so.1"]
  end
end
