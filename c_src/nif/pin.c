#include "nif/pin.h"

#include <string.h>

#include "core/memory/memory.h"
#include "nif/tensor.h"

enum { MAX_TENSORS = 64, MAX_DEPTH = 4, MAX_TERMS = 256 };

xt_pin *xt_pin_new(void) {
  xt_pin *pin = enif_alloc(sizeof *pin);
  if (pin) memset(pin, 0, sizeof *pin);
  return pin;
}

bool xt_pin_term(xt_pin *pin, ERL_NIF_TERM term, ERL_NIF_TERM *copy) {
  if (!pin->env) pin->env = enif_alloc_env();
  if (!pin->env) return false;
  *copy = enif_make_copy(pin->env, term);
  return true;
}

static xt_status keep_tensor(xt_pin *pin, xt_tensor_resource *resource, xt_error *error) {
  if (!pin->tensors) pin->tensors = enif_alloc(MAX_TENSORS * sizeof *pin->tensors);
  if (!pin->tensors) return xt_error_set(error, XT_STATUS_no_memory, "out of memory while pinning the owner");
  if (pin->tensor_count == MAX_TENSORS)
    return xt_error_set(error, XT_STATUS_limit, "the owner contains more than %d tensors", MAX_TENSORS);
  xt_status status = xt_tensor_pin(resource, &pin->tensors[pin->tensor_count], error);
  if (status == XT_STATUS_ok) pin->tensor_count++;
  return status;
}

/* Searches the first levels of tuples, lists and maps. The depth and the number of terms are limited, since an owner is
 * expected to contain only a few tensors. */
static xt_status walk(ErlNifEnv *env, xt_pin *pin, ERL_NIF_TERM term, int depth, int *budget, xt_error *error) {
  xt_tensor_resource *resource;
  ERL_NIF_TERM head, value;
  const ERL_NIF_TERM *items;
  ErlNifMapIterator at;
  int arity;
  xt_status status = XT_STATUS_ok;
  if (--*budget < 0 || depth > MAX_DEPTH) return status;
  if (xt_get_tensor(env, term, &resource)) return keep_tensor(pin, resource, error);
  if (enif_get_tuple(env, term, &arity, &items)) {
    for (int i = 0; i < arity && status == XT_STATUS_ok; i++)
      status = walk(env, pin, items[i], depth + 1, budget, error);
  } else if (enif_is_list(env, term)) {
    while (status == XT_STATUS_ok && *budget > 0 && enif_get_list_cell(env, term, &head, &term))
      status = walk(env, pin, head, depth + 1, budget, error);
  } else if (enif_is_map(env, term) && enif_map_iterator_create(env, term, &at, ERL_NIF_MAP_ITERATOR_FIRST)) {
    while (status == XT_STATUS_ok && *budget > 0 && enif_map_iterator_get_pair(env, &at, &head, &value)) {
      status = walk(env, pin, value, depth + 1, budget, error);
      enif_map_iterator_next(env, &at);
    }
    enif_map_iterator_destroy(env, &at);
  }
  return status;
}

xt_status xt_pin_tensors(ErlNifEnv *env, xt_pin *pin, ERL_NIF_TERM owner, xt_error *error) {
  int budget = MAX_TERMS;
  return walk(env, pin, owner, 0, &budget, error);
}

void xt_pin_release(void *object) {
  xt_pin *pin = object;
  xt_frozen_remove(&pin->frozen);
  for (int i = 0; i < pin->tensor_count; i++) xt_tensor_drop(pin->tensors[i]);
  enif_free(pin->tensors);
  if (pin->env) enif_free_env(pin->env);
  xt_memory_free(pin->block);
  enif_free(pin);
}
