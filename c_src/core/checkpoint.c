#include "checkpoint.h"

#include <inttypes.h>
#include <libdeflate.h>
#include <stdlib.h>
#include <string.h>

#include "pickle.h"
#include "sniff.h"

/* HEAD → TAIL → DIRECTORY → (LOCAL → DATA) for each record that opening reads → OPEN */
enum { START, HEAD, TAIL, DIRECTORY, LOCAL, DATA, OPEN };

/* What opening reads, in this order; only the pickle must be there. */
static const char *const wanted_names[] = {"data.pkl",      "byteorder",       "version",
                                           ".data/version", ".format_version", ".storage_alignment"};
enum { WANTED = sizeof wanted_names / sizeof *wanted_names, SMALL_RECORD = 4096 };

/* Deflate cannot expand further than this. */
enum { MAX_RATIO = 1032 };

/* Memory that an object tree may take: honest ones need a tenth of it. */
enum { TREE_BASE = 64 << 20, TREE_RATIO = 64 };

void xt_checkpoint_begin(xt_checkpoint *c, uint64_t file_size, const xt_limits *limits, bool strict, bool verify,
                         xt_error *error) {
  memset(c, 0, sizeof *c);
  c->limits = *limits;
  c->verify = verify;
  c->file_size = file_size;
  c->meaning =
      (xt_meaning){.arena = &c->arena, .strict = strict, .max_tensor_bytes = limits->tensor_bytes, .error = error};
}

static xt_status no_memory(xt_error *error) {
  return xt_error_set(error, XT_STATUS_no_memory, "no memory to open the checkpoint");
}

/* Sizes are those of bytes that are in the file, checked before. */
static xt_status ask(uint8_t **buffer, uint64_t offset, uint64_t size, xt_need *need, xt_error *error) {
  *buffer = malloc(size ? size : 1);
  if (!*buffer) return no_memory(error);
  *need = (xt_need){offset, size, *buffer};
  return XT_STATUS_ok;
}

/* ---- Records ---- */

xt_need xt_checkpoint_place_need(const xt_zip_entry *entry) {
  return (xt_need){entry->header, XT_ZIP_LOCAL + entry->name_size, NULL};
}

xt_status xt_checkpoint_check_place(xt_checkpoint *c, const xt_zip_entry *entry, const uint8_t *local, uint64_t *data,
                                    xt_error *error) {
  xt_status status = xt_zip_check_local(entry, local, data, error);
  if (status == XT_STATUS_ok) atomic_store(&c->places[entry - c->zip.entries], *data);
  return status;
}

uint64_t xt_checkpoint_place(const xt_checkpoint *c, const xt_zip_entry *entry) {
  return atomic_load(&c->places[entry - c->zip.entries]);
}

xt_status xt_checkpoint_verify(const xt_zip_entry *entry, uint32_t crc, xt_error *error) {
  if (crc == entry->crc) return XT_STATUS_ok;
  return xt_error_at(error, XT_STATUS_corrupt, (int64_t)entry->header,
                     "the bytes of %.*s do not match their checksum (%08x, the zip says %08x): the file was damaged",
                     (int)(entry->name_size < 200 ? entry->name_size : 200), entry->name, crc, entry->crc);
}

xt_status xt_checkpoint_inflate(const xt_zip_entry *entry, const uint8_t *packed, uint8_t *to, xt_error *error) {
  struct libdeflate_decompressor *inflater = libdeflate_alloc_decompressor();
  if (!inflater) return no_memory(error);
  size_t got = 0;
  enum libdeflate_result result = libdeflate_deflate_decompress(inflater, packed, entry->packed, to, entry->size, &got);
  libdeflate_free_decompressor(inflater);
  if (result != LIBDEFLATE_SUCCESS || got != entry->size)
    return xt_error_at(error, XT_STATUS_corrupt, (int64_t)entry->header, "the compressed data of %.*s is broken",
                       (int)(entry->name_size < 200 ? entry->name_size : 200), entry->name);
  return xt_checkpoint_verify(entry, libdeflate_crc32(0, to, entry->size), error);
}

xt_status xt_checkpoint_check_method(const xt_zip_entry *entry, xt_error *error) {
  if (entry->method != XT_ZIP_STORED && entry->method != XT_ZIP_DEFLATED)
    return xt_error_at(error, XT_STATUS_unsupported, (int64_t)entry->header,
                       "a record is compressed by zip's method %u: pack it again with deflate", entry->method);
  if (entry->method == XT_ZIP_DEFLATED && entry->size / MAX_RATIO > entry->packed)
    return xt_error_at(error, XT_STATUS_corrupt, (int64_t)entry->header,
                       "a record claims to expand further than deflate can");
  return XT_STATUS_ok;
}

/* ---- After the pickle ---- */

static xt_status check_storage(xt_checkpoint *c, size_t i, xt_error *error) {
  const xt_storage *storage = &c->meaning.storages[i];
  char name[128] = "data/";
  if (storage->location_size == 4 && !memcmp(storage->location, "meta", 4)) return XT_STATUS_ok;
  if (storage->key_size > sizeof name - 6) return xt_error_set(error, XT_STATUS_corrupt, "a storage's key is too long");
  memcpy(name + 5, storage->key, storage->key_size);
  const xt_zip_entry *record = xt_zip_find(&c->zip, name, 5 + storage->key_size);
  if (!record) return xt_error_set(error, XT_STATUS_corrupt, "the record %s, which a tensor needs, is missing", name);
  uint64_t item = xt_dtype_get(storage->dtype)->size;
  /* torch writes fewer than an element's bytes too many when a byte storage is seen as a wider type */
  if (record->size < storage->bytes || record->size - storage->bytes >= item)
    return xt_error_at(error, XT_STATUS_corrupt, (int64_t)record->header,
                       "the record %s has %" PRIu64 " bytes and its tensor's storage %" PRIu64, name, record->size,
                       storage->bytes);
  c->records[i] = record;
  return xt_checkpoint_check_method(record, error);
}

static xt_status read_pickle(xt_checkpoint *c, xt_error *error) {
  size_t used;
  c->meaning.error = error;
  c->arena.limit = TREE_BASE + c->pickle_size * TREE_RATIO;
  xt_status status = xt_pickle_read(c->pickle, c->pickle_size, &c->meaning, &used, &c->root);
  if (status != XT_STATUS_ok) {
    /* offsets in the pickle are offsets in the file, when it is stored as it is */
    const xt_zip_entry *entry = xt_zip_find(&c->zip, "data.pkl", 8);
    if (error->offset >= 0 && entry->method == XT_ZIP_STORED) error->offset += (int64_t)xt_checkpoint_place(c, entry);
    return status;
  }
  c->records = calloc(c->meaning.storage_count + 1, sizeof *c->records);
  if (!c->records) return no_memory(error);
  for (size_t i = 0; i < c->meaning.storage_count; i++) {
    status = check_storage(c, i, error);
    if (status != XT_STATUS_ok) return status;
  }
  uint64_t nodes = c->pickle_size * 8 > 1000000 ? c->pickle_size * 8 : 1000000;
  xt_index_limits limits = {c->limits.nodes ? c->limits.nodes : nodes, (uint32_t)c->limits.depth};
  return xt_index_build(&c->index, &c->arena, c->root, &limits, error);
}

static void keep_text(char *to, size_t room, const uint8_t *data, size_t size) {
  while (size && (data[size - 1] == '\n' || data[size - 1] == '\r')) size--;
  if (size >= room) size = room - 1;
  memcpy(to, data, size);
  to[size] = 0;
}

static xt_status take_record(xt_checkpoint *c, uint8_t *data, xt_error *error) {
  size_t size = c->entry->size;
  switch (c->wanted) {
  case 0:
    c->pickle = data;
    c->pickle_size = size;
    return XT_STATUS_ok; /* kept: the tree's strings point into it */
  case 1:
    if (size == 3 && !memcmp(data, "big", 3)) c->big_endian = true;
    else if (size != 6 || memcmp(data, "little", 6))
      return xt_error_at(error, XT_STATUS_corrupt, (int64_t)c->entry->header,
                         "the record byteorder says neither little nor big");
    break;
  case 2:
  case 3: keep_text(c->version, sizeof c->version, data, size); break;
  case 4: keep_text(c->format_version, sizeof c->format_version, data, size); break;
  default: keep_text(c->alignment, sizeof c->alignment, data, size); break;
  }
  free(data);
  return XT_STATUS_ok;
}

/* ---- Opening ---- */

static xt_status next_record(xt_checkpoint *c, xt_need *need, xt_error *error) {
  for (; c->wanted < WANTED; c->wanted++) {
    const char *name = wanted_names[c->wanted];
    c->entry = xt_zip_find(&c->zip, name, strlen(name));
    if (!c->entry && c->wanted == 0)
      return xt_error_set(error, XT_STATUS_corrupt,
                          "the file is a zip without data.pkl: it is no checkpoint that torch.save wrote");
    if (!c->entry) continue;
    uint64_t most = c->wanted == 0 ? c->limits.pickle_bytes : SMALL_RECORD;
    if (c->entry->size > most)
      return xt_error_at(error, XT_STATUS_limit, (int64_t)c->entry->header,
                         "the record %s has %" PRIu64 " bytes, and the limit%s is %" PRIu64, name, c->entry->size,
                         c->wanted == 0 ? " pickle_bytes" : "", most);
    xt_status status = xt_checkpoint_check_method(c->entry, error);
    if (status != XT_STATUS_ok) return status;
    xt_need place = xt_checkpoint_place_need(c->entry);
    c->state = LOCAL;
    return ask(&c->local, place.offset, place.size, need, error);
  }
  c->state = OPEN;
  c->script = xt_zip_find(&c->zip, "constants.pkl", 13) != NULL;
  *need = (xt_need){0, 0, NULL};
  xt_status status = read_pickle(c, error);
  if (status == XT_STATUS_no_memory && c->arena.exceeded)
    return xt_error_set(error, XT_STATUS_limit, "the pickle of %zu bytes describes an object of more than %zu",
                        c->pickle_size, c->arena.limit);
  return status;
}

static xt_status got_data(xt_checkpoint *c, xt_need *need, xt_error *error) {
  xt_status status = XT_STATUS_ok;
  uint8_t *data = c->packed;
  c->packed = NULL;
  if (c->entry->method == XT_ZIP_DEFLATED) {
    uint8_t *packed = data;
    data = malloc(c->entry->size ? c->entry->size : 1);
    status = data ? xt_checkpoint_inflate(c->entry, packed, data, error) : no_memory(error);
    free(packed);
  }
  if (status == XT_STATUS_ok && c->verify && c->entry->method == XT_ZIP_STORED)
    status = xt_checkpoint_verify(c->entry, libdeflate_crc32(0, data, c->entry->size), error);
  if (status != XT_STATUS_ok) {
    free(data);
    return status;
  }
  status = take_record(c, data, error);
  if (status != XT_STATUS_ok) {
    if (c->wanted) free(data);
    return status;
  }
  c->wanted++;
  return next_record(c, need, error);
}

xt_status xt_checkpoint_step(xt_checkpoint *c, xt_need *need, xt_error *error) {
  xt_status status;
  uint64_t data;
  size_t tail_size = c->file_size < XT_ZIP_TAIL ? c->file_size : XT_ZIP_TAIL;
  size_t head_size = c->file_size < XT_SNIFF_SIZE ? c->file_size : XT_SNIFF_SIZE;
  switch (c->state) {
  case START:
    if (!c->file_size) return xt_sniff(NULL, 0, error);
    c->state = HEAD;
    return ask(&c->head, 0, head_size, need, error);
  case HEAD:
    status = xt_sniff(c->head, head_size, error);
    if (status != XT_STATUS_ok) return status;
    c->state = TAIL;
    return ask(&c->tail, c->file_size - tail_size, tail_size, need, error);
  case TAIL:
    status = xt_zip_find_directory(&c->zip, c->tail, tail_size, c->file_size, error);
    if (status != XT_STATUS_ok) return status;
    c->state = DIRECTORY;
    return ask(&c->directory, c->zip.directory, c->zip.directory_size, need, error);
  case DIRECTORY:
    status = xt_zip_read_directory(&c->zip, c->directory, error);
    if (status != XT_STATUS_ok) return status;
    c->places = calloc(c->zip.count, sizeof *c->places);
    return c->places ? next_record(c, need, error) : no_memory(error);
  case LOCAL:
    status = xt_checkpoint_check_place(c, c->entry, c->local, &data, error);
    free(c->local);
    c->local = NULL;
    if (status != XT_STATUS_ok) return status;
    c->state = DATA;
    status = ask(&c->packed, data, c->entry->packed, need, error);
    return status == XT_STATUS_ok && !need->size ? got_data(c, need, error) : status;
  default: return got_data(c, need, error);
  }
}

void xt_checkpoint_free(xt_checkpoint *c) {
  uint8_t *buffers[] = {c->head, c->tail, c->directory, c->pickle, c->local, c->packed};
  for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++) free(buffers[i]);
  free(c->records);
  free(c->places);
  xt_index_free(&c->index);
  xt_meaning_free(&c->meaning);
  xt_zip_free(&c->zip);
  xt_arena_free(&c->arena);
  memset(c, 0, sizeof *c);
}
