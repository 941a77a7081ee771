#include "core/tensor/storages.h"

#include <string.h>

bool xt_storages_reserve(xt_storages *s, size_t count) {
  return xt_arena_reserve(s->arena, &s->list, &s->room, count, sizeof *s->list);
}

xt_status xt_storages_add(xt_storages *s, const char *key, size_t key_size, xt_dtype dtype, int64_t numel, int64_t at,
                          uint32_t *index, xt_error *error) {
  int64_t bytes;
  if (numel < 0 || __builtin_mul_overflow(numel, (int64_t)xt_dtype_get(dtype)->size, &bytes))
    return xt_error_at(error, XT_STATUS_corrupt, at, "invalid storage: size of %lld elements is negative or too large",
                       (long long)numel);
  if (!xt_storages_reserve(s, s->count + 1))
    return xt_error_set(error, XT_STATUS_no_memory, "out of memory while reading the storages");
  *index = (uint32_t)s->count;
  s->list[s->count++] = (xt_storage){.key = key,
                                     .key_size = key_size,
                                     .location = "cpu",
                                     .location_size = 3,
                                     .dtype = dtype,
                                     .element = dtype,
                                     .numel = numel,
                                     .bytes = (uint64_t)bytes,
                                     .alignment = 1};
  return XT_STATUS_ok;
}

bool xt_storage_is_meta(const xt_storage *storage) {
  return storage->location_size == 4 && !memcmp(storage->location, "meta", 4);
}

void xt_storages_free(xt_storages *s) {
  xt_table_free(&s->by_key);
  s->list = NULL;
  s->count = s->room = 0;
}
