/* Writes a zip file with a record larger than 4 GiB and another one after it, and reads it back. The file is sparse. It
 * is made in the directory given as the first argument, and kept there when there is a second one. */
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"
#include "core/checkpoint/batch_load.h"
#include "core/checkpoint/saver.h"
#include "core/formats/open.h"
#include "core/formats/zip.h"
#include "core/memory/memory.h"
#include "core/os/background.h"
#include "core/pickle/pickler.h"

static const uint64_t big = (5ull << 30) + 12;
static uint8_t *zeros;

/* A file in which the bytes of `zeros` become a hole. */
typedef struct {
  int fd;
  uint64_t at;
  size_t writes;
} sparse_file;

static xt_status write_sparse(void *context, const void *data, size_t size, xt_error *error) {
  sparse_file *file = context;
  bool hole = (const uint8_t *)data >= zeros && (const uint8_t *)data < zeros + big;
  if (!hole && pwrite(file->fd, data, size, (off_t)file->at) != (ssize_t)size)
    return xt_error_set(error, XT_STATUS_io, "writing the test file failed");
  file->at += size;
  file->writes++;
  return XT_STATUS_ok;
}

static void put_tensor(xt_pickler *p, const char *name, const char *key, int64_t numel) {
  xt_pickler_put_text(p, name, strlen(name));
  xt_pickler_put_global(p, "torch._utils\n_rebuild_tensor_v2\n");
  xt_pickler_put_mark(p);
  xt_pickler_put_mark(p);
  xt_pickler_put_text(p, "storage", 7);
  xt_pickler_put_global(p, "torch\nByteStorage\n");
  xt_pickler_put_text(p, key, strlen(key));
  xt_pickler_put_text(p, "cpu", 3);
  xt_pickler_put_int(p, numel);
  xt_pickler_put_tuple(p);
  xt_pickler_put_persistent(p);
  xt_pickler_put_int(p, 0);
  xt_pickler_put_int(p, numel);
  xt_pickler_put_tuple_of(p, 1);
  xt_pickler_put_int(p, 1);
  xt_pickler_put_tuple_of(p, 1);
  xt_pickler_put_bool(p, false);
  xt_pickler_put_global(p, "collections\nOrderedDict\n");
  xt_pickler_put_tuple_of(p, 0);
  xt_pickler_put_reduce(p);
  xt_pickler_put_tuple(p);
  xt_pickler_put_reduce(p);
}

static void read_back(const char *path) {
  static const xt_limits limits = {.pickle_bytes = 64 << 20, .depth = 1000, .tensor_bytes = (uint64_t)1 << 40};
  xt_error error;
  xt_file file;
  xt_checkpoint c;
  xt_view view;
  xt_need need = {0, 0, NULL};
  xt_status status;
  CHECK(xt_file_open(&file, path, &error) == XT_STATUS_ok);
  xt_checkpoint_begin(&c, file.size, 0, &limits, false, true);
  xt_record_reader reader = {.checkpoint = &c, .file = &file, .verify = true};
  while ((status = xt_open_step(&c, &need, &error)) == XT_STATUS_ok && need.size)
    CHECK(xt_record_reader_fetch(&reader, need.offset, need.to, need.size, &error) == XT_STATUS_ok);
  if (status != XT_STATUS_ok) fprintf(stderr, "%s\n", error.message);
  CHECK(status == XT_STATUS_ok && c.index.count == 3);
  CHECK(c.records[0]->size == big && c.records[1]->header > big && c.records[2]->size == 0);
  CHECK(xt_record_reader_view(&reader, c.index.entries[1].tensor, &view, &error) == XT_STATUS_ok);
  CHECK(!memcmp(view.data, "after them!", 11));
  CHECK(atomic_load(&c.records[1]->data_offset) % 64 == 0 && atomic_load(&c.records[0]->data_offset) % 64 == 0);
  xt_region_drop(view.region);
  xt_checkpoint_free(&c);
  xt_file_close(&file);
}

static void ignore(void *owner) { (void)owner; }

static void save(const char *path) {
  xt_error error;
  xt_pickler p;
  bool finished = false;
  size_t steps = 0;
  zeros = mmap(NULL, big, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CHECK(zeros != MAP_FAILED);
  sparse_file file = {open(path, O_RDWR | O_CREAT | O_TRUNC, 0600), 0, 0};
  CHECK(file.fd >= 0);

  xt_pickler_begin(&p);
  xt_pickler_put_dict(&p);
  xt_pickler_put_mark(&p);
  put_tensor(&p, "big", "0", (int64_t)big);
  put_tensor(&p, "small", "1", 11);
  put_tensor(&p, "empty", "2", 0);
  xt_pickler_put_set_items(&p);
  xt_pickler_stop(&p);
  xt_payload payloads[] = {{"0", XT_uint8, (int64_t)big, big, zeros, 0},
                           {"1", XT_uint8, 11, 11, (const uint8_t *)"after them!", 1},
                           {"2", XT_uint8, 0, 0, NULL, 2}};
  xt_save_plan plan = {.format = &xt_zip_write, .payloads = payloads, .count = 3, .pickle = p.out, .root = "large"};
  xt_saver w = {.plan = &plan, .keeper = {ignore, ignore, NULL}}; /* the payloads outlive the saver */
  xt_sink sink = {.write = write_sparse, .context = &file};
  xt_saver_begin(&w);
  CHECK(w.total == big + 11);
  for (; !finished; steps++) CHECK(xt_saver_step(&w, &sink, 1 << 30, &finished, &error) == XT_STATUS_ok);
  CHECK(steps == 6 && w.written == w.total);
  CHECK(!ftruncate(file.fd, (off_t)file.at));
  close(file.fd);
  xt_saver_free(&w);
  xt_pickler_free(&p);
  xt_background_settle(60000);
  munmap(zeros, big);
}

static xt_status fail_fetch(void *context, size_t payload, uint64_t from, const uint8_t **data, uint64_t *size,
                            xt_error *error) {
  (void)context, (void)payload, (void)from, (void)data, (void)size;
  return xt_error_set(error, XT_STATUS_released, "the tensor was released");
}

static xt_status write_nothing(void *context, const void *data, size_t size, xt_error *error) {
  (void)context, (void)data, (void)size, (void)error;
  return XT_STATUS_ok;
}

static void a_payload_that_cannot_be_fetched(void) {
  xt_error error;
  bool finished = false;
  xt_payload payloads[] = {{"0", XT_uint8, 11, 11, NULL, 0}};
  xt_save_plan plan = {.format = &xt_zip_write, .payloads = payloads, .count = 1, .root = "a"};
  xt_saver w = {.plan = &plan, .fetch = fail_fetch};
  xt_sink sink = {.write = write_nothing};
  xt_status status = XT_STATUS_ok;
  xt_saver_begin(&w);
  while (status == XT_STATUS_ok && !finished) status = xt_saver_step(&w, &sink, 1 << 20, &finished, &error);
  CHECK(status == XT_STATUS_released && !strcmp(error.message, "the tensor was released"));
  xt_saver_free(&w);
}

static const char *directory;
static bool keep_file;

static void records_above_4_gib(void) {
  char path[4096];
  snprintf(path, sizeof path, "%s/large.pt", directory);
  save(path);
  read_back(path);
  if (!keep_file) unlink(path);
  CHECK(atomic_load(&xt_memory_live.bytes) == 0);
}

int main(int argc, char **argv) {
  CHECK(argc >= 2);
  directory = argv[1];
  keep_file = argc > 2;
  return RUN_TESTS("saver", a_payload_that_cannot_be_fetched, records_above_4_gib);
}
