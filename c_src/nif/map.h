/* Makes maps of any size in linear time, also if keys occur more than once. */
#ifndef XT_NIF_MAP_H
#define XT_NIF_MAP_H

#include <erl_nif.h>
#include <stdbool.h>

/* Makes a map. If a key occurs twice, the later value is used. The arrays are changed. Returns false if out of memory.
 */
bool xt_make_map(ErlNifEnv *env, ERL_NIF_TERM *keys, ERL_NIF_TERM *values, size_t count, ERL_NIF_TERM *out);

#endif
