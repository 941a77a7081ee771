/* Where the memory of a tensor is. */
#ifndef XT_BASE_DEVICE_H
#define XT_BASE_DEVICE_H

typedef enum { XT_DEVICE_CPU, XT_DEVICE_CUDA, XT_DEVICE_MPS, XT_DEVICE_META, XT_DEVICE_OTHER } xt_device_type;

typedef struct {
  xt_device_type type;
  int index; /* -1 if unspecified */
} xt_device;

#endif
