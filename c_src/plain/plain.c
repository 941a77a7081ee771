/* The table of functions, and what there is no LibTorch for. */
#include "plain/plain.h"

const char *xt_plain_hint = "";

static void set_num_threads(int threads) { (void)threads; }
static int num_threads(void) { return 1; }

/* Elements are only bytes here, so every dtype is there that the newest LibTorch has. */
static bool has_dtype(xt_dtype dtype) { return xt_dtype_get(dtype)->torch < 1000; }

static xt_status no_archive(xt_error *error) {
  return xt_error_set(
      error, XT_STATUS_unsupported,
      "archives of torch::save are read and written by LibTorch (ExTorch.load/2 reads them without it). "
      "%s",
      xt_plain_hint);
}

static xt_status archive_save(const xt_archive_item *items, size_t count, const xt_archive_io *io, xt_error *error) {
  (void)items, (void)count, (void)io;
  return no_archive(error);
}

static xt_status archive_load(const xt_archive_io *io, xt_archive_items *out, xt_error *error) {
  (void)io, (void)out;
  return no_archive(error);
}

/* ---- Devices: there is the CPU ---- */

static int device_count(xt_device_type type) { return type == XT_DEVICE_CPU || type == XT_DEVICE_META ? 1 : -1; }
static const char *private_name(void) { return NULL; }

static xt_status device_memory(xt_device device, size_t *free_bytes, size_t *total, xt_error *error) {
  (void)free_bytes, (void)total;
  xt_status status = xt_plain_check_device(device, error);
  if (status != XT_STATUS_ok) return status;
  return xt_error_set(error, XT_STATUS_unsupported, "the memory of this device is not known");
}

static xt_status tensor_bytes(xt_device device, size_t size, xt_tensor **out, xt_error *error) {
  int64_t count = (int64_t)size;
  xt_status status = xt_plain_check_device(device, error);
  return status == XT_STATUS_ok ? xt_plain_tensor_empty(XT_uint8, 1, &count, out, error) : status;
}

/* A stager copies to another device, so there is none. */
static xt_status no_stager(xt_error *error) {
  return xt_error_set(error, XT_STATUS_unsupported, "devices other than the CPU need LibTorch. %s", xt_plain_hint);
}

static xt_status stager_new(xt_device device, size_t size, int count, xt_stager **out, xt_error *error) {
  (void)device, (void)size, (void)count, (void)out;
  return no_stager(error);
}

static xt_status stager_take(xt_stager *stager, uint8_t **buffer, xt_error *error) {
  (void)stager, (void)buffer;
  return no_stager(error);
}

static xt_status stager_copy(xt_stager *stager, size_t from, const xt_tensor *to, size_t at, size_t size,
                             xt_error *error) {
  (void)stager, (void)from, (void)to, (void)at, (void)size;
  return no_stager(error);
}

static xt_status stager_pass(xt_stager *stager, xt_error *error) {
  (void)stager;
  return no_stager(error);
}

static xt_status stager_done(xt_stager *stager, bool *done, xt_error *error) {
  (void)stager, (void)done;
  return no_stager(error);
}

static void stager_free(xt_stager *stager) { (void)stager; }

static const xt_torch_api api = {
    .version = NULL,
    .set_num_threads = set_num_threads,
    .num_threads = num_threads,
    .has_dtype = has_dtype,
    .manual_seed = xt_plain_seed,
    .device_count = device_count,
    .private_name = private_name,
    .device_memory = device_memory,
    .device_synchronize = xt_plain_check_device,
    .tensor_empty = xt_plain_tensor_empty,
    .tensor_foreign = xt_plain_tensor_foreign,
    .tensor_set_requires_grad = xt_plain_tensor_set_requires_grad,
    .tensor_plain = xt_plain_tensor_plain,
    .tensor_to = xt_plain_tensor_to,
    .tensor_bytes = tensor_bytes,
    .tensor_view = xt_plain_tensor_view,
    .stager_new = stager_new,
    .stager_take = stager_take,
    .stager_copy = stager_copy,
    .stager_pass = stager_pass,
    .stager_done = stager_done,
    .stager_free = stager_free,
    .tensor_equal = xt_plain_tensor_equal,
    .op = xt_plain_op,
    .archive_save = archive_save,
    .archive_load = archive_load,
};

const xt_torch_api *xt_plain_open(const char *hint) {
  xt_plain_hint = hint;
  return &api;
}
