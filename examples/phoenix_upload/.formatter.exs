# Without import_deps, so that `mix format` also works where Phoenix is not.
[
  inputs: ["{mix,.formatter}.exs", "{config,lib,test}/**/*.{ex,exs}"],
  locals_without_parens: [
    attr: 2,
    attr: 3,
    get: 3,
    live: 2,
    live: 3,
    pipe_through: 1,
    plug: 1,
    plug: 2,
    post: 3,
    slot: 1,
    socket: 3
  ]
]
