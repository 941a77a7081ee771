/* The implementation behind include/extorch.h. */
#include <stdio.h>
#include <stdlib.h>

#include "core/memory/frozen.h"
#include "include/extorch.h"
#include "nif/tensor.h"

/* One allocation: the exported struct, a reference to the handle, and the arrays of shape and strides. The importer may
 * write to the memory until it calls the deleter, so binaries made in the meantime are copies. */
typedef struct {
  DLManagedTensor managed; /* must be first: the deleter receives its address */
  xt_tensor *handle;
  xt_frozen lent; /* the memory, unless it is read-only */
  int64_t dims[]; /* ndim sizes, then ndim strides */
} exported;

static void delete_exported(DLManagedTensor *managed) {
  exported *self = (exported *)managed;
  xt_frozen_remove(&self->lent);
  xt_tensor_drop(self->handle);
  free(self);
}

static bool get_dl_type(xt_dtype dtype, DLDataType *out) {
  const xt_dtype_info *info = xt_dtype_get(dtype);
  *out = (DLDataType){.bits = (uint8_t)(8 * info->size), .lanes = 1};
  switch (info->kind) {
  case XT_KIND_INT: out->code = kDLInt; return true;
  case XT_KIND_UINT: out->code = kDLUInt; return true;
  case XT_KIND_BOOL: out->code = kDLBool; return true;
  case XT_KIND_COMPLEX: out->code = kDLComplex; return true;
  case XT_KIND_FLOAT: out->code = dtype == XT_bfloat16 ? kDLBfloat : kDLFloat; return info->size > 1;
  default: return false;
  }
}

/* Returns 0 for a device that DLPack does not have, or whose memory has no addresses. */
static int get_dl_device(xt_device device) {
  switch (device.type) {
  case XT_DEVICE_CPU: return kDLCPU;
  case XT_DEVICE_CUDA: return kDLCUDA;
  case XT_DEVICE_XPU: return kDLOneAPI;
  case XT_DEVICE_PRIVATE: return kDLExtDev;
  default: return 0;
  }
}

/* Takes ownership of the reference to the handle on success. */
static xt_status export_handle(xt_tensor *handle, extorch_export *out, xt_error *error) {
  const xt_tensor_info *info = &handle->info;
  DLDataType type;
  xt_status status = xt_tensor_check_plain(info, error);
  if (status != XT_STATUS_ok) return status;
  if (!get_dl_type(info->dtype, &type))
    return xt_error_set(error, XT_STATUS_unsupported, "DLPack has no data type for %s; convert the tensor first",
                        xt_dtype_get(info->dtype)->name);
  int device = get_dl_device(info->device);
  if (!device)
    return xt_error_set(error, XT_STATUS_unsupported,
                        "memory of the device %s cannot be shared; copy the tensor to the CPU",
                        xt_device_type_name(info->device.type));
  exported *self = calloc(1, sizeof *self + 2 * (size_t)info->ndim * sizeof *self->dims);
  if (!self) return xt_error_set(error, XT_STATUS_no_memory, "out of memory while exporting the tensor");
  self->handle = handle;
  self->managed.deleter = delete_exported;
  self->managed.dl_tensor = (DLTensor){
      .data = info->data,
      .device = {device, info->device.index < 0 ? 0 : info->device.index},
      .ndim = info->ndim,
      .dtype = type,
      .shape = self->dims,
      .strides = self->dims + info->ndim,
  };
  for (int d = 0; d < info->ndim; d++) self->dims[d] = info->sizes[d], self->dims[info->ndim + d] = info->strides[d];
  out->tensor = &self->managed;
  out->read_only = !xt_frozen_write(&self->lent, info->data, info->span, true);
  return XT_STATUS_ok;
}

static xt_status export_tensor(xt_tensor_resource *resource, extorch_export *out, xt_error *error) {
  xt_tensor *handle;
  xt_status status = xt_tensor_take(resource, &handle, error);
  if (status != XT_STATUS_ok) return status;
  status = export_handle(handle, out, error);
  if (status != XT_STATUS_ok) xt_tensor_drop(handle);
  return status;
}

void xt_export_tensor(ErlNifEnv *env, void *resource, void *export_data) {
  extorch_export *out = export_data;
  xt_error error;
  (void)env;
  out->tensor = NULL;
  if (out->version != EXTORCH_EXPORT_VERSION)
    snprintf(out->error, sizeof out->error,
             "extorch.h and ExTorch have different versions; rebuild the library with the current extorch.h");
  else if (export_tensor(resource, out, &error) != XT_STATUS_ok)
    snprintf(out->error, sizeof out->error, "%.250s", error.message);
}
