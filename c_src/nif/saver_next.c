/* Saves a term as iodata, in steps. Payloads share the memory of the tensors; all other bytes are copied. */
#include "nif/frozen_binary.h"
#include "nif/saver.h"
#include "nif/table.h"
#include "nif/tensor.h"
#include "nif/term.h"

/* The binaries of one step. */
typedef struct {
  xt_saver_resource *resource;
  ErlNifEnv *env;
  ERL_NIF_TERM list; /* last one first */
} iodata_sink;

static void release_job(xt_region *self) { xt_save_job_drop(self->owner); }
static void release_fetched(xt_region *self) { xt_tensor_drop(self->owner); }

static xt_status add_binary(iodata_sink *sink, ERL_NIF_TERM binary, xt_error *error) {
  if (binary == xt_am_nil) return xt_save_job_no_memory(error);
  sink->list = enif_make_list_cell(sink->env, binary, sink->list);
  return XT_STATUS_ok;
}

static xt_status put_copy(void *context, const void *data, size_t size, xt_error *error) {
  iodata_sink *sink = context;
  return add_binary(sink, xt_make_text(sink->env, data, size), error);
}

/* Returns a region over bytes of a payload. It keeps the job, and so its tensors; for a payload that was fetched it
 * keeps only the fetched tensor, which moves into a region that all binaries of the payload share. */
static xt_region *new_region(xt_save_job *job, size_t payload, const uint8_t *data, size_t size) {
  const xt_payload *whole = &job->plan.payloads[payload];
  if (!whole->data) {
    if (!job->fetched) return xt_region_keep(job->fetched_region);
    xt_region_drop(job->fetched_region);
    job->fetched_region = xt_region_foreign(job->fetched->info.data, job->fetched_size, job->fetched, release_fetched);
    if (!job->fetched_region) return NULL;
    job->fetched = NULL;
    return xt_region_keep(job->fetched_region);
  }
  xt_region *region = xt_region_foreign((void *)data, size, job, release_job);
  if (region) xt_save_job_keep(job);
  return region;
}

static xt_status put_shared(void *context, size_t payload, const uint8_t *data, size_t size, xt_error *error) {
  iodata_sink *sink = context;
  xt_region *region = new_region(sink->resource->job, payload, data, size);
  if (!region) return xt_save_job_no_memory(error);
  return add_binary(sink, xt_make_region_binary(sink->env, region, data, size), error);
}

static bool is_caller_dead(void *context) { return !enif_is_current_process_alive(((iodata_sink *)context)->env); }

/* Runs one step. If it fails but a garbage collection may help, the binaries made so far are returned first. */
static xt_status step(iodata_sink *sink, uint64_t budget, bool *finished, xt_error *error) {
  xt_sink callbacks = {.write = put_copy, .share = put_shared, .stop = is_caller_dead, .context = sink};
  xt_status status = xt_saver_step(&sink->resource->job->saver, &callbacks, budget, finished, error);
  bool has_binaries = !enif_is_empty_list(sink->env, sink->list);
  return status != XT_STATUS_ok && error->collect && has_binaries ? XT_STATUS_ok : status;
}

enum { BRIEF_PERCENT = 20 }; /* of a time slice, for a brief step */

/* saver_next(saver, bytes) :: {:ok, {:more | :done, payload bytes so far, iodata}, bytes} | {:error, e} */
ERL_NIF_TERM xt_nif_saver_next(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  xt_saver_resource *resource;
  ErlNifUInt64 budget;
  xt_error error;
  bool finished = false;
  if (!xt_get_saver(env, argv[0], &resource) || !enif_get_uint64(env, argv[1], &budget)) return enif_make_badarg(env);
  if (xt_saver_enter(resource, &error) != XT_STATUS_ok) return xt_make_error(env, &error);
  if (resource->job->file_open) {
    xt_busy_leave(&resource->busy);
    return enif_make_badarg(env);
  }
  if (enif_thread_type() == ERL_NIF_THR_NORMAL_SCHEDULER) {
    if (!xt_saver_is_brief(&resource->job->saver, budget)) {
      xt_busy_leave(&resource->busy);
      return enif_schedule_nif(env, "saver_next", XT_DIRTY_CPU, xt_nif_saver_next, argc, argv);
    }
    enif_consume_timeslice(env, BRIEF_PERCENT);
  }
  iodata_sink sink = {.resource = resource, .env = env, .list = enif_make_list(env, 0)};
  xt_status status = step(&sink, budget, &finished, &error);
  uint64_t done = resource->job->saver.written;
  xt_busy_leave(&resource->busy);
  if (status != XT_STATUS_ok) return xt_make_error(env, &error);
  ERL_NIF_TERM list;
  enif_make_reverse_list(env, sink.list, &list);
  return xt_make_ok(env, enif_make_tuple3(env, finished ? xt_am_done : xt_am_more, enif_make_uint64(env, done), list));
}
