/* Fuzz target (`make fuzz`): makes an object tree with tensors from the input, writes it in one of the formats, in any
 * steps and with failures that are repeated, and reads it back. Every value must be the same. */
#include "core/formats/safetensors.h"
#include "core/formats/zip.h"
#include "pushing.h"
#include "trees.h"

enum { SHARE = 1, FETCH = 2, COLLECT = 4, FAIL = 8 };

/* ---- Saving ---- */

typedef struct {
  forest *f;
  uint8_t options;
  xt_buffer out;
  size_t fetched, done, refused;
  size_t writes, fail_at; /* the write that fails, or SIZE_MAX */
} save;

static xt_status write_sink(void *context, const void *data, size_t size, xt_error *error) {
  save *s = context;
  if (s->writes++ == s->fail_at) return xt_error_set(error, XT_STATUS_io, "the disk is full");
  xt_buffer_put(&s->out, data, size);
  return XT_STATUS_ok;
}

static xt_status share_sink(void *context, size_t payload, const uint8_t *data, size_t size, xt_error *error) {
  save *s = context;
  const uint8_t *content = s->f->contents[payload];
  REQUIRE(data >= content && data + size <= content + s->f->payloads[payload].bytes);
  return write_sink(context, data, size, error);
}

/* With COLLECT, the first try of each payload fails and is repeated. */
static xt_status fetch(void *context, size_t payload, const uint8_t **data, xt_error *error) {
  save *s = context;
  if (s->options & COLLECT && s->refused <= payload) {
    s->refused = payload + 1;
    xt_error_set(error, XT_STATUS_limit, "no memory yet");
    error->collect = true;
    return error->status;
  }
  s->fetched++;
  *data = s->f->contents[payload];
  return XT_STATUS_ok;
}

static void done(void *context, size_t payload) {
  (void)payload;
  ((save *)context)->done++;
}

/* Returns whether the file was written. It is not if a write was made to fail. */
static bool run_saver(save *s, xt_saver *saver, choices *in) {
  xt_error error;
  bool finished = false;
  xt_status status = XT_STATUS_ok;
  xt_sink sink = {.write = write_sink, .share = s->options & SHARE ? share_sink : NULL, .context = s};
  if (s->options & FETCH)
    for (size_t i = 0; i < s->f->count; i += 2) s->f->payloads[i].data = NULL;
  saver->payloads = s->f->payloads;
  saver->count = s->f->count;
  saver->fetch = fetch;
  saver->done = done;
  saver->context = s;
  s->fail_at = s->options & FAIL ? choose_byte(in) : SIZE_MAX;
  xt_saver_begin(saver);
  while (!finished) {
    uint64_t budget = choices_left(in) ? 1 + choose_number(in, 2) : 1 << 20;
    status = xt_saver_step(saver, &sink, budget, &finished, &error);
    if (status != XT_STATUS_ok && !error.collect) break;
  }
  if (status != XT_STATUS_ok) {
    REQUIRE(status == XT_STATUS_io && s->writes == s->fail_at + 1);
    REQUIRE(xt_saver_step(saver, &sink, 1, &finished, &error) == XT_STATUS_stale && !finished);
  } else {
    REQUIRE(saver->written == saver->total && s->fetched == s->done && !s->out.failed);
  }
  xt_saver_free(saver);
  REQUIRE(s->fetched == s->done);
  return status == XT_STATUS_ok;
}

/* ---- Reading back ---- */

static const forest *current; /* of has_payload */

/* The keys of a safetensors file are the names of its tensors. */
static bool has_payload(const xt_storage *storage, const uint8_t *data, size_t size) {
  for (size_t i = 0; i < current->count; i++) {
    const xt_payload *payload = &current->payloads[i];
    if (strlen(payload->key) != storage->key_size || memcmp(payload->key, storage->key, storage->key_size)) continue;
    return size == payload->bytes && !memcmp(data, current->contents[i], size);
  }
  return false;
}

static void read_back(save *s, choices *in, xt_checkpoint *c, uint8_t **file, is_content expected) {
  size_t size;
  push_options push = {false, true, false, choose_byte(in)};
  *file = exact_copy(&s->out, &size);
  current = s->f;
  read_file(*file, size, false, true, XT_STATUS_ok, expected);
  outcome pushed = push_bytes(*file, size, &push);
  REQUIRE(pushed.done && pushed.used == size);
  REQUIRE(read_memory(c, *file, size, false, true, expected) == XT_STATUS_ok);
}

static void save_tree(choices *in, const xt_format_writer *format, uint8_t options) {
  xt_arena arena = {0};
  forest f = {.in = in, .arena = &arena};
  save s = {.f = &f, .options = options};
  xt_pickler p;
  xt_checkpoint c;
  uint8_t *file;
  const xt_node *tree = make_tree(&f, 0);
  xt_pickler_begin(&p);
  write_tree(&p, &f, tree);
  xt_pickler_stop(&p);
  xt_saver saver = {.format = format, .pickle = p.out.data, .pickle_size = p.out.size, .root = "archive"};
  /* a larger pickle would be refused by the reader */
  if (p.out.size <= limits.pickle_bytes && run_saver(&s, &saver, in)) {
    read_back(&s, in, &c, &file, has_payload);
    compare_trees(&f, &c, tree, c.root);
    xt_checkpoint_free(&c);
    free(file);
  }
  xt_buffer_free(&s.out);
  xt_pickler_free(&p);
  free_forest(&f);
  xt_arena_free(&arena);
}

/* ---- Safetensors ---- */

static void put_size_and_text(xt_buffer *out, const char *text, size_t size) {
  xt_buffer_put(out, &size, sizeof size);
  xt_buffer_put(out, text, size);
}

/* Texts are unique by their first characters. */
static void choose_name(choices *in, xt_arena *arena, size_t number, const char **data, size_t *size) {
  char text[256];
  const char *rest;
  size_t rest_size, prefix = (size_t)sprintf(text, "%zu", number);
  choose_text(in, arena, &rest, &rest_size);
  if (rest_size > sizeof text - prefix || (rest_size && rest[0] >= '0' && rest[0] <= '9')) rest_size = 0;
  memcpy(text + prefix, rest, rest_size);
  *size = prefix + rest_size;
  *data = xt_arena_text(arena, text, *size);
}

static void compare_safetensors(const forest *f, const xt_named_tensor *tensors, const xt_checkpoint *c,
                                const uint8_t *file) {
  REQUIRE(c->index.count == f->count);
  for (size_t i = 0; i < f->count; i++) {
    const xt_named_tensor *t = &tensors[i];
    size_t *at = xt_table_get(&c->index.names, t->name, t->name_size);
    REQUIRE(at && *at < c->index.count);
    const xt_tensor_desc *read = c->index.entries[*at].tensor;
    REQUIRE(read->dtype == t->dtype && read->ndim == (uint32_t)t->ndim && !read->offset);
    REQUIRE(!memcmp(read->sizes, t->sizes, (size_t)t->ndim * sizeof *t->sizes));
    const xt_record *record = c->records[read->storage];
    REQUIRE(record->size == f->payloads[i].bytes && record->data_offset + record->size <= c->file_size);
    REQUIRE(!memcmp(file + record->data_offset, f->contents[i], record->size));
  }
}

static void compare_metadata(const xt_buffer *pairs, const xt_node *metadata) {
  size_t at = 0, size;
  REQUIRE(metadata || !pairs->size);
  for (size_t i = 0; metadata && i < metadata->list.count; i++) {
    memcpy(&size, pairs->data + at, sizeof size);
    at += sizeof size;
    compare_text((const char *)pairs->data + at, size, metadata->list.items[i]->text.data,
                 metadata->list.items[i]->text.size);
    at += size;
  }
  REQUIRE(at == pairs->size);
}

static void save_safetensors(choices *in, uint8_t options) {
  xt_arena arena = {0};
  forest f = {.in = in, .arena = &arena};
  save s = {.f = &f, .options = options};
  xt_named_tensor tensors[MAX_PAYLOADS];
  int64_t sizes[MAX_PAYLOADS][4];
  xt_buffer metadata = {0};
  xt_checkpoint c;
  uint8_t *file;
  size_t count = choose_byte(in) % MAX_PAYLOADS, text_size;
  const char *text;
  for (size_t i = choose_byte(in) % 4; i > 0; i--) {
    choose_name(in, &arena, i, &text, &text_size);
    put_size_and_text(&metadata, text, text_size);
    choose_text(in, &arena, &text, &text_size);
    put_size_and_text(&metadata, text, text_size);
  }
  for (size_t i = 0; i < count; i++) {
    xt_named_tensor *t = &tensors[i];
    *t = (xt_named_tensor){.dtype = choose_dtype(in, false), .ndim = choose_byte(in) % 5, .sizes = sizes[i]};
    if (!*xt_dtype_get(t->dtype)->safetensors) t->dtype = XT_float32;
    /* two elements of this dtype are a byte, which needs a dimension */
    if (t->dtype == XT_float4_e2m1fn_x2 && !t->ndim) t->dtype = XT_uint8;
    int64_t numel = 1;
    for (int d = 0; d < t->ndim; d++) numel *= sizes[i][d] = choose_byte(in) % 7;
    choose_name(in, &arena, i, &t->name, &t->name_size);
    make_payload(&f, t->dtype, numel);
  }
  xt_saver saver = {.format = &xt_safetensors_write, .tensors = tensors, .metadata = &metadata};
  if (run_saver(&s, &saver, in)) {
    read_back(&s, in, &c, &file, NULL);
    compare_safetensors(&f, tensors, &c, file);
    compare_metadata(&metadata, c.metadata);
    xt_checkpoint_free(&c);
    free(file);
  }
  xt_buffer_free(&s.out);
  xt_buffer_free(&metadata);
  free_forest(&f);
  xt_arena_free(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  choices in = {data, size, 0};
  uint8_t format = choose_byte(&in) % 4, options = choose_byte(&in);
  switch (format) {
  case 0: save_tree(&in, &xt_zip_write, options); break;
  case 1: save_tree(&in, &xt_legacy_write, options); break;
  case 2: save_tree(&in, &xt_torch_stream_write, options); break;
  default: save_safetensors(&in, options);
  }
  return 0;
}
