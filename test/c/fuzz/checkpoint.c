/* Fuzz target (`make fuzz`): opens any bytes as a checkpoint and reads all of its tensors. */
#include <stdlib.h>
#include <string.h>

#include "core/checkpoint/batch_load.h"
#include "core/pickle/node_json.h"
#include "core/pickle/unpickle.h"

static const xt_limits limits = {1 << 20, 0, 1000, 1 << 24, 0};

static void read_all(xt_checkpoint *c, const xt_record_reader *reader, xt_error *error) {
  for (size_t i = 0; i < c->index.count && i < 100; i++) {
    const xt_tensor_desc *t = c->index.entries[i].tensor;
    xt_view view;
    if (t->storage == XT_NO_STORAGE || !c->records[t->storage]) continue;
    if (xt_record_reader_view(reader, t, &view, error) == XT_STATUS_ok) xt_region_drop(view.region);
  }
}

static void as_file(const uint8_t *data, size_t size) {
  xt_error error;
  xt_checkpoint c;
  xt_need need = {0, 0, NULL};
  xt_region memory = {.data = (uint8_t *)data, .size = size};
  atomic_init(&memory.references, 1 << 20);
  xt_checkpoint_begin(&c, size, 0, &limits, false, false, &error);
  xt_record_reader reader = {.checkpoint = &c, .memory = &memory};
  xt_status status;
  while ((status = xt_checkpoint_step(&c, &need, &error)) == XT_STATUS_ok && need.size)
    if ((status = xt_record_reader_fetch(&reader, need.offset, need.to, need.size, &error)) != XT_STATUS_ok) break;
  if (c.unpacked) reader.memory = c.memory;
  if (status == XT_STATUS_ok) read_all(&c, &reader, &error);
  xt_checkpoint_free(&c);
}

/* Few mutated zip files pass the checks of the zip reader, so the unpickler is also called directly. */
static void as_pickle(const uint8_t *data, size_t size) {
  xt_error error;
  xt_arena arena = {.limit = 64 << 20};
  xt_index index = {0};
  xt_rebuild rebuild = {.arena = &arena, .max_tensor_bytes = 1 << 24, .error = &error};
  xt_node *root;
  size_t used;
  if (xt_unpickle(data, size, &rebuild, &used, &root) == XT_STATUS_ok) {
    xt_index_limits walk = {100000, 1000};
    xt_index_build(&index, &arena, root, &walk, &error);
  }
  xt_index_free(&index);
  xt_rebuild_free(&rebuild);
  xt_arena_free(&arena);
}

static void as_json(const uint8_t *data, size_t size) {
  xt_error error;
  xt_arena arena = {.limit = 64 << 20};
  xt_node *root;
  xt_node_from_json(data, size, &arena, &root, &error);
  xt_arena_free(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  as_file(data, size);
  if (size && data[0] == '{') as_json(data, size);
  else if (size && data[0] != 'P') as_pickle(data, size);
  return 0;
}
