#include "core/base/dtype.h"

#include <string.h>

static const xt_dtype_info table[] = {
#define XT_DTYPE(name, size, torch, kind, nx, bits, alias, ...) \
  {#name, size, torch, XT_KIND_##kind, #nx, bits, #alias, __VA_ARGS__},
#include "core/base/dtypes.def"
#undef XT_DTYPE
};

const xt_dtype_info *xt_dtype_get(xt_dtype dtype) { return &table[dtype]; }

xt_dtype xt_dtype_plain(xt_dtype dtype) {
  if (table[dtype].kind != XT_KIND_QUANT) return dtype;
  return dtype == XT_qint32 ? XT_int32 : dtype == XT_qint8 ? XT_int8 : XT_uint8;
}

xt_dtype xt_dtype_from_name(const char *name) {
  for (int i = 0; i < XT_DTYPE_COUNT; i++)
    if (!strcmp(table[i].name, name) || !strcmp(table[i].alias, name)) return (xt_dtype)i;
  return XT_DTYPE_COUNT;
}

xt_dtype xt_dtype_from_nx(const char *nx, int64_t bits) {
  for (int i = 0; i < XT_DTYPE_COUNT; i++)
    if (table[i].nx_bits == bits && bits != 0 && !strcmp(table[i].nx, nx)) return (xt_dtype)i;
  return XT_DTYPE_COUNT;
}

xt_dtype xt_dtype_from_torch(int torch) {
  for (int i = 0; i < XT_DTYPE_COUNT; i++)
    if (table[i].torch == torch) return (xt_dtype)i;
  return XT_DTYPE_COUNT;
}

/* Finds a name in a column, which is given by its offset in the rows. */
static xt_dtype find(size_t column, const char *text, size_t size) {
  for (int i = 0; i < XT_DTYPE_COUNT && size; i++) {
    const char *name = *(const char *const *)((const char *)&table[i] + column);
    if (strlen(name) == size && !memcmp(name, text, size)) return (xt_dtype)i;
  }
  return XT_DTYPE_COUNT;
}

xt_dtype xt_dtype_from_storage(const char *class, size_t size) {
  enum { ENDING = sizeof "Storage" - 1 };
  if (size <= ENDING || memcmp(class + size - ENDING, "Storage", ENDING)) return XT_DTYPE_COUNT;
  return find(offsetof(xt_dtype_info, storage), class, size - ENDING);
}

xt_dtype xt_dtype_from_safetensors(const char *name, size_t size) {
  return find(offsetof(xt_dtype_info, safetensors), name, size);
}

xt_dtype xt_dtype_from_numpy(const char *code, size_t size) { return find(offsetof(xt_dtype_info, numpy), code, size); }
