/* Writes objects with tensors as drafts, and reads their pickles back. */
#include "core/checkpoint/draft.h"

#include <string.h>

#include "check.h"
#include "core/formats/legacy.h"
#include "core/formats/zip.h"
#include "core/pickle/unpickle.h"
#include "failing.h"
#include "node_text.h"

static float floats[64];
static int64_t integers[64];
static const int64_t sizes[] = {2, 3}, rows[] = {3, 1}, columns[] = {1, 2}, six[] = {6}, two[] = {2}, one[] = {1};

static xt_save_view view_of(xt_dtype dtype, int ndim, const int64_t *dims, const int64_t *strides, const void *data) {
  return (xt_save_view){.dtype = dtype, .ndim = ndim, .sizes = dims, .strides = strides, .data = data};
}

static xt_save_tensor strided(xt_save_view view) {
  return (xt_save_tensor){.kind = XT_SAVE_STRIDED, .dtype = view.dtype, .view_count = 1, .views = {view}};
}

/* Finishes and frees the draft, reads its pickle and compares. Compares what is not NULL: the tree and
 * the locations of all storages. */
static bool reads_back(xt_draft *d, const char *expected, const char *location, const xt_node **out) {
  static xt_arena arena;
  xt_error error = {0};
  xt_storages storages = {.arena = &arena, .max_tensor_bytes = 1 << 24};
  xt_rebuild rebuild = {.arena = &arena, .storages = &storages, .error = &error, .strict = true};
  xt_node *root = NULL;
  size_t used;
  xt_arena_free(&arena);
  CHECK(xt_draft_finish(d, &error) == XT_STATUS_ok);
  xt_draft_free(d);
  xt_status status = xt_unpickle(d->plan->pickle.data, d->plan->pickle.size, &rebuild, &used, &root);
  if (status != XT_STATUS_ok) fprintf(stderr, "%s\n", error.message);
  CHECK(status == XT_STATUS_ok && used == d->plan->pickle.size && storages.count == d->plan->count);
  for (size_t i = 0; location && i < storages.count; i++)
    CHECK(storages.list[i].location_size == strlen(location) &&
          !memcmp(storages.list[i].location, location, strlen(location)));
  bool equal = !expected || node_reads(root, expected);
  if (out) *out = root;
  else xt_arena_free(&arena);
  xt_rebuild_free(&rebuild);
  xt_storages_free(&storages);
  return equal;
}

static bool tensor_reads(const xt_save_tensor *tensor, const char *expected, const xt_node **out) {
  xt_save_plan plan = {.format = &xt_zip_write, .compact = true};
  xt_draft d;
  xt_draft_begin(&d, &plan);
  xt_draft_put_tensor(&d, tensor);
  bool equal = reads_back(&d, expected, "cpu", out);
  xt_save_plan_free(&plan);
  return equal;
}

static void strided_tensors(void) {
  xt_save_tensor tensor = strided(view_of(XT_float32, 2, sizes, rows, floats));
  tensor.requires_grad = true;
  CHECK(tensor_reads(&tensor, "tensor(float32, size (2, 3), stride (3, 1), storage 0 + 0, requires_grad)", NULL));
  tensor = strided(view_of(XT_int64, 0, NULL, NULL, integers));
  CHECK(tensor_reads(&tensor, "tensor(int64, size (), stride (), storage 0 + 0)", NULL));
  const int64_t dims[] = {1, 2, 1, 3}, steps[] = {6, 3, 3, 1};
  tensor = strided(view_of(XT_bool, 4, dims, steps, integers));
  CHECK(tensor_reads(&tensor, "tensor(bool, size (1, 2, 1, 3), stride (6, 3, 3, 1), storage 0 + 0)", NULL));
}

/* A staged view is written as contiguous elements, whatever its strides are. */
static void staged_tensors(void) {
  xt_save_tensor tensor = strided(view_of(XT_float32, 2, sizes, columns, NULL));
  tensor.views[0].staged = true;
  CHECK(tensor_reads(&tensor, "tensor(float32, size (2, 3), stride (3, 1), storage 0 + 0)", NULL));
}

static void tensors_without_a_storage_class(void) {
  xt_save_tensor tensor = strided(view_of(XT_uint16, 1, six, one, integers));
  CHECK(tensor_reads(&tensor, "tensor(uint16, size (6), stride (1), storage 0 + 0)", NULL));
  tensor = strided(view_of(XT_float32, 1, six, one, floats));
  tensor.views[0].untyped = true; /* its storage is that of its owner */
  tensor.views[0].storage = (const uint8_t *)floats;
  tensor.views[0].storage_bytes = sizeof floats;
  CHECK(tensor_reads(&tensor, "tensor(float32, size (6), stride (1), storage 0 + 0)", NULL));
}

/* A storage has no offset. Its tensor is added when the index is built. */
static void bare_storages(void) {
  const xt_format_writer *formats[] = {&xt_zip_write, &xt_legacy_write};
  for (size_t i = 0; i < COUNT_OF(formats); i++) {
    xt_save_plan plan = {.format = formats[i]};
    xt_save_view view = view_of(XT_float32, 1, six, one, floats);
    view.storage = (const uint8_t *)floats;
    view.storage_bytes = 6 * sizeof *floats;
    xt_save_tensor tensor = strided(view);
    xt_draft d;
    view.bare = true;
    xt_draft_begin(&d, &plan);
    xt_draft_put_tensor(&d, &tensor);
    xt_draft_put_storage(&d, &view);
    xt_pickler_put_tuple_of(&d.pickle, 2);
    CHECK(reads_back(&d, "(tensor(float32, size (6), stride (1), storage 0 + 0), storage(0))", "cpu", NULL));
    CHECK(plan.count == 1 && plan.payloads[0].numel == 6);
    xt_save_plan_free(&plan);
  }
}

/* A tensor whose memory begins with that of the storage and is larger. */
static void a_storage_inside_other_memory(void) {
  const int64_t twelve[] = {12};
  xt_save_plan plan = {.format = &xt_zip_write};
  xt_save_view view = view_of(XT_float32, 1, six, one, floats);
  view.storage = (const uint8_t *)floats;
  view.storage_bytes = 6 * sizeof *floats;
  view.bare = true;
  xt_save_tensor tensor = strided(view_of(XT_float32, 1, twelve, one, floats));
  xt_error error;
  xt_draft d;
  xt_draft_begin(&d, &plan);
  xt_draft_put_tensor(&d, &tensor);
  xt_draft_put_storage(&d, &view);
  xt_pickler_put_tuple_of(&d.pickle, 2);
  CHECK(xt_draft_finish(&d, &error) == XT_STATUS_bad_argument && strstr(error.message, "extends past it"));
  xt_draft_free(&d);
  xt_save_plan_free(&plan);
}

static void meta_tensors(void) {
  xt_save_tensor tensor = {.kind = XT_SAVE_META, .dtype = XT_float16, .ndim = 2, .sizes = sizes, .strides = columns};
  CHECK(tensor_reads(&tensor, "tensor(float16, size (2, 3), stride (1, 2))", NULL));
}

static void sparse_tensors(void) {
  const int64_t shape[] = {2, 4}, steps[] = {4, 1}, three[] = {3}, four[] = {4};
  const xt_node *root;
  xt_save_tensor coo = {
      .kind = XT_SAVE_SPARSE,
      .dtype = XT_float32,
      .layout = XT_LAYOUT_COO,
      .ndim = 2,
      .sizes = sizes,
      .coalesced = true,
      .view_count = 2,
      .views = {view_of(XT_int64, 2, shape, steps, integers), view_of(XT_float32, 1, four, one, floats)}};
  CHECK(tensor_reads(&coo, NULL, &root));
  CHECK(root->tensor->layout == XT_LAYOUT_COO && root->tensor->part_count == 2);
  CHECK(root->tensor->more->parts[0]->dtype == XT_int64 && root->tensor->more->parts[1]->sizes[0] == 4);
  static const xt_layout layouts[] = {XT_LAYOUT_CSR, XT_LAYOUT_CSC};
  for (size_t i = 0; i < COUNT_OF(layouts); i++) {
    xt_save_tensor compressed = {
        .kind = XT_SAVE_SPARSE,
        .dtype = XT_float32,
        .layout = (uint8_t)layouts[i],
        .ndim = 2,
        .sizes = sizes,
        .view_count = 3,
        .views = {view_of(XT_int64, 1, layouts[i] == XT_LAYOUT_CSR ? three : four, one, integers),
                  view_of(XT_int64, 1, two, one, integers + 8), view_of(XT_float32, 1, two, one, floats)}};
    CHECK(tensor_reads(&compressed, NULL, &root) && root->tensor->layout == layouts[i]);
    CHECK(root->tensor->part_count == 3 && root->tensor->more->parts[2]->dtype == XT_float32);
  }
}

static void quantized_tensors(void) {
  const xt_node *root;
  double scales[2] = {0.5, 0.25};
  xt_save_tensor tensor = {.kind = XT_SAVE_QUANTIZED,
                           .dtype = XT_quint8,
                           .scale = 0.5,
                           .zero_point = 3,
                           .view_count = 1,
                           .views = {view_of(XT_uint8, 2, sizes, rows, integers)}};
  CHECK(tensor_reads(&tensor, "tensor(quint8, size (2, 3), stride (3, 1), storage 0 + 0)", &root));
  CHECK(root->tensor->quantized && root->tensor->more->scale == 0.5 && root->tensor->more->zero_point == 3);
  tensor.dtype = XT_qint8;
  tensor.axis = 0;
  tensor.view_count = 3;
  tensor.views[0].dtype = XT_int8;
  tensor.views[1] = view_of(XT_float64, 1, two, one, scales);
  tensor.views[2] = view_of(XT_int64, 1, two, one, integers + 32);
  CHECK(tensor_reads(&tensor, "tensor(qint8, size (2, 3), stride (3, 1), storage 0 + 0)", &root));
  CHECK(root->tensor->part_count == 2 && root->tensor->more->axis == 0);
  CHECK(root->tensor->more->parts[0]->dtype == XT_float64 && root->tensor->more->parts[1]->dtype == XT_int64);
}

/* _rebuild_from_type_v2(function, class, arguments, state) */
static void subclasses(void) {
  xt_save_plan plan = {.format = &xt_zip_write};
  xt_save_tensor tensor = strided(view_of(XT_float32, 1, six, one, floats));
  xt_draft d;
  xt_draft_begin(&d, &plan);
  xt_pickler_put_global(&d.pickle, "torch._tensor\n_rebuild_from_type_v2\n");
  xt_pickler_put_mark(&d.pickle);
  xt_draft_put_function(&d, &tensor);
  xt_pickler_put_global(&d.pickle, "torch.nn.parameter\nParameter\n");
  xt_draft_put_arguments(&d, &tensor);
  xt_pickler_put_dict(&d.pickle);
  xt_pickler_put_tuple(&d.pickle);
  xt_pickler_put_reduce(&d.pickle);
  const xt_node *root;
  CHECK(reads_back(&d,
                   "subclass(tensor(float32, size (6), stride (1), storage 0 + 0), "
                   "torch.nn.parameter.Parameter, {})",
                   NULL, &root));
  xt_save_plan_free(&plan);
}

/* Objects that are used several times are memoized while the pickle is drafted, in any order. */
static void memoized_objects(void) {
  xt_save_plan plan = {.format = &xt_zip_write};
  xt_save_tensor tensor = strided(view_of(XT_float32, 1, six, one, floats));
  xt_draft d;
  uint32_t memos[2];
  xt_draft_begin(&d, &plan);
  xt_pickler_put_mark(&d.pickle);
  xt_pickler_put_text(&d.pickle, "text", 4);
  size_t after_text = d.pickle.out.size;
  xt_draft_put_tensor(&d, &tensor);
  memos[1] = xt_draft_memoize(&d, d.pickle.out.size);
  memos[0] = xt_draft_memoize(&d, after_text); /* an earlier object, later */
  for (int i = 0; i < 2; i++) xt_pickler_put_get(&d.pickle, memos[i]);
  xt_pickler_put_tuple(&d.pickle);
  CHECK(memos[0] == memos[1] + 1);
  CHECK(reads_back(&d,
                   "('text', tensor(float32, size (6), stride (1), storage 0 + 0), 'text', "
                   "tensor(float32, size (6), stride (1), storage 0 + 0))",
                   "cpu", NULL));
  xt_save_plan_free(&plan);
}

/* Views of one storage, and a legacy file, whose payloads are sorted as strings and whose ids have a view. */
static void shared_and_sorted_storages(void) {
  static const char *const order[] = {"0", "1", "10", "11", "2", "3", "4", "5", "6", "7", "8", "9"};
  static const xt_format_writer *const formats[] = {&xt_zip_write, &xt_legacy_write};
  char expected[4096];
  for (size_t f = 0; f < COUNT_OF(formats); f++) {
    xt_save_plan plan = {.format = formats[f], .compact = true};
    xt_draft d;
    size_t length = 0;
    xt_draft_begin(&d, &plan);
    xt_pickler_put_mark(&d.pickle);
    for (size_t i = 0; i < 13; i++) {
      /* the last one is inside the first one */
      xt_save_tensor tensor = strided(view_of(XT_float32, 1, i == 12 ? one : two, one, floats + (i == 12 ? 1 : 3 * i)));
      xt_draft_put_tensor(&d, &tensor);
      length += (size_t)sprintf(expected + length, "%stensor(float32, size (%d), stride (1), storage %zu + %d)",
                                i ? ", " : "(", i == 12 ? 1 : 2, i % 12, i == 12);
    }
    xt_pickler_put_tuple(&d.pickle);
    strcpy(expected + length, ")");
    CHECK(reads_back(&d, expected, "cpu", NULL) && plan.count == 12);
    for (size_t i = 0; i < 12; i++) {
      size_t number = strtoul(plan.payloads[i].key, NULL, 10);
      CHECK(f == 0 ? number == i : !strcmp(plan.payloads[i].key, order[i]));
      CHECK(plan.payloads[i].view == number && plan.payloads[i].data == (const uint8_t *)(floats + 3 * number));
    }
    xt_save_plan_free(&plan);
  }
}

/* Views of one storage of a device share it; the same address on another device is other memory. */
static void storages_of_devices(void) {
  xt_save_plan plan = {.format = &xt_zip_write};
  xt_draft d;
  xt_draft_begin(&d, &plan);
  xt_pickler_put_mark(&d.pickle);
  for (int i = 0; i < 3; i++) {
    xt_save_tensor tensor = strided(view_of(XT_float32, 1, two, one, floats + (i == 1 ? 3 : 0)));
    xt_save_view *view = &tensor.views[0];
    view->remote = true;
    view->device = (xt_device){XT_DEVICE_CUDA, i / 2};
    view->storage = (const uint8_t *)floats;
    view->storage_bytes = 6 * sizeof *floats;
    xt_draft_put_tensor(&d, &tensor);
  }
  xt_pickler_put_tuple(&d.pickle);
  CHECK(reads_back(&d,
                   "(tensor(float32, size (2), stride (1), storage 0 + 0), tensor(float32, size (2), stride (1), "
                   "storage 0 + 3), tensor(float32, size (2), stride (1), storage 1 + 0))",
                   NULL, NULL));
  CHECK(plan.count == 2 && !plan.payloads[0].data && plan.payloads[0].bytes == 24 && plan.payloads[1].bytes == 24);
  xt_save_plan_free(&plan);
}

static void locations(void) {
  static const struct {
    xt_device device;
    const char *text;
  } cases[] = {{{XT_DEVICE_CPU, -1}, "cpu"},
               {{XT_DEVICE_CUDA, -1}, "cuda:0"},
               {{XT_DEVICE_CUDA, 3}, "cuda:3"},
               {{XT_DEVICE_MPS, 0}, "mps"},
               {{XT_DEVICE_PRIVATE, 1}, "privateuseone:1"}};
  for (size_t i = 0; i < COUNT_OF(cases); i++) {
    xt_save_plan plan = {.format = &xt_zip_write};
    xt_save_tensor tensor = strided(view_of(XT_float32, 1, six, one, NULL));
    xt_draft d;
    tensor.views[0].staged = true;
    tensor.views[0].device = cases[i].device;
    xt_draft_begin(&d, &plan);
    xt_draft_put_tensor(&d, &tensor);
    CHECK(reads_back(&d, "tensor(float32, size (6), stride (1), storage 0 + 0)", cases[i].text, NULL));
    xt_save_plan_free(&plan);
  }
}

static void every_failing_allocation_is_reported(void) {
  xt_error error;
  for (long at = 0;; at++) {
    xt_save_plan plan = {.format = &xt_zip_write, .compact = true};
    xt_draft d;
    allocations = 0, fail_at = at;
    xt_draft_begin(&d, &plan);
    xt_pickler_put_mark(&d.pickle);
    for (size_t i = 0; i < 20; i++) {
      xt_save_tensor tensor = strided(view_of(XT_float32, 1, two, one, floats + 3 * i));
      xt_draft_put_tensor(&d, &tensor);
    }
    xt_pickler_put_tuple(&d.pickle);
    xt_status status = xt_draft_finish(&d, &error);
    fail_at = -1;
    bool failed = allocations > at;
    CHECK(status == (failed ? XT_STATUS_no_memory : XT_STATUS_ok));
    xt_draft_free(&d);
    xt_save_plan_free(&plan);
    if (!failed) break;
  }
}

int main(void) {
  return RUN_TESTS("draft", strided_tensors, staged_tensors, tensors_without_a_storage_class, bare_storages,
                   a_storage_inside_other_memory, meta_tensors, sparse_tensors, quantized_tensors, subclasses,
                   memoized_objects, shared_and_sorted_storages, locations, storages_of_devices,
                   every_failing_allocation_is_reported);
}
