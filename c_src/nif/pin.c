#include "nif/pin.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/array.h"
#include "core/memory/memory.h"
#include "nif/table.h"
#include "nif/tensor.h"

enum { MAX_TENSORS = 64, MAX_TERMS = 100000 };

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

/* The terms that are still to be searched. There is no recursion: an owner may be nested to any depth. */
typedef struct {
  ERL_NIF_TERM *terms;
  size_t count, room, seen;
  bool failed;
} search;

static void push(search *s, ERL_NIF_TERM term) {
  s->failed |= !xt_array_reserve(&s->terms, &s->room, s->count + 1, sizeof term);
  if (!s->failed) s->terms[s->count++] = term;
}

/* Pushes the parts of a tuple, list or map. */
static void push_parts(search *s, ErlNifEnv *env, ERL_NIF_TERM term) {
  ERL_NIF_TERM head, tail, value;
  const ERL_NIF_TERM *items;
  ErlNifMapIterator at;
  int arity;
  if (enif_get_tuple(env, term, &arity, &items)) {
    for (int i = 0; i < arity && !s->failed; i++) push(s, items[i]);
  } else if (enif_get_list_cell(env, term, &head, &tail)) {
    push(s, tail);
    push(s, head);
  } else if (enif_is_map(env, term) && enif_map_iterator_create(env, term, &at, ERL_NIF_MAP_ITERATOR_FIRST)) {
    for (; !s->failed && enif_map_iterator_get_pair(env, &at, &head, &value); enif_map_iterator_next(env, &at)) {
      push(s, head);
      push(s, value);
    }
    enif_map_iterator_destroy(env, &at);
  }
}

static bool overlaps(ErlNifEnv *env, ERL_NIF_TERM term, const void *data, size_t size) {
  ErlNifBinary binary;
  if (!enif_inspect_binary(env, term, &binary)) return false;
  uintptr_t start = (uintptr_t)binary.data, from = (uintptr_t)data;
  return start < from + size && from < start + binary.size;
}

xt_status xt_pin_owner(ErlNifEnv *env, xt_pin *pin, ERL_NIF_TERM owner, const void *data, size_t size,
                       xt_error *error) {
  search s = {.terms = NULL};
  xt_tensor_resource *resource;
  ERL_NIF_TERM copy;
  xt_status status = XT_STATUS_ok;
  s.failed = !xt_pin_term(pin, owner, &copy);
  push(&s, owner);
  while (s.count && !s.failed && status == XT_STATUS_ok) {
    ERL_NIF_TERM term = s.terms[--s.count];
    if (++s.seen > MAX_TERMS)
      status = xt_error_set(error, XT_STATUS_limit,
                            "the owner consists of more than %d terms; pass only what keeps the memory", MAX_TERMS);
    else if (enif_get_resource(env, term, xt_tensor_type, (void **)&resource))
      status = keep_tensor(pin, resource, error); /* a %Tensor{} is a map that contains its resource */
    else if (!overlaps(env, term, data, size)) push_parts(&s, env, term);
    else if (pin->frozen.start == pin->frozen.end) xt_frozen_add(&pin->frozen, data, size);
  }
  free(s.terms);
  return s.failed ? xt_error_set(error, XT_STATUS_no_memory, "out of memory while pinning the owner") : status;
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
