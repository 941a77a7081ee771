/* The stream resource: a checkpoint that comes in pieces. */
#ifndef XT_NIF_LOADER_H
#define XT_NIF_LOADER_H

#include <erl_nif.h>
#include <stdbool.h>

bool xt_loader_register(ErlNifEnv *env);

#endif
