/* The saver resource: a term that is being saved.
 *
 *   saver_begin plans the file (saver_plan.c)
 *   → saver_open and saver_step write it to a path (saver.c), or
 *   → saver_next returns it as iodata (saver_next.c)
 */
#ifndef XT_NIF_SAVER_H
#define XT_NIF_SAVER_H

#include <erl_nif.h>
#include <stdatomic.h>

#include "core/checkpoint/saver.h"
#include "core/os/atomic_file.h"
#include "core/pickle/pickler.h"
#include "nif/busy.h"
#include "nif/save_tensors.h"

/* Everything that a save needs. Reference counted; freed by the reaper thread. */
typedef struct {
  xt_reapable reapable; /* must be first */
  atomic_int references;
  xt_save_tensors tensors;
  xt_pickler pickle;
  xt_saver saver;
  xt_atomic_file file;
  bool file_open, sync;
  char *root;             /* the name of the root directory in a zip file */
  xt_named_tensor *named; /* safetensors: the tensors with their names, which are in `names` */
  xt_buffer names, metadata;
  xt_tensor *fetched;        /* the payload that was brought to the CPU, if any */
  xt_region *fetched_region; /* the same memory, once binaries share it */
} xt_save_job;

typedef struct {
  xt_busy busy; /* entered by every call */
  xt_save_job *job;
} xt_saver_resource;

bool xt_get_saver(ErlNifEnv *env, ERL_NIF_TERM term, xt_saver_resource **out);

/* Marks the saver as busy until xt_saver_leave. Fails with `:busy` if another process uses it. */
xt_status xt_saver_enter(xt_saver_resource *resource, xt_error *error);
void xt_saver_leave(xt_saver_resource *resource);

/* Plans a pickle and its storages. */
xt_status xt_save_job_plan_pickle(ErlNifEnv *env, xt_save_job *job, ERL_NIF_TERM term, xt_error *error);

/* Plans a safetensors file from [{name, tensor}], which must be in the order of the file. Fails if tensors share
 * memory, unless `duplicate`. */
xt_status xt_save_job_plan_safetensors(ErlNifEnv *env, xt_save_job *job, ERL_NIF_TERM list, bool duplicate,
                                       xt_error *error);

/* Checks that no mapped file was truncated while its pages were being saved: missing pages read as zeros. */
xt_status xt_save_job_check_memory(const xt_save_job *job, xt_error *error);

xt_status xt_save_job_no_memory(xt_error *error);

#endif
