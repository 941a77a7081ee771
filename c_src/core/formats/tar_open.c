/* Opens a tar checkpoint. */
#include "core/formats/tar.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/cursor.h"

enum { MEMBERS, COUNT, STORAGE, VIEWS, TENSORS, OBJECT };
enum { MAX_TABLE = 64 << 20 };
enum { BLOCK = 512, NAME_SIZE = 100, AHEAD = 64 << 10 };
enum { STORAGES_MEMBER, TENSORS_MEMBER, PICKLE_MEMBER, MEMBER_COUNT };

typedef struct {
  uint64_t at, size;
  bool found;
} member;

typedef struct {
  member members[MEMBER_COUNT];
  xt_window window;
  uint64_t at;           /* offset of the next header or pickle */
  int64_t storages_left; /* number of storages that are not read yet */
  uint8_t *tensors, *pickle;
} work;

static xt_status corrupt(uint64_t at, xt_error *error, const char *what) {
  return xt_error_at(error, XT_STATUS_corrupt, (int64_t)at, "invalid tar checkpoint: %s", what);
}

/* ---- Members ---- */

/* Reads octal digits, which end with a space or NUL. */
static bool read_octal(const uint8_t *text, size_t size, uint64_t *out) {
  size_t i = 0;
  *out = 0;
  while (i < size && text[i] == ' ') i++;
  for (; i < size && text[i] >= '0' && text[i] <= '7'; i++) *out = *out << 3 | (uint64_t)(text[i] - '0');
  return i == size || text[i] == ' ' || text[i] == 0;
}

static bool check_header(const uint8_t *header) {
  uint64_t sum = 0, expected;
  for (int i = 0; i < BLOCK; i++) sum += i >= 148 && i < 156 ? ' ' : header[i];
  return read_octal(header + 148, 8, &expected) && sum == expected;
}

static int find_member(const uint8_t *header) {
  static const char *const names[MEMBER_COUNT] = {"storages", "tensors", "pickle"};
  const char *name = (const char *)header;
  if (!strncmp(name, "./", 2)) name += 2;
  for (int i = 0; i < MEMBER_COUNT; i++)
    if (!strncmp(name, names[i], 100 - (size_t)(name - (const char *)header))) return i;
  return -1;
}

static xt_status read_member(xt_opening *o, work *w, xt_need *need, xt_error *error) {
  xt_status status;
  uint64_t size;
  uint64_t file_size = o->checkpoint->file_size;
  bool at_end = w->at == file_size;
  const uint8_t *header = at_end ? NULL : xt_window_get(o, &w->window, w->at, BLOCK, 0, need, error, &status);
  if (!at_end && !header) return status;
  if (at_end || !header[0]) { /* the end of the tar is a block of zeros */
    for (int i = 0; i < MEMBER_COUNT; i++)
      if (!w->members[i].found)
        return corrupt(w->at, error, "one of the members storages, tensors and pickle is missing");
    w->at = w->members[STORAGES_MEMBER].at;
    o->state = COUNT;
    return XT_STATUS_ok;
  }
  if (!check_header(header) || !read_octal(header + 124, 12, &size))
    return corrupt(w->at, error, "the checksum or size in a member's header is wrong");
  int index = find_member(header);
  char type = (char)header[156];
  if (size > file_size - w->at - BLOCK)
    return xt_error_at(error, XT_STATUS_truncated, (int64_t)file_size,
                       "a member of the tar file ends at byte %" PRIu64 " but the file has only %" PRIu64
                       " bytes, probably an incomplete download; download it again",
                       w->at + BLOCK + size, file_size);
  if (index >= 0) {
    if (type != '0' && type != 0)
      return corrupt(w->at, error, "expected a regular file as a member, got a link or directory");
    if (w->members[index].found) return corrupt(w->at, error, "duplicate member");
    w->members[index] = (member){w->at + BLOCK, size, true};
  }
  uint64_t padded = (size + BLOCK - 1) / BLOCK * BLOCK;
  w->at += BLOCK + padded;
  if (w->at > file_size) w->at = file_size;
  return XT_STATUS_ok;
}

/* ---- Storages ---- */

static bool in_member(const work *w, int index, uint64_t at, uint64_t size) {
  const member *m = &w->members[index];
  return at >= m->at && at - m->at <= m->size && size <= m->size - (at - m->at);
}

/* Reads the next pickle of the member `storages`. Returns NULL with a need or an error. The pickle is copied, because
 * the tree points into it and the window moves. */
static xt_node *read_pickle(xt_opening *o, work *w, xt_need *need, xt_error *error, xt_status *status) {
  size_t size;
  xt_node *root;
  if (!xt_window_scan_pickle(o, &w->window, w->at, &size, need, error, status)) return NULL;
  const char *copy = xt_arena_text(&o->checkpoint->arena, (const char *)w->window.data + (w->at - w->window.at), size);
  if (!copy) {
    *status = xt_opening_no_memory(error);
    return NULL;
  }
  *status = xt_opening_value(o, o->rebuild.strict, (const uint8_t *)copy, size, (int64_t)w->at, NULL, &root, error);
  if (*status == XT_STATUS_ok && !in_member(w, STORAGES_MEMBER, w->at, size))
    *status = corrupt(w->at, error, "a member ends too early");
  w->at += size;
  return *status == XT_STATUS_ok ? root : NULL;
}

static bool is_key(const xt_node *node) { return node->kind == XT_NODE_TEXT || node->kind == XT_NODE_INT; }

/* Returns the key as a text node, or NULL if there is not enough memory. Integer keys are written in decimal, as in the
 * persistent ids. */
static const xt_node *make_label(xt_arena *arena, const xt_node *key) {
  if (key->kind == XT_NODE_TEXT) return key;
  char *text = xt_arena_alloc(arena, 24, 1);
  if (!text) return NULL;
  return xt_node_new_text(arena, text, (size_t)snprintf(text, 24, "%" PRId64, key->integer));
}

static xt_status add_label(xt_opening *o, const xt_node *label, xt_node *node, uint64_t at, xt_error *error) {
  bool is_new;
  size_t *slot = xt_table_put(&o->rebuild.labels, label->text.data, label->text.size, &is_new);
  if (!slot) return xt_opening_no_memory(error);
  if (!is_new) return corrupt(at, error, "duplicate key");
  *slot = (size_t)node;
  return XT_STATUS_ok;
}

static xt_node *find_storage(const xt_opening *o, const xt_node *key) {
  char text[24];
  bool is_text = key->kind == XT_NODE_TEXT;
  if (!is_key(key)) return NULL;
  size_t size = is_text ? key->text.size : (size_t)snprintf(text, sizeof text, "%" PRId64, key->integer);
  size_t *slot = xt_table_get(&o->rebuild.labels, is_text ? key->text.data : text, size);
  xt_node *node = slot ? (xt_node *)*slot : NULL;
  return node && node->kind == XT_NODE_STORAGE ? node : NULL;
}

static xt_node *storage_node(xt_opening *o, uint32_t index, int64_t start, int64_t count) {
  xt_node *node = xt_node_new(&o->checkpoint->arena, XT_NODE_STORAGE);
  if (node) node->storage = (xt_storage_view){start, count, index};
  return node;
}

/* Requests a whole member, which must fit the limit of pickles. */
static xt_status request_member(xt_opening *o, const member *m, const char *name, uint8_t **buffer, xt_need *need,
                                xt_error *error) {
  if (m->size > o->limits.pickle_bytes)
    return xt_error_at(error, XT_STATUS_limit, (int64_t)m->at,
                       "the member %s has %" PRIu64 " bytes, which exceeds the limit of %" PRIu64
                       "; raise it with limits: [pickle_bytes: n]",
                       name, m->size, o->limits.pickle_bytes);
  return xt_opening_request(o, buffer, m->at, m->size, need, error);
}

/* Reads (key, location, class), the number of elements and the elements. If the number of elements is not in the
 * window yet, the next call reads the pickle again, so nothing is stored before that. */
static xt_status read_storage(xt_opening *o, work *w, xt_need *need, xt_error *error) {
  xt_checkpoint *c = o->checkpoint;
  xt_status status;
  uint64_t start = w->at;
  uint32_t index;
  xt_node *head = read_pickle(o, w, need, error, &status);
  if (!head) return status;
  bool valid = head->kind == XT_NODE_TUPLE && head->list.count == 3 && head->list.items[1]->kind == XT_NODE_TEXT &&
               is_key(head->list.items[0]);
  xt_dtype dtype = valid ? xt_rebuild_storage_dtype(head->list.items[2]) : XT_DTYPE_COUNT;
  if (dtype == XT_DTYPE_COUNT) return corrupt(start, error, "expected (key, location, class) of a storage");
  const xt_node *label = make_label(&c->arena, head->list.items[0]);
  if (!label) return xt_opening_no_memory(error);
  if (!in_member(w, STORAGES_MEMBER, w->at, 8)) return corrupt(w->at, error, "a member ends too early");
  const uint8_t *count = xt_window_get(o, &w->window, w->at, 8, AHEAD, need, error, &status);
  if (!count) {
    w->at = start;
    if (status == XT_STATUS_ok) { /* request the pickle together with the element count */
      uint64_t from = start, size = need->offset + need->size - start;
      w->window.size = 0;
      xt_window_get(o, &w->window, from, size, 0, need, error, &status);
    }
    return status;
  }
  uint64_t numel = xt_le(count, 8);
  w->at += 8;
  if (numel > INT64_MAX / 16)
    return corrupt(w->at, error, "the number of elements of a storage is negative or too large");
  status = xt_storages_add(&c->storages, label->text.data, label->text.size, dtype, (int64_t)numel, (int64_t)w->at,
                           &index, error);
  if (status != XT_STATUS_ok) return status;
  xt_storage *storage = &c->storages.list[index];
  storage->location = head->list.items[1]->text.data;
  storage->location_size = head->list.items[1]->text.size;
  if (!in_member(w, STORAGES_MEMBER, w->at, storage->bytes))
    return corrupt(w->at, error, "a storage ends after its member");
  bool duplicate;
  xt_node *node = storage_node(o, index, 0, (int64_t)numel);
  xt_record *record =
      xt_records_add_stored(&c->directory, label->text.data, label->text.size, w->at, storage->bytes, &duplicate);
  if (duplicate) return corrupt(w->at, error, "duplicate key");
  if (!record || !node) return xt_opening_no_memory(error);
  w->at += storage->bytes;
  w->storages_left--;
  return add_label(o, label, node, w->at, error);
}

/* Reads the views of storages: [(key, key of the viewed storage, offset, count) …] */
static xt_status read_views(xt_opening *o, work *w, xt_need *need, xt_error *error) {
  xt_status status;
  uint64_t start = w->at;
  xt_node *views = read_pickle(o, w, need, error, &status);
  if (!views) return status;
  if (views->kind != XT_NODE_LIST) return corrupt(start, error, "expected a list of views of storages");
  for (size_t i = 0; i < views->list.count; i++) {
    const xt_node *view = views->list.items[i];
    bool valid = view->kind == XT_NODE_TUPLE && view->list.count == 4 && view->list.items[2]->kind == XT_NODE_INT &&
                 view->list.items[3]->kind == XT_NODE_INT && is_key(view->list.items[0]);
    const xt_node *root = valid ? find_storage(o, view->list.items[1]) : NULL;
    if (!root) return corrupt(start, error, "expected (key, key of an existing storage, offset, count) of a view");
    int64_t from = view->list.items[2]->integer, count = view->list.items[3]->integer;
    if (from < 0 || count < 0 || from > root->storage.count || count > root->storage.count - from)
      return corrupt(start, error, "a view extends past the end of its storage");
    xt_node *node = storage_node(o, root->storage.index, root->storage.start + from, count);
    const xt_node *label = make_label(&o->checkpoint->arena, view->list.items[0]);
    if (!node || !label) return xt_opening_no_memory(error);
    status = add_label(o, label, node, start, error);
    if (status != XT_STATUS_ok) return status;
  }
  o->state = TENSORS;
  return request_member(o, &w->members[TENSORS_MEMBER], "tensors", &w->tensors, need, error);
}

/* ---- Tensors ---- */

/* Reads (key, storage key, class), the number of dimensions, the sizes, the strides and the offset. */
static xt_status read_tensor(xt_opening *o, const work *w, xt_cursor *in, xt_error *error) {
  uint64_t at = w->members[TENSORS_MEMBER].at + in->at;
  xt_checkpoint *c = o->checkpoint;
  xt_node *head;
  int64_t sizes[XT_MAX_DIMS], strides[XT_MAX_DIMS];
  size_t used;
  xt_status status =
      xt_opening_value(o, o->rebuild.strict, in->data + in->at, xt_cursor_left(in), (int64_t)at, &used, &head, error);
  if (status != XT_STATUS_ok) return status;
  in->at += used;
  bool valid = head->kind == XT_NODE_TUPLE && head->list.count == 3 && is_key(head->list.items[0]);
  const xt_node *storage = valid ? find_storage(o, head->list.items[1]) : NULL;
  if (!storage) return corrupt(at, error, "expected (key, key of an existing storage, class) of a tensor");
  const xt_node *label = make_label(&c->arena, head->list.items[0]);
  if (!label) return xt_opening_no_memory(error);
  uint64_t ndim = xt_cursor_le(in, 4);
  xt_cursor_take(in, 4);
  if (ndim > XT_MAX_DIMS) return corrupt(at, error, "a tensor has " XT_TOO_MANY_DIMS);
  for (uint64_t d = 0; d < ndim; d++) sizes[d] = (int64_t)xt_cursor_le(in, 8);
  for (uint64_t d = 0; d < ndim; d++) strides[d] = (int64_t)xt_cursor_le(in, 8);
  int64_t offset = (int64_t)xt_cursor_le(in, 8);
  if (in->short_) return corrupt(at, error, "a member ends too early");
  xt_node *tensor = xt_node_new_tensor(&c->arena);
  if (!tensor) return xt_opening_no_memory(error);
  status = xt_tensor_desc_set_strided(tensor->tensor, &c->storages, &storage->storage, offset, sizes, strides,
                                      (uint32_t)ndim, (int64_t)at, error);
  return status == XT_STATUS_ok ? add_label(o, label, tensor, at, error) : status;
}

static xt_status read_tensors(xt_opening *o, work *w, xt_need *need, xt_error *error) {
  const member *m = &w->members[TENSORS_MEMBER];
  xt_cursor in = {w->tensors, m->size, 0, false};
  xt_node *count;
  size_t used;
  xt_status status = xt_opening_value(o, o->rebuild.strict, in.data, in.size, (int64_t)m->at, &used, &count, error);
  if (status != XT_STATUS_ok) return status;
  in.at = used;
  if (count->kind != XT_NODE_INT || count->integer < 0) return corrupt(m->at, error, "expected the number of tensors");
  for (int64_t i = 0; i < count->integer && status == XT_STATUS_ok; i++) status = read_tensor(o, w, &in, error);
  if (status != XT_STATUS_ok) return status;
  o->state = OBJECT;
  return request_member(o, &w->members[PICKLE_MEMBER], "pickle", &w->pickle, need, error);
}

static xt_status read_object(xt_opening *o, work *w, xt_error *error) {
  const member *m = &w->members[PICKLE_MEMBER];
  xt_checkpoint *c = o->checkpoint;
  o->rebuild.ids = XT_IDS_LABELS;
  xt_status status = xt_opening_pickle(o, w->pickle, m->size, (int64_t)m->at, &c->root, error);
  if (status != XT_STATUS_ok) return status;
  if (!xt_opening_reserve_records(o)) return xt_opening_no_memory(error);
  for (size_t i = 0; i < c->directory.count; i++) c->records[i] = &c->directory.list[i];
  return xt_opening_finish(o, NULL, error);
}

static xt_status read_count(xt_opening *o, work *w, xt_need *need, xt_error *error) {
  xt_checkpoint *c = o->checkpoint;
  xt_status status;
  uint64_t start = w->at;
  xt_node *count = read_pickle(o, w, need, error, &status);
  if (!count) return status;
  if (count->kind != XT_NODE_INT || count->integer < 0 ||
      (uint64_t)count->integer > w->members[STORAGES_MEMBER].size / 8)
    return corrupt(start, error, "expected the number of storages");
  w->storages_left = count->integer;
  o->state = STORAGE;
  return xt_records_reserve(&c->directory, &c->arena, (size_t)w->storages_left, true) ? XT_STATUS_ok
                                                                                      : xt_opening_no_memory(error);
}

static xt_status open(xt_opening *o, xt_need *need, xt_error *error) {
  work *w = o->work;
  xt_status status = XT_STATUS_ok;
  if (o->rebuild.strict)
    return xt_error_set(
        error, XT_STATUS_forbidden,
        "strict: tar checkpoints (torch before 0.1.10) are not allowed, as in torch's weights_only mode");
  if (o->state == TENSORS) return read_tensors(o, w, need, error);
  if (o->state == OBJECT) return read_object(o, w, error);
  while (status == XT_STATUS_ok && !need->size) {
    if (o->state == MEMBERS) status = read_member(o, w, need, error);
    else if (o->state == COUNT) status = read_count(o, w, need, error);
    else if (o->state == STORAGE && w->storages_left) status = read_storage(o, w, need, error);
    else if (o->state == TENSORS) break;
    else status = read_views(o, w, need, error);
  }
  return status;
}

static xt_match matches(const uint8_t *head, size_t size) {
  return size >= BLOCK && !memcmp(head + 257, "ustar", 5) ? XT_MATCH_YES : XT_MATCH_NO;
}

bool xt_tar_may_begin(const uint8_t *head, size_t size) {
  size_t at = 0, end = size < NAME_SIZE ? size : NAME_SIZE;
  while (at < end && head[at] >= ' ' && head[at] < 0x7F) at++;
  bool named = at > 0;
  while (at < end && !head[at]) at++;
  return named && at == end && size < BLOCK;
}

const xt_format xt_tar_format = {
    .name = "tar",
    .matches = matches,
    .open_size = sizeof(work),
    .open = open,
    .without_stream = "write it to a file and load that",
};
