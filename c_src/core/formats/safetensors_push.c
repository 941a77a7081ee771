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

static xt_status sort(xt_forward *f, work *w, xt_error *error) {
  const xt_checkpoint *c = f->checkpoint;
  size_t count = c->meaning.storage_count;
  placed *places = malloc((count + 1) * sizeof *places);
  w->order = xt_arena_alloc(&f->checkpoint->arena, count + 1, sizeof *w->order);
  if (!places || !w->order) {
    free(places);
    return xt_opening_no_memory(error);
  }
  for (uint32_t i = 0; i < count; i++) places[i] = (placed){c->records[i]->header, c->records[i]->end, i};
  qsort(places, count, sizeof *places, by_place);
  for (size_t i = 0; i < count; i++) w->order[i] = places[i].storage;
  free(places);
  return XT_STATUS_ok;
}

static xt_status read_header(xt_forward *f, work *w, xt_error *error) {
  xt_checkpoint *c = f->checkpoint;
  uint8_t *header = xt_forward_copy(f, xt_forward_data(f) + XT_SAFETENSORS_PREFIX, w->header_size);
  if (!header) return xt_opening_no_memory(error);
  xt_status status = xt_safetensors_read_header(c, header, w->header_size, error);
  if (status == XT_STATUS_ok) status = sort(f, w, error);
  if (status == XT_STATUS_ok) status = xt_forward_described(f, error);
  f->state = TENSORS;
  xt_forward_take(f, XT_SAFETENSORS_PREFIX + w->header_size, 0);
  return status;
}

xt_status xt_forward_safetensors(xt_forward *f, xt_error *error) {
  work *w = f->work;
  switch (f->state) {
  case START:
    f->checkpoint->format = &xt_format_safetensors;
    w = f->work = xt_opening_alloc(f->checkpoint, sizeof *w);
    if (!w) return xt_opening_no_memory(error);
    f->doing = "the header";
    f->state = HEADER;
    xt_status status = xt_safetensors_header_size(f->checkpoint, xt_forward_data(f), &w->header_size, error);
    return status == XT_STATUS_ok ? xt_forward_ask(f, XT_SAFETENSORS_PREFIX + w->header_size, 0) : status;
  case HEADER: return read_header(f, w, error);
  default:
    if (w->next < f->storages) xt_forward_receive(f, w->order[w->next++]);
    else f->event = XT_FORWARD_DONE;
    return XT_STATUS_ok;
  }
}
