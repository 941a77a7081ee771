[
  inputs: ["{mix,.formatter}.exs", "{lib,test,bench,scripts}/**/*.{ex,exs}"],
  subdirectories: ["examples/*"],
  locals_without_parens: [nif: 1]
]
