/* Where the memory of a tensor is. */
#ifndef XT_BASE_DEVICE_H
#define XT_BASE_DEVICE_H

#include <stddef.h>

/* The types of devices: name in C, torch's name. PRIVATE is the backend that a library registers with LibTorch under a
 * name of its own (xt_device_set_private_name). */
#define XT_DEVICES(X) \
  X(CPU, "cpu")       \
  X(CUDA, "cuda")     \
  X(MPS, "mps")       \
  X(META, "meta")     \
  X(XPU, "xpu")       \
  X(HPU, "hpu")       \
  X(MTIA, "mtia")     \
  X(XLA, "xla")       \
  X(IPU, "ipu")       \
  X(PRIVATE, "privateuseone")

typedef enum {
#define XT_DEVICE_TYPE(name, text) XT_DEVICE_##name,
  XT_DEVICES(XT_DEVICE_TYPE)
#undef XT_DEVICE_TYPE
      XT_DEVICE_OTHER /* the number of the types above */
} xt_device_type;

enum { XT_MAX_DEVICES = 128 /* of one type */, XT_DEVICE_NAME = 32 };

typedef struct {
  xt_device_type type;
  int index; /* -1 if unspecified */
} xt_device;

/* Returns torch's name of a type: "cuda". */
const char *xt_device_type_name(xt_device_type type);

/* Returns XT_DEVICE_OTHER if there is no such type. "privateuseone" is always known, also after it was renamed. */
xt_device_type xt_device_type_from_name(const char *name);

/* Sets the name of XT_DEVICE_PRIVATE. The text must stay valid. */
void xt_device_set_private_name(const char *name);

/* Writes the name that torch gives to a device in a file: "cpu", "mps", "cuda:0". */
void xt_device_location(xt_device device, char *out, size_t size);

#endif
