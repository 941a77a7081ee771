/* Compares the tensors of an open checkpoint with those of a module. */
#include <stdlib.h>

#include "nif/checkpoint.h"
#include "nif/materialize.h"
#include "nif/table.h"

typedef struct {
  const xt_checkpoint *c;
  bool *found; /* the entries that a tensor of the module has been found for */
  bool *used;  /* the storages of these entries */
} matching;

static bool has_shape(ErlNifEnv *env, ERL_NIF_TERM shape, const xt_tensor_desc *t) {
  const ERL_NIF_TERM *sizes;
  ErlNifSInt64 size;
  int ndim;
  if (!enif_get_tuple(env, shape, &ndim, &sizes) || (uint32_t)ndim != t->ndim) return false;
  for (int d = 0; d < ndim; d++)
    if (!enif_get_int64(env, sizes[d], &size) || size != t->sizes[d]) return false;
  return true;
}

/* Finds the entry of {name, leaf, %{dtype: dtype, shape: shape}}. */
static bool match(ErlNifEnv *env, matching *m, const ERL_NIF_TERM leaf[3], size_t *out) {
  const xt_index *index = &m->c->index;
  ErlNifBinary name;
  ERL_NIF_TERM dtype, shape;
  if (!enif_inspect_binary(env, leaf[0], &name) || !enif_get_map_value(env, leaf[2], xt_am_dtype, &dtype) ||
      !enif_get_map_value(env, leaf[2], xt_am_shape, &shape))
    return false;
  const size_t *entry = xt_table_get(&index->names, name.data, name.size);
  if (!entry || index->same[*entry] || m->found[*entry]) return false;
  const xt_tensor_desc *t = index->entries[*entry].tensor;
  if (!xt_materialize_is_plain(m->c, t) || m->used[t->storage]) return false;
  m->found[*entry] = m->used[t->storage] = true;
  *out = *entry;
  return dtype == xt_make_dtype(t->dtype) && has_shape(env, shape, t);
}

static ERL_NIF_TERM match_all(ErlNifEnv *env, matching *m, ERL_NIF_TERM leaves) {
  ERL_NIF_TERM head, list, reversed = enif_make_list(env, 0);
  const ERL_NIF_TERM *leaf;
  size_t count = 0, entry;
  uint64_t bytes = 0;
  int arity;
  for (; enif_get_list_cell(env, leaves, &head, &leaves); count++) {
    if (!enif_get_tuple(env, head, &arity, &leaf) || arity != 3) return enif_make_badarg(env);
    if (!match(env, m, leaf, &entry)) return xt_make_ok(env, xt_am_nil);
    bytes += (uint64_t)xt_tensor_desc_bytes(m->c->index.entries[entry].tensor);
    reversed = enif_make_list_cell(env, enif_make_uint64(env, entry), reversed);
  }
  if (count != m->c->index.count) return xt_make_ok(env, xt_am_nil);
  enif_make_reverse_list(env, reversed, &list);
  return xt_make_ok(env, enif_make_tuple2(env, list, enif_make_uint64(env, bytes)));
}

static ERL_NIF_TERM match_leaves(ErlNifEnv *env, xt_checkpoint_resource *resource, const ERL_NIF_TERM argv[]) {
  const xt_checkpoint *c = &resource->handle->checkpoint;
  bool *flags = calloc(c->index.count + c->storages.count + 1, sizeof *flags);
  if (!flags) return xt_make_failure(env, XT_STATUS_no_memory, "out of memory while comparing tensors");
  matching m = {c, flags, flags + c->index.count};
  ERL_NIF_TERM result = match_all(env, &m, argv[1]);
  free(flags);
  return result;
}

/* checkpoint_match(checkpoint, [{name, leaf, %{dtype: dtype, shape: shape}}]) :: {:ok, {[index], bytes} | nil, 0} |
 *   {:error, e}
 *
 * The entry of each leaf, if leaves and entries are the same tensors: each name once, with this dtype and shape, and a
 * storage of its own. nil if anything is different. */
ERL_NIF_TERM xt_nif_checkpoint_match(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  (void)argc;
  return xt_checkpoint_run(env, argv, match_leaves);
}
