/* Gives other NIF libraries access to the memory of an ExTorch tensor, with ownership, without linking to ExTorch.
 *
 *   #include <erl_nif.h>
 *   #include "include/extorch.h"
 *
 *   ERL_NIF_TERM my_nif(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
 *     extorch_export export;
 *     if (!extorch_take(env, argv[0], &export)) return enif_make_badarg(env);   // not an ExTorch tensor
 *     if (!export.tensor) …                                                     // see export.error
 *     use(export.tensor->dl_tensor.data);
 *     export.tensor->deleter(export.tensor);                                    // now or later, on any thread
 *     …
 *   }
 *
 * The result is a DLManagedTensor of DLPack 0.x, so it can be passed to any library that supports DLPack. It keeps the
 * memory alive independently of the Elixir term, also after ExTorch.Tensor.release/1. The deleter only queues the
 * memory for freeing and returns at once. The other direction needs no header: pass your resource as the owner to
 * ExTorch.Tensor.Blob.from_blob/2.
 */
#ifndef EXTORCH_H
#define EXTORCH_H

#include <erl_nif.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* The same definitions as in DLPack's own header. If you use that header, include it first. */
#ifndef DLPACK_VERSION
#ifndef DLPACK_MAJOR_VERSION
enum { kDLCPU = 1, kDLCUDA = 2, kDLExtDev = 12 /* a backend of another library */, kDLOneAPI = 14 };
enum { kDLInt = 0, kDLUInt = 1, kDLFloat = 2, kDLBfloat = 4, kDLComplex = 5, kDLBool = 6 };

typedef struct {
  int32_t device_type;
  int32_t device_id;
} DLDevice;

typedef struct {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
} DLDataType;

typedef struct {
  void *data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t *shape;
  int64_t *strides; /* in elements */
  uint64_t byte_offset;
} DLTensor;

typedef struct DLManagedTensor {
  DLTensor dl_tensor;
  void *manager_ctx;
  void (*deleter)(struct DLManagedTensor *self);
} DLManagedTensor;
#endif
#endif

enum { EXTORCH_EXPORT_VERSION = 1 };

typedef struct {
  uint32_t version;        /* set by extorch_take */
  DLManagedTensor *tensor; /* NULL if the memory cannot be shared; see `error` */
  bool read_only;          /* the memory is shared with an Erlang binary: do not write to it. While it is false
                            * and `tensor` lives, to_binary/1 of the tensor copies */
  char error[256];         /* why `tensor` is NULL */
} extorch_export;

/* Accepts a %ExTorch.Tensor{} or its resource. Returns false for any other term, and if ExTorch is not loaded. */
static inline bool extorch_take(ErlNifEnv *env, ERL_NIF_TERM term, extorch_export *out) {
  ERL_NIF_TERM resource;
  memset(out, 0, sizeof *out);
  out->version = EXTORCH_EXPORT_VERSION;
  if (enif_get_map_value(env, term, enif_make_atom(env, "resource"), &resource)) term = resource;
  return enif_is_ref(env, term) && enif_dynamic_resource_call(env, enif_make_atom(env, "Elixir.ExTorch.Native"),
                                                              enif_make_atom(env, "extorch_tensor"), term, out) == 0;
}

#endif
