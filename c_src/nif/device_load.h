/* Device loads: tensors of a checkpoint, or of the CPU, are copied to devices while they are read, through pinned
 * buffers.
 *
 *   device_load_begin or device_load_tensors
 *     → device_load_step (files, binaries, tensors) or device_load_fill (sources) until :done
 *     → device_load_ready until true → device_load_finish
 *   device_load_close at any time
 *
 * No call waits for the device: if all buffers are in use, it returns :wait, and Elixir calls again after a
 * millisecond. What a load holds is owned by its resource: if the caller exits or an error ends the load, the reaper
 * waits for the copies in progress, and then frees the buffers and the memory of the device. */
#ifndef XT_NIF_DEVICE_LOAD_H
#define XT_NIF_DEVICE_LOAD_H

#include "core/checkpoint/staged_load.h"
#include "nif/busy.h"
#include "nif/checkpoint.h"
#include "nif/tensor.h"

enum { XT_MAX_QUEUES = 16 /* devices of one load */ };

/* A tensor that the load makes: a view of the memory of a unit. */
typedef struct {
  const xt_tensor_desc *desc; /* of a tensor of the checkpoint */
  xt_tensor *source;          /* a tensor of the CPU; owned */
  size_t unit;
} xt_device_load_item;

typedef struct {
  xt_device device;
  xt_stager *stager;
} xt_device_load_queue;

/* What the reaper frees. */
typedef struct {
  xt_reapable reapable; /* must be first */
  xt_staged_load load;
  size_t buffer_size;
  xt_device_load_queue queues[XT_MAX_QUEUES];
  size_t queue_count;
  uint32_t *unit_queues; /* of each unit, by id */
  uint64_t *unit_sizes;
  xt_tensor **memory; /* of the device, for each unit; NULL until its first bytes are copied */
  size_t unit_count;
  xt_device_load_item *items;
  size_t item_count;
} xt_device_load_contents;

typedef struct {
  xt_busy busy;
  xt_device_load_contents *contents;  /* NULL after it was closed */
  xt_checkpoint_resource *checkpoint; /* held; NULL for tensors of the CPU */
} xt_device_load;

/* Allocates the memory of a unit, unless that was done before. */
xt_status xt_device_load_allocate(xt_device_load_contents *c, size_t id, xt_error *error);

/* Frees what the load holds, on the reaper. */
void xt_device_load_close(xt_device_load *self);

#endif
