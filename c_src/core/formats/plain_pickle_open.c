/* Opens a plain pickle. The whole file is read into memory. */
#include "core/formats/plain_pickle.h"

#include <inttypes.h>

#include "core/checkpoint/record_reader.h"
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
                       "the pickle does not end within the file of %" PRIu64
                       " bytes, probably an incomplete download; download it again",
                       c->file_size);
  default:
    return xt_error_at(error, XT_STATUS_corrupt, (int64_t)(c->base + used),
                       "unknown file format: the file is not a valid pickle, opcode 0x%02x does not exist", data[used]);
  }
  /* pickle_bytes limits the work of parsing, so the data of tensors and arrays does not count */
  uint64_t structure = used - scan.payload;
  if (structure > c->limits.pickle_bytes)
    return xt_error_set(error, XT_STATUS_limit,
                        "the pickle has %" PRIu64 " bytes besides tensor data, which exceeds the limit of %" PRIu64
                        "; raise it with limits: [pickle_bytes: n]",
                        structure, c->limits.pickle_bytes);
  c->rebuild.ids = XT_IDS_NONE;
  xt_status status = xt_open_pickle(&c->rebuild, data, used, (int64_t)c->base, &c->root, error);
  c->next = c->base + used < c->file_size ? c->base + used : 0;
  return status == XT_STATUS_ok ? xt_open_finish(c, NULL, error) : status;
}

const xt_format xt_plain_pickle_format = {"pickle", true, step};
