#include "nif/pickle_template.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GAP_BYTES = 40 }; /* about so many fill one */

void xt_draft_gap(xt_draft *d, size_t view, bool untyped) {
  if (d->count == d->room) {
    size_t room = d->room ? 2 * d->room : 64;
    xt_gap *grown = realloc(d->gaps, room * sizeof *grown);
    if (!grown) {
      d->pickle.out.failed = true;
      return;
    }
    d->gaps = grown;
    d->room = room;
  }
  d->gaps[d->count++] = (xt_gap){d->pickle.out.size, view, untyped};
}

static void put_location(xt_pickler *p, xt_device device) {
  char text[32] = "cpu";
  if (device.type == XT_DEVICE_CUDA) snprintf(text, sizeof text, "cuda:%d", device.index < 0 ? 0 : device.index);
  if (device.type == XT_DEVICE_MPS) snprintf(text, sizeof text, "mps");
  xt_put_text(p, text, strlen(text));
}

/* ('storage', class, | key, location, numel[, None]) PERSISTENT offset | */
static void fill_gap(xt_pickler *p, const xt_save_tensors *s, const xt_gap *gap, bool views) {
  const xt_save_view *view = &s->views[gap->view];
  const xt_payload *payload = &s->payloads[view->payload];
  xt_put_text(p, payload->key, strlen(payload->key));
  put_location(p, view->device);
  xt_put_int(p, gap->untyped ? (int64_t)payload->bytes : payload->numel);
  if (views) xt_put_none(p);
  xt_put_tuple(p);
  xt_put_persistent(p);
  xt_put_int(p, view->offset);
}

xt_status xt_draft_fill(const xt_draft *d, const xt_save_tensors *tensors, bool views, xt_pickler *out,
                        xt_error *error) {
  const xt_buffer *from = &d->pickle.out;
  size_t at = 0;
  *out = (xt_pickler){0};
  xt_buffer_room(&out->out, from->size + d->count * GAP_BYTES);
  for (size_t i = 0; i < d->count; i++) {
    xt_buffer_put(&out->out, from->data + at, d->gaps[i].at - at);
    at = d->gaps[i].at;
    fill_gap(out, tensors, &d->gaps[i], views);
  }
  xt_buffer_put(&out->out, from->data + at, from->size - at);
  return out->out.failed ? xt_error_set(error, XT_STATUS_no_memory, "no memory for the pickle") : XT_STATUS_ok;
}

void xt_draft_free(xt_draft *d) {
  xt_pickler_free(&d->pickle);
  free(d->gaps);
  *d = (xt_draft){0};
}
