/* Push parser of safetensors files. */
#include "core/formats/safetensors.h"

#include <stdlib.h>

enum { START, HEADER, TENSORS };

typedef struct {
  uint64_t header_size;
  uint32_t *order; /* storages in the order of their data */
  size_t next;     /* index into `order` */
} work;

typedef struct {
  uint64_t at, end;
  uint32_t storage;
} placement;

static int compare_placements(const void *a, const void *b) {
  const placement *x = a, *y = b;
  if (x->at != y->at) return x->at < y->at ? -1 : 1;
  return x->end < y->end ? -1 : x->end > y->end;
}

static xt_status sort_tensors(xt_push *p, work *w, xt_error *error) {
  const xt_checkpoint *c = p->checkpoint;
  size_t count = c->storages.count;
  placement *placements = malloc((count + 1) * sizeof *placements);
  w->order = xt_arena_alloc(&p->checkpoint->arena, count + 1, sizeof *w->order);
  if (!placements || !w->order) {
    free(placements);
    return xt_opening_no_memory(error);
  }
  for (uint32_t i = 0; i < count; i++) placements[i] = (placement){c->records[i]->header, c->records[i]->end, i};
  qsort(placements, count, sizeof *placements, compare_placements);
  for (size_t i = 0; i < count; i++) w->order[i] = placements[i].storage;
  free(placements);
  return XT_STATUS_ok;
}

static xt_status read_header(xt_push *p, work *w, xt_error *error) {
  uint8_t *header = xt_push_copy(p, xt_push_data(p) + XT_SAFETENSORS_PREFIX, w->header_size);
  if (!header) return xt_opening_no_memory(error);
  xt_status status = xt_safetensors_read_header(p->checkpoint->opening, header, w->header_size, error);
  if (status == XT_STATUS_ok) status = sort_tensors(p, w, error);
  if (status == XT_STATUS_ok) status = xt_push_described(p, error);
  p->state = TENSORS;
  xt_push_consume(p, XT_SAFETENSORS_PREFIX + w->header_size, 0);
  return status;
}

static xt_status step(xt_push *p, xt_error *error) {
  work *w = p->work;
  switch (p->state) {
  case START:
    p->reading = "the safetensors header";
    p->state = HEADER;
    xt_status status = xt_safetensors_header_size(p->checkpoint, xt_push_data(p), &w->header_size, error);
    return status == XT_STATUS_ok ? xt_push_request(p, XT_SAFETENSORS_PREFIX + w->header_size, 0) : status;
  case HEADER: return read_header(p, w, error);
  default:
    if (w->next < p->storages) return xt_push_receive(p, w->order[w->next++], error);
    p->event = XT_PUSH_DONE;
    return XT_STATUS_ok;
  }
}

const xt_push_parser xt_safetensors_push = {.work_size = sizeof(work), .step = step};
