/* Erlang binaries over native memory, which is frozen while they live, and regions over Erlang binaries. */
#ifndef XT_NIF_FROZEN_BINARY_H
#define XT_NIF_FROZEN_BINARY_H

#include <erl_nif.h>
#include <stdbool.h>

#include "core/memory/region.h"

/* Creates a binary over memory that the owner keeps. `release` is called once, on any thread, when the binary is freed.
 *
 * The values of a binary never change. If a call is writing to the memory, this waits for its end on a dirty scheduler.
 * The binary is a copy if it cannot wait, if the call takes longer than a second, or if the memory is lent to another
 * library. Returns nil if there is no memory for the copy. */
ERL_NIF_TERM xt_make_frozen_binary(ErlNifEnv *env, const void *data, size_t size, void *owner,
                                   void (*release)(void *owner));

/* Same, but instead of a copy returns false, and does not release the owner, if the memory is being written. Waits for
 * calls that are writing, except on a normal scheduler. */
bool xt_make_still_binary(ErlNifEnv *env, const void *data, size_t size, void *owner, void (*release)(void *owner),
                          ERL_NIF_TERM *out);

/* Same as xt_make_frozen_binary, for a part of a region. Takes ownership of the reference to
 * the region. */
ERL_NIF_TERM xt_make_region_binary(ErlNifEnv *env, xt_region *region, const void *data, size_t size);

/* Creates a frozen region over a binary, which it pins. Returns NULL if out of memory. */
xt_region *xt_region_from_binary(ERL_NIF_TERM binary);

#endif
