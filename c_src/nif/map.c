#include "nif/term.h"

#include <stdint.h>
#include <string.h>

/* Removes all but the last occurrence of each key. The key keeps the position of its first occurrence. Returns the
 * number of keys that are left, or 0 if out of memory. */
static size_t remove_duplicates(ERL_NIF_TERM *keys, ERL_NIF_TERM *values, size_t count) {
  size_t room = 16, left = 0;
  while (room < 2 * count) room *= 2;
  size_t *slots = enif_alloc(room * sizeof *slots); /* 1 + index of the key; 0 if free */
  if (!slots) return 0;
  memset(slots, 0, room * sizeof *slots);
  for (size_t i = 0; i < count; i++) {
    size_t at = enif_hash(ERL_NIF_INTERNAL_HASH, keys[i], 0) & (room - 1);
    while (slots[at] && !enif_is_identical(keys[slots[at] - 1], keys[i])) at = (at + 1) & (room - 1);
    if (!slots[at]) {
      slots[at] = ++left;
      keys[left - 1] = keys[i];
    }
    values[slots[at] - 1] = values[i];
  }
  enif_free(slots);
  return left;
}

/* Equal keys make enif_make_map_from_arrays fail, or, in OTP 27 and for more than 32 keys, return a map of fewer keys
 * that is not equal to any other. */
bool xt_make_map(ErlNifEnv *env, ERL_NIF_TERM *keys, ERL_NIF_TERM *values, size_t count, ERL_NIF_TERM *out) {
  size_t size;
  if (enif_make_map_from_arrays(env, keys, values, count, out) && enif_get_map_size(env, *out, &size) && size == count)
    return true;
  size_t left = remove_duplicates(keys, values, count);
  return left && enif_make_map_from_arrays(env, keys, values, left, out);
}
