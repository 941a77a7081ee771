[inputs: ["{mix,.formatter}.exs", "{lib,test,bench,scripts}/**/*.{ex,exs}"]]
