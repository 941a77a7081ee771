/* Push parser of npy files. */
#include "core/formats/npy.h"

enum { PREFIX, HEADER, ARRAY, DONE };

typedef struct {
  size_t header_size;
} work;

static xt_status read_header(xt_push *p, const work *w, xt_error *error) {
  uint8_t *header = xt_push_copy(p, xt_push_data(p), w->header_size);
  if (!header) return xt_opening_no_memory(error);
  xt_status status = xt_npy_describe(p->checkpoint->opening, header, w->header_size, p->at, error);
  if (status == XT_STATUS_ok) status = xt_push_described(p, error);
  xt_push_consume(p, w->header_size, 0);
  return status;
}

static xt_status step(xt_push *p, xt_error *error) {
  work *w = p->work;
  xt_status status = XT_STATUS_ok;
  p->reading = "the npy header";
  if (p->state == PREFIX && xt_push_available(p) < XT_NPY_PREFIX) return xt_push_request(p, XT_NPY_PREFIX, 0);
  switch (p->state++) {
  case PREFIX:
    status = xt_npy_header_size(xt_push_data(p), "the array", &w->header_size, error);
    return status == XT_STATUS_ok ? xt_push_request(p, w->header_size, 0) : status;
  case HEADER: return read_header(p, w, error);
  case ARRAY: return xt_push_receive(p, 0, error);
  default: p->event = XT_PUSH_DONE; return status;
  }
}

const xt_push_parser xt_npy_push = {.work_size = sizeof(work), .step = step};
