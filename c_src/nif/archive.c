/* LibTorch archives that are read and written by callbacks in Elixir.
 *
 * LibTorch calls its reader and writer synchronously, so it runs on a separate thread. The thread sends its requests to
 * the calling process as messages and waits; the process answers with a NIF. No scheduler thread ever waits.
 *
 *   thread → process   {ref, {:write, binary} | {:read, offset, size} | :size | :done}
 *   process → thread   archive_answer(job, …)
 *
 * The thread ends when LibTorch returns. If an answer fails or times out, the process has exited or the node is
 * stopping, all further reads fail and all further writes are discarded, so that LibTorch returns soon.
 */
#include <stdlib.h>
#include <string.h>

#include "core/memory/memory.h"
#include "core/os/clock.h"
#include "core/os/exit_guard.h"
#include "core/os/thread.h"
#include "nif/table.h"
#include "nif/tensor.h"
#include "nif/term.h"

enum { POLL_MS = 100, NS_PER_MS = 1000000, BRIEF_BYTES = 1 << 20, BRIEF_PERCENT = 60 };

/* The request that waits for an answer. */
typedef enum { ASKS_NOTHING, ASKS_WRITE, ASKS_READ, ASKS_SIZE } asks;

typedef struct {
  xt_mutex lock; /* protects the fields that both threads use */
  xt_condition change;
  bool caller_exited;
  ErlNifMonitor monitor;
  ErlNifPid caller;
  ErlNifEnv *env; /* holds `ref` */
  ERL_NIF_TERM ref;
  size_t chunk;       /* the most bytes in one message */
  int64_t timeout_ms; /* negative for no timeout */

  asks asks;
  bool answered, failed; /* the answer has arrived; this or an earlier request has failed */
  uint8_t *to;           /* the destination of a read */
  size_t size;           /* of the read */
  uint64_t number;       /* the answer to :size */

  bool saves;             /* false for a load */
  xt_archive_items items; /* the tensors to save, or the loaded ones */
  bool over;              /* the thread has finished; status and error are set */
  xt_status status;
  xt_error error;
} job;

static void free_items(xt_archive_items *items) {
  for (size_t i = 0; i < items->count; i++) {
    if (items->list[i].tensor) xt_tensor_drop(items->list[i].tensor);
    free(items->list[i].name);
  }
  free(items->list);
  *items = (xt_archive_items){NULL, 0};
}

static void destroy_job(ErlNifEnv *env, void *object) {
  job *j = object;
  (void)env;
  free_items(&j->items);
  if (j->env) enif_free_env(j->env);
  xt_condition_destroy(&j->change);
  xt_mutex_destroy(&j->lock);
}

static void caller_down(ErlNifEnv *env, void *object, ErlNifPid *pid, ErlNifMonitor *monitor) {
  job *j = object;
  (void)env, (void)pid, (void)monitor;
  xt_mutex_lock(&j->lock);
  j->caller_exited = true;
  xt_condition_broadcast(&j->change);
  xt_mutex_unlock(&j->lock);
}

const ErlNifResourceTypeInit xt_archive_callbacks = {.dtor = destroy_job, .down = caller_down};

/* ---- The thread ---- */

/* Sends {ref, request} to the calling process. Frees the environment. */
static bool send_request(job *j, ErlNifEnv *env, ERL_NIF_TERM request) {
  ERL_NIF_TERM message = enif_make_tuple2(env, enif_make_copy(env, j->ref), request);
  bool sent = enif_send(NULL, &j->caller, env, message);
  enif_free_env(env);
  return sent;
}

/* Called with the lock held. Polls, because nothing signals the condition when the node stops. */
static void wait_for_answer(job *j) {
  int64_t waited = 0;
  while (!j->answered && !j->caller_exited && !j->failed) {
    if (j->timeout_ms >= 0 && waited >= j->timeout_ms) {
      j->failed = true;
      xt_error_set(&j->error, XT_STATUS_timeout, "the %s did not return within %lld ms; see the option timeout",
                   j->saves ? "writer" : "reader", (long long)j->timeout_ms);
      break;
    }
    if (xt_exit_guard_stopping()) {
      j->failed = true;
      xt_error_set(&j->error, XT_STATUS_stopping, "the node is stopping");
      break;
    }
    int64_t pause = j->timeout_ms >= 0 && j->timeout_ms - waited < POLL_MS ? j->timeout_ms - waited : POLL_MS;
    int64_t deadline = xt_clock_ns() + pause * NS_PER_MS;
    if (!xt_condition_wait_until(&j->change, &j->lock, deadline)) waited += pause;
  }
  if (j->caller_exited && !j->answered) j->failed = true;
}

/* Sends a request and waits for its answer. Returns false if it failed. Frees the environment. */
static bool ask(job *j, asks what, uint8_t *to, size_t size, ErlNifEnv *env, ERL_NIF_TERM request) {
  xt_mutex_lock(&j->lock);
  bool may = !j->failed && !j->caller_exited;
  j->asks = may ? what : ASKS_NOTHING;
  j->answered = false;
  j->to = to;
  j->size = size;
  xt_mutex_unlock(&j->lock);
  if (!may) return enif_free_env(env), false;
  bool sent = send_request(j, env, request);
  xt_mutex_lock(&j->lock);
  if (sent) wait_for_answer(j);
  else j->failed = true;
  j->asks = ASKS_NOTHING; /* a late answer is ignored */
  bool good = j->answered && !j->failed;
  xt_mutex_unlock(&j->lock);
  return good;
}

static void write_bytes(void *context, const void *data, size_t size) {
  job *j = context;
  for (size_t at = 0, n; at < size; at += n) {
    n = size - at < j->chunk ? size - at : j->chunk;
    ErlNifEnv *env = enif_alloc_env();
    ERL_NIF_TERM binary;
    unsigned char *bytes = env ? enif_make_new_binary(env, n, &binary) : NULL;
    if (!bytes) {
      xt_mutex_lock(&j->lock);
      if (!j->failed) xt_error_set(&j->error, XT_STATUS_no_memory, "out of memory while writing the archive");
      j->failed = true;
      xt_mutex_unlock(&j->lock);
      if (env) enif_free_env(env);
      return;
    }
    memcpy(bytes, (const char *)data + at, n);
    if (!ask(j, ASKS_WRITE, NULL, n, env, enif_make_tuple2(env, xt_am_write, binary))) return;
  }
}

static bool read_bytes(void *context, uint64_t from, void *to, size_t size) {
  job *j = context;
  for (size_t at = 0, n; at < size; at += n) {
    n = size - at < j->chunk ? size - at : j->chunk;
    ErlNifEnv *env = enif_alloc_env();
    if (!env) return false;
    ERL_NIF_TERM request =
        enif_make_tuple3(env, xt_am_read, enif_make_uint64(env, from + at), enif_make_uint64(env, n));
    if (!ask(j, ASKS_READ, (uint8_t *)to + at, n, env, request)) return false;
  }
  return true;
}

static bool read_size(void *context, uint64_t *size) {
  job *j = context;
  ErlNifEnv *env = enif_alloc_env();
  if (!env || !ask(j, ASKS_SIZE, NULL, 0, env, xt_am_size)) return false;
  *size = j->number;
  return true;
}

/* The body of the thread. */
static void *run(void *object) {
  job *j = object;
  xt_archive_io io = {write_bytes, read_bytes, read_size, j};
  xt_error error;
  xt_status status = j->saves ? xt_torch->archive_save(j->items.list, j->items.count, &io, &error)
                              : xt_torch->archive_load(&io, &j->items, &error);
  for (size_t i = 0; j->saves && status == XT_STATUS_ok && i < j->items.count; i++)
    status = xt_tensor_check_memory(j->items.list[i].tensor, &error);
  xt_mutex_lock(&j->lock);
  /* an error of a callback is the cause of the error that LibTorch reports */
  if (!j->failed && status != XT_STATUS_ok) j->error = error;
  j->status = j->failed ? XT_STATUS_io : status;
  j->over = true;
  bool exited = j->caller_exited;
  xt_mutex_unlock(&j->lock);
  ErlNifEnv *env = exited ? NULL : enif_alloc_env();
  if (env) send_request(j, env, xt_am_done);
  enif_release_resource(j);
  atomic_fetch_sub(&xt_memory_live.threads, 1);
  return NULL;
}

/* ---- The calling process ---- */

static bool no_memory(xt_error *error) {
  xt_error_set(error, XT_STATUS_no_memory, "out of memory while saving an archive");
  return false;
}

/* Decodes [{name, tensor}] into j->items. Otherwise sets the error, to bad_argument for a term of the wrong type. */
static bool get_items(ErlNifEnv *env, ERL_NIF_TERM list, job *j, xt_error *error) {
  ERL_NIF_TERM head;
  const ERL_NIF_TERM *pair;
  int arity;
  unsigned length;
  ErlNifBinary name;
  xt_tensor_resource *resource;
  error->status = XT_STATUS_bad_argument;
  if (!enif_get_list_length(env, list, &length)) return false;
  j->items.list = calloc(length + 1, sizeof *j->items.list);
  if (!j->items.list) return no_memory(error);
  while (enif_get_list_cell(env, list, &head, &list)) {
    if (!enif_get_tuple(env, head, &arity, &pair) || arity != 2 || !enif_inspect_binary(env, pair[0], &name) ||
        !xt_get_tensor(env, pair[1], &resource))
      return false;
    xt_archive_item *item = &j->items.list[j->items.count];
    if (xt_tensor_take(resource, &item->tensor, error) != XT_STATUS_ok) return false;
    j->items.count++;
    item->name = malloc(name.size + 1); /* not NUL-terminated, since it may contain NULs */
    item->name_size = name.size;
    if (!item->name) return no_memory(error);
    memcpy(item->name, name.data, name.size);
  }
  return true;
}

static xt_status start(ErlNifEnv *env, job *j, xt_error *error) {
  enif_self(env, &j->caller);
  if (enif_monitor_process(env, j, &j->caller, &j->monitor))
    return xt_error_set(error, XT_STATUS_stopping, "the calling process has exited");
  enif_keep_resource(j);
  atomic_fetch_add(&xt_memory_live.threads, 1);
  bool started = xt_thread_start(run, j);
  if (started) return XT_STATUS_ok;
  atomic_fetch_sub(&xt_memory_live.threads, 1);
  enif_release_resource(j);
  return xt_error_set(error, XT_STATUS_no_memory, "cannot start a thread: the system limit is reached");
}

static job *new_job(size_t chunk, int64_t timeout_ms, bool saves) {
  job *j = enif_alloc_resource(xt_archive_type, sizeof *j);
  memset(j, 0, sizeof *j);
  xt_mutex_init(&j->lock);
  xt_condition_init(&j->change);
  j->chunk = chunk;
  j->timeout_ms = timeout_ms;
  j->saves = saves;
  j->env = enif_alloc_env();
  return j;
}

/* archive_start([{name, tensor}] | :load, reference, chunk, timeout | -1) :: {:ok, job, 0} | {:error, e} */
ERL_NIF_TERM xt_nif_archive_start(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  ErlNifUInt64 chunk;
  ErlNifSInt64 timeout;
  xt_error error;
  (void)argc;
  if (!enif_is_ref(env, argv[1]) || !enif_get_uint64(env, argv[2], &chunk) || !chunk ||
      !enif_get_int64(env, argv[3], &timeout))
    return enif_make_badarg(env);
  job *j = new_job(chunk, timeout, argv[0] != xt_am_load);
  ERL_NIF_TERM term = enif_make_resource(env, j);
  enif_release_resource(j);
  if (!j->env) return xt_make_failure(env, XT_STATUS_no_memory, "out of memory while creating an archive");
  j->ref = enif_make_copy(j->env, argv[1]);
  if (j->saves && !get_items(env, argv[0], j, &error))
    return error.status == XT_STATUS_bad_argument ? enif_make_badarg(env) : xt_make_error(env, &error);
  return xt_make_result(env, start(env, j, &error), term, &error);
}

/* Stores the answer to the current request. Called with the lock held. Returns false if the answer is invalid. */
static bool take_answer(ErlNifEnv *env, job *j, ERL_NIF_TERM answer) {
  ErlNifBinary bytes;
  ErlNifUInt64 number;
  if (j->asks == ASKS_WRITE) return answer == xt_am_ok;
  if (j->asks == ASKS_SIZE) {
    if (!enif_get_uint64(env, answer, &number)) return false;
    j->number = number;
    return true;
  }
  if (!enif_inspect_binary(env, answer, &bytes) || bytes.size != j->size) return false;
  memcpy(j->to, bytes.data, bytes.size);
  return true;
}

/* archive_answer(job, :ok | binary | size | :error) :: boolean     false if no request was waiting */
ERL_NIF_TERM xt_nif_archive_answer(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  job *j;
  if (!enif_get_resource(env, argv[0], xt_archive_type, (void **)&j)) return enif_make_badarg(env);
  ErlNifBinary bytes = {.size = 0};
  bool copies = enif_inspect_binary(env, argv[1], &bytes);
  bool on_dirty = enif_thread_type() != ERL_NIF_THR_NORMAL_SCHEDULER;
  if (copies && bytes.size > BRIEF_BYTES && !on_dirty)
    return enif_schedule_nif(env, "archive_answer", XT_DIRTY_CPU, xt_nif_archive_answer, argc, argv);
  if (!on_dirty) enif_consume_timeslice(env, 1 + (int)(bytes.size * BRIEF_PERCENT / BRIEF_BYTES));
  xt_mutex_lock(&j->lock);
  bool waiting = j->asks != ASKS_NOTHING && !j->answered && !j->failed;
  if (waiting) {
    j->answered = take_answer(env, j, argv[1]);
    if (!j->answered) {
      j->failed = true;
      xt_error_set(&j->error, XT_STATUS_io, "the %s failed or returned an invalid value",
                   j->saves ? "writer" : "reader");
    }
    xt_condition_broadcast(&j->change);
  }
  xt_mutex_unlock(&j->lock);
  return xt_make_bool(waiting);
}

/* archive_result(job) :: {:ok, [{name, tensor}], bytes} | {:error, e}     called after the :done message */
ERL_NIF_TERM xt_nif_archive_result(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  job *j;
  (void)argc;
  if (!enif_get_resource(env, argv[0], xt_archive_type, (void **)&j)) return enif_make_badarg(env);
  xt_mutex_lock(&j->lock);
  bool over = j->over;
  xt_status status = j->status;
  xt_archive_items items = j->items;
  if (over) j->items = (xt_archive_items){NULL, 0};
  xt_mutex_unlock(&j->lock);
  if (!over) return enif_make_badarg(env);
  ERL_NIF_TERM list = enif_make_list(env, 0);
  for (size_t i = items.count; status == XT_STATUS_ok && !j->saves && i-- > 0;) {
    ERL_NIF_TERM name = xt_make_text(env, items.list[i].name, items.list[i].name_size);
    ERL_NIF_TERM pair = enif_make_tuple2(env, name, xt_make_tensor(env, items.list[i].tensor));
    list = enif_make_list_cell(env, pair, list);
    items.list[i].tensor = NULL;
  }
  free_items(&items);
  return status == XT_STATUS_ok ? xt_make_ok(env, list) : xt_make_error(env, &j->error);
}
