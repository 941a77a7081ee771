/* Files that appear whole or not at all, written from Elixir. */
#ifndef XT_NIF_ATOMIC_FILE_H
#define XT_NIF_ATOMIC_FILE_H

#include <erl_nif.h>
#include <stdbool.h>

bool xt_atomic_file_register(ErlNifEnv *env);

#endif
