/* Fuzz target (`make fuzz`): opens any bytes as a checkpoint and reads all of its tensors in every way. */
#include "core/formats/node_json.h"
#include "core/pickle/unpickle.h"
#include "reading.h"

/* Few mutated zip files pass the checks of the zip reader, so the unpickler is also called directly. */
static void as_pickle(const uint8_t *data, size_t size) {
  xt_error error;
  xt_allowance allowance = {.limit = 64 << 20};
  xt_arena arena = {.allowance = &allowance};
  xt_storages storages = {.arena = &arena, .max_tensor_bytes = 1 << 24};
  xt_index index = {.storages = &storages};
  xt_rebuild rebuild = {.arena = &arena, .storages = &storages, .error = &error};
  xt_node *root;
  size_t used;
  if (xt_unpickle(data, size, &rebuild, &used, &root) == XT_STATUS_ok) {
    xt_index_limits walk = {100000, 1000};
    xt_index_build(&index, &arena, root, &walk, &error);
  }
  xt_index_free(&index);
  xt_rebuild_free(&rebuild);
  xt_storages_free(&storages);
  xt_arena_free(&arena);
}

static void as_json(const uint8_t *data, size_t size) {
  xt_error error;
  xt_allowance allowance = {.limit = 64 << 20};
  xt_arena arena = {.allowance = &allowance};
  xt_node *root;
  xt_node_from_json(data, size, &arena, &root, &error);
  xt_arena_free(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  /* The options come from the end of the input, so that a file is an input as it is. */
  uint8_t options = size ? data[size - 1] : 0;
  read_bytes(data, size, options & 1, options & 2, NULL);
  if (size && data[0] == '{') as_json(data, size);
  else if (size && data[0] != 'P') as_pickle(data, size);
  return 0;
}
