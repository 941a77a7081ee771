# The driver of Chromium is that of ExTorch's own tests.
Code.require_file("../../../test/support/browser.ex", __DIR__)
ExUnit.start(exclude: if(ExTorch.Test.Browser.available?(), do: [], else: [:chromium]))
