#include "core/base/array.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_BYTES = 256 }; /* size of the first allocation, at least */

size_t xt_array_next_room(size_t room, size_t count, size_t size) {
  size_t wanted = room > SIZE_MAX / 2 ? SIZE_MAX : 2 * room, bytes;
  if (wanted < FIRST_BYTES / size) wanted = FIRST_BYTES / size;
  if (wanted < count) wanted = count;
  return __builtin_mul_overflow(wanted, size, &bytes) ? 0 : wanted;
}

bool xt_array_resize(void *array, size_t *room, size_t wanted, size_t size) {
  void *items; /* copied, because the array is a pointer of another type */
  memcpy(&items, array, sizeof items);
  void *resized = realloc(items, wanted * size);
  if (!resized) return false;
  memcpy(array, &resized, sizeof resized);
  *room = wanted;
  return true; /* cppcheck-suppress memleak; the array has it */
}

bool xt_array_grow(void *array, size_t *room, size_t count, size_t size) {
  size_t wanted = xt_array_next_room(*room, count, size);
  return wanted && xt_array_resize(array, room, wanted, size);
}
