/* Storages, handles and their lifetimes. */
#include "failing.h"
#include "sample.h"

static int released;
static void count_release(void *owner) { (void)owner, released++; }

static xt_tensor *foreign(void *data, xt_dtype dtype, int ndim, const int64_t *sizes, const int64_t *strides) {
  xt_tensor *tensor = NULL;
  xt_foreign memory = {.data = data,
                       .dtype = dtype,
                       .device = {XT_DEVICE_CPU, -1},
                       .ndim = ndim,
                       .sizes = sizes,
                       .strides = strides,
                       .owner = &released,
                       .release = count_release};
  return api->tensor_foreign(&memory, &tensor, &plain_error) == XT_STATUS_ok ? tensor : NULL;
}

static void describes_memory(void) {
  int32_t data[6] = {0, 1, 2, 3, 4, 5};
  released = 0;
  xt_tensor *tensor = foreign(data, XT_int32, 2, (int64_t[]){3, 2}, (int64_t[]){1, 3});
  const xt_tensor_info *info = &tensor->info;
  CHECK(info->plain && !info->contiguous && info->numel == 6 && info->span == 24 && info->data == data);
  CHECK(info->storage == data && info->storage_bytes == 24 && info->layout == 0 && !info->scheme);
  CHECK(info->device.type == XT_DEVICE_CPU && live_tensors() == 1);
  xt_plain_drop(tensor);
  CHECK(released == 1 && live_tensors() == 0);
}

/* The owner is released once, by the last view, in whatever order they are dropped. */
static void releases_the_owner_once_in_every_order(void) {
  static const int orders[][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
  double data[4] = {1, 2, 3, 4};
  for (size_t o = 0; o < COUNT_OF(orders); o++) {
    released = 0;
    xt_tensor *base = foreign(data, XT_float64, 2, (int64_t[]){2, 2}, (int64_t[]){2, 1});
    xt_tensor *view = TENSOR("select.int", of_tensor(base), of_int(0), of_int(1));
    xt_tensor *views[] = {base, view, TENSOR("narrow", of_tensor(view), of_int(0), of_int(1), of_int(1))};
    CHECK(element_at(views[2], 0).re == 4);
    for (int i = 0; i < 3; i++) {
      CHECK(released == 0);
      xt_plain_drop(views[orders[o][i]]);
    }
    CHECK(released == 1);
  }
}

/* The owner is released also if the tensor cannot be made. */
static void releases_the_owner_on_failure(void) {
  _Alignas(8) char data[64];
  int64_t one = 1, huge = INT64_MAX, negative = -1;
  released = 0;
  CHECK(!foreign(data + 1, XT_int32, 1, &one, &one) && plain_error.status == XT_STATUS_bad_argument);
  CHECK(!foreign(data, XT_int32, 1, &huge, &huge) && !foreign(data, XT_int32, 1, &huge, &one));
  CHECK(!foreign(data, XT_int32, 1, &one, &negative) && !foreign(data, XT_int32, 65, &one, &one));
  CHECK(!foreign(data, XT_int32, 1, &negative, &one) && !foreign(data, XT_int8, 1, &huge, &(int64_t){2}));
  CHECK(released == 7);
  for (fail_at = 0;; fail_at++) {
    allocations = 0;
    xt_tensor *tensor = foreign(data, XT_int8, 1, &one, &one);
    if (tensor) xt_plain_drop(tensor);
    CHECK(released == 8 + fail_at);
    if (tensor) break;
  }
  fail_at = -1;
}

static xt_tensor *empty(xt_dtype dtype, int ndim, const int64_t *sizes) {
  xt_tensor *tensor = NULL;
  return api->tensor_empty(dtype, ndim, sizes, &tensor, &plain_error) == XT_STATUS_ok ? tensor : NULL;
}

static void respects_the_budget(void) {
  xt_memory_set_budget(1000);
  xt_tensor *tensor = empty(XT_uint8, 1, (int64_t[]){600});
  CHECK(tensor && tensor->info.contiguous && atomic_load(&xt_memory_live.bytes) >= 600);
  CHECK(!empty(XT_uint8, 1, (int64_t[]){600}) && plain_error.status == XT_STATUS_limit && plain_error.collect);
  FAILS(limit, "clone", of_tensor(tensor));
  xt_plain_drop(tensor);
  CHECK(atomic_load(&xt_memory_live.bytes) == 0);
  xt_memory_set_budget(INT64_MAX);
}

static void refuses_sizes_that_overflow(void) {
  CHECK(!empty(XT_float32, 2, (int64_t[]){1ll << 40, 1ll << 40}) && plain_error.status == XT_STATUS_bad_argument);
  CHECK(!empty(XT_float64, 1, (int64_t[]){1ll << 61}) && !empty(XT_float32, 1, (int64_t[]){-1}));
  CHECK(!empty(XT_float32, 65, (int64_t[65]){0}) && plain_error.status == XT_STATUS_unsupported);
  CHECK(!empty(XT_uint8, 1, (int64_t[]){INT64_MAX}));
  xt_tensor *none = empty(XT_float32, 3, (int64_t[]){1ll << 62, 1ll << 62, 0});
  CHECK(none && none->info.numel == 0 && none->info.contiguous && none->info.span == 0);
  xt_tensor *clone = TENSOR("clone", of_tensor(none));
  xt_tensor *part = TENSOR("slice.Tensor", of_tensor(none), of_int(0), of_int(1ll << 61), of_int(INT64_MAX), of_int(7));
  xt_tensor *wide = TENSOR("unsqueeze", of_tensor(none), of_int(0));
  FAILS(bad_argument, "flatten", of_tensor(none), of_int(0), of_int(-1));
  xt_plain_drop(none), xt_plain_drop(clone), xt_plain_drop(part), xt_plain_drop(wide);
}

static void marks_gradients(void) {
  xt_tensor *tensor = empty(XT_float32, 1, (int64_t[]){2}), *marked = NULL, *meta = NULL;
  CHECK(api->tensor_set_requires_grad(tensor, true, &marked, &plain_error) == XT_STATUS_ok);
  CHECK(marked->requires_grad && !tensor->requires_grad && marked->info.data == tensor->info.data);
  xt_plain_drop(tensor);
  CHECK(api->tensor_to(marked, XT_float32, (xt_device){XT_DEVICE_META, -1}, &meta, &plain_error) == XT_STATUS_ok);
  CHECK(!meta->info.data && !meta->info.plain && meta->info.device.type == XT_DEVICE_META);
  FAILS(unsupported, "item", of_tensor(meta));
  FAILS(unsupported, "flip", of_tensor(meta), of_int(0));
  xt_plain_drop(marked), xt_plain_drop(meta);
}

/* Each allocation of each of these calls fails once. */
static void survives_failing_allocations(void) {
  for (long at = 0, passed = 0; !passed; at++) {
    fail_at = -1;
    xt_tensor *tensor = empty(XT_int8, 2, (int64_t[]){4, 6});
    memset(tensor->info.data, 1, 24);
    xt_tensor *turned = TENSOR("t", of_tensor(tensor)), *plain = NULL, *converted = NULL, *marked = NULL;
    fail_arenas = true, allocations = 0, fail_at = at;
    bool a = api->tensor_plain(turned, &plain, &plain_error) == XT_STATUS_ok;
    bool b = api->tensor_to(turned, XT_float16, turned->info.device, &converted, &plain_error) == XT_STATUS_ok;
    bool c = api->tensor_set_requires_grad(turned, true, &marked, &plain_error) == XT_STATUS_ok, equal = false;
    bool d = api->tensor_equal(turned, turned, &equal, &plain_error) == XT_STATUS_ok;
    passed = a && b && c && d && equal && at > allocations;
    fail_at = -1, fail_arenas = false;
    xt_tensor *all[] = {tensor, turned, plain, converted, marked};
    for (size_t i = 0; i < COUNT_OF(all); i++)
      if (all[i]) xt_plain_drop(all[i]);
    CHECK(live_tensors() == 0);
  }
}

static void has_no_torch(void) {
  xt_archive_items items = {NULL, 0};
  size_t bytes;
  CHECK(!api->version && api->num_threads() == 1 && api->has_dtype(XT_float8_e4m3fn));
  CHECK(api->archive_save(NULL, 0, NULL, &plain_error) == XT_STATUS_unsupported);
  CHECK(api->archive_load(NULL, &items, &plain_error) == XT_STATUS_unsupported);
  xt_device cpu = {XT_DEVICE_CPU, -1}, cuda = {XT_DEVICE_CUDA, 0};
  xt_tensor *tensor = NULL, *view = NULL;
  xt_stager *stager = NULL;
  CHECK(api->device_count(XT_DEVICE_CPU) == 1 && api->device_count(XT_DEVICE_CUDA) == -1 && !api->private_name());
  CHECK(api->device_memory(cuda, &bytes, &bytes, &plain_error) == XT_STATUS_unsupported);
  CHECK(api->device_memory(cpu, &bytes, &bytes, &plain_error) == XT_STATUS_unsupported);
  CHECK(api->device_synchronize(cpu, &plain_error) == XT_STATUS_ok);
  CHECK(api->device_synchronize(cuda, &plain_error) == XT_STATUS_unsupported);
  CHECK(api->tensor_bytes(cuda, 8, &tensor, &plain_error) == XT_STATUS_unsupported);
  CHECK(api->stager_new(cuda, 8, 1, &stager, &plain_error) == XT_STATUS_unsupported);
  CHECK(api->tensor_bytes(cpu, 16, &tensor, &plain_error) == XT_STATUS_ok);
  xt_tensor_layout layout = {1, (int64_t[]){2}, (int64_t[]){1}, 2};
  CHECK(api->tensor_view(tensor, XT_int32, &layout, &view, &plain_error) == XT_STATUS_ok);
  CHECK(view->info.dtype == XT_int32 && (char *)view->info.data == (char *)tensor->info.data + 8);
  layout.offset = 3;
  CHECK(api->tensor_view(tensor, XT_int32, &layout, &(xt_tensor *){NULL}, &plain_error) == XT_STATUS_bad_argument);
  layout.offset = INT64_MAX;
  CHECK(api->tensor_view(tensor, XT_int64, &layout, &(xt_tensor *){NULL}, &plain_error) == XT_STATUS_bad_argument);
  xt_plain_drop(tensor), xt_plain_drop(view);
  api->set_num_threads(2), api->manual_seed(1);
}

int main(void) {
  api = xt_plain_open("Do this.");
  return RUN_TESTS("plain/tensor", describes_memory, releases_the_owner_once_in_every_order,
                   releases_the_owner_on_failure, respects_the_budget, refuses_sizes_that_overflow, marks_gradients,
                   survives_failing_allocations, has_no_torch);
}
