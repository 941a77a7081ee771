/* Safetensors, as they come: the header, then the tensors in the order of their bytes. */
#include <stdlib.h>

#include "core/checkpoint/push.h"
#include "core/formats/format.h"

enum { START, HEADER, TENSORS };

typedef struct {
  uint64_t header_size;
  uint32_t *order; /* tensors by their place */
  size_t next;
} work;

typedef struct {
  uint64_t at, end;
  uint32_t storage;
} placed;

static int by_place(const void *a, const void *b) {
  const placed *x = a, *y = b;
  if (x->at != y->at) return x->at < y->at ? -1 : 1;
  return x->end < y->end ? -1 : x->end > y->end;
}

static xt_status sort(xt_push *p, work *w, xt_error *error) {
  const xt_checkpoint *c = p->checkpoint;
  size_t count = c->rebuild.storage_count;
  placed *places = malloc((count + 1) * sizeof *places);
  w->order = xt_arena_alloc(&p->checkpoint->arena, count + 1, sizeof *w->order);
  if (!places || !w->order) {
    free(places);
    return xt_open_no_memory(error);
  }
  for (uint32_t i = 0; i < count; i++) places[i] = (placed){c->records[i]->header, c->records[i]->end, i};
  qsort(places, count, sizeof *places, by_place);
  for (size_t i = 0; i < count; i++) w->order[i] = places[i].storage;
  free(places);
  return XT_STATUS_ok;
}

static xt_status read_header(xt_push *p, work *w, xt_error *error) {
  xt_checkpoint *c = p->checkpoint;
  uint8_t *header = xt_push_copy(p, xt_push_data(p) + XT_SAFETENSORS_PREFIX, w->header_size);
  if (!header) return xt_open_no_memory(error);
  xt_status status = xt_safetensors_read_header(c, header, w->header_size, error);
  if (status == XT_STATUS_ok) status = sort(p, w, error);
  if (status == XT_STATUS_ok) status = xt_push_described(p, error);
  p->state = TENSORS;
  xt_push_take(p, XT_SAFETENSORS_PREFIX + w->header_size, 0);
  return status;
}

xt_status xt_safetensors_push(xt_push *p, xt_error *error) {
  work *w = p->work;
  switch (p->state) {
  case START:
    p->checkpoint->format = &xt_safetensors_format;
    w = p->work = xt_open_alloc(p->checkpoint, sizeof *w);
    if (!w) return xt_open_no_memory(error);
    p->doing = "the header";
    p->state = HEADER;
    xt_status status = xt_safetensors_header_size(p->checkpoint, xt_push_data(p), &w->header_size, error);
    return status == XT_STATUS_ok ? xt_push_ask(p, XT_SAFETENSORS_PREFIX + w->header_size, 0) : status;
  case HEADER: return read_header(p, w, error);
  default:
    if (w->next < p->storages) xt_push_receive(p, w->order[w->next++]);
    else p->event = XT_PUSH_DONE;
    return XT_STATUS_ok;
  }
}
