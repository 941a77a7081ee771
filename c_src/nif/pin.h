/* Pins keep foreign memory alive. A pin holds a copy of the owner's term in its own environment until the last tensor
 * over the memory is freed. LibTorch's deleter then releases the pin, on any thread. */
#ifndef XT_NIF_PIN_H
#define XT_NIF_PIN_H

#include <erl_nif.h>
#include <stdbool.h>

#include "core/memory/frozen.h"
#include "torch/torch.h"

typedef struct {
  ErlNifEnv *env;      /* holds the copies of the terms */
  xt_tensor **tensors; /* handles of the tensors inside the owner, so that the memory outlives their release/1 */
  int tensor_count;
  void *block;      /* a copy of the data, allocated with xt_memory_alloc, or NULL */
  xt_frozen frozen; /* the range of memory that is shared with a binary */
} xt_pin;

/* Returns an empty pin, or NULL if out of memory. */
xt_pin *xt_pin_new(void);

/* Copies a term into the pin. Use the data of the copy: a small binary has another address there. Returns false if out
 * of memory. */
bool xt_pin_term(xt_pin *pin, ERL_NIF_TERM term, ERL_NIF_TERM *copy);

/* Pins the owner of the memory. Keeps the handles of the tensors inside it as well. If a binary inside it overlaps the
 * memory, the memory is frozen: binaries never change. */
xt_status xt_pin_owner(ErlNifEnv *env, xt_pin *pin, ERL_NIF_TERM owner, const void *data, size_t size, xt_error *error);

/* Releases everything that the pin holds. Usable as the `release` of an xt_foreign. */
void xt_pin_release(void *pin);

#endif
