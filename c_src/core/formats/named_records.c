#include "core/formats/named_records.h"

#include <inttypes.h>
#include <libdeflate.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LOCAL_HEADER = XT_NAMED_RECORDS_STATES, DATA };

/* The records that are read while opening, in this order. Only data.pkl is required. */
enum { PICKLE, CONSTANTS, BYTEORDER, VERSION, DATA_VERSION, FORMAT_VERSION, ALIGNMENT, NAME_COUNT };
static const char *const names[NAME_COUNT] = {"data.pkl",      "constants.pkl",   "byteorder",         "version",
                                              ".data/version", ".format_version", ".storage_alignment"};

typedef struct {
  size_t name_index; /* index of the current record in `names` */
  xt_record *record;
  uint8_t *header, *packed;
  const uint8_t *pickles[2]; /* content of data.pkl and constants.pkl */
  size_t sizes[2];
} work;

static void copy_text(char *to, size_t capacity, const uint8_t *data, size_t size) {
  while (size && (data[size - 1] == '\n' || data[size - 1] == '\r')) size--;
  if (size >= capacity) size = capacity - 1;
  memcpy(to, data, size);
  to[size] = 0;
}

int xt_named_records_find_text(const char *name, size_t size) {
  for (int i = BYTEORDER; i < NAME_COUNT; i++)
    if (strlen(names[i]) == size && !memcmp(name, names[i], size)) return i;
  return 0;
}

xt_status xt_named_records_read_text(xt_checkpoint *c, int text, const uint8_t *data, size_t size, uint64_t at,
                                     xt_error *error) {
  switch (text) {
  case BYTEORDER:
    if (size == 3 && !memcmp(data, "big", 3)) c->big_endian = true;
    else if (size != 6 || memcmp(data, "little", 6))
      return xt_error_at(error, XT_STATUS_corrupt, (int64_t)at,
                         "invalid record byteorder; expected \"little\" or \"big\"");
    break;
  case FORMAT_VERSION: copy_text(c->format_version, sizeof c->format_version, data, size); break;
  case ALIGNMENT: copy_text(c->alignment, sizeof c->alignment, data, size); break;
  default: copy_text(c->version, sizeof c->version, data, size); break;
  }
  return XT_STATUS_ok;
}

static xt_status read_record(xt_checkpoint *c, work *w, const uint8_t *data, xt_error *error) {
  const xt_record *record = w->record;
  if (w->name_index > CONSTANTS)
    return xt_named_records_read_text(c, (int)w->name_index, data, record->size, record->header, error);
  w->pickles[w->name_index] = data;
  w->sizes[w->name_index] = record->size;
  return XT_STATUS_ok;
}

/* Errors in a pickle have a file offset only if the record is not compressed. */
static xt_status parse(xt_checkpoint *c, const work *w, int index, xt_node **root, xt_error *error) {
  const xt_record *record = xt_records_find(&c->directory, names[index], strlen(names[index]));
  int64_t at = record->method == XT_RECORD_STORED ? (int64_t)atomic_load(&record->data_offset) : -1;
  return xt_open_pickle(&c->rebuild, w->pickles[index], w->sizes[index], at, root, error);
}

static bool put_pair(xt_arena *arena, xt_node *dict, const char *text, xt_node *value) {
  xt_node *key = xt_node_new(arena, XT_NODE_TEXT);
  if (!key || !value) return false;
  key->text.size = strlen(text);
  key->text.data = xt_arena_text(arena, text, key->text.size);
  return key->text.data && xt_node_append(arena, dict, key) && xt_node_append(arena, dict, value);
}

/* Turns the tuple of constants into {"CONSTANTS": {"c0": …}}, the names that TorchScript code uses. */
static xt_status name_constants(xt_checkpoint *c, const xt_node *tuple, xt_node **out, xt_error *error) {
  xt_node *all = xt_node_new(&c->arena, XT_NODE_DICT), *dict = xt_node_new(&c->arena, XT_NODE_DICT);
  bool ok = all && dict && put_pair(&c->arena, all, "CONSTANTS", dict);
  for (size_t i = 0; ok && tuple->kind == XT_NODE_TUPLE && i < tuple->list.count; i++) {
    char name[32];
    snprintf(name, sizeof name, "c%zu", i);
    ok = put_pair(&c->arena, dict, name, tuple->list.items[i]);
  }
  *out = all;
  return ok ? XT_STATUS_ok : xt_open_no_memory(error);
}

static xt_status finish(xt_checkpoint *c, const work *w, xt_error *error) {
  xt_node *constants = NULL, *named = NULL;
  c->is_torchscript = w->pickles[CONSTANTS] != NULL;
  xt_status status = parse(c, w, PICKLE, &c->root, error);
  if (status == XT_STATUS_ok && c->is_torchscript) {
    c->rebuild.key_prefix = "constants/";
    status = parse(c, w, CONSTANTS, &constants, error);
    if (status == XT_STATUS_ok) status = name_constants(c, constants, &named, error);
  }
  return status == XT_STATUS_ok ? xt_open_finish(c, named, error) : status;
}

static xt_status request_data(xt_checkpoint *c, work *w, uint64_t data, xt_need *need, xt_error *error) {
  c->state = DATA;
  xt_status status = xt_open_request(c, &w->packed, data, w->record->packed, need, error);
  return status == XT_STATUS_ok && !need->size ? xt_named_records_step(c, need, error) : status;
}

static xt_status next_record(xt_checkpoint *c, work *w, xt_need *need, xt_error *error) {
  for (; w->name_index < NAME_COUNT; w->name_index++) {
    const char *name = names[w->name_index];
    w->record = xt_records_find(&c->directory, name, strlen(name));
    if (!w->record && w->name_index == PICKLE)
      return xt_error_set(error, XT_STATUS_corrupt,
                          "the file has no record data.pkl, so it was not written by torch.save");
    if (!w->record) continue;
    bool pickle = w->name_index <= CONSTANTS;
    uint64_t limit = pickle ? c->limits.pickle_bytes : XT_NAMED_RECORDS_MAX_TEXT;
    if (w->record->size > limit)
      return xt_error_at(error, XT_STATUS_limit, (int64_t)w->record->header,
                         "the record %s has %" PRIu64 " bytes, which exceeds the limit of %" PRIu64 "%s", name,
                         w->record->size, limit, pickle ? "; raise it with limits: [pickle_bytes: n]" : "");
    xt_status status = xt_checkpoint_check_method(w->record, error);
    if (status != XT_STATUS_ok) return status;
    uint64_t data_offset = atomic_load(&w->record->data_offset);
    if (data_offset) return request_data(c, w, data_offset, need, error);
    xt_need header = xt_checkpoint_header_need(w->record);
    c->state = LOCAL_HEADER;
    return xt_open_request(c, &w->header, header.offset, header.size, need, error);
  }
  return finish(c, w, error);
}

static xt_status finish_record(xt_checkpoint *c, work *w, xt_need *need, xt_error *error) {
  const uint8_t *data = w->packed;
  xt_status status = XT_STATUS_ok;
  if (w->record->method == XT_RECORD_DEFLATED) {
    uint8_t *unpacked = xt_open_alloc(c, w->record->size);
    status = unpacked ? xt_checkpoint_inflate(w->record, data, unpacked, error) : xt_open_no_memory(error);
    data = unpacked;
  } else if (c->verify) {
    status = xt_checkpoint_verify(w->record, libdeflate_crc32(0, data, w->record->size), error);
  }
  if (status == XT_STATUS_ok) status = read_record(c, w, data, error);
  if (status != XT_STATUS_ok) return status;
  w->name_index++;
  return next_record(c, w, need, error);
}

xt_status xt_named_records_begin(xt_checkpoint *c, xt_need *need, xt_error *error) {
  work *w = c->work = xt_open_alloc(c, sizeof *w);
  return w ? next_record(c, w, need, error) : xt_open_no_memory(error);
}

xt_status xt_named_records_step(xt_checkpoint *c, xt_need *need, xt_error *error) {
  work *w = c->work;
  *need = (xt_need){0, 0, NULL};
  if (c->state == DATA) return finish_record(c, w, need, error);
  uint64_t data;
  xt_status status = xt_checkpoint_check_header(w->record, w->header, &data, error);
  return status == XT_STATUS_ok ? request_data(c, w, data, need, error) : status;
}
