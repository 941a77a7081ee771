#include "core/checkpoint/save_plan.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/array.h"
#include "core/base/decimal.h"
#include "core/base/printable.h"
#include "core/base/utf8.h"

static xt_status no_memory(xt_error *error) {
  return xt_error_set(error, XT_STATUS_no_memory, "out of memory while planning the save");
}

/* ---- Views ---- */

static int64_t count_elements(const xt_save_view *view) {
  int64_t numel = 1;
  for (int d = 0; d < view->ndim; d++) numel *= view->sizes[d];
  return numel;
}

static uint64_t count_bytes(const xt_save_view *view) {
  return (uint64_t)count_elements(view) * xt_dtype_get(view->dtype)->size;
}

/* Returns the number of bytes in memory from the first element to the end of the last one. */
static uint64_t span(const xt_save_view *view) {
  int64_t last = 0;
  for (int d = 0; d < view->ndim; d++) {
    if (!view->sizes[d]) return 0;
    last += (view->sizes[d] - 1) * view->strides[d];
  }
  return (uint64_t)(last + 1) * xt_dtype_get(view->cast ? view->from : view->dtype)->size;
}

bool xt_save_view_is_contiguous(const xt_save_view *view) {
  int64_t step = 1;
  for (int d = view->ndim; d-- > 0;) {
    if (view->sizes[d] == 1) continue;
    if (view->strides[d] != step) return false;
    step *= view->sizes[d];
  }
  return true;
}

const char *xt_save_view_problem(const xt_save_view *view) {
  int64_t last = 0, step;
  bool empty = false;
  for (int d = 0; d < view->ndim; d++) {
    if (view->sizes[d] < 0 || view->strides[d] < 0) return "it has a negative size or stride";
    empty |= view->sizes[d] == 0;
    if (view->sizes[d] && (__builtin_mul_overflow(view->sizes[d] - 1, view->strides[d], &step) ||
                           __builtin_add_overflow(last, step, &last)))
      return "its shape is too large";
  }
  if (!empty && (uint64_t)last >= view->storage_bytes / xt_dtype_get(view->dtype)->size)
    return "its data is shorter than its shape and strides require";
  return NULL;
}

/* Sets `storage` to the memory that is written for the view. */
static void choose_memory(xt_save_view *view, bool compact) {
  if (view->untyped) return;
  if (view->staged) {
    view->storage = view->cast ? view->data : NULL; /* by which equal views are found */
    view->storage_bytes = count_bytes(view);
    return;
  }
  bool whole = view->storage && !compact && !view->bare && view->storage <= view->data &&
               view->storage_bytes % xt_dtype_get(view->dtype)->size == 0;
  if (!whole) {
    uint64_t bytes = span(view);
    /* a part of memory that other views may write as a whole */
    view->alone = view->bare && (view->storage != view->data || view->storage_bytes != bytes);
    view->storage = view->data;
    view->storage_bytes = bytes;
  }
  if (!count_elements(view)) view->data = view->storage; /* the address of an empty tensor can be anywhere */
}

static void drop(const xt_save_view *view) {
  if (view->drop) view->drop(view->owner);
}

/* Makes room in an array of views or names: in the arena, if their number is known. */
static bool reserve(xt_save_plan *p, void *array, size_t *room, size_t count, size_t size) {
  return p->reserved ? xt_arena_reserve(&p->arena, array, room, count, size)
                     : xt_array_reserve(array, room, count, size);
}

bool xt_save_plan_add(xt_save_plan *p, const xt_save_view *view) {
  if (!reserve(p, &p->views, &p->view_room, p->view_count + 1, sizeof *p->views)) {
    drop(view);
    return false;
  }
  p->views[p->view_count] = *view;
  choose_memory(&p->views[p->view_count++], p->compact);
  return true;
}

void xt_save_tensor_drop(const xt_save_tensor *t) {
  for (int i = 0; i < t->view_count; i++) drop(&t->views[i]);
}

/* ---- Payloads that views share ---- */

/* Sort key. Views of the same `class` can share a storage: they have the same dtype and are a whole number of elements
 * apart, or their storages count bytes, as those of uint8 and of dtypes without a storage class do. Within a class,
 * views are ordered by address. Views that are cast share a storage if they are equal, those of another device if it is
 * the same storage there. Other staged views and empty ones never share one. */
typedef struct {
  uint32_t class;
  uintptr_t base;
  uint64_t bytes; /* of a view that is cast, otherwise 0 */
  size_t view;
} sort_key;

enum { REMAINDER_BITS = 8, DTYPE_BITS = 8 };
enum { BYTES, TYPED, CAST, REMOTE, ALONE };

static bool counts_bytes(const xt_save_view *view) {
  return view->untyped || view->dtype == XT_uint8 || !*xt_dtype_get(view->dtype)->storage;
}

static int kind_of(const xt_save_view *view) {
  if (!view->storage_bytes || view->alone || (view->staged && !view->cast)) return ALONE;
  return view->cast ? CAST : view->remote ? REMOTE : counts_bytes(view) ? BYTES : TYPED;
}

static bool is_equal(const xt_save_view *a, const xt_save_view *b) {
  if (a->ndim != b->ndim || a->from != b->from) return false;
  for (int d = 0; d < a->ndim; d++)
    if (a->sizes[d] != b->sizes[d] || a->strides[d] != b->strides[d]) return false;
  return true;
}

static bool is_same_storage(const xt_save_view *a, const xt_save_view *b) {
  return a->storage == b->storage && a->storage_bytes == b->storage_bytes && a->device.type == b->device.type &&
         a->device.index == b->device.index;
}

static sort_key key_of(const xt_save_view *view, size_t index) {
  uintptr_t base = (uintptr_t)view->storage;
  uint32_t kind = (uint32_t)kind_of(view);
  uint32_t class = (kind << DTYPE_BITS | (kind == BYTES ? 0 : (uint32_t)view->dtype)) << REMAINDER_BITS;
  uint32_t remainder = kind == CAST ? 0 : (uint32_t)(base % xt_dtype_get(view->dtype)->size);
  return (sort_key){class | remainder, base, kind == CAST ? view->storage_bytes : 0, index};
}

static int by_memory(const void *a, const void *b) {
  const sort_key *x = a, *y = b;
  if (x->class != y->class) return x->class < y->class ? -1 : 1;
  if (x->base != y->base) return x->base < y->base ? -1 : 1;
  if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;
  return x->view < y->view ? -1 : 1;
}

typedef struct {
  uintptr_t base, end;
  size_t number; /* 1 + index of the payload; 0 if it has none yet */
} group;

/* Returns whether a view shares the storage of the group of the view before it, which is of the same class. */
static bool can_join(const xt_save_plan *p, const xt_save_view *view, const sort_key *before, const group *g) {
  int kind = kind_of(view);
  if (kind == CAST) return before->base == (uintptr_t)view->storage && is_equal(view, &p->views[before->view]);
  if (kind == REMOTE) return is_same_storage(view, &p->views[before->view]);
  if (kind == BYTES && ((uintptr_t)view->data - g->base) % xt_dtype_get(view->dtype)->size) return false;
  return kind != ALONE && (uintptr_t)view->storage < g->end;
}

/* Sorts the views and joins those that overlap in memory into groups. Returns the number of groups. */
static size_t group_views(const xt_save_plan *p, sort_key *sorted, group *groups, size_t *group_of) {
  size_t count = 0;
  for (size_t i = 0; i < p->view_count; i++) sorted[i] = key_of(&p->views[i], i);
  qsort(sorted, p->view_count, sizeof *sorted, by_memory);
  for (size_t i = 0; i < p->view_count; i++) {
    const xt_save_view *view = &p->views[sorted[i].view];
    uintptr_t base = sorted[i].base, end = base + view->storage_bytes;
    bool joins = i && sorted[i].class == sorted[i - 1].class && can_join(p, view, &sorted[i - 1], &groups[count - 1]);
    if (!joins) groups[count++] = (group){base, end, 0};
    else if (end > groups[count - 1].end) groups[count - 1].end = end;
    group_of[sorted[i].view] = count - 1;
  }
  return count;
}

static void init_payload(xt_payload *payload, size_t number, const xt_save_plan *p, size_t view, const group *g) {
  const xt_save_view *first = &p->views[view];
  xt_decimal(payload->key, number); /* the payload is zeroed, so the key is terminated */
  payload->dtype = first->dtype;
  payload->bytes = g->end - g->base;
  payload->data = first->staged || first->remote ? NULL : (const uint8_t *)g->base;
  payload->view = view;
  payload->numel = (int64_t)(payload->bytes / (counts_bytes(first) ? 1 : xt_dtype_get(first->dtype)->size));
}

/* Creates one payload for each group, in the order in which the first view of the group was added. */
static bool make_payloads(xt_save_plan *p, sort_key *sorted, group *groups, size_t *group_of) {
  p->payloads = xt_arena_alloc(&p->arena, group_views(p, sorted, groups, group_of) + 1, sizeof *p->payloads);
  if (!p->payloads) return false;
  for (size_t i = 0; i < p->view_count; i++) {
    xt_save_view *view = &p->views[i];
    group *g = &groups[group_of[i]];
    if (!g->number) {
      init_payload(&p->payloads[p->count], p->count, p, i, g);
      g->number = ++p->count;
    }
    view->payload = g->number - 1;
    if (!view->staged) view->offset = (int64_t)(((uintptr_t)view->data - g->base) / xt_dtype_get(view->dtype)->size);
  }
  return true;
}

xt_status xt_save_plan_share(xt_save_plan *p, xt_error *error) {
  size_t count = p->view_count + 1;
  xt_arena scratch = {.expected = count * (sizeof(sort_key) + sizeof(group) + sizeof(size_t))};
  sort_key *sorted = xt_arena_alloc(&scratch, count, sizeof *sorted);
  group *groups = xt_arena_alloc(&scratch, count, sizeof *groups);
  size_t *group_of = xt_arena_alloc(&scratch, count, sizeof *group_of);
  bool made = sorted && groups && group_of && make_payloads(p, sorted, groups, group_of);
  xt_arena_free(&scratch);
  return made ? XT_STATUS_ok : no_memory(error);
}

/* ---- Named tensors ---- */

enum { NAME_IN_MESSAGE = 200 };

static int message_size(size_t size) { return (int)(size < NAME_IN_MESSAGE ? size : NAME_IN_MESSAGE); }

static xt_status refuse_name(const xt_save_plan *p, const char *name, size_t size, xt_error *error) {
  xt_printable text = xt_printable_text(name, size);
  if (xt_utf8_check((const uint8_t *)name, size) != XT_UTF8_VALID)
    return xt_error_set(error, XT_STATUS_bad_argument, "the name %s is not valid UTF-8", text.text);
  return xt_error_set(error, XT_STATUS_bad_argument, "%s cannot be the name of a tensor in a %s file", text.text,
                      p->format->name);
}

static bool accepts_name(const xt_save_plan *p, const char *name, size_t size) {
  return xt_utf8_check((const uint8_t *)name, size) == XT_UTF8_VALID &&
         (!p->format->accepts || p->format->accepts(name, size));
}

bool xt_save_plan_reserve(xt_save_plan *p, size_t count) {
  enum { USUAL_NAME = 40 };
  size_t each = sizeof *p->views + sizeof *p->names + sizeof *p->payloads + 2 * sizeof(xt_sort_item) + USUAL_NAME;
  p->reserved = true;
  p->arena.expected = count < SIZE_MAX / each ? count * each : 0;
  return reserve(p, &p->views, &p->view_room, count, sizeof *p->views) &&
         reserve(p, &p->names, &p->name_room, count, sizeof *p->names);
}

xt_status xt_save_plan_add_named(xt_save_plan *p, const char *name, size_t size, const xt_save_tensor *t,
                                 xt_error *error) {
  const char *refused = p->format->refuses(t);
  bool accepted = accepts_name(p, name, size);
  if (refused || !accepted) xt_save_tensor_drop(t);
  if (!accepted) return refuse_name(p, name, size, error);
  if (refused)
    return xt_error_set(error, XT_STATUS_unsupported,
                        "%.*s: %s does not support %s; use another format or convert the tensor first",
                        message_size(size), name, p->format->name, refused);
  char *text = xt_arena_text(&p->arena, name, size);
  if (!xt_save_plan_add(p, &t->views[0]) || !text ||
      !reserve(p, &p->names, &p->name_room, p->view_count, sizeof *p->names))
    return no_memory(error);
  p->names[p->view_count - 1] = (xt_sort_name){text, size};
  return XT_STATUS_ok;
}

/* The bytes in memory of a view that is written from there. */
static uint64_t own_bytes(const xt_save_view *view) { return view->staged && !view->cast ? 0 : span(view); }

/* Fails if two tensors overlap in memory: the format cannot represent that. */
static xt_status check_overlaps(const xt_save_plan *p, xt_sort_item *items, xt_sort_item *scratch, xt_error *error) {
  size_t count = 0;
  for (size_t i = 0; i < p->view_count; i++)
    if (own_bytes(&p->views[i])) items[count++] = (xt_sort_item){(uintptr_t)p->views[i].data, i};
  xt_sort_items(items, scratch, count);
  for (size_t i = 1; i < count; i++) {
    size_t before = items[i - 1].index;
    if (items[i].key >= items[i - 1].key + own_bytes(&p->views[before])) continue;
    const xt_sort_name *a = &p->names[before], *b = &p->names[items[i].index];
    return xt_error_set(error, XT_STATUS_bad_argument,
                        "%.*s and %.*s share memory, which %s cannot represent; save only one of them, or write "
                        "the bytes twice with duplicate: true",
                        message_size(a->size), a->text, message_size(b->size), b->text, p->format->name);
  }
  return XT_STATUS_ok;
}

/* Sets `items` to the order of the tensors in the file. */
static xt_status order_tensors(const xt_save_plan *p, xt_sort_item *items, xt_sort_item *scratch, xt_error *error) {
  for (size_t i = 0; i < p->view_count; i++) items[i].index = i;
  xt_sort_names(p->names, items, scratch, p->view_count);
  for (size_t i = 1; i < p->view_count; i++) {
    const xt_sort_name *a = &p->names[items[i - 1].index], *b = &p->names[items[i].index];
    if (a->size == b->size && !memcmp(a->text, b->text, a->size))
      return xt_error_set(error, XT_STATUS_bad_argument, "several tensors have the name %s",
                          xt_printable_text(a->text, a->size).text);
  }
  if (!p->format->aligned) return XT_STATUS_ok;
  for (size_t i = 0; i < p->view_count; i++)
    items[i].key = UINT64_MAX - xt_dtype_get(p->views[items[i].index].dtype)->size;
  xt_sort_items(items, scratch, p->view_count);
  return XT_STATUS_ok;
}

static void add_payloads(xt_save_plan *p, const xt_sort_item *items) {
  for (size_t i = 0; i < p->view_count; i++) {
    xt_save_view *view = &p->views[items[i].index];
    xt_payload *payload = &p->payloads[p->count];
    payload->dtype = view->dtype;
    payload->numel = count_elements(view);
    payload->bytes = count_bytes(view);
    payload->view = items[i].index;
    if (!view->staged && !view->remote && payload->bytes && xt_save_view_is_contiguous(view))
      payload->data = view->data;
    view->payload = p->count++;
  }
}

xt_status xt_save_plan_finish_named(xt_save_plan *p, bool duplicate, xt_error *error) {
  xt_sort_item *items = xt_arena_alloc_uncleared(&p->arena, 2 * (p->view_count + 1) * sizeof *items);
  p->payloads = xt_arena_alloc(&p->arena, p->view_count + 1, sizeof *p->payloads);
  if (!items || !p->payloads || p->metadata.failed) return no_memory(error);
  xt_sort_item *scratch = items + p->view_count + 1;
  xt_status status = order_tensors(p, items, scratch, error);
  if (status == XT_STATUS_ok) add_payloads(p, items);
  return status == XT_STATUS_ok && !duplicate ? check_overlaps(p, items, scratch, error) : status;
}

void xt_save_plan_put_metadata(xt_save_plan *p, const void *text, size_t size) {
  xt_buffer_put(&p->metadata, &size, sizeof size);
  xt_buffer_put(&p->metadata, text, size);
}

void xt_save_plan_free(xt_save_plan *p) {
  for (size_t i = 0; i < p->view_count; i++) drop(&p->views[i]);
  if (!p->reserved) free(p->views);
  if (!p->reserved) free(p->names);
  xt_buffer_free(&p->pickle);
  xt_buffer_free(&p->metadata);
  xt_arena_free(&p->arena);
}
