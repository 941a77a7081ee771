/* Saves a term as iodata, in steps. Payloads share the memory of the tensors; all other bytes are copied. */
#include "core/memory/memory.h"
#include "nif/frozen_binary.h"
#include "nif/saver.h"
#include "nif/table.h"
#include "nif/tensor.h"
#include "nif/term.h"

/* The binaries of one step. Consecutive bytes of a payload become one binary: they are collected in `from` and `size`
 * until other bytes follow. */
typedef struct {
  xt_saver_resource *resource;
  ErlNifEnv *env;
  ERL_NIF_TERM list; /* the binaries, last one first */
  size_t payload;
  const uint8_t *from;
  size_t size;
} iodata_sink;

static void release_resource(xt_region *self) { enif_release_resource(self->owner); }
static void release_fetched(xt_region *self) { xt_tensor_drop(self->owner); }

/* Returns a region over the collected bytes. It keeps the saver, and so its tensors; for a payload that was fetched it
 * keeps only the fetched tensor. */
static xt_region *new_region(iodata_sink *sink) {
  xt_save_job *job = sink->resource->job;
  if (!job->saver.payloads[sink->payload].data) return xt_region_keep(job->fetched_region);
  xt_region *region = xt_region_foreign((void *)sink->from, sink->size, sink->resource, release_resource);
  if (region) enif_keep_resource(sink->resource);
  return region;
}

/* Adds the collected bytes to the list. */
static xt_status flush_shared(iodata_sink *sink, xt_error *error) {
  if (!sink->size) return XT_STATUS_ok;
  xt_region *region = new_region(sink);
  if (!region) return xt_save_job_no_memory(error);
  ERL_NIF_TERM binary = xt_make_region_binary(sink->env, region, sink->from, sink->size);
  if (binary == xt_am_nil) return xt_save_job_no_memory(error);
  sink->list = enif_make_list_cell(sink->env, binary, sink->list);
  sink->size = 0;
  return XT_STATUS_ok;
}

static xt_status put_copy(void *context, const void *data, size_t size, xt_error *error) {
  iodata_sink *sink = context;
  xt_status status = flush_shared(sink, error);
  if (status != XT_STATUS_ok) return status;
  ERL_NIF_TERM binary = xt_make_text(sink->env, data, size);
  if (binary == xt_am_nil) return xt_save_job_no_memory(error);
  sink->list = enif_make_list_cell(sink->env, binary, sink->list);
  return XT_STATUS_ok;
}

/* Moves the fetched tensor into a region, so that it lives as long as a binary shares it. */
static xt_status share_fetched(xt_save_job *job, size_t payload, xt_error *error) {
  if (job->saver.payloads[payload].data || !job->fetched) return XT_STATUS_ok;
  xt_region_drop(job->fetched_region);
  job->fetched_region =
      xt_region_foreign(job->fetched->info.data, job->saver.payloads[payload].bytes, job->fetched, release_fetched);
  if (!job->fetched_region) return xt_save_job_no_memory(error);
  job->fetched = NULL;
  return XT_STATUS_ok;
}

static xt_status put_shared(void *context, size_t payload, const uint8_t *data, size_t size, xt_error *error) {
  iodata_sink *sink = context;
  xt_status status = XT_STATUS_ok;
  if (sink->payload != payload || sink->from + sink->size != data) status = flush_shared(sink, error);
  if (status == XT_STATUS_ok) status = share_fetched(sink->resource->job, payload, error);
  if (status != XT_STATUS_ok) return status;
  if (!sink->size) sink->from = data;
  sink->payload = payload;
  sink->size += size;
  return status;
}

/* Runs one step. If it fails but a garbage collection may help, the binaries made so far are returned first. */
static xt_status step(iodata_sink *sink, uint64_t budget, bool *finished, xt_error *error) {
  xt_save_job *job = sink->resource->job;
  xt_sink callbacks = {put_copy, put_shared, sink};
  xt_status status = xt_saver_step(&job->saver, &callbacks, budget, finished, error);
  bool has_binaries = sink->size || !enif_is_empty_list(sink->env, sink->list);
  if (status != XT_STATUS_ok && error->collect && has_binaries) status = XT_STATUS_ok;
  if (status == XT_STATUS_ok) status = flush_shared(sink, error);
  if (status == XT_STATUS_ok && *finished) status = xt_save_job_check_memory(job, error);
  return status;
}

/* A step of at most BRIEF_BYTES in the middle of a large payload computes at most a checksum. */
enum { BRIEF_BYTES = 1 << 20, BRIEF_PERCENT = 20 };

static bool is_brief(const xt_saver *saver, uint64_t budget) {
  bool reads_file = saver->format->crc && atomic_load(&xt_memory_live.mapped); /* a checksum reads mapped pages */
  return budget <= BRIEF_BYTES && !reads_file && xt_saver_in_payload(saver, budget);
}

/* saver_next(saver, bytes) :: {:ok, {:more | :done, payload bytes so far, iodata}, bytes} | {:error, e} */
ERL_NIF_TERM xt_nif_saver_next(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  xt_saver_resource *resource;
  ErlNifUInt64 budget;
  xt_error error;
  bool finished = false;
  if (!xt_get_saver(env, argv[0], &resource) || !enif_get_uint64(env, argv[1], &budget) || resource->job->file_open)
    return enif_make_badarg(env);
  if (xt_saver_enter(resource, &error) != XT_STATUS_ok) return xt_make_error(env, &error);
  if (enif_thread_type() == ERL_NIF_THR_NORMAL_SCHEDULER) {
    if (!is_brief(&resource->job->saver, budget)) {
      xt_saver_leave(resource);
      return enif_schedule_nif(env, "saver_next", XT_DIRTY_CPU, xt_nif_saver_next, argc, argv);
    }
    enif_consume_timeslice(env, BRIEF_PERCENT);
  }
  iodata_sink sink = {.resource = resource, .env = env, .list = enif_make_list(env, 0)};
  xt_status status = step(&sink, budget, &finished, &error);
  uint64_t done = resource->job->saver.written;
  xt_saver_leave(resource);
  if (status != XT_STATUS_ok) return xt_make_error(env, &error);
  ERL_NIF_TERM list;
  enif_make_reverse_list(env, sink.list, &list);
  return xt_make_ok(env, enif_make_tuple3(env, finished ? xt_am_done : xt_am_more, enif_make_uint64(env, done), list));
}
