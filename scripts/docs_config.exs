# Writes the documentation options of mix.exs to a file, for the command ex_doc.
[path] = System.argv()
config = Mix.Project.config()
options = Keyword.take(config, [:source_url, :homepage_url]) ++ config[:docs]
File.write!(path, inspect(options, limit: :infinity, printable_limit: :infinity))
