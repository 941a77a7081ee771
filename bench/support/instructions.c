/* Saves, opens and loads 20,000 small tensors in every format, for scripts/instructions.sh: callgrind counts the
 * instructions of each part. Times vary with the machine and with what else runs on it, these counts do not.
 *
 *   instructions DIRECTORY
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <valgrind/callgrind.h>

#include "core/checkpoint/batch_load.h"
#include "core/checkpoint/draft.h"
#include "core/checkpoint/saver.h"
#include "core/formats/legacy.h"
#include "core/formats/open.h"
#include "core/formats/safetensors.h"
#include "core/formats/torch_stream.h"
#include "core/formats/zip.h"
#include "core/os/atomic_file.h"

enum { TENSORS = 20000, ELEMENTS = 64, NAME_SIZE = 48 };

static const int64_t sizes[] = {ELEMENTS}, strides[] = {1};

static void check(xt_status status, const xt_error *error) {
  if (status == XT_STATUS_ok) return;
  fprintf(stderr, "%s\n", error->message);
  exit(1);
}

/* What was counted since the last call becomes a profile with this name. */
static void end_part(const char *part, const char *format) {
  char name[64];
  snprintf(name, sizeof name, "%s %s", part, format);
  CALLGRIND_DUMP_STATS_AT(name);
}

/* ---- Save ---- */

static xt_save_tensor tensor_at(const float *data) {
  xt_save_view view = {.dtype = XT_float32,
                       .ndim = 1,
                       .sizes = sizes,
                       .strides = strides,
                       .data = (const uint8_t *)data,
                       .storage = (const uint8_t *)data,
                       .storage_bytes = ELEMENTS * sizeof *data};
  return (xt_save_tensor){
      .kind = XT_SAVE_STRIDED, .dtype = XT_float32, .ndim = 1, .sizes = sizes, .view_count = 1, .views = {view}};
}

static xt_status plan_named(xt_save_plan *plan, const float *data, char (*names)[NAME_SIZE], xt_error *error) {
  xt_status status = XT_STATUS_ok;
  for (size_t i = 0; i < TENSORS && status == XT_STATUS_ok; i++) {
    xt_save_tensor tensor = tensor_at(data + i * ELEMENTS);
    status = xt_save_plan_add_named(plan, names[i], strlen(names[i]), &tensor, error);
  }
  return status == XT_STATUS_ok ? xt_save_plan_finish_named(plan, false, error) : status;
}

static xt_status plan_dict(xt_save_plan *plan, const float *data, char (*names)[NAME_SIZE], xt_error *error) {
  xt_draft draft;
  xt_draft_begin(&draft, plan);
  xt_pickler_put_dict(&draft.pickle);
  xt_pickler_put_mark(&draft.pickle);
  for (size_t i = 0; i < TENSORS; i++) {
    xt_save_tensor tensor = tensor_at(data + i * ELEMENTS);
    xt_pickler_put_text(&draft.pickle, names[i], strlen(names[i]));
    xt_draft_put_tensor(&draft, &tensor);
  }
  xt_pickler_put_set_items(&draft.pickle);
  xt_status status = xt_draft_finish(&draft, error);
  xt_draft_free(&draft);
  return status;
}

static xt_status write_file(void *file, const void *data, size_t size, xt_error *error) {
  return xt_atomic_file_write(file, data, size, error);
}

static void save(const char *path, const xt_format_writer *format, const float *data, char (*names)[NAME_SIZE]) {
  xt_error error;
  xt_atomic_file file;
  bool finished = false;
  xt_save_plan plan = {.format = format, .root = "archive"};
  check((format->refuses ? plan_named : plan_dict)(&plan, data, names, &error), &error);
  xt_saver saver = {.plan = &plan};
  xt_sink sink = {.write = write_file, .context = &file};
  check(xt_atomic_file_open(&file, path, &error), &error);
  xt_saver_begin(&saver);
  while (!finished) check(xt_saver_step(&saver, &sink, 64 << 20, &finished, &error), &error);
  check(xt_atomic_file_commit(&file, false, &error), &error);
  xt_atomic_file_close(&file);
  xt_saver_free(&saver);
  xt_save_plan_free(&plan);
}

/* ---- Open and load ---- */

static void open_file(const char *path, xt_file *file, xt_checkpoint *c) {
  static const xt_limits limits = {
      .pickle_bytes = 1 << 30, .nodes = 1 << 30, .depth = 1000, .tensor_bytes = 1ull << 40, .memory = 1ull << 40};
  xt_error error;
  xt_need need = {0, 0, NULL};
  check(xt_file_open(file, path, &error), &error);
  xt_checkpoint_begin(c, file->size, 0, &limits, false, false);
  do {
    check(xt_open_step(c, &need, &error), &error);
    if (need.size) check(xt_file_read(file, need.offset, need.to, need.size, &error), &error);
  } while (need.size);
  if (c->index.count != TENSORS) exit(1);
}

static void load(const xt_file *file, xt_checkpoint *c) {
  static bool wanted[TENSORS];
  xt_error error;
  xt_batch_load load;
  xt_view view;
  bool finished = false;
  xt_record_reader reader = {.checkpoint = c, .file = file};
  memset(wanted, true, sizeof wanted);
  check(xt_batch_load_begin(&load, &reader, wanted, &error), &error);
  while (!finished) check(xt_batch_load_step(&load, 64 << 20, &finished, &error), &error);
  for (size_t i = 0; i < c->index.count; i++) {
    const xt_tensor_desc *tensor = c->index.entries[i].tensor;
    xt_record_reader_view_region(load.regions[tensor->storage], tensor, &view);
    if (*(float *)view.data < 0) exit(1);
    xt_region_drop(view.region);
  }
  xt_batch_load_free(&load);
}

static void count(const char *directory, const char *name, const xt_format_writer *format, const float *data,
                  char (*names)[NAME_SIZE]) {
  char path[4096];
  xt_file file;
  xt_checkpoint c;
  snprintf(path, sizeof path, "%s/%s", directory, name);
  CALLGRIND_ZERO_STATS;
  save(path, format, data, names);
  end_part("save", name);
  open_file(path, &file, &c);
  end_part("open", name);
  load(&file, &c);
  end_part("load", name);
  xt_checkpoint_free(&c);
  xt_file_close(&file);
  remove(path);
}

int main(int argc, char **argv) {
  float *data = malloc(TENSORS * ELEMENTS * sizeof *data);
  char(*names)[NAME_SIZE] = malloc(TENSORS * sizeof *names);
  if (argc != 2 || !data || !names) return 1;
  for (int i = 0; i < TENSORS * ELEMENTS; i++) data[i] = (float)i;
  for (int i = 0; i < TENSORS; i++) snprintf(names[i], NAME_SIZE, "layers.%d.block.%d.weight", i / 9, i % 9);
  count(argv[1], "zip", &xt_zip_write, data, names);
  count(argv[1], "legacy", &xt_legacy_write, data, names);
  count(argv[1], "streaming", &xt_torch_stream_write, data, names);
  count(argv[1], "safetensors", &xt_safetensors_write, data, names);
  free(data);
  free(names);
  return 0;
}
