/* Fuzz target (`make fuzz`): mutated headers and directories in files that are otherwise correct. The first byte of the
 * input chooses what is mutated, the second the options and the third the pieces for the push parser. */
#include "containers.h"
#include "core/formats/npy_header.h"
#include "pushing.h"
#include "tar_members.h"

enum {
  ZIP_FIELDS,
  SAFETENSORS_HEADER,
  LEGACY_KEYS,
  STREAM_LIST,
  TAR_HEADERS,
  TAR_STORAGES,
  TAR_TENSORS,
  SYS_INFO,
  SAFETENSORS_FIELDS,
  NPY_TEXT,
  KINDS
};
enum { STRICT = 1, VERIFY = 2 }; /* the other options depend on the kind */

/* ---- Zip: edits of single fields ---- */

enum { DEFLATED = 4, SIZES_BEFORE = 8, PLAIN_END = 16, CONSTANTS = 32, NAMED = 64, MAX_EDITS = 16 };

typedef struct {
  uint8_t part, record, field, how;
  uint64_t value;
} zip_edit;
typedef struct {
  zip_edit list[MAX_EDITS];
  size_t count;
} zip_edits;

static uint64_t edit_field(void *context, zip_part part, size_t record, int field, uint64_t value) {
  const zip_edits *edits = context;
  for (size_t i = 0; i < edits->count; i++) {
    const zip_edit *e = &edits->list[i];
    if (e->part != part || e->record != record || e->field != field) continue;
    value = e->how == 0 ? e->value : e->how == 1 ? value + e->value : e->how == 2 ? value - e->value : value ^ e->value;
  }
  return value;
}

static void make_zip(choices *in, uint8_t options, xt_buffer *out) {
  xt_pickler p;
  storages s;
  zip_edits edits = {.count = 0};
  zip_record records[12];
  char names[MAX_STORAGES][32], name[64];
  size_t count = 0, name_size = 0;
  bool deflated = options & DEFLATED, described = !(options & SIZES_BEFORE);
  if (options & NAMED) { /* a further record with any name */
    name_size = choose_byte(in) % sizeof name;
    for (size_t i = 0; i < name_size; i++) name[i] = (char)choose_byte(in);
  }
  while (choices_left(in) && edits.count < MAX_EDITS) {
    zip_edit *e = &edits.list[edits.count++];
    e->part = choose_byte(in) % PARTS;
    e->record = choose_byte(in) % 12;
    e->field = choose_byte(in) % 16;
    e->how = choose_byte(in);
    e->value = choose_number(in, 1 << (e->how >> 2 & 3));
    e->how &= 3;
  }
  put_example(&p);
  find_storages(&s, p.out.data, p.out.size, XT_IDS_RECORDS);
  records[count++] = (zip_record){"a/data.pkl", 10, p.out.data, p.out.size, deflated, described};
  records[count++] = (zip_record){"a/byteorder", 11, (const uint8_t *)"little", 6, false, false};
  records[count++] = (zip_record){"a/version", 9, (const uint8_t *)"3\n", 2, false, false};
  if (options & CONSTANTS)
    records[count++] = (zip_record){"a/constants.pkl", 15, (const uint8_t *)"\x80\2).", 4, false, false};
  if (options & NAMED) records[count++] = (zip_record){name, name_size, (const uint8_t *)"any", 3, false, described};
  for (size_t i = 0; i < s.count; i++) {
    snprintf(names[i], sizeof names[i], "a/data/%s", s.payloads[i].key);
    records[count++] =
        (zip_record){names[i], strlen(names[i]), s.payloads[i].data, s.payloads[i].bytes, deflated, described};
  }
  zip_writer z = {.edit = edit_field, .context = &edits, .zip64 = !(options & PLAIN_END)};
  zip_write(&z, records, count);
  *out = z.out;
  free_storages(&s);
  xt_pickler_free(&p);
}

/* ---- Safetensors: a mutated header ---- */

/* Returns the largest end of a "data_offsets", which is the size of the data in a correct file. */
static size_t find_data_size(const uint8_t *json, size_t size) {
  size_t largest = 0;
  for (size_t i = 0; i + 14 < size; i++) {
    if (memcmp(json + i, "data_offsets\"", 13)) continue;
    size_t at = i + 13, number = 0;
    while (at < size && json[at] != ',' && json[at] != '}') at++;
    for (at++; at < size && json[at] == ' ';) at++;
    for (; at < size && json[at] >= '0' && json[at] <= '9' && number < 1 << 20; at++)
      number = number * 10 + (size_t)(json[at] - '0');
    if (number > largest && number <= 1 << 16) largest = number;
  }
  return largest;
}

static void make_safetensors(const uint8_t *json, size_t size, xt_buffer *out) {
  uint8_t content[1 << 16];
  size_t data = find_data_size(json, size);
  fill_content("", 0, content, data);
  xt_buffer_le(out, size, 8);
  xt_buffer_put(out, json, size);
  xt_buffer_put(out, content, data);
}

/* Returns a small number, mostly 0. */
static int choose_shift(choices *in) {
  uint8_t byte = choose_byte(in);
  return byte < 240 ? 0 : byte - 248;
}

/* Makes a header whose offsets are shifted here and there, so that tensors overlap, leave gaps or have other sizes. */
static void make_shifted_safetensors(choices *in, xt_buffer *out) {
  static const struct {
    const char *name;
    int bytes;
  } dtypes[] = {{"F32", 4}, {"U8", 1}, {"I64", 8}, {"BF16", 2}, {"BOOL", 1}};
  uint8_t content[512];
  char json[1024] = "{";
  int at = 0, size = 1;
  for (int i = 0, count = choose_byte(in) % 6; i < count; i++) {
    int dtype = choose_byte(in) % 5, numel = choose_byte(in) % 9, bytes = numel * dtypes[dtype].bytes;
    int begin = at + choose_shift(in), end = at + bytes + choose_shift(in), name = i + choose_shift(in);
    size += snprintf(json + size, sizeof json - (size_t)size,
                     "%s\"%d\":{\"dtype\":\"%s\",\"shape\":[%d],\"data_offsets\":[%d,%d]}", i ? "," : "", name,
                     dtypes[dtype].name, numel, begin, end);
    if (!choose_shift(in)) at += bytes;
  }
  json[size++] = '}';
  at += choose_shift(in);
  fill_content("", 0, content, sizeof content);
  xt_buffer_le(out, (uint64_t)size, 8);
  xt_buffer_put(out, json, (size_t)size);
  xt_buffer_put(out, content, at < 0 ? 0 : (size_t)at);
}

/* ---- Arrays of numpy: a mutated text, alone or in an .npz file ---- */

enum { IN_ZIP = 16, LONG_LENGTH = 32 }; /* besides DEFLATED and SIZES_BEFORE */

static void make_array(const uint8_t *text, size_t size, bool long_length, xt_buffer *out) {
  uint8_t content[1 << 16];
  xt_npy_header header;
  xt_error error;
  size_t room = long_length ? size : size & 0xffff;
  xt_buffer_put(out, XT_NPY_MAGIC, sizeof XT_NPY_MAGIC - 1);
  xt_buffer_le(out, long_length ? 2 : 1, 2);
  xt_buffer_le(out, room, long_length ? 4 : 2);
  xt_buffer_put(out, text, room);
  bool fits = xt_npy_read_header(out->data, out->size, "x", &header, &error) == XT_STATUS_ok;
  size_t bytes = !fits ? 24 : header.bytes < sizeof content ? (size_t)header.bytes : sizeof content;
  fill_content("", 0, content, bytes);
  xt_buffer_put(out, content, bytes);
}

static void make_arrays(choices *in, uint8_t options, xt_buffer *out) {
  xt_buffer array = {0};
  char name[32] = "a.npy";
  size_t name_size = 5;
  bool described = !(options & SIZES_BEFORE), deflated = options & DEFLATED;
  if (options & IN_ZIP && choose_byte(in) % 4 == 0) {
    name_size = choose_byte(in) % (sizeof name - 4);
    for (size_t i = 0; i < name_size; i++) name[i] = (char)choose_byte(in);
    if (choose_byte(in) % 4) memcpy(name + name_size, ".npy", 4), name_size += 4;
  }
  make_array(in->data + in->at, in->size - in->at, options & LONG_LENGTH, &array);
  if (!(options & IN_ZIP)) {
    *out = array;
    return;
  }
  zip_record records[] = {{"first.npy", 9, array.data, array.size, !deflated, described},
                          {name, name_size, array.data, array.size, deflated, described}};
  zip_writer z = {.zip64 = false};
  zip_write(&z, records, 2);
  *out = z.out;
  xt_buffer_free(&array);
}

/* ---- Legacy and streaming: a mutated list of the storages that follow ---- */

/* Unpickles a mutated list, so that the rest of the file can be made to fit. */
typedef struct {
  xt_allowance allowance;
  xt_arena arena;
  xt_storages storages;
  xt_rebuild rebuild;
  xt_error error;
  xt_node *root;
} parsed;

static void parse(parsed *l, const uint8_t *data, size_t size) {
  size_t used;
  *l = (parsed){.allowance = {.limit = 16 << 20}};
  l->arena.allowance = &l->allowance;
  l->storages = (xt_storages){.arena = &l->arena, .max_tensor_bytes = 1 << 24};
  l->rebuild = (xt_rebuild){.arena = &l->arena, .ids = XT_IDS_NONE, .storages = &l->storages, .error = &l->error};
  if (xt_unpickle(data, size, &l->rebuild, &used, &l->root) != XT_STATUS_ok || l->root->kind != XT_NODE_LIST)
    l->root = NULL;
}

static void free_parsed(parsed *l) {
  xt_rebuild_free(&l->rebuild);
  xt_storages_free(&l->storages);
  xt_arena_free(&l->arena);
}

static void begin_list(xt_pickler *p) {
  xt_pickler_begin(p);
  xt_pickler_put_list(p);
  xt_pickler_put_mark(p);
}

static void put_byte_tensor(xt_pickler *p, const char *key, int64_t numel) {
  put_tensor(p, &(tensor_spec){key, XT_uint8, numel, 0, 1, &numel, (const int64_t[]){1}, false});
}

static void end_list(xt_pickler *p) {
  xt_pickler_put_appends(p);
  xt_pickler_stop(p);
}

/* Copies the text of a key. Returns false if it cannot be one. */
static bool get_key(const xt_node *node, char key[32]) {
  if (node->kind != XT_NODE_TEXT || node->text.size >= 32) return false;
  memcpy(key, node->text.data, node->text.size);
  key[node->text.size] = 0;
  return strlen(key) == node->text.size;
}

static void make_legacy(const uint8_t *mutated, size_t size, bool is_sys_info, xt_buffer *out) {
  parsed l;
  xt_pickler p;
  uint8_t content[64];
  char key[32];
  const uint8_t *keys = is_sys_info ? (const uint8_t *)"\x80\2]X\1\0\0\0000a." : mutated;
  size_t keys_size = is_sys_info ? 11 : size;
  parse(&l, keys, keys_size);
  xt_buffer_put(out, "\x80\2" XT_LEGACY_MAGIC "\x80\2M\xe9\3.", 2 + sizeof XT_LEGACY_MAGIC - 1 + 6);
  if (is_sys_info) xt_buffer_put(out, mutated, size);
  else xt_buffer_put(out, "\x80\2}.", 4);
  begin_list(&p);
  for (size_t i = 0; l.root && i < l.root->list.count && i < 50; i++)
    if (get_key(l.root->list.items[i], key)) put_byte_tensor(&p, key, 5 + (int64_t)i % 3);
  end_list(&p);
  xt_buffer_put(out, p.out.data, p.out.size);
  xt_buffer_put(out, keys, keys_size);
  for (size_t i = 0; l.root && i < l.root->list.count && i < 50; i++) {
    xt_buffer_le(out, 5 + i % 3, 8);
    fill_content("", 0, content, 5 + i % 3);
    xt_buffer_put(out, content, 5 + i % 3);
  }
  xt_pickler_free(&p);
  free_parsed(&l);
}

/* Returns an attribute of an entry of the streaming format's list, or NULL. */
static const xt_node *attribute(const xt_node *entry, const char *name) {
  const xt_node *state = entry->kind == XT_NODE_OBJECT ? entry->object->state : NULL;
  for (size_t i = 0; state && state->kind == XT_NODE_DICT && i + 1 < state->list.count; i += 2)
    if (xt_node_is_text(state->list.items[i], name, strlen(name))) return state->list.items[i + 1];
  return NULL;
}

static void make_stream(const uint8_t *list, size_t size, xt_buffer *out) {
  parsed l;
  xt_pickler p;
  char key[32];
  uint8_t content[4096] = {0};
  parse(&l, list, size);
  size_t count = l.root && l.root->list.count < 64 ? l.root->list.count : 0;
  xt_buffer_put(out, list, size);
  begin_list(&p);
  for (size_t i = 0; i < count; i++) {
    const xt_node *name = attribute(l.root->list.items[i], "key"), *length = attribute(l.root->list.items[i], "length");
    if (name && length && length->kind == XT_NODE_INT && get_key(name, key) && !strncmp(key, "data/", 5))
      put_byte_tensor(&p, key + 5, length->integer);
  }
  end_list(&p);
  for (size_t i = 0; i < count; i++) {
    const xt_node *name = attribute(l.root->list.items[i], "key"), *length = attribute(l.root->list.items[i], "length");
    if (!name || !length || length->kind != XT_NODE_INT || length->integer < 0 || length->integer > 4096) break;
    bool is_pickle = get_key(name, key) && !strcmp(key, "data.pkl");
    fill_content("", 0, content, sizeof content);
    if (is_pickle)
      memset(content, 0, sizeof content), memcpy(content, p.out.data, p.out.size < 4096 ? p.out.size : 4096);
    else if (!strcmp(key, "byteorder")) memcpy(content, "little", 6);
    xt_buffer_put(out, content, (size_t)length->integer);
  }
  xt_pickler_free(&p);
  free_parsed(&l);
}

/* ---- Tar: mutated headers with correct checksums, or a mutated member ---- */

static void make_tar(choices *in, int kind, xt_buffer *out) {
  static const char *const names[] = {"storages", "tensors", "pickle"};
  uint8_t headers[3][512];
  xt_buffer parts[3] = {{0}, {0}, {0}};
  if (kind == TAR_STORAGES) xt_buffer_put(&parts[0], in->data + in->at, in->size - in->at);
  else put_tar_storages(&parts[0]);
  if (kind == TAR_TENSORS) xt_buffer_put(&parts[1], in->data + in->at, in->size - in->at);
  else put_tar_tensors(&parts[1]);
  xt_buffer_put(&parts[2], TAR_PICKLE, sizeof TAR_PICKLE - 1);
  for (int i = 0; i < 3; i++) make_tar_header(headers[i], names[i], parts[i].size);
  while (kind == TAR_HEADERS && choices_left(in)) {
    size_t at = choose_byte(in);
    uint8_t where = choose_byte(in);
    headers[(where >> 1) % 3][at | (size_t)(where & 1) << 8] = choose_byte(in);
  }
  for (int i = 0; i < 3; i++) put_tar_member(out, headers[i], parts[i].data, parts[i].size);
  xt_buffer_fill(out, 0, 1024);
  for (int i = 0; i < 3; i++) xt_buffer_free(&parts[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  xt_buffer file = {0};
  size_t file_size;
  if (size < 3) return 0;
  int kind = data[0] % KINDS;
  uint8_t options = data[1];
  choices in = {data + 3, size - 3, 0};
  switch (kind) {
  case ZIP_FIELDS: make_zip(&in, options, &file); break;
  case SAFETENSORS_HEADER: make_safetensors(in.data, in.size, &file); break;
  case SAFETENSORS_FIELDS: make_shifted_safetensors(&in, &file); break;
  case NPY_TEXT: make_arrays(&in, options, &file); break;
  case LEGACY_KEYS:
  case SYS_INFO: make_legacy(in.data, in.size, kind == SYS_INFO, &file); break;
  case STREAM_LIST: make_stream(in.data, in.size, &file); break;
  default: make_tar(&in, kind, &file);
  }
  uint8_t *bytes = exact_copy(&file, &file_size);
  push_options push = {options & STRICT, options & VERIFY, false, data[2]};
  read_bytes(bytes, file_size, push.strict, push.verify, NULL);
  push_bytes(bytes, file_size, &push);
  free(bytes);
  return 0;
}
