#include "core/base/array.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_BYTES = 256 }; /* size of the first allocation, at least */

bool xt_array_grow(void *array, size_t *room, size_t count, size_t size, xt_allowance *allowance) {
  size_t wanted = *room > SIZE_MAX / 2 ? SIZE_MAX : 2 * *room, bytes;
  if (wanted < FIRST_BYTES / size) wanted = FIRST_BYTES / size;
  if (wanted < count) wanted = count;
  if (__builtin_mul_overflow(wanted, size, &bytes)) return false;
  uint64_t more = bytes - *room * size;
  if (!xt_allowance_take(allowance, more)) return false;
  void *items; /* copied, because the array is a pointer of another type */
  memcpy(&items, array, sizeof items);
  items = realloc(items, bytes);
  if (!items) {
    xt_allowance_return(allowance, more);
    return false;
  }
  memcpy(array, &items, sizeof items);
  *room = wanted;
  return true;
}
