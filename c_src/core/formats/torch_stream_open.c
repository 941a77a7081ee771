/* Opens a checkpoint in the streaming format of torch.distributed. */
#include "core/base/printable.h"
#include "core/formats/torch_stream.h"

#include <inttypes.h>
#include <string.h>

#include "core/formats/named_records.h"

enum { LIST, RECORDS };

typedef struct {
  xt_window list;
  xt_named_records records;
} work;

/* Returns the value of a field of an _Entry, or NULL if it is missing or of another kind. */
static const xt_node *get_field(const xt_node *entry, const char *name, size_t size, xt_node_kind kind) {
  const xt_node *state = entry->object->state;
  for (size_t i = 0; state && state->kind == XT_NODE_DICT && i + 1 < state->list.count; i += 2)
    if (xt_node_is_text(state->list.items[i], name, size) && state->list.items[i + 1]->kind == kind)
      return state->list.items[i + 1];
  return NULL;
}

static xt_status corrupt(xt_checkpoint *c, xt_error *error, const char *what) {
  return xt_error_at(error, XT_STATUS_corrupt, (int64_t)c->base,
                     "invalid list of records of a streaming checkpoint: %s", what);
}

static xt_status add_records(xt_checkpoint *c, const xt_node *list, uint64_t at, xt_error *error) {
  if (list->kind != XT_NODE_LIST) return corrupt(c, error, "expected a list");
  if (!xt_records_reserve(&c->directory, &c->arena, list->list.count, true)) return xt_opening_no_memory(error);
  for (size_t i = 0; i < list->list.count; i++) {
    const xt_node *entry = list->list.items[i];
    if (entry->kind != XT_NODE_OBJECT ||
        !xt_node_is_global(entry->object->callable, "torch.distributed._serialization", "_Entry"))
      return corrupt(c, error, "expected only objects of class _Entry");
    const xt_node *key = get_field(entry, "key", 3, XT_NODE_TEXT), *length = get_field(entry, "length", 6, XT_NODE_INT);
    if (!key || !length || length->integer < 0) return corrupt(c, error, "an entry has no valid key or length");
    if ((uint64_t)length->integer > c->file_size - at)
      return xt_error_at(error, XT_STATUS_truncated, (int64_t)c->file_size,
                         "the record %s ends at byte %" PRIu64 " but the file has only %" PRIu64
                         " bytes: it is truncated or was not written completely",
                         xt_printable_text(key->text.data, key->text.size).text, at + (uint64_t)length->integer,
                         c->file_size);
    bool duplicate;
    xt_record *record =
        xt_records_add_stored(&c->directory, key->text.data, key->text.size, at, (uint64_t)length->integer, &duplicate);
    if (duplicate) return corrupt(c, error, "duplicate record name");
    if (!record) return xt_opening_no_memory(error);
    at += (uint64_t)length->integer;
  }
  c->next = at < c->file_size ? at : 0;
  return XT_STATUS_ok;
}

xt_status xt_torch_stream_read_list(xt_opening *o, const uint8_t *data, size_t size, uint64_t at, xt_error *error) {
  xt_node *list;
  /* `strict` does not apply: the list is written by torch itself and contains the class _Entry */
  xt_status status = xt_opening_value(o, false, data, size, (int64_t)(at - size), NULL, &list, error);
  return status == XT_STATUS_ok ? add_records(o->checkpoint, list, at, error) : status;
}

static xt_status open(xt_opening *o, xt_need *need, xt_error *error) {
  uint64_t base = o->checkpoint->base;
  work *w = o->work;
  xt_status status;
  size_t size;
  if (o->state == LIST) {
    if (!xt_window_scan_pickle(o, &w->list, base, &size, need, error, &status)) return status;
    status = xt_torch_stream_read_list(o, w->list.data, size, base + size, error);
    if (status != XT_STATUS_ok) return status;
    o->state = RECORDS;
  }
  return xt_named_records_open(o, &w->records, need, error);
}

/* The first class named by the pickle is torch.distributed._serialization._Entry. */
static xt_match matches(const uint8_t *head, size_t size) {
  static const char module[] = "torch.distributed._serialization";
  const uint8_t *found = size && head[0] == 0x80 ? memmem(head, size < 64 ? size : 64, module, 16) : NULL;
  size_t rest = found ? size - (size_t)(found - head) : 0;
  bool named = found && rest > sizeof module + 6 && !memcmp(found, module, sizeof module - 1);
  if (!named) return XT_MATCH_NO;
  rest -= sizeof module - 1;
  return memmem(found + sizeof module - 1, rest < 16 ? rest : 16, "_Entry", 6) ? XT_MATCH_YES : XT_MATCH_NO;
}

const xt_format xt_torch_stream_format = {
    .name = "streaming",
    .at_any_offset = true,
    .matches = matches,
    .open_size = sizeof(work),
    .open = open,
    .push = &xt_torch_stream_push,
};
