/* Plans a file before it is written: which bytes are written, in which order, and the pickle or header around them. */
#include <stdlib.h>
#include <string.h>

#include "core/formats/legacy.h"
#include "core/formats/safetensors.h"
#include "nif/pickle_term.h"
#include "nif/saver.h"
#include "nif/tensor.h"
#include "nif/term.h"

xt_status xt_save_job_plan_pickle(ErlNifEnv *env, xt_save_job *job, ERL_NIF_TERM term, xt_error *error) {
  bool legacy = job->saver.format == &xt_legacy_write;
  xt_pickle_template template = {0};
  xt_status status = xt_pickle_term(env, term, &job->tensors, &template, error);
  if (status == XT_STATUS_ok) status = xt_save_plan(&job->tensors, error);
  if (status == XT_STATUS_ok) status = xt_pickle_template_fill(&template, &job->tensors, legacy, &job->pickle, error);
  xt_pickle_template_free(&template);
  if (status == XT_STATUS_ok && legacy) status = xt_save_sort(&job->tensors, error);
  job->saver.payloads = job->tensors.payloads;
  job->saver.count = job->tensors.payload_count;
  job->saver.pickle = job->pickle.out.data;
  job->saver.pickle_size = job->pickle.out.size;
  job->saver.root = job->root;
  return status;
}

/* ---- Safetensors ---- */

enum { NAME_IN_MESSAGE = 200 };

static int message_size(size_t size) { return (int)(size < NAME_IN_MESSAGE ? size : NAME_IN_MESSAGE); }

static bool get_named(ErlNifEnv *env, ERL_NIF_TERM term, ErlNifBinary *name, xt_tensor_resource **resource) {
  const ERL_NIF_TERM *pair;
  int arity;
  return enif_get_tuple(env, term, &arity, &pair) && arity == 2 && enif_inspect_binary(env, pair[0], name) &&
         xt_get_tensor(env, pair[1], resource);
}

/* Adds the tensor as payload i. Its name is stored as an offset in job->names until all names are known. */
static xt_status add_named(xt_save_job *job, size_t i, const ErlNifBinary *name, xt_tensor_resource *resource,
                           xt_error *error) {
  xt_tensor *handle;
  xt_save_tensor tensor;
  xt_status status = xt_tensor_take(resource, &handle, error);
  if (status == XT_STATUS_ok) status = xt_save_add(&job->tensors, handle, &tensor, error);
  if (status != XT_STATUS_ok) return status;
  const xt_tensor_info *info = &handle->info;
  bool strided = tensor.kind == XT_SAVE_STRIDED;
  if (!strided || !*xt_dtype_get(info->dtype)->safetensors)
    return xt_error_set(error, XT_STATUS_unsupported,
                        "%.*s: safetensors does not support %s; use another format or convert the tensor first",
                        message_size(name->size), name->data,
                        strided ? xt_dtype_get(info->dtype)->name : "sparse, quantized or meta tensors");
  job->named[i] = (xt_named_tensor){(const char *)job->names.size, name->size, info->dtype, info->ndim, info->sizes};
  xt_buffer_put(&job->names, name->data, name->size);
  xt_payload *payload = &job->tensors.payloads[i];
  payload->dtype = info->dtype;
  payload->numel = info->numel;
  payload->bytes = (uint64_t)info->numel * xt_dtype_get(info->dtype)->size;
  bool in_place = info->plain && info->contiguous && info->device.type == XT_DEVICE_CPU;
  payload->data = in_place && payload->bytes ? info->data : NULL;
  job->tensors.payload_view[i] = i;
  return XT_STATUS_ok;
}

typedef struct {
  uintptr_t from, to;
  size_t index;
} memory_range;

static int by_address(const void *a, const void *b) {
  const memory_range *x = a, *y = b;
  return x->from < y->from ? -1 : x->from > y->from;
}

/* Fails if two tensors overlap in memory: the format cannot represent that. */
static xt_status check_overlaps(const xt_save_job *job, xt_error *error) {
  size_t count = 0;
  memory_range *ranges = calloc(job->saver.count + 1, sizeof *ranges);
  xt_status status = XT_STATUS_ok;
  if (!ranges) return xt_save_job_no_memory(error);
  for (size_t i = 0; i < job->saver.count; i++) {
    const xt_tensor_info *info = &job->tensors.views[i].handle->info;
    if (info->plain && info->span)
      ranges[count++] = (memory_range){(uintptr_t)info->data, (uintptr_t)info->data + info->span, i};
  }
  qsort(ranges, count, sizeof *ranges, by_address);
  for (size_t i = 1; i < count && status == XT_STATUS_ok; i++) {
    const xt_named_tensor *a = &job->named[ranges[i - 1].index], *b = &job->named[ranges[i].index];
    if (ranges[i].from < ranges[i - 1].to)
      status = xt_error_set(error, XT_STATUS_bad_argument,
                            "%.*s and %.*s share memory, which safetensors cannot represent; save only one of them, or "
                            "write the bytes twice with duplicate: true",
                            message_size(a->name_size), a->name, message_size(b->name_size), b->name);
    if (ranges[i].to < ranges[i - 1].to) ranges[i].to = ranges[i - 1].to, ranges[i].index = ranges[i - 1].index;
  }
  free(ranges);
  return status;
}

xt_status xt_save_job_plan_safetensors(ErlNifEnv *env, xt_save_job *job, ERL_NIF_TERM list, bool duplicate,
                                       xt_error *error) {
  ERL_NIF_TERM head;
  ErlNifBinary name;
  xt_tensor_resource *resource;
  unsigned count = 0;
  size_t i = 0;
  enif_get_list_length(env, list, &count);
  job->named = calloc(count + 1, sizeof *job->named);
  job->tensors.payloads = calloc(count + 1, sizeof *job->tensors.payloads);
  job->tensors.payload_view = calloc(count + 1, sizeof *job->tensors.payload_view);
  if (!job->named || !job->tensors.payloads || !job->tensors.payload_view) return xt_save_job_no_memory(error);
  for (; i < count && enif_get_list_cell(env, list, &head, &list); i++) {
    if (!get_named(env, head, &name, &resource))
      return xt_error_set(error, XT_STATUS_bad_argument, "expected a list of {name, tensor} for safetensors");
    xt_status status = add_named(job, i, &name, resource, error);
    if (status != XT_STATUS_ok) return status;
  }
  if (job->names.failed) return xt_save_job_no_memory(error);
  for (size_t n = 0; n < i; n++) job->named[n].name = (const char *)job->names.data + (uintptr_t)job->named[n].name;
  job->saver.payloads = job->tensors.payloads;
  job->saver.count = job->tensors.payload_count = i;
  job->saver.tensors = job->named;
  job->saver.metadata = &job->metadata;
  return duplicate ? XT_STATUS_ok : check_overlaps(job, error);
}
