/* Fuzz target (`make fuzz`): feeds any bytes in any pieces to the push parser. The first byte of the input chooses the
 * sizes of the pieces, the second the options and the wanted storages; the rest is the stream. */
#include "pushing.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size < 2) return 0;
  push_options options = {data[1] & 1, data[1] & 2, data[1] & 4, data[0]};
  push_bytes(data + 2, size - 2, &options);
  return 0;
}
