/* The saver resource: a term that is being saved.
 *
 *   saver_begin plans the file (saver.c)
 *   → saver_open and saver_step write it to a path (saver.c), or
 *   → saver_next returns it as iodata (saver_next.c)
 */
#ifndef XT_NIF_SAVER_H
#define XT_NIF_SAVER_H

#include <erl_nif.h>
#include <stdatomic.h>

#include "core/checkpoint/saver.h"
#include "core/memory/region.h"
#include "core/os/atomic_file.h"
#include "nif/busy.h"
#include "torch/torch.h"

/* Everything that a save needs. Reference counted; freed by the reaper thread. */
typedef struct {
  xt_reapable reapable; /* must be first */
  atomic_int references;
  xt_save_plan plan;
  xt_saver saver;
  xt_atomic_file file;
  bool file_open, sync;
  xt_tensor *fetched; /* the payload that was brought to the CPU, if any */
  uint64_t fetched_size;
  xt_region *fetched_region; /* the same memory, once binaries share it */
} xt_save_job;

typedef struct {
  xt_busy busy;     /* entered by every call */
  xt_save_job *job; /* NULL after the end of a save to a file */
} xt_saver_resource;

bool xt_get_saver(ErlNifEnv *env, ERL_NIF_TERM term, xt_saver_resource **out);

/* Marks the saver as busy until xt_busy_leave. Fails with `:busy` if another process uses it, and with `:released` if
 * the save has ended. */
static inline xt_status xt_saver_enter(xt_saver_resource *resource, xt_error *error) {
  xt_status status = xt_busy_enter(&resource->busy, "using this saver", error);
  if (status != XT_STATUS_ok || resource->job) return status;
  xt_busy_leave(&resource->busy);
  return xt_error_set(error, XT_STATUS_released, "this save has ended; start a new one");
}

/* The binaries of a stream, and checksums in the background, keep the job and so its tensors. */
void xt_save_job_keep(void *job);
void xt_save_job_drop(void *job);

xt_status xt_save_job_no_memory(xt_error *error);

#endif
