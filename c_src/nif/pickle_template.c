#include "nif/pickle_template.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GAP_BYTES = 40 }; /* the typical size of a filled gap */

void xt_pickle_template_gap(xt_pickle_template *t, size_t view, bool untyped) {
  if (t->count == t->room) {
    size_t room = t->room ? 2 * t->room : 64;
    xt_pickle_gap *grown = realloc(t->gaps, room * sizeof *grown);
    if (!grown) {
      t->pickle.out.failed = true;
      return;
    }
    t->gaps = grown;
    t->room = room;
  }
  t->gaps[t->count++] = (xt_pickle_gap){t->pickle.out.size, view, untyped};
}

static void put_location(xt_pickler *p, xt_device device) {
  char text[32] = "cpu";
  if (device.type == XT_DEVICE_CUDA) snprintf(text, sizeof text, "cuda:%d", device.index < 0 ? 0 : device.index);
  if (device.type == XT_DEVICE_MPS) snprintf(text, sizeof text, "mps");
  xt_pickler_put_text(p, text, strlen(text));
}

/* Fills the part between the bars: ('storage', class, | key, location, numel[, None]) PERSISTENT offset | */
static void fill_gap(xt_pickler *p, const xt_save_tensors *s, const xt_pickle_gap *gap, bool views) {
  const xt_save_view *view = &s->views[gap->view];
  const xt_payload *payload = &s->payloads[view->payload];
  xt_pickler_put_text(p, payload->key, strlen(payload->key));
  put_location(p, view->device);
  xt_pickler_put_int(p, gap->untyped ? (int64_t)payload->bytes : payload->numel);
  if (views) xt_pickler_put_none(p);
  xt_pickler_put_tuple(p);
  xt_pickler_put_persistent(p);
  xt_pickler_put_int(p, view->offset);
}

xt_status xt_pickle_template_fill(const xt_pickle_template *t, const xt_save_tensors *tensors, bool views,
                                  xt_pickler *out, xt_error *error) {
  const xt_buffer *from = &t->pickle.out;
  size_t at = 0;
  *out = (xt_pickler){0};
  xt_buffer_reserve(&out->out, from->size + t->count * GAP_BYTES);
  for (size_t i = 0; i < t->count; i++) {
    xt_buffer_put(&out->out, from->data + at, t->gaps[i].at - at);
    at = t->gaps[i].at;
    fill_gap(out, tensors, &t->gaps[i], views);
  }
  xt_buffer_put(&out->out, from->data + at, from->size - at);
  return out->out.failed ? xt_error_set(error, XT_STATUS_no_memory, "out of memory while writing the pickle")
                         : XT_STATUS_ok;
}

void xt_pickle_template_free(xt_pickle_template *t) {
  xt_pickler_free(&t->pickle);
  free(t->gaps);
  *t = (xt_pickle_template){0};
}
