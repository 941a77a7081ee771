#include "core/formats/named_records.h"

#include <inttypes.h>
#include <libdeflate.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/printable.h"

/* The records that are read while opening, in this order. Only data.pkl is required. */
enum { PICKLE, CONSTANTS, BYTEORDER, VERSION, DATA_VERSION, FORMAT_VERSION, ALIGNMENT, NAME_COUNT };
/* The tree of a pickle may take so many times what a file of its size may take. */
enum { PRESENT = 4 };
static const char *const names[NAME_COUNT] = {"data.pkl",      "constants.pkl",   "byteorder",         "version",
                                              ".data/version", ".format_version", ".storage_alignment"};

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

static xt_status find_record(xt_checkpoint *c, size_t i, xt_error *error) {
  const xt_storage *storage = &c->storages.list[i];
  char name[128] = "data/";
  size_t prefix = storage->key_size > 10 && !memcmp(storage->key, "constants/", 10) ? 0 : 5;
  if (storage->key_size > sizeof name - 6)
    return xt_error_set(error, XT_STATUS_corrupt, "the key of a storage has %zu bytes; at most %zu are supported",
                        storage->key_size, sizeof name - 6);
  memcpy(name + prefix, storage->key, storage->key_size);
  name[prefix + storage->key_size] = 0;
  xt_record *record = xt_records_find(&c->directory, name, prefix + storage->key_size);
  if (!record) return xt_error_set(error, XT_STATUS_corrupt, "the record %s is missing but a tensor needs it", name);
  uint64_t item = xt_dtype_get(storage->dtype)->size;
  /* the record may have fewer than an element's bytes more: torch writes them if a byte storage is viewed as a wider
   * dtype and its size is not a multiple of the element size */
  if (record->size < storage->bytes || record->size - storage->bytes >= item)
    return xt_error_at(error, XT_STATUS_corrupt, (int64_t)record->header,
                       "the record %s has %" PRIu64 " bytes but its storage has %" PRIu64, name, record->size,
                       storage->bytes);
  c->records[i] = record;
  return xt_record_check_method(record, error);
}

xt_status xt_named_records_finish(xt_opening *o, xt_node *more, xt_error *error) {
  xt_checkpoint *c = o->checkpoint;
  if (!xt_opening_reserve_records(o)) return xt_opening_no_memory(error);
  for (size_t i = 0; i < c->storages.count; i++) {
    const xt_storage *storage = &c->storages.list[i];
    xt_status status = storage->data || xt_storage_is_meta(storage) ? XT_STATUS_ok : find_record(c, i, error);
    if (status != XT_STATUS_ok) return status;
  }
  return xt_opening_finish(o, more, error);
}

/* ---- Opening ---- */

/* Errors in a pickle have a file offset only if the record is not compressed. */
static xt_status parse(xt_opening *o, const xt_named_records *w, int index, xt_node **root, xt_error *error) {
  const xt_record *record = xt_records_find(&o->checkpoint->directory, names[index], strlen(names[index]));
  int64_t at = record->method == XT_RECORD_STORED ? (int64_t)atomic_load(&record->data_offset) : -1;
  return xt_opening_pickle(o, w->pickles[index], w->sizes[index], at, root, error);
}

static bool put_pair(xt_arena *arena, xt_node *dict, const char *text, xt_node *value) {
  const char *copy = xt_arena_text(arena, text, strlen(text));
  xt_node *key = copy && value ? xt_node_new_text(arena, copy, strlen(text)) : NULL;
  return key && xt_node_append(arena, dict, key) && xt_node_append(arena, dict, value);
}

/* Returns the dict of the attributes of a module, or NULL if it has none. */
static xt_node *attributes(xt_arena *arena, xt_node *root) {
  if (root->kind != XT_NODE_OBJECT) return NULL;
  if (!root->object->state) root->object->state = xt_node_new(arena, XT_NODE_DICT);
  xt_node *state = root->object->state;
  return state && state->kind == XT_NODE_DICT ? state : NULL;
}

/* Adds the constants to the attributes of the module as {"CONSTANTS": {"c0": …}}, the names that TorchScript code uses.
 * A frozen module has no other tensors. If the object is not a module, *more becomes a tree of the constants. */
static xt_status add_constants(xt_checkpoint *c, const xt_node *tuple, xt_node **more, xt_error *error) {
  if (tuple->kind != XT_NODE_TUPLE || !tuple->list.count) return XT_STATUS_ok;
  xt_node *all = attributes(&c->arena, c->root), *dict = xt_node_new(&c->arena, XT_NODE_DICT);
  if (!all) all = *more = xt_node_new(&c->arena, XT_NODE_DICT);
  bool ok = all && dict && put_pair(&c->arena, all, "CONSTANTS", dict);
  for (size_t i = 0; ok && i < tuple->list.count; i++) {
    char name[32];
    snprintf(name, sizeof name, "c%zu", i);
    ok = put_pair(&c->arena, dict, name, tuple->list.items[i]);
  }
  c->constants = tuple->list.count;
  return ok ? XT_STATUS_ok : xt_opening_no_memory(error);
}

/* What compressed pickles make of few bytes does not depend on how large the file is besides them: a file may have a
 * hole, and a server may declare any size. */
static void limit_deflated(xt_opening *o, const xt_named_records *w) {
  uint64_t directory = (uint64_t)o->checkpoint->directory.count * sizeof(xt_record);
  xt_opening_limit_present(o, w->stored < UINT32_MAX ? PRESENT * (w->stored + directory) : UINT64_MAX);
}

static xt_status parse_all(xt_opening *o, const xt_named_records *w, xt_error *error) {
  xt_checkpoint *c = o->checkpoint;
  xt_node *constants = NULL, *more = NULL;
  c->is_torchscript = w->pickles[CONSTANTS] != NULL;
  if (w->deflated) limit_deflated(o, w);
  xt_status status = parse(o, w, PICKLE, &c->root, error);
  if (status == XT_STATUS_ok && c->is_torchscript) {
    o->rebuild.key_prefix = "constants/";
    status = parse(o, w, CONSTANTS, &constants, error);
    if (status == XT_STATUS_ok) status = add_constants(c, constants, &more, error);
  }
  return status == XT_STATUS_ok ? xt_named_records_finish(o, more, error) : status;
}

/* Describes a zip file without data.pkl. */
static xt_status report_other(const xt_records *directory, xt_error *error) {
  static const struct {
    const char *record, *what;
  } kinds[] = {
      {".data/extern_modules",
       "the file is a torch.package archive, which contains Python modules and pickles that need them; load its object "
       "in Python with torch.package.PackageImporter(path).load_pickle(package, resource) and save that with "
       "torch.save"},
      {"model.json",
       "the file is a TorchScript archive of torch 1.0 to 1.3 (model.json), which newer versions write differently; "
       "load it in Python with torch.jit.load and save it again with torch.jit.save"},
      {"attributes.pkl",
       "the file is a TorchScript archive of torch 1.1 to 1.3, which newer versions write differently; load it in "
       "Python with torch.jit.load and save it again with torch.jit.save"}};
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
    if (xt_records_find(directory, kinds[i].record, strlen(kinds[i].record)))
      return xt_error_set(error, XT_STATUS_unsupported, "%s", kinds[i].what);
  return xt_error_set(error, XT_STATUS_corrupt,
                      "the file has no record data.pkl, so it was not written by torch.save; its first record is %s",
                      directory->count ? xt_printable_text(directory->list[0].name, directory->list[0].name_size).text
                                       : "missing");
}

static xt_status request_record(xt_opening *o, xt_named_records *w, xt_need *need, xt_error *error) {
  const xt_record *record = w->record;
  bool pickle = w->next <= CONSTANTS;
  uint64_t limit = pickle ? o->limits.pickle_bytes : XT_NAMED_RECORDS_MAX_TEXT;
  if (record->size > limit)
    return xt_error_at(error, XT_STATUS_limit, (int64_t)record->header,
                       "the record %s has %" PRIu64 " bytes, which exceeds the limit of %" PRIu64 "%s", names[w->next],
                       record->size, limit, pickle ? "; raise it with limits: [pickle_bytes: n]" : "");
  xt_status status = xt_record_check_method(record, error);
  if (status != XT_STATUS_ok) return status;
  uint8_t *buffer;
  xt_need range = xt_checkpoint_record_range(o->checkpoint, record);
  status = xt_opening_request(o, &buffer, range.offset, range.size, &w->range, error);
  *need = w->range;
  return status;
}

static xt_status read_record(xt_opening *o, xt_named_records *w, xt_error *error) {
  xt_checkpoint *c = o->checkpoint;
  const xt_record *record = w->record;
  uint64_t at;
  xt_status status = xt_checkpoint_locate(c, w->record, w->range.to, &at, error);
  if (status != XT_STATUS_ok) return status;
  const uint8_t *data = (const uint8_t *)w->range.to + (at - w->range.offset);
  if (record->method == XT_RECORD_DEFLATED) {
    uint8_t *unpacked = xt_arena_alloc(&c->arena, record->size, 1);
    status = unpacked ? xt_record_inflate(record, data, unpacked, error) : xt_opening_no_memory(error);
    data = unpacked;
  } else if (o->verify) {
    status = xt_record_verify(record, libdeflate_crc32(0, data, record->size), error);
  }
  if (status != XT_STATUS_ok) return status;
  if (w->next > CONSTANTS)
    return xt_named_records_read_text(c, (int)w->next, data, record->size, record->header, error);
  w->pickles[w->next] = data;
  w->sizes[w->next] = record->size;
  w->stored += record->packed;
  w->deflated |= record->method == XT_RECORD_DEFLATED;
  return status;
}

/* Reads the record that the last call has requested, and requests the next one. */
xt_status xt_named_records_open(xt_opening *o, xt_named_records *w, xt_need *need, xt_error *error) {
  xt_status status = XT_STATUS_ok;
  while (status == XT_STATUS_ok && !need->size) {
    if (w->record) status = read_record(o, w, error), w->next++;
    if (status != XT_STATUS_ok) return status;
    w->record = NULL;
    for (; w->next < NAME_COUNT && !w->record; w->next += !w->record) {
      w->record = xt_records_find(&o->checkpoint->directory, names[w->next], strlen(names[w->next]));
      if (!w->record && w->next == PICKLE) return report_other(&o->checkpoint->directory, error);
    }
    if (!w->record) return parse_all(o, w, error);
    status = request_record(o, w, need, error);
  }
  return status;
}
