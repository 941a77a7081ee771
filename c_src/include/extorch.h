/* For other NIF libraries: take the memory of an ExTorch tensor, with ownership, without linking to ExTorch.
 *
 *   #include <erl_nif.h>
 *   #include "include/extorch.h"
 *
 *   ERL_NIF_TERM my_nif(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
 *     extorch_export export;
 *     if (!extorch_take(env, argv[0], &export)) return enif_make_badarg(env);   // no ExTorch tensor
 *     if (!export.tensor) …                                                     // export.error says why
 *     use(export.tensor->dl_tensor.data);
 *     export.tensor->deleter(export.tensor);                                    // now, later, on any thread
 *     …
 *   }
 *
 * What is taken is a DLManagedTensor of DLPack 0.x, so anything that speaks DLPack can take it over. It keeps the
 * memory whatever becomes of the Elixir term, also after ExTorch.Tensor.release/1; the deleter only queues and is
 * cheap. The other direction needs no header: ExTorch.Tensor.Blob.from_blob/2 with your resource as the owner.
 */
#ifndef EXTORCH_H
#define EXTORCH_H

#include <erl_nif.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* DLPack's own header has the same definitions; include it first if you use it. */
#ifndef DLPACK_VERSION
#ifndef DLPACK_MAJOR_VERSION
enum { kDLCPU = 1, kDLCUDA = 2 };
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
  DLManagedTensor *tensor; /* NULL when the tensor has no memory to hand out */
  bool read_only;          /* an Erlang binary sees the memory: do not write to it */
  char error[256];         /* why there is none */
} extorch_export;

/* Takes a %ExTorch.Tensor{} or its resource. False when the term is neither, or ExTorch is not loaded. */
static inline bool extorch_take(ErlNifEnv *env, ERL_NIF_TERM term, extorch_export *out) {
  ERL_NIF_TERM resource;
  memset(out, 0, sizeof *out);
  out->version = EXTORCH_EXPORT_VERSION;
  if (enif_get_map_value(env, term, enif_make_atom(env, "resource"), &resource)) term = resource;
  return enif_is_ref(env, term) && enif_dynamic_resource_call(env, enif_make_atom(env, "Elixir.ExTorch.Native"),
                                                              enif_make_atom(env, "extorch_tensor"), term, out) == 0;
}

#endif
