/* Erlang binaries over regions, and regions over Erlang binaries. */
#ifndef XT_NIF_REGION_BINARY_H
#define XT_NIF_REGION_BINARY_H

#include <erl_nif.h>

#include "core/memory/region.h"

/* A binary over a region, which is taken over. */
ERL_NIF_TERM xt_make_region_binary(ErlNifEnv *env, xt_region *region, const void *data, size_t size);

/* A frozen region over a binary, pinned; NULL when there is no memory. */
xt_region *xt_pin_binary(ERL_NIF_TERM binary);

#endif
