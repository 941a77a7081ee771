/* A plain pickle: pickle.dump of a state dict, with the tensors' bytes inside. It is read whole. */
#include <inttypes.h>

#include "core/checkpoint/record_reader.h"
#include "core/formats/format.h"
#include "core/memory/memory.h"
#include "core/pickle/scan.h"

enum { START, WHOLE };

static xt_status step(xt_checkpoint *c, xt_need *need, xt_error *error) {
  xt_pickle_scan_state scan = {0};
  const uint8_t *data;
  if (c->state == START && !c->memory) {
    c->memory = xt_region_new(c->file_size - c->base, 0);
    if (!c->memory) return xt_region_refused(error);
    *need = (xt_need){c->base, c->memory->size, c->memory->data};
    c->state = WHOLE;
    return XT_STATUS_ok;
  }
  data = c->memory->data + (c->unpacked ? c->base : 0);
  size_t size = c->file_size - c->base;
  xt_pickle_scan_result result = xt_pickle_scan(data, size, &scan);
  size_t used = scan.at;
  switch (result) {
  case XT_SCAN_END: break;
  case XT_SCAN_SHORT:
    return xt_error_at(error, XT_STATUS_truncated, (int64_t)c->file_size,
                       "the pickle has no end: most often an incomplete download, of which %" PRIu64
                       " bytes are here; fetch it again",
                       c->file_size);
  default:
    return xt_error_at(error, XT_STATUS_corrupt, (int64_t)(c->base + used),
                       "this is no checkpoint that ExTorch knows, and no pickle: there is no instruction 0x%02x",
                       data[used]);
  }
  /* the bytes of tensors and arrays are no part of what the limit is for: the work of parsing */
  uint64_t rest = used - scan.payload;
  if (rest > c->limits.pickle_bytes)
    return xt_error_set(error, XT_STATUS_limit,
                        "a pickle of %" PRIu64 " bytes besides its tensors' data; the limit pickle_bytes is %" PRIu64,
                        rest, c->limits.pickle_bytes);
  c->rebuild.ids = XT_IDS_NONE;
  xt_status status = xt_open_pickle(c, &c->rebuild, data, used, (int64_t)c->base, &c->root, error);
  c->next = c->base + used < c->file_size ? c->base + used : 0;
  return status == XT_STATUS_ok ? xt_open_finish(c, rest, NULL, error) : status;
}

const xt_format xt_plain_pickle_format = {"pickle", true, step};
