/* Converts object trees to Elixir terms. */
#ifndef XT_NIF_OBJECT_H
#define XT_NIF_OBJECT_H

#include <erl_nif.h>

#include "core/checkpoint/checkpoint.h"

/* Converts a node that contains no tensors. Returns false if out of memory. */
bool xt_make_node(ErlNifEnv *env, const xt_checkpoint *c, const xt_node *node, ERL_NIF_TERM *out);

#endif
