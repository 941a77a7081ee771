/* Writes values with the pickler, reads them back with the unpickler, and compares the trees. */
#include "core/pickle/pickler.h"

#include <math.h>
#include <string.h>

#include "check.h"
#include "core/pickle/scan.h"
#include "core/pickle/unpickle.h"
#include "failing.h"
#include "node_text.h"

/* Ends the pickle, reads it and compares. Then frees the pickler. */
static bool reads(xt_pickler *p, const char *expected, bool strict) {
  xt_arena arena = {0};
  xt_error error = {0};
  xt_storages storages = {.arena = &arena, .max_tensor_bytes = 1 << 24};
  xt_rebuild rebuild = {.arena = &arena, .storages = &storages, .error = &error, .strict = strict};
  xt_pickle_scan_state scan = {0};
  xt_node *root = NULL;
  size_t used;
  xt_pickler_stop(p);
  CHECK(!p->out.failed);
  xt_status status = xt_unpickle(p->out.data, p->out.size, &rebuild, &used, &root);
  if (status != XT_STATUS_ok) fprintf(stderr, "%s\n", error.message);
  CHECK(status == XT_STATUS_ok && used == p->out.size);
  CHECK(xt_pickle_scan(p->out.data, p->out.size, &scan) == XT_SCAN_END && scan.at == used);
  bool equal = node_reads(root, expected);
  xt_rebuild_free(&rebuild);
  xt_storages_free(&storages);
  xt_arena_free(&arena);
  xt_pickler_free(p);
  return equal;
}

/* The same, strictly, as weights_only does. */
static bool reads_back(xt_pickler *p, const char *expected) { return reads(p, expected, true); }

static void none_and_booleans(void) {
  xt_pickler p;
  xt_pickler_begin(&p);
  xt_pickler_put_none(&p);
  xt_pickler_put_bool(&p, true);
  xt_pickler_put_bool(&p, false);
  xt_pickler_put_tuple_of(&p, 3);
  CHECK(reads_back(&p, "(None, True, False)"));
}

/* The edges of each of the instructions for integers. */
static void integers(void) {
  static const int64_t values[] = {0,         1,          255,         256,          65535,      65536,
                                   INT32_MAX, -1,         -256,        INT32_MIN,    2147483648, INT64_MAX,
                                   INT64_MIN, 4294967295, -2147483649, 1099511627776};
  char expected[32];
  for (size_t i = 0; i < COUNT_OF(values); i++) {
    xt_pickler p;
    xt_pickler_begin(&p);
    xt_pickler_put_int(&p, values[i]);
    snprintf(expected, sizeof expected, "%" PRId64, values[i]);
    CHECK(reads_back(&p, expected));
  }
}

static void large_integers(void) {
  static const uint8_t magnitude[] = {1, 0, 0, 0, 0, 0, 0, 0, 0x80};
  xt_pickler p;
  xt_pickler_begin(&p);
  xt_pickler_put_big(&p, magnitude, sizeof magnitude, false);
  xt_pickler_put_big(&p, magnitude, sizeof magnitude, true);
  xt_pickler_put_big(&p, (const uint8_t[]){5}, 1, true); /* small enough for 64 bits */
  xt_pickler_put_tuple_of(&p, 3);
  /* Two's complement with a byte for the sign. */
  CHECK(reads_back(&p, "(int'\\x01\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x80\\x00', "
                       "int'\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\x7f\\xff', -5)"));
}

/* More than 255 bytes need the instruction with a longer count, which weights_only does not have. */
static void very_large_integers(void) {
  uint8_t magnitude[300];
  xt_arena arena = {0};
  xt_error error;
  xt_storages storages = {.arena = &arena, .max_tensor_bytes = 1 << 24};
  xt_rebuild rebuild = {.arena = &arena, .storages = &storages, .error = &error};
  xt_node *root;
  size_t used;
  xt_pickler p;
  memset(magnitude, 0xab, sizeof magnitude);
  xt_pickler_begin(&p);
  xt_pickler_put_big(&p, magnitude, sizeof magnitude, false);
  xt_pickler_stop(&p);
  CHECK(xt_unpickle(p.out.data, p.out.size, &rebuild, &used, &root) == XT_STATUS_ok && used == p.out.size);
  CHECK(root->kind == XT_NODE_BIG && root->text.size == sizeof magnitude + 1);
  CHECK(!memcmp(root->text.data, magnitude, sizeof magnitude) && !root->text.data[sizeof magnitude]);
  xt_rebuild_free(&rebuild);
  xt_storages_free(&storages);
  xt_arena_free(&arena);
  xt_pickler_free(&p);
}

static void floats(void) {
  static const struct {
    double value;
    const char *text;
  } cases[] = {{0, "0f"},          {-0.0, "-0f"},        {1.5, "1.5f"}, {-2.25e-300, "-2.25e-300f"},
               {INFINITY, "inff"}, {-INFINITY, "-inff"}, {NAN, "nanf"}, {0.1, "0.10000000000000001f"}};
  for (size_t i = 0; i < COUNT_OF(cases); i++) {
    xt_pickler p;
    xt_pickler_begin(&p);
    xt_pickler_put_float(&p, cases[i].value);
    CHECK(reads_back(&p, cases[i].text));
  }
}

static void texts_and_bytes(void) {
  uint8_t bytes[256];
  char expected[2048] = "(b'";
  for (int i = 0; i < 256; i++) bytes[i] = (uint8_t)i;
  for (int i = 0; i < 256; i++) {
    bool plain = i >= 0x20 && i < 0x7f && i != '\'' && i != '\\';
    sprintf(expected + strlen(expected), plain ? "%c" : "\\x%02x", i);
  }
  strcat(expected, "', b'', 'gr\\xc3\\xbc\\x00n')");
  xt_pickler p;
  xt_pickler_begin(&p);
  xt_pickler_put_bytes(&p, bytes, sizeof bytes);
  xt_pickler_put_bytes(&p, bytes, 0);
  xt_pickler_put_text(&p, "gr\xc3\xbc\0n", 6);
  xt_pickler_put_tuple_of(&p, 3);
  CHECK(reads_back(&p, expected));
}

static void containers(void) {
  xt_pickler p;
  xt_pickler_begin(&p);
  xt_pickler_put_dict(&p);
  xt_pickler_put_mark(&p);
  xt_pickler_put_text(&p, "list", 4);
  xt_pickler_put_list(&p);
  xt_pickler_put_mark(&p);
  for (int i = 0; i < 5; i++) xt_pickler_put_int(&p, i);
  xt_pickler_put_appends(&p);
  xt_pickler_put_text(&p, "tuples", 6);
  xt_pickler_put_mark(&p);
  xt_pickler_put_tuple_of(&p, 0);
  xt_pickler_put_int(&p, 1);
  xt_pickler_put_tuple_of(&p, 1);
  xt_pickler_put_int(&p, 1);
  xt_pickler_put_int(&p, 2);
  xt_pickler_put_tuple_of(&p, 2);
  xt_pickler_put_mark(&p);
  for (int i = 0; i < 4; i++) xt_pickler_put_int(&p, i);
  xt_pickler_put_tuple(&p);
  xt_pickler_put_tuple(&p);
  xt_pickler_put_int(&p, 7);
  xt_pickler_put_dict(&p);
  xt_pickler_put_set_items(&p);
  CHECK(reads_back(&p, "{'list': [0, 1, 2, 3, 4], 'tuples': ((), (1), (1, 2), (0, 1, 2, 3)), 7: {}}"));
}

static void calls_and_objects(void) {
  xt_pickler p;
  xt_pickler_begin(&p);
  xt_pickler_put_mark(&p);
  xt_pickler_put_global(&p, "collections\nOrderedDict\n");
  xt_pickler_put_tuple_of(&p, 0);
  xt_pickler_put_reduce(&p);
  xt_pickler_put_global(&p, "builtins\ncomplex\n");
  xt_pickler_put_float(&p, 1.5);
  xt_pickler_put_float(&p, -2);
  xt_pickler_put_tuple_of(&p, 2);
  xt_pickler_put_reduce(&p);
  xt_pickler_put_global(&p, "torch\nfloat16\n");
  xt_pickler_put_global(&p, "torch\ndevice\n");
  xt_pickler_put_text(&p, "cuda", 4);
  xt_pickler_put_int(&p, 1);
  xt_pickler_put_tuple_of(&p, 2);
  xt_pickler_put_reduce(&p);
  xt_pickler_put_tuple(&p);
  CHECK(reads_back(&p, "({}, complex(1.5, -2), dtype(float16), device(cuda, 1))"));
}

/* A class that is not known stays an object with its arguments and state. weights_only refuses it. */
static void unknown_classes(void) {
  xt_arena arena = {0};
  xt_error error;
  xt_storages storages = {.arena = &arena, .max_tensor_bytes = 1 << 24};
  xt_rebuild rebuild = {.arena = &arena, .storages = &storages, .error = &error};
  xt_node *root;
  size_t used;
  xt_pickler p;
  xt_pickler_begin(&p);
  xt_pickler_put_name(&p, "my.module", 9, "Class", 5);
  xt_pickler_put_int(&p, 1);
  xt_pickler_put_tuple_of(&p, 1);
  xt_pickler_put_new(&p);
  xt_pickler_put_text(&p, "state", 5);
  xt_pickler_put_build(&p);
  xt_pickler_stop(&p);
  CHECK(xt_unpickle(p.out.data, p.out.size, &rebuild, &used, &root) == XT_STATUS_ok);
  CHECK(node_reads(root, "<new my.module.Class args (1) state 'state'>"));
  rebuild.strict = true;
  CHECK(xt_unpickle(p.out.data, p.out.size, &rebuild, &used, &root) == XT_STATUS_forbidden && error.offset == 2);
  xt_rebuild_free(&rebuild);
  xt_storages_free(&storages);
  xt_arena_free(&arena);
  xt_pickler_free(&p);
}

/* A global is written once and then taken from the memo, also past 256 entries. */
static void globals_are_memoized(void) {
  enum { N = 300 };
  static char names[N][32];
  char expected[N * 2 * 32] = "(";
  xt_pickler p;
  xt_pickler_begin(&p);
  xt_pickler_put_mark(&p);
  for (int round = 0; round < 2; round++)
    for (int i = 0; i < N; i++) {
      snprintf(names[i], sizeof names[i], "module\nClass%d\n", i);
      size_t before = p.out.size;
      xt_pickler_put_global(&p, names[i]);
      CHECK(round == 0 || p.out.size - before == (i < 256 ? 2 : 5));
      sprintf(expected + strlen(expected), "%smodule.Class%d", round + i ? ", " : "", i);
    }
  xt_pickler_put_tuple(&p);
  strcat(expected, ")");
  CHECK(reads(&p, expected, false));
}

static void put_tensor(xt_pickler *p, const char *class, const char *key, int64_t numel, int64_t rows,
                       int64_t columns) {
  xt_pickler_put_global(p, "torch._utils\n_rebuild_tensor_v2\n");
  xt_pickler_put_mark(p);
  xt_pickler_put_mark(p);
  xt_pickler_put_text(p, "storage", 7);
  xt_pickler_put_global(p, class);
  xt_pickler_put_text(p, key, strlen(key));
  xt_pickler_put_text(p, "cpu", 3);
  xt_pickler_put_int(p, numel);
  xt_pickler_put_tuple(p);
  xt_pickler_put_persistent(p);
  xt_pickler_put_int(p, 1);
  xt_pickler_put_int(p, rows);
  xt_pickler_put_int(p, columns);
  xt_pickler_put_tuple_of(p, 2);
  xt_pickler_put_int(p, columns);
  xt_pickler_put_int(p, 1);
  xt_pickler_put_tuple_of(p, 2);
  xt_pickler_put_bool(p, true);
  xt_pickler_put_global(p, "collections\nOrderedDict\n");
  xt_pickler_put_tuple_of(p, 0);
  xt_pickler_put_reduce(p);
  xt_pickler_put_tuple(p);
  xt_pickler_put_reduce(p);
}

static void tensors_and_storages(void) {
  xt_pickler p;
  xt_pickler_begin(&p);
  xt_pickler_put_mark(&p);
  put_tensor(&p, xt_pickler_storage_class(XT_float32), "0", 7, 2, 3);
  put_tensor(&p, xt_pickler_storage_class(XT_int64), "1", 5, 4, 1);
  put_tensor(&p, xt_pickler_storage_class(XT_float32), "0", 7, 1, 6); /* the first storage again */
  xt_pickler_put_tuple(&p);
  CHECK(reads_back(&p, "(tensor(float32, size (2, 3), stride (3, 1), storage 0 + 1, requires_grad), "
                       "tensor(int64, size (4, 1), stride (1, 1), storage 1 + 1, requires_grad), "
                       "tensor(float32, size (1, 6), stride (6, 1), storage 0 + 1, requires_grad))"));
}

static void storage_classes_name_their_dtype(void) {
  for (int i = 0; i < XT_DTYPE_COUNT; i++) {
    const char *class = xt_pickler_storage_class((xt_dtype)i);
    if (!class) continue;
    const char *name = strchr(class, '\n') + 1;
    xt_node node = {.kind = XT_NODE_GLOBAL};
    node.global.module = class, node.global.module_size = (size_t)(name - class) - 1;
    node.global.name = name, node.global.name_size = strlen(name) - 1;
    CHECK(xt_rebuild_storage_dtype(&node) == (xt_dtype)i);
  }
  CHECK(xt_pickler_storage_class(XT_float32) && !xt_pickler_storage_class(XT_float8_e5m2));
}

static void devices_and_complex_numbers(void) {
  const int64_t index = 3;
  xt_pickler p;
  xt_pickler_begin(&p);
  xt_pickler_put_device(&p, "cpu", 3, NULL);
  xt_pickler_put_device(&p, "cuda", 4, &index);
  xt_pickler_put_complex(&p, 1.5, -2);
  xt_pickler_put_tuple_of(&p, 3);
  CHECK(reads_back(&p, "(device(cpu, -1), device(cuda, 3), complex(1.5, -2))"));
}

static void numpy_scalars(void) {
  const double number = 0.5;
  const uint8_t byte = 7;
  xt_pickler p;
  xt_arena arena = {0};
  xt_error error = {0};
  xt_storages storages = {.arena = &arena, .max_tensor_bytes = 1 << 24};
  xt_rebuild rebuild = {.arena = &arena, .storages = &storages, .error = &error};
  xt_node *root = NULL;
  size_t used;
  xt_pickler_begin(&p);
  xt_pickler_put_dtype(&p, XT_float64);
  xt_pickler_put_numpy_scalar(&p, XT_float64, (const uint8_t *)&number);
  xt_pickler_put_numpy_scalar(&p, XT_uint8, &byte);
  xt_pickler_put_tuple_of(&p, 3);
  xt_pickler_stop(&p);
  CHECK(!p.out.failed && xt_unpickle(p.out.data, p.out.size, &rebuild, &used, &root) == XT_STATUS_ok);
  CHECK(node_reads(root, "(dtype(float64), scalar(float64), scalar(uint8))"));
  CHECK(!memcmp(root->list.items[1]->scalar.bytes, &number, sizeof number) &&
        root->list.items[2]->scalar.bytes[0] == 7);
  xt_rebuild_free(&rebuild);
  xt_storages_free(&storages);
  xt_arena_free(&arena);
  xt_pickler_free(&p);
}

/* A memo entry is read with one byte or with four. */
static void memo_entries(void) {
  xt_pickler p;
  xt_pickler_begin(&p);
  xt_pickler_put_get(&p, 255);
  CHECK(p.out.size == 4 && !memcmp(p.out.data + 2, "h\xff", 2));
  xt_pickler_put_get(&p, 256);
  CHECK(p.out.size == 9 && !memcmp(p.out.data + 4, "j\0\1\0\0", 5));
  xt_pickler_free(&p);
}

/* An allocation that fails leaves `failed` set at the end, whichever it is. */
static void reports_failed_allocations(void) {
  for (fail_at = 0;; fail_at++) {
    xt_pickler p;
    allocations = 0;
    xt_pickler_begin(&p);
    for (int i = 0; i < 100; i++) put_tensor(&p, "torch\nFloatStorage\n", "0", 7, 2, 3);
    xt_pickler_stop(&p);
    bool failed = allocations > fail_at;
    CHECK(p.out.failed == failed);
    xt_pickler_free(&p);
    if (!failed) break;
  }
  CHECK(fail_at > 2);
  fail_at = -1;
}

int main(void) {
  return RUN_TESTS("pickler", none_and_booleans, integers, large_integers, very_large_integers, floats, texts_and_bytes,
                   containers, calls_and_objects, unknown_classes, globals_are_memoized, tensors_and_storages,
                   storage_classes_name_their_dtype, devices_and_complex_numbers, numpy_scalars, memo_entries,
                   reports_failed_allocations);
}
