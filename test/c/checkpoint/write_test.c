/* Writes a checkpoint in each format and reads it back, with every allocation and every write failing once. */
#include "check.h"
#include "core/checkpoint/draft.h"
#include "core/checkpoint/saver.h"
#include "core/formats/legacy.h"
#include "core/formats/npy.h"
#include "core/formats/safetensors.h"
#include "core/formats/torch_stream.h"
#include "core/formats/zip.h"
#include "failing.h"
#include "sample.h"

enum { LARGE = 1100001, SMALL = 6, COUNT = 13 };
static float small[COUNT][SMALL];
static uint8_t large[LARGE];

/* Tensors of several sizes: one that is fetched when it is written, one that is not copied, an empty one, and small
 * ones. */
static const char *names[COUNT] = {"small", "large", "empty", "a", "b", "c", "d", "e", "f", "g", "h", "i", "fetched"};
static int64_t numel_of(size_t i) { return i == 1 || i == COUNT - 1 ? LARGE : i == 2 ? 0 : SMALL; }
static bool is_bytes(size_t i) { return i == 1 || i == COUNT - 1; }
static const void *data_of(size_t i) { return is_bytes(i) ? (const void *)large : small[i]; }
static size_t bytes_of(size_t i) { return (size_t)numel_of(i) * (is_bytes(i) ? 1 : sizeof(float)); }

/* A sink that fails at one of its writes. */
typedef struct {
  xt_buffer out;
  long writes, fail_at;
} memory_sink;

static xt_status write_memory(void *context, const void *data, size_t size, xt_error *error) {
  memory_sink *sink = context;
  if (sink->writes++ == sink->fail_at) return xt_error_set(error, XT_STATUS_io, "the disk is full");
  long at = fail_at;
  fail_at = -1; /* the sink's own memory does not fail */
  xt_buffer_put(&sink->out, data, size);
  fail_at = at;
  return XT_STATUS_ok;
}

static xt_save_plan plan;

static xt_status share_memory(void *context, size_t payload, const uint8_t *data, size_t size, xt_error *error) {
  CHECK(is_bytes(plan.payloads[payload].view));
  return write_memory(context, data, size, error);
}

/* The stop hook; `stops` counts its calls, and `stop_at` is the call that stops. */
static long stops, stop_at = -1;

static bool stop(void *context) {
  (void)context;
  return stops++ == stop_at;
}

static int fetched, done;

/* In two parts. */
static xt_status fetch(void *context, size_t payload, uint64_t from, const uint8_t **data, uint64_t *size,
                       xt_error *error) {
  (void)context, (void)error;
  CHECK(plan.payloads[payload].view == COUNT - 1);
  fetched++;
  *data = (const uint8_t *)large + from;
  *size = from ? plan.payloads[payload].bytes - from : plan.payloads[payload].bytes / 2;
  return XT_STATUS_ok;
}

static void release(void *context, size_t payload) {
  (void)context;
  CHECK(plan.payloads[payload].view == COUNT - 1);
  done++;
}

/* The last tensor is fetched. */
static xt_save_tensor tensor_at(size_t i) {
  static int64_t sizes[COUNT];
  static const int64_t one = 1;
  xt_dtype dtype = is_bytes(i) ? XT_uint8 : XT_float32;
  sizes[i] = numel_of(i);
  xt_save_tensor tensor = {.kind = XT_SAVE_STRIDED, .dtype = dtype, .view_count = 1};
  tensor.views[0] = (xt_save_view){
      .dtype = dtype, .ndim = 1, .sizes = &sizes[i], .strides = &one, .data = data_of(i), .staged = i == COUNT - 1};
  return tensor;
}

static xt_status plan_object(xt_error *error) {
  static char padding[100000]; /* a pickle of more than 64 KiB is not copied */
  xt_draft d;
  memset(padding, 'x', sizeof padding);
  xt_draft_begin(&d, &plan);
  xt_pickler_put_dict(&d.pickle);
  xt_pickler_put_mark(&d.pickle);
  xt_pickler_put_text(&d.pickle, "padding", 7);
  xt_pickler_put_text(&d.pickle, padding, sizeof padding);
  for (size_t i = 0; i < COUNT; i++) {
    xt_save_tensor tensor = tensor_at(i);
    xt_pickler_put_text(&d.pickle, names[i], strlen(names[i]));
    xt_draft_put_tensor(&d, &tensor);
  }
  xt_pickler_put_set_items(&d.pickle);
  xt_status status = xt_draft_finish(&d, error);
  xt_draft_free(&d);
  return status;
}

static xt_status plan_named(xt_error *error) {
  static const char *const pairs[] = {"format", "pt", "quote \" and \\", "line\nbreak \1"};
  xt_status status = XT_STATUS_ok;
  for (size_t i = 0; i < COUNT_OF(pairs); i++) xt_save_plan_put_metadata(&plan, pairs[i], strlen(pairs[i]));
  for (size_t i = 0; i < COUNT && status == XT_STATUS_ok; i++) {
    xt_save_tensor tensor = tensor_at(i);
    status = xt_save_plan_add_named(&plan, names[i], strlen(names[i]), &tensor, error);
  }
  return status == XT_STATUS_ok ? xt_save_plan_finish_named(&plan, false, error) : status;
}

static xt_status save(const xt_format_writer *format, memory_sink *out, bool share, uint64_t budget, xt_error *error) {
  bool finished = false;
  memset(error, 0, sizeof *error);
  fetched = done = 0;
  plan = (xt_save_plan){.format = format, .root = "archive"};
  xt_status status = format->refuses ? plan_named(error) : plan_object(error);
  bool planned = status == XT_STATUS_ok;
  xt_saver s = {.plan = &plan, .fetch = fetch, .done = release};
  xt_sink sink = {.write = write_memory, .share = share ? share_memory : NULL, .stop = stop, .context = out};
  if (planned) xt_saver_begin(&s);
  if (planned) CHECK(s.total == 2 * LARGE + 10 * sizeof small[0]);
  while (status == XT_STATUS_ok && !finished) {
    uint64_t before = s.written;
    if (xt_saver_is_brief(&s, budget)) CHECK(s.total - s.written > budget && budget <= 1 << 20);
    status = xt_saver_step(&s, &sink, budget, &finished, error);
    CHECK(finished || status != XT_STATUS_ok || s.written > before);
  }
  if (status == XT_STATUS_ok) CHECK(s.written == s.total);
  else if (planned) CHECK(xt_saver_step(&s, &sink, 1, &finished, &(xt_error){0}) == XT_STATUS_stale && !finished);
  if (planned) xt_saver_free(&s);
  CHECK(fetched == done);
  xt_save_plan_free(&plan);
  return status;
}

static const xt_format_writer *const formats[] = {&xt_zip_write, &xt_legacy_write, &xt_torch_stream_write,
                                                  &xt_safetensors_write, &xt_npz_write};

static void read_back(const memory_sink *out) {
  sample s;
  xt_batch_load load;
  xt_status status = sample_open(&s, out->out.data, out->out.size);
  if (status != XT_STATUS_ok) fprintf(stderr, "%s\n", s.error.message);
  CHECK(status == XT_STATUS_ok && s.checkpoint.index.count == COUNT);
  CHECK(sample_load(&s, &load) == XT_STATUS_ok);
  for (size_t i = 0; i < COUNT; i++) {
    const size_t *at = xt_table_get(&s.checkpoint.index.names, names[i], strlen(names[i]));
    CHECK(at);
    const xt_index_entry *entry = &s.checkpoint.index.entries[*at];
    CHECK(entry->tensor->sizes[0] == numel_of(i));
    /* a storage of an npz file begins with the header of the array */
    size_t offset = (size_t)entry->tensor->offset * (is_bytes(i) ? 1 : sizeof(float));
    CHECK(!memcmp(load.regions[entry->tensor->storage]->data + offset, data_of(i), bytes_of(i)));
  }
  if (s.checkpoint.metadata) {
    const xt_node *value = s.checkpoint.metadata->list.items[3];
    CHECK(xt_node_is_text(value, "line\nbreak \1", 12));
  }
  xt_batch_load_free(&load);
  sample_free(&s);
  xt_error error;
  CHECK(sample_push(out->out.data, out->out.size, 1000, &sample_limits, 1 << 22, true, &error) == XT_STATUS_ok);
}

static void each_format_reads_back(void) {
  static const uint64_t budgets[] = {1, 1000, 100000, UINT64_MAX / 2};
  xt_error error;
  for (size_t i = 0; i < COUNT_OF(formats); i++)
    for (size_t k = 0; k < COUNT_OF(budgets); k++) {
      memory_sink out = {.fail_at = -1};
      CHECK(save(formats[i], &out, k % 2, budgets[k] < 100 ? 10 : budgets[k], &error) == XT_STATUS_ok);
      read_back(&out);
      xt_buffer_free(&out.out);
    }
}

static void every_failing_write_ends_the_save(void) {
  xt_error error;
  for (size_t i = 0; i < COUNT_OF(formats); i++)
    for (long at = 0;; at++) {
      memory_sink out = {.fail_at = at};
      xt_status status = save(formats[i], &out, at % 2, 100000, &error);
      bool failed = out.writes > at;
      CHECK(failed ? status == XT_STATUS_io && strstr(error.message, "full") : status == XT_STATUS_ok);
      xt_buffer_free(&out.out);
      if (!failed) break;
    }
}

static void every_failing_allocation_ends_the_save(void) {
  xt_error error;
  for (size_t i = 0; i < COUNT_OF(formats); i++)
    for (long at = 0;; at++) {
      memory_sink out = {.fail_at = -1};
      allocations = 0, fail_at = at;
      xt_status status = save(formats[i], &out, false, 100000, &error);
      fail_at = -1;
      bool failed = allocations > at;
      /* Without memory for its table of names, the pickler writes them again. */
      CHECK(status == XT_STATUS_ok || (failed && status == XT_STATUS_no_memory));
      if (status == XT_STATUS_ok) read_back(&out);
      xt_buffer_free(&out.out);
      if (!failed) break;
    }
}

/* An npy file has one array and no names. */
static void an_npy_file_reads_back(void) {
  static const int64_t sizes[] = {2, 3}, strides[] = {3, 1};
  xt_error error;
  for (int ndim = 0; ndim <= 2; ndim++) {
    memory_sink out = {.fail_at = -1};
    bool finished = false;
    xt_save_tensor tensor = tensor_at(3);
    tensor.views[0].ndim = ndim, tensor.views[0].sizes = sizes, tensor.views[0].strides = strides + (2 - ndim);
    plan = (xt_save_plan){.format = &xt_npy_write};
    CHECK(xt_save_plan_add_named(&plan, "", 0, &tensor, &error) == XT_STATUS_ok);
    CHECK(xt_save_plan_finish_named(&plan, false, &error) == XT_STATUS_ok);
    xt_saver s = {.plan = &plan, .fetch = fetch, .done = release};
    xt_sink sink = {.write = write_memory, .context = &out};
    xt_saver_begin(&s);
    while (!finished) CHECK(xt_saver_step(&s, &sink, 1000, &finished, &error) == XT_STATUS_ok);
    xt_saver_free(&s);
    xt_save_plan_free(&plan);
    sample read;
    xt_batch_load load;
    CHECK(sample_open(&read, out.out.data, out.out.size) == XT_STATUS_ok && sample_load(&read, &load) == XT_STATUS_ok);
    const xt_node *root = read.checkpoint.root;
    size_t bytes = sizeof(float) * (ndim == 2 ? 6 : ndim == 1 ? 2 : 1);
    CHECK(root->kind == XT_NODE_TENSOR && root->tensor->dtype == XT_float32 && root->tensor->ndim == (uint32_t)ndim);
    for (int d = 0; d < ndim; d++) CHECK(root->tensor->sizes[d] == sizes[d]);
    CHECK(out.out.size % 64 == bytes && load.total == bytes && !memcmp(load.regions[0]->data, small[3], bytes));
    xt_batch_load_free(&load);
    sample_free(&read);
    xt_buffer_free(&out.out);
  }
}

/* A tensor in a mapped file: the second time, the file is truncated during the save. */
static void a_truncated_file_ends_the_save(void) {
  static const int64_t numel = LARGE, one = 1;
  for (int truncated = 0; truncated < 2; truncated++) {
    char path[4096];
    xt_error error;
    xt_file file;
    xt_region *region;
    memory_sink out = {.fail_at = -1};
    bool finished = false;
    snprintf(path, sizeof path, "%s/write_test.XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    int fd = mkstemp(path);
    CHECK(fd >= 0 && write(fd, large, LARGE) == LARGE);
    CHECK(xt_file_open(&file, path, &error) == XT_STATUS_ok);
    CHECK(xt_region_map(&file, &region, &error) == XT_STATUS_ok);
    xt_save_tensor tensor = {.kind = XT_SAVE_STRIDED, .dtype = XT_uint8, .view_count = 1};
    tensor.views[0] =
        (xt_save_view){.dtype = XT_uint8, .ndim = 1, .sizes = &numel, .strides = &one, .data = region->data};
    plan = (xt_save_plan){.format = &xt_npz_write};
    CHECK(xt_save_plan_add_named(&plan, "w", 1, &tensor, &error) == XT_STATUS_ok);
    CHECK(xt_save_plan_finish_named(&plan, false, &error) == XT_STATUS_ok);
    xt_saver s = {.plan = &plan, .fetch = fetch, .done = release};
    xt_sink sink = {.write = write_memory, .context = &out};
    xt_saver_begin(&s);
    CHECK(xt_saver_step(&s, &sink, 1000, &finished, &error) == XT_STATUS_ok && !finished);
    if (truncated) CHECK(!ftruncate(fd, 4096));
    xt_status status = XT_STATUS_ok;
    while (status == XT_STATUS_ok && !finished) status = xt_saver_step(&s, &sink, 100000, &finished, &error);
    CHECK(status == (truncated ? XT_STATUS_file_changed : XT_STATUS_ok) && finished == !truncated);
    if (truncated) CHECK(strstr(error.message, "truncated while the tensor was being saved"));
    xt_saver_free(&s);
    xt_save_plan_free(&plan);
    xt_region_drop(region);
    xt_file_close(&file);
    close(fd);
    unlink(path);
    xt_buffer_free(&out.out);
  }
}

/* LARGE is less than the bytes between two calls, so that the largest tensors do not all reach one. */
static void the_stop_hook_ends_the_save(void) {
  xt_error error;
  for (size_t i = 0; i < COUNT_OF(formats); i++)
    for (stop_at = -1; stop_at < 2; stop_at++) {
      memory_sink out = {.fail_at = -1};
      stops = 0;
      xt_status status = save(formats[i], &out, i % 2, 100000, &error);
      CHECK(stops == (stop_at < 0 ? 2 * LARGE / (1 << 20) : stop_at + 1));
      CHECK(status == (stop_at < 0 ? XT_STATUS_ok : XT_STATUS_stopping));
      xt_buffer_free(&out.out);
      if (stop_at + 1 >= 2 * LARGE / (1 << 20)) break;
    }
  stop_at = -1;
}

int main(void) {
  for (int i = 0; i < COUNT * SMALL; i++) small[i / SMALL][i % SMALL] = (float)i;
  for (int i = 0; i < LARGE; i++) large[i] = (uint8_t)(i * 31 + i / 1000);
  return RUN_TESTS("write", each_format_reads_back, an_npy_file_reads_back, a_truncated_file_ends_the_save,
                   every_failing_write_ends_the_save, every_failing_allocation_ends_the_save,
                   the_stop_hook_ends_the_save);
}
