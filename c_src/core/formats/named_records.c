/* Archives: the object is the record data.pkl, each storage a record, and small texts stand beside them. */
#include <inttypes.h>
#include <libdeflate.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/formats/format.h"

enum { LOCAL = XT_NAMED_RECORDS_STATES, DATA };

/* What opening reads, in this order; only the first must be there. */
enum { PICKLE, CONSTANTS, BYTEORDER, VERSION, DATA_VERSION, FORMAT_VERSION, ALIGNMENT, WANTED };
static const char *const names[WANTED] = {"data.pkl",      "constants.pkl",   "byteorder",         "version",
                                          ".data/version", ".format_version", ".storage_alignment"};

typedef struct {
  size_t wanted; /* which of the names */
  xt_record *record;
  uint8_t *local, *packed;
  const uint8_t *pickles[2]; /* data.pkl and constants.pkl, unpacked */
  size_t sizes[2];
} work;

static void keep_text(char *to, size_t room, const uint8_t *data, size_t size) {
  while (size && (data[size - 1] == '\n' || data[size - 1] == '\r')) size--;
  if (size >= room) size = room - 1;
  memcpy(to, data, size);
  to[size] = 0;
}

int xt_named_records_text(const char *name, size_t size) {
  for (int i = BYTEORDER; i < WANTED; i++)
    if (strlen(names[i]) == size && !memcmp(name, names[i], size)) return i;
  return 0;
}

xt_status xt_named_records_take_text(xt_checkpoint *c, int text, const uint8_t *data, size_t size, uint64_t at,
                                     xt_error *error) {
  switch (text) {
  case BYTEORDER:
    if (size == 3 && !memcmp(data, "big", 3)) c->big_endian = true;
    else if (size != 6 || memcmp(data, "little", 6))
      return xt_error_at(error, XT_STATUS_corrupt, (int64_t)at, "the record byteorder says neither little nor big");
    break;
  case FORMAT_VERSION: keep_text(c->format_version, sizeof c->format_version, data, size); break;
  case ALIGNMENT: keep_text(c->alignment, sizeof c->alignment, data, size); break;
  default: keep_text(c->version, sizeof c->version, data, size); break;
  }
  return XT_STATUS_ok;
}

static xt_status take(xt_checkpoint *c, work *w, const uint8_t *data, xt_error *error) {
  const xt_record *record = w->record;
  if (w->wanted > CONSTANTS)
    return xt_named_records_take_text(c, (int)w->wanted, data, record->size, record->header, error);
  w->pickles[w->wanted] = data;
  w->sizes[w->wanted] = record->size;
  return XT_STATUS_ok;
}

/* Offsets in a pickle are offsets in the file, when it is stored as it is. */
static xt_status parse(xt_checkpoint *c, const work *w, int which, xt_node **root, xt_error *error) {
  const xt_record *record = xt_records_find(&c->directory, names[which], strlen(names[which]));
  int64_t at = record->method == XT_RECORD_STORED ? (int64_t)atomic_load(&record->data_offset) : -1;
  return xt_open_pickle(c, &c->rebuild, w->pickles[which], w->sizes[which], at, root, error);
}

static bool put_pair(xt_arena *arena, xt_node *dict, const char *text, xt_node *value) {
  xt_node *key = xt_node_new(arena, XT_NODE_TEXT);
  if (!key || !value) return false;
  key->text.size = strlen(text);
  key->text.data = xt_arena_text(arena, text, key->text.size);
  return key->text.data && xt_node_append(arena, dict, key) && xt_node_append(arena, dict, value);
}

/* {"CONSTANTS": {"c0": …}}: the names that the archive's code knows its constants by. */
static xt_status name_constants(xt_checkpoint *c, const xt_node *tuple, xt_node **out, xt_error *error) {
  xt_node *all = xt_node_new(&c->arena, XT_NODE_DICT), *dict = xt_node_new(&c->arena, XT_NODE_DICT);
  bool made = all && dict && put_pair(&c->arena, all, "CONSTANTS", dict);
  for (size_t i = 0; made && tuple->kind == XT_NODE_TUPLE && i < tuple->list.count; i++) {
    char name[32];
    snprintf(name, sizeof name, "c%zu", i);
    made = put_pair(&c->arena, dict, name, tuple->list.items[i]);
  }
  *out = all;
  return made ? XT_STATUS_ok : xt_open_no_memory(error);
}

static xt_status finish(xt_checkpoint *c, const work *w, xt_error *error) {
  xt_node *constants = NULL, *named = NULL;
  c->script = w->pickles[CONSTANTS] != NULL;
  xt_status status = parse(c, w, PICKLE, &c->root, error);
  if (status == XT_STATUS_ok && c->script) {
    c->rebuild.folder = "constants/";
    status = parse(c, w, CONSTANTS, &constants, error);
    if (status == XT_STATUS_ok) status = name_constants(c, constants, &named, error);
  }
  return status == XT_STATUS_ok ? xt_open_finish(c, w->sizes[PICKLE] + w->sizes[CONSTANTS], named, error) : status;
}

static xt_status next(xt_checkpoint *c, work *w, xt_need *need, xt_error *error);

static xt_status ask_data(xt_checkpoint *c, work *w, uint64_t data, xt_need *need, xt_error *error) {
  c->state = DATA;
  xt_status status = xt_open_ask(c, &w->packed, data, w->record->packed, need, error);
  return status == XT_STATUS_ok && !need->size ? xt_named_records_step(c, need, error) : status;
}

static xt_status next(xt_checkpoint *c, work *w, xt_need *need, xt_error *error) {
  for (; w->wanted < WANTED; w->wanted++) {
    const char *name = names[w->wanted];
    w->record = xt_records_find(&c->directory, name, strlen(name));
    if (!w->record && w->wanted == PICKLE)
      return xt_error_set(error, XT_STATUS_corrupt,
                          "the file is an archive without data.pkl: it is no checkpoint that torch.save wrote");
    if (!w->record) continue;
    bool pickle = w->wanted <= CONSTANTS;
    uint64_t most = pickle ? c->limits.pickle_bytes : XT_NAMED_RECORDS_TEXT;
    if (w->record->size > most)
      return xt_error_at(error, XT_STATUS_limit, (int64_t)w->record->header,
                         "the record %s has %" PRIu64 " bytes, and the limit%s is %" PRIu64, name, w->record->size,
                         pickle ? " pickle_bytes" : "", most);
    xt_status status = xt_checkpoint_check_method(w->record, error);
    if (status != XT_STATUS_ok) return status;
    uint64_t data_offset = atomic_load(&w->record->data_offset);
    if (data_offset) return ask_data(c, w, data_offset, need, error);
    xt_need local = xt_checkpoint_header_need(w->record);
    c->state = LOCAL;
    return xt_open_ask(c, &w->local, local.offset, local.size, need, error);
  }
  return finish(c, w, error);
}

static xt_status got_data(xt_checkpoint *c, work *w, xt_need *need, xt_error *error) {
  const uint8_t *data = w->packed;
  xt_status status = XT_STATUS_ok;
  if (w->record->method == XT_RECORD_DEFLATED) {
    uint8_t *unpacked = xt_open_alloc(c, w->record->size);
    status = unpacked ? xt_checkpoint_inflate(w->record, data, unpacked, error) : xt_open_no_memory(error);
    data = unpacked;
  } else if (c->verify) {
    status = xt_checkpoint_verify(w->record, libdeflate_crc32(0, data, w->record->size), error);
  }
  if (status == XT_STATUS_ok) status = take(c, w, data, error);
  if (status != XT_STATUS_ok) return status;
  w->wanted++;
  return next(c, w, need, error);
}

xt_status xt_named_records_begin(xt_checkpoint *c, xt_need *need, xt_error *error) {
  work *w = c->work = xt_open_alloc(c, sizeof *w);
  return w ? next(c, w, need, error) : xt_open_no_memory(error);
}

xt_status xt_named_records_step(xt_checkpoint *c, xt_need *need, xt_error *error) {
  work *w = c->work;
  *need = (xt_need){0, 0, NULL};
  if (c->state == DATA) return got_data(c, w, need, error);
  uint64_t data;
  xt_status status = xt_checkpoint_check_header(w->record, w->local, &data, error);
  return status == XT_STATUS_ok ? ask_data(c, w, data, need, error) : status;
}
