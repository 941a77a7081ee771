/* Files that appear whole or not at all, written from Elixir. */
#ifndef XT_NIF_ATOMIC_FILE_H
#define XT_NIF_ATOMIC_FILE_H

#include <erl_nif.h>
#include <stdbool.h>

bool xt_outfile_load(ErlNifEnv *env);

#endif
