/* Leases keep memory for a backend of Nx that stores only its address. The memory is frozen meanwhile: an Nx tensor
 * never changes. */
#include "core/memory/lease.h"

#include <string.h>

#include "core/memory/frozen.h"
#include "core/memory/memory.h"
#include "nif/table.h"
#include "nif/tensor.h"
#include "nif/term.h"

typedef struct {
  xt_tensor *handle;
  uintptr_t start, end;
  xt_frozen frozen;
  ErlNifEnv *env;      /* NULL until the borrower is known */
  ERL_NIF_TERM holder; /* what the borrower calls the memory */
} lease;

static void destroy(lease *l) {
  atomic_fetch_sub(&xt_memory_live.leased, (int64_t)(l->end - l->start));
  xt_frozen_remove(&l->frozen);
  if (l->env) enif_free_env(l->env);
  xt_tensor_drop(l->handle);
  enif_free(l);
}

static lease *create(xt_tensor *handle, size_t size) {
  lease *l = enif_alloc(sizeof *l);
  if (!l) return NULL;
  memset(l, 0, sizeof *l);
  l->handle = handle;
  l->start = (uintptr_t)handle->info.data, l->end = l->start + size;
  atomic_fetch_add(&xt_memory_live.leased, (int64_t)size);
  return l;
}

/* lease_keep(tensor, bytes) :: {:ok, address, 0} | {:error, e}     keeps the memory of a contiguous tensor */
ERL_NIF_TERM xt_nif_lease_keep(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  xt_tensor_resource *resource;
  xt_tensor *handle;
  ErlNifUInt64 size;
  xt_error error;
  (void)argc;
  if (!xt_get_tensor(env, argv[0], &resource) || !enif_get_uint64(env, argv[1], &size)) return enif_make_badarg(env);
  xt_status status = xt_tensor_take(resource, &handle, &error);
  if (status != XT_STATUS_ok) return xt_make_error(env, &error);
  status = xt_tensor_check_plain(&handle->info, &error);
  lease *l = status == XT_STATUS_ok ? create(handle, size) : NULL;
  if (l) xt_frozen_add(&l->frozen, handle->info.data, size);
  if (l && xt_lease_keep(l)) return xt_make_ok(env, enif_make_uint64(env, l->start));
  if (status == XT_STATUS_ok) xt_error_set(&error, XT_STATUS_no_memory, "out of memory while adding a lease");
  if (l) destroy(l);
  else xt_tensor_drop(handle);
  return xt_make_error(env, &error);
}

/* ---- Finding one ---- */

typedef struct {
  ErlNifUInt64 address;
  ERL_NIF_TERM holder;
  ErlNifEnv *env;   /* of the holder, to be moved into the lease */
  xt_tensor *owner; /* a reference to the tensor that was found */
} wanted;

static bool hold(void *object, void *context) {
  lease *l = object;
  const wanted *w = context;
  if (l->env || l->start != w->address) return false;
  l->env = w->env;
  l->holder = w->holder;
  return true;
}

static bool contains(void *object, void *context) {
  const lease *l = object;
  const wanted *w = context;
  return w->address >= l->start && w->address < l->end;
}

static bool is_held(void *object, void *context) {
  const lease *l = object;
  const wanted *w = context;
  return l->env && enif_is_identical(l->holder, w->holder);
}

/* lease_hold(address, holder) :: boolean     the lease of the address belongs to the holder, which is any term */
ERL_NIF_TERM xt_nif_lease_hold(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  wanted w = {.env = enif_alloc_env()};
  (void)argc;
  if (!w.env) return xt_am_false;
  w.holder = enif_make_copy(w.env, argv[1]);
  bool valid = enif_get_uint64(env, argv[0], &w.address);
  bool held = valid && xt_lease_find(hold, &w);
  if (!held) enif_free_env(w.env);
  return valid ? xt_make_bool(held) : enif_make_badarg(env);
}

/* lease_release(address | nil, holder) :: {:ok, holder | nil} | false
 *
 * Ends the lease of the holder; if there is none, a lease of memory that contains the address. Returns its holder, or
 * false if there is none either. */
ERL_NIF_TERM xt_nif_lease_release(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  wanted w = {.holder = argv[1]};
  bool has_address = argv[0] != xt_am_nil;
  (void)argc;
  if (has_address && !enif_get_uint64(env, argv[0], &w.address)) return enif_make_badarg(env);
  lease *l = xt_lease_release(is_held, &w);
  if (!l && has_address) l = xt_lease_release(contains, &w);
  if (!l) return xt_am_false;
  ERL_NIF_TERM holder = l->env ? enif_make_copy(env, l->holder) : xt_am_nil;
  destroy(l);
  return enif_make_tuple2(env, xt_am_ok, holder);
}

static bool keep_owner(void *object, void *context) {
  const lease *l = object;
  wanted *w = context;
  if (!contains(object, context)) return false;
  w->owner = xt_tensor_keep(l->handle);
  return true;
}

/* lease_owner(address) :: {:ok, tensor | nil, 0} | {:error, e}     the tensor whose leased memory contains the address
 */
ERL_NIF_TERM xt_nif_lease_owner(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  wanted w = {.owner = NULL};
  xt_error error = {.status = XT_STATUS_ok};
  (void)argc;
  if (!enif_get_uint64(env, argv[0], &w.address)) return enif_make_badarg(env);
  if (!xt_lease_find(keep_owner, &w)) return xt_make_ok(env, xt_am_nil);
  return xt_make_tensor_result(env, XT_STATUS_ok, w.owner, &error);
}

/* ---- Listing ---- */

typedef struct {
  ErlNifEnv *env;
  ERL_NIF_TERM list;
} listing;

static bool add_to_list(void *object, void *context) {
  const lease *l = object;
  listing *found = context;
  const xt_tensor_info *info = &l->handle->info;
  ERL_NIF_TERM keys[] = {xt_am_bytes, xt_am_dtype, xt_am_ptr, xt_am_shape};
  ERL_NIF_TERM values[] = {enif_make_uint64(found->env, l->end - l->start), xt_make_dtype(info->dtype),
                           enif_make_uint64(found->env, l->start), xt_make_dims(found->env, info->sizes, info->ndim)};
  found->list = enif_make_list_cell(found->env, xt_make_struct(found->env, keys, values, 4), found->list);
  return false;
}

/* memory_leases() :: [%{bytes: n, dtype: dtype, ptr: address, shape: tuple}]     the oldest first */
ERL_NIF_TERM xt_nif_memory_leases(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  listing found = {env, enif_make_list(env, 0)};
  (void)argc, (void)argv;
  xt_lease_find(add_to_list, &found);
  return found.list;
}
