/* Checkpoints under the sanitizers: every fixture given as an argument is opened and read whole; cut at every length;
 * with every bit turned; and with every allocation failing once. Nothing may crash, hang or leak. */
#include <string.h>

#include "check.h"
#include "core/checkpoint/batch_load.h"
#include "core/memory/memory.h"
#include "failing.h"

static const xt_limits limits = {64 << 20, 0, 1000, (uint64_t)1 << 40};

static xt_status open_all(xt_checkpoint *c, xt_record_reader *reader, xt_error *error) {
  xt_need need = {0, 0, NULL};
  xt_status status;
  while ((status = xt_checkpoint_step(c, &need, error)) == XT_STATUS_ok && need.size) {
    status = xt_record_reader_fetch(reader, need.offset, need.to, need.size, error);
    if (status != XT_STATUS_ok) break;
  }
  return status;
}

/* A sum over all that a tensor sees, so that a view that reaches too far is caught. */
static unsigned touch(const xt_tensor_desc *t, const xt_view *view) {
  int64_t index[64] = {0}, elements = 1;
  unsigned sum = 0;
  size_t item = xt_dtype_get(t->dtype)->size;
  for (uint32_t d = 0; d < t->ndim; d++) elements *= t->sizes[d];
  for (int64_t left = elements < 100000 ? elements : 100000; left-- > 0;) {
    int64_t at = 0;
    for (uint32_t d = 0; d < t->ndim; d++) at += index[d] * view->strides[d];
    for (size_t i = 0; i < item; i++) sum += view->data[(size_t)at * item + i];
    for (uint32_t d = t->ndim; d-- > 0 && ++index[d] == t->sizes[d];) index[d] = 0;
  }
  return sum;
}

static xt_status read_all(xt_checkpoint *c, const xt_record_reader *reader, xt_error *error) {
  xt_batch_load loader;
  xt_view view;
  bool finished = false;
  xt_status status = XT_STATUS_ok;
  bool *wanted = calloc(c->rebuild.storage_count + 1, 1);
  if (!wanted) return XT_STATUS_no_memory;
  memset(wanted, 1, c->rebuild.storage_count);
  for (size_t i = 0; i < c->index.count && status == XT_STATUS_ok; i++) {
    const xt_tensor_desc *t = c->index.entries[i].tensor;
    if (t->storage == XT_NO_STORAGE || !c->records[t->storage]) continue;
    status = xt_record_reader_view(reader, t, &view, error);
    if (status == XT_STATUS_ok) touch(t, &view), xt_region_drop(view.region);
  }
  if (status == XT_STATUS_ok) status = xt_batch_load_begin(&loader, reader, wanted, error);
  else memset(&loader, 0, sizeof loader);
  while (status == XT_STATUS_ok && !finished) status = xt_batch_load_step(&loader, 1000, &finished, error);
  for (size_t i = 0; i < c->index.count && status == XT_STATUS_ok; i++) {
    const xt_tensor_desc *t = c->index.entries[i].tensor;
    if (t->storage == XT_NO_STORAGE || !c->records[t->storage]) continue;
    xt_record_reader_view_region(loader.regions[t->storage], t, &view);
    touch(t, &view);
    xt_region_drop(view.region);
  }
  xt_batch_load_free(&loader);
  free(wanted);
  return status;
}

static xt_status try_memory(const uint8_t *data, size_t size, bool verify, xt_error *error) {
  xt_checkpoint c;
  /* memory of exactly this size: a byte too far is seen */
  uint8_t *exact = __real_malloc(size ? size : 1);
  memcpy(exact, data, size);
  xt_region memory = {.data = exact, .size = size};
  atomic_init(&memory.references, 1 << 20); /* never freed */
  memset(error, 0, sizeof *error);
  xt_checkpoint_begin(&c, size, 0, &limits, false, verify, error);
  xt_record_reader reader = {.checkpoint = &c, .memory = &memory, .verify = verify};
  xt_status status = open_all(&c, &reader, error);
  if (c.unpacked) reader.memory = c.memory;
  if (status == XT_STATUS_ok) status = read_all(&c, &reader, error);
  xt_checkpoint_free(&c);
  free(exact);
  if (status != XT_STATUS_ok) CHECK(error->message[0] || status == XT_STATUS_no_memory);
  return status;
}

static uint8_t *slurp(const char *path, size_t *size) {
  FILE *file = fopen(path, "rb");
  CHECK(file);
  fseek(file, 0, SEEK_END);
  *size = (size_t)ftell(file);
  rewind(file);
  uint8_t *data = __real_malloc(*size + 1);
  CHECK(fread(data, 1, *size, file) == *size);
  fclose(file);
  return data;
}

static void sweep(const char *path) {
  size_t size;
  uint8_t *data = slurp(path, &size);
  xt_error error;
  /* the first of several saves is complete without the others, and a tar without its padding */
  bool ends_early = strstr(path, "several") || strstr(path, "tar.pt");
  xt_status whole = try_memory(data, size, true, &error);
  if (whole != XT_STATUS_ok) fprintf(stderr, "%s: %s\n", path, error.message);
  CHECK(whole == XT_STATUS_ok);

  /* from a file as well, by pread: the same reads another way */
  xt_file file;
  xt_checkpoint c;
  CHECK(xt_file_open(&file, path, &error) == XT_STATUS_ok);
  xt_checkpoint_begin(&c, file.size, 0, &limits, false, true, &error);
  xt_record_reader reader = {.checkpoint = &c, .file = &file, .verify = true};
  CHECK(open_all(&c, &reader, &error) == XT_STATUS_ok);
  if (c.unpacked) reader.memory = c.memory;
  CHECK(read_all(&c, &reader, &error) == XT_STATUS_ok);
  CHECK(xt_file_check(&file, &error) == XT_STATUS_ok);
  reader.verify = false;
  CHECK(read_all(&c, &reader, &error) == XT_STATUS_ok);
  xt_checkpoint_free(&c);
  xt_file_close(&file);

  if (size <= 64 << 10)
    for (size_t cut = 0; cut < size; cut++) {
      xt_status status = try_memory(data, cut, false, &error);
      CHECK(status != XT_STATUS_ok || ends_early);
    }
  for (size_t bit = 0; size <= 6000 && bit < 8 * size; bit++) {
    data[bit / 8] ^= (uint8_t)(1 << bit % 8);
    try_memory(data, size, bit % 2, &error);
    data[bit / 8] ^= (uint8_t)(1 << bit % 8);
  }
  for (fail_at = 0;; fail_at++) {
    allocations = 0;
    xt_status status = try_memory(data, size, false, &error);
    if (allocations <= fail_at) {
      CHECK(status == XT_STATUS_ok);
      break;
    }
  }
  fail_at = -1;
  CHECK(atomic_load(&xt_memory_live.bytes) == 0);
  free(data);
}

int main(int argc, char **argv) {
  for (int i = 1; i < argc; i++) sweep(argv[i]);
  printf("open: %d passed, 0 failed\n", argc - 1);
  return 0;
}
