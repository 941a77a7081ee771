/* A third-party NIF library that uses include/extorch.h. It keeps tensors of ExTorch, and it owns memory and sends a
 * message when that memory is freed. */
#include <erl_nif.h>
#include <sys/mman.h>
#include <unistd.h>

#include "include/extorch.h"

/* ---- Keeps an ExTorch tensor ---- */

typedef struct {
  DLManagedTensor *tensor;
} kept_tensor;

static ErlNifResourceType *kept_type, *memory_type;

static void destroy_kept(ErlNifEnv *env, void *object) {
  kept_tensor *self = object;
  (void)env;
  if (self->tensor) self->tensor->deleter(self->tensor);
}

static ERL_NIF_TERM make_error(ErlNifEnv *env, const char *text) {
  return enif_make_tuple2(env, enif_make_atom(env, "error"), enif_make_string(env, text, ERL_NIF_LATIN1));
}

/* take(tensor) :: {:ok, resource, read_only} | {:error, charlist} */
static ERL_NIF_TERM take(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  extorch_export export;
  (void)argc;
  if (!extorch_take(env, argv[0], &export)) return enif_make_badarg(env);
  if (!export.tensor) return make_error(env, export.error);
  kept_tensor *self = enif_alloc_resource(kept_type, sizeof *self);
  self->tensor = export.tensor;
  ERL_NIF_TERM term = enif_make_resource(env, self);
  enif_release_resource(self);
  return enif_make_tuple3(env, enif_make_atom(env, "ok"), term,
                          enif_make_atom(env, export.read_only ? "true" : "false"));
}

/* describe(resource) :: {code, bits, shape, strides, first byte | nil} */
static ERL_NIF_TERM describe(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  kept_tensor *self;
  ERL_NIF_TERM shape = enif_make_list(env, 0), strides = shape;
  (void)argc;
  if (!enif_get_resource(env, argv[0], kept_type, (void **)&self)) return enif_make_badarg(env);
  const DLTensor *tensor = &self->tensor->dl_tensor;
  int64_t elements = 1;
  for (int d = tensor->ndim - 1; d >= 0; d--) {
    shape = enif_make_list_cell(env, enif_make_int64(env, tensor->shape[d]), shape);
    strides = enif_make_list_cell(env, enif_make_int64(env, tensor->strides[d]), strides);
    elements *= tensor->shape[d];
  }
  return enif_make_tuple5(env, enif_make_int(env, tensor->dtype.code), enif_make_int(env, tensor->dtype.bits), shape,
                          strides,
                          elements ? enif_make_int(env, *(uint8_t *)tensor->data) : enif_make_atom(env, "nil"));
}

/* ---- Owns memory, and sends {:freed, id} when it is freed ---- */

typedef struct {
  ErlNifPid listener;
  int id;
  float data[64];
} memory;

static void destroy_memory(ErlNifEnv *env, void *object) {
  memory *self = object;
  (void)env;
  for (int i = 0; i < 64; i++) self->data[i] = -1;
  ErlNifEnv *message = enif_alloc_env();
  enif_send(NULL, &self->listener, message,
            enif_make_tuple2(message, enif_make_atom(message, "freed"), enif_make_int(message, self->id)));
  enif_free_env(message);
}

/* memory(pid, id) :: {resource, address of 64 float32 values 0.0, 1.0, …} */
static ERL_NIF_TERM new_memory(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  memory *self;
  ErlNifPid listener;
  int id;
  (void)argc;
  if (!enif_get_local_pid(env, argv[0], &listener) || !enif_get_int(env, argv[1], &id)) return enif_make_badarg(env);
  self = enif_alloc_resource(memory_type, sizeof *self);
  self->listener = listener;
  self->id = id;
  for (int i = 0; i < 64; i++) self->data[i] = (float)i;
  ERL_NIF_TERM term = enif_make_resource(env, self);
  enif_release_resource(self);
  return enif_make_tuple2(env, term, enif_make_uint64(env, (uintptr_t)self->data));
}

/* pages(atom) :: address of three pages that belong to nobody: all :readable, or with a :hole in the middle */
static ERL_NIF_TERM new_pages(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  char *pages = mmap(NULL, 3 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  (void)argc;
  if (pages == MAP_FAILED) return enif_make_badarg(env);
  if (enif_is_identical(argv[0], enif_make_atom(env, "hole"))) mprotect(pages + page, page, PROT_NONE);
  else mprotect(pages, 3 * page, PROT_READ);
  return enif_make_uint64(env, (uintptr_t)pages);
}

static int load(ErlNifEnv *env, void **priv_data, ERL_NIF_TERM info) {
  ErlNifResourceTypeInit keeps = {.dtor = destroy_kept}, owns = {.dtor = destroy_memory};
  (void)priv_data, (void)info;
  kept_type = enif_open_resource_type_x(env, "kept", &keeps, ERL_NIF_RT_CREATE, NULL);
  memory_type = enif_open_resource_type_x(env, "memory", &owns, ERL_NIF_RT_CREATE, NULL);
  return !kept_type || !memory_type;
}

static ErlNifFunc table[] = {
    {"take", 1, take, 0}, {"describe", 1, describe, 0}, {"memory", 2, new_memory, 0}, {"pages", 1, new_pages, 0}};
ERL_NIF_INIT(Elixir.ExTorch.Test.Example, table, load, NULL, NULL, NULL)
