#include "core/memory/allowance.h"

#include <inttypes.h>

#include "core/base/array.h"
#include "core/memory/memory.h"
#include "core/memory/region.h"

/* SHARE is enough for the smallest files. */
enum { BASE = 56 << 20, SHARE = 8 << 10, RATIO = 15 };

uint64_t xt_allowance_for(uint64_t file_size, uint64_t files) {
  uint64_t base = files > BASE / SHARE ? SHARE : BASE / (files ? files : 1);
  return file_size > (UINT64_MAX - BASE) / RATIO ? UINT64_MAX : base + RATIO * file_size;
}

bool xt_allowance_fits(xt_allowance *a, uint64_t bytes) {
  if (!a || (a->used <= a->limit && bytes <= a->limit - a->used)) return true;
  a->exceeded = true;
  return false;
}

bool xt_allowance_take(xt_allowance *a, uint64_t bytes) {
  if (!a) return true;
  if (!xt_allowance_fits(a, bytes) || !xt_memory_charge((int64_t)bytes)) return false;
  a->used += bytes;
  return true;
}

void xt_allowance_return(xt_allowance *a, uint64_t bytes) {
  if (!a) return;
  a->used -= bytes;
  xt_memory_discharge((int64_t)bytes);
}

bool xt_allowance_reserve(xt_allowance *a, void *array, size_t *room, size_t count, size_t size) {
  if (count <= *room) return true;
  size_t wanted = xt_array_next_room(*room, count, size);
  uint64_t more = (wanted - *room) * size;
  if (!wanted || !xt_allowance_take(a, more)) return false;
  if (xt_array_resize(array, room, wanted, size)) return true;
  xt_allowance_return(a, more);
  return false;
}

xt_status xt_allowance_explain(xt_allowance *a, xt_status status, xt_error *error) {
  if (status != XT_STATUS_no_memory) return status;
  if (a->exceeded)
    return xt_error_set(error, XT_STATUS_limit,
                        "the file needs more than %" PRIu64
                        " bytes of memory besides its tensors, which is too much for its size; if you trust it, raise "
                        "the limit with limits: [memory: n]",
                        a->limit);
  xt_error before = *error;
  if (xt_region_refused(error) == XT_STATUS_limit) return error->status; /* the budget */
  *error = before;
  return status;
}
