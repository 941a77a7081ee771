/* Fuzz target (`make fuzz`): makes an object tree with tensors from the input, plans and writes it in one of the
 * formats, in any steps and with failures that are repeated, and reads it back. Every value must be the same, and what
 * shared memory must share a storage. */
#include "core/formats/safetensors.h"
#include "core/formats/zip.h"
#include "pushing.h"
#include "trees.h"

enum { SHARE = 1, COMPACT = 2, COLLECT = 4, FAIL = 8, STOP = 16, DUPLICATE = 32 };

/* ---- Saving ---- */

typedef struct {
  xt_save_plan plan;
  uint8_t options;
  xt_buffer out;
  uint8_t *fetched; /* the payload that is being written, if it was fetched */
  size_t refused;
  size_t writes, fail_at; /* the write that fails, or SIZE_MAX */
  bool stopped;
} save;

static xt_status write_sink(void *context, const void *data, size_t size, xt_error *error) {
  save *s = context;
  if (s->writes++ == s->fail_at) return xt_error_set(error, XT_STATUS_io, "the disk is full");
  xt_buffer_put(&s->out, data, size);
  return XT_STATUS_ok;
}

static xt_status share_sink(void *context, size_t payload, const uint8_t *data, size_t size, xt_error *error) {
  save *s = context;
  const uint8_t *content = s->plan.payloads[payload].data;
  if (!content) content = s->fetched;
  REQUIRE(data >= content && data + size <= content + s->plan.payloads[payload].bytes);
  return write_sink(context, data, size, error);
}

static bool stop_sink(void *context) {
  save *s = context;
  return s->stopped = s->options & STOP;
}

/* Returns the elements of a payload's view as contiguous memory. */
static uint8_t *gather(const xt_save_plan *plan, size_t payload) {
  const xt_save_view *view = &plan->views[plan->payloads[payload].view];
  size_t item = xt_dtype_get(view->dtype)->size, count = plan->payloads[payload].bytes / item;
  uint8_t *data = malloc(count * item + 1);
  for (size_t i = 0; i < count; i++) {
    int64_t at = 0, rest = (int64_t)i;
    for (int d = view->ndim; d-- > 0; rest /= view->sizes[d]) at += rest % view->sizes[d] * view->strides[d];
    memcpy(data + i * item, view->data + (uint64_t)at * item, item);
  }
  return data;
}

/* With COLLECT, the first try of each payload fails and is repeated. */
static xt_status fetch(void *context, size_t payload, uint64_t from, const uint8_t **data, uint64_t *size,
                       xt_error *error) {
  save *s = context;
  REQUIRE(!s->fetched && !s->plan.payloads[payload].data);
  if (s->options & COLLECT && s->refused <= payload) {
    s->refused = payload + 1;
    xt_error_set(error, XT_STATUS_limit, "no memory yet");
    error->collect = true;
    return error->status;
  }
  s->fetched = gather(&s->plan, payload);
  *data = s->fetched + from;
  *size = s->plan.payloads[payload].bytes - from;
  if (s->options & COLLECT && *size > 7) *size -= *size / 2; /* a part */
  return XT_STATUS_ok;
}

static void done(void *context, size_t payload) {
  save *s = context;
  REQUIRE(s->fetched && !s->plan.payloads[payload].data);
  free(s->fetched);
  s->fetched = NULL;
}

/* Returns whether the file was written. It is not if a write was made to fail, or the save to stop. */
static bool run_saver(save *s, choices *in) {
  xt_error error;
  bool finished = false;
  xt_status status = XT_STATUS_ok;
  xt_saver saver = {.plan = &s->plan, .fetch = fetch, .done = done, .context = s};
  xt_sink sink = {
      .write = write_sink, .share = s->options & SHARE ? share_sink : NULL, .stop = stop_sink, .context = s};
  s->fail_at = s->options & FAIL ? choose_byte(in) : SIZE_MAX;
  xt_saver_begin(&saver);
  while (!finished) {
    uint64_t budget = choices_left(in) ? 1 + choose_number(in, 2) : 1 << 20;
    status = xt_saver_step(&saver, &sink, budget, &finished, &error);
    if (status != XT_STATUS_ok && !error.collect) break;
  }
  if (status != XT_STATUS_ok) {
    REQUIRE(s->stopped ? status == XT_STATUS_stopping : status == XT_STATUS_io && s->writes == s->fail_at + 1);
    REQUIRE(xt_saver_step(&saver, &sink, 1, &finished, &error) == XT_STATUS_stale && !finished);
  } else {
    REQUIRE(saver.written == saver.total && !s->fetched && !s->out.failed && !s->stopped);
  }
  xt_saver_free(&saver);
  REQUIRE(!s->fetched);
  return status == XT_STATUS_ok;
}

/* ---- Reading back ---- */

static const xt_save_plan *current; /* of has_payload */

static bool has_payload(const xt_storage *storage, const uint8_t *data, size_t size) {
  for (size_t i = 0; i < current->count; i++) {
    const xt_payload *payload = &current->payloads[i];
    if (strlen(payload->key) != storage->key_size || memcmp(payload->key, storage->key, storage->key_size)) continue;
    uint8_t *gathered = payload->data ? NULL : gather(current, i);
    bool equal = size == payload->bytes && !memcmp(data, gathered ? gathered : payload->data, size);
    free(gathered);
    return equal && storage->numel == payload->numel;
  }
  return false;
}

static void read_back(save *s, choices *in, xt_checkpoint *c, uint8_t **file, is_content expected) {
  size_t size;
  push_options push = {false, true, false, choose_byte(in)};
  *file = exact_copy(&s->out, &size);
  current = &s->plan;
  read_file(*file, size, false, true, XT_STATUS_ok, expected);
  outcome pushed = push_bytes(*file, size, &push);
  REQUIRE(pushed.done && pushed.used == size);
  REQUIRE(read_memory(c, *file, size, false, true, expected) == XT_STATUS_ok);
}

static void save_tree(choices *in, const xt_format_writer *format, uint8_t options) {
  xt_arena arena = {0};
  save s = {.plan = {.format = format, .compact = options & COMPACT, .root = "archive"}, .options = options};
  xt_draft draft;
  forest f = {.in = in, .arena = &arena, .draft = &draft};
  xt_checkpoint c;
  xt_error error;
  uint8_t *file;
  xt_node *tree = make_tree(&f, 0);
  xt_draft_begin(&draft, &s.plan);
  write_tree(&draft.pickle, &f, tree);
  REQUIRE(xt_draft_finish(&draft, &error) == XT_STATUS_ok);
  xt_draft_free(&draft);
  /* a larger pickle would be refused by the reader */
  if (s.plan.pickle.size <= limits.pickle_bytes && run_saver(&s, in)) {
    read_back(&s, in, &c, &file, has_payload);
    compare_trees(&f, &c, file, tree, c.root);
    xt_checkpoint_free(&c);
    free(file);
  }
  xt_buffer_free(&s.out);
  xt_save_plan_free(&s.plan);
  REQUIRE(f.kept == 0);
  free_forest(&f);
  xt_arena_free(&arena);
}

/* ---- Safetensors ---- */

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

static void compare_safetensors(const xt_save_plan *plan, const xt_checkpoint *c, const uint8_t *file) {
  REQUIRE(c->index.count == plan->count);
  for (size_t i = 0; i < plan->count; i++) {
    const xt_save_view *view = &plan->views[i];
    size_t *at = xt_table_get(&c->index.names, plan->names[i].text, plan->names[i].size);
    REQUIRE(at && *at < c->index.count);
    const xt_tensor_desc *read = c->index.entries[*at].tensor;
    REQUIRE(read->dtype == view->dtype && read->ndim == (uint32_t)view->ndim && !read->offset);
    REQUIRE(!memcmp(read->sizes, view->sizes, read->ndim * sizeof *view->sizes));
    compare_values(view->data, view->strides, record_data(c, read->storage, file), read->strides, view->sizes,
                   read->ndim, xt_dtype_get(view->dtype)->size);
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

/* The bytes between the first and the end of the last element; 0 for views that are fetched. */
static uint64_t span_of(const xt_save_view *view) {
  int64_t last = 0;
  for (int d = 0; d < view->ndim; d++) {
    if (!view->sizes[d]) return 0;
    last += (view->sizes[d] - 1) * view->strides[d];
  }
  return view->staged ? 0 : (uint64_t)(last + 1) * xt_dtype_get(view->dtype)->size;
}

static bool shares_memory(const xt_save_plan *plan) {
  for (size_t i = 0; i < plan->view_count; i++)
    for (size_t k = 0; k < i; k++) {
      const xt_save_view *a = &plan->views[i], *b = &plan->views[k];
      uint64_t a_span = span_of(a), b_span = span_of(b);
      if (a_span && b_span && a->data < b->data + b_span && b->data < a->data + a_span) return true;
    }
  return false;
}

/* A tensor in memory of its own, or in a block that another tensor has. */
static void add_tensor(save *s, forest *f, size_t number, int64_t *sizes, int64_t *strides) {
  choices *in = f->in;
  xt_error error;
  xt_dtype dtype = choose_dtype(in);
  int ndim = choose_byte(in) % 5;
  int64_t numel = 1;
  const char *name;
  size_t name_size;
  for (int d = 0; d < ndim; d++) sizes[d] = choose_byte(in) % 7;
  for (int d = ndim; d-- > 0; numel *= sizes[d] ? sizes[d] : 1) strides[d] = numel;
  uint8_t how = choose_byte(in);
  if (how & 1 && ndim > 1) { /* transposed */
    int64_t size = sizes[0], stride = strides[0];
    sizes[0] = sizes[1], strides[0] = strides[1], sizes[1] = size, strides[1] = stride;
  }
  choose_name(in, f->arena, number, &name, &name_size);
  size_t i = how & 2 ? choose_below(in, f->count + 1) : f->count;
  if (i == f->count || f->blocks[i].numel < numel) i = make_block(f, dtype, numel);
  dtype = f->blocks[i].dtype;
  xt_save_tensor tensor = {.kind = how >> 4 == 15 ? XT_SAVE_SPARSE : XT_SAVE_STRIDED, .dtype = dtype, .view_count = 1};
  tensor.views[0] = view_of(f, i, ndim, sizes, strides, 0);
  tensor.views[0].staged = how & 4;
  const xt_dtype_info *info = xt_dtype_get(dtype);
  bool whole = !info->packed || (ndim && sizes[ndim - 1] * 8 % info->packed == 0);
  bool refused = tensor.kind != XT_SAVE_STRIDED || !*info->safetensors || !whole;
  REQUIRE(xt_save_plan_add_named(&s->plan, name, name_size, &tensor, &error) ==
          (refused ? XT_STATUS_unsupported : XT_STATUS_ok));
}

static void save_safetensors(choices *in, uint8_t options) {
  xt_arena arena = {0};
  forest f = {.in = in, .arena = &arena};
  save s = {.plan = {.format = &xt_safetensors_write}, .options = options};
  int64_t sizes[MAX_BLOCKS][4], strides[MAX_BLOCKS][4];
  xt_checkpoint c;
  xt_error error;
  uint8_t *file;
  size_t count = choose_byte(in) % MAX_BLOCKS, text_size;
  const char *text;
  for (size_t i = choose_byte(in) % 4; i > 0; i--) {
    choose_name(in, &arena, i, &text, &text_size);
    xt_save_plan_put_metadata(&s.plan, text, text_size);
    choose_text(in, &arena, &text, &text_size);
    xt_save_plan_put_metadata(&s.plan, text, text_size);
  }
  for (size_t i = 0; i < count; i++) add_tensor(&s, &f, i, sizes[i], strides[i]);
  bool refused = !(options & DUPLICATE) && shares_memory(&s.plan);
  xt_status status = xt_save_plan_finish_named(&s.plan, options & DUPLICATE, &error);
  REQUIRE(status == (refused ? XT_STATUS_bad_argument : XT_STATUS_ok));
  if (!refused && run_saver(&s, in)) {
    read_back(&s, in, &c, &file, NULL);
    compare_safetensors(&s.plan, &c, file);
    compare_metadata(&s.plan.metadata, c.metadata);
    xt_checkpoint_free(&c);
    free(file);
  }
  xt_buffer_free(&s.out);
  xt_save_plan_free(&s.plan);
  REQUIRE(f.kept == 0);
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
