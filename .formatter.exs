[
  inputs: ["{mix,.formatter}.exs", "{lib,test,bench,scripts}/**/*.{ex,exs}"],
  locals_without_parens: [nif: 1]
]
