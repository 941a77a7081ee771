/* Keeping foreign memory alive: the owner's term, in an environment of its own, for as long as any tensor over the
 * memory lives. LibTorch's deleter lets go of it, on whatever thread. */
#ifndef XT_NIF_PIN_H
#define XT_NIF_PIN_H

#include <erl_nif.h>
#include <stdbool.h>

#include "core/memory/frozen.h"
#include "torch/torch.h"

typedef struct {
  ErlNifEnv *env;      /* the owner's copy */
  xt_tensor **tensors; /* those found in the owner, which release/1 must not take from under the pin */
  int tensor_count;
  void *block;      /* memory of our own that the tensor is over, or NULL */
  xt_frozen frozen; /* the range, when binaries see it */
} xt_pin;

/* An empty pin; NULL when there is no memory. */
xt_pin *xt_pin_new(void);

/* Copies the term into the pin; the copy matters, since small binaries have another address there. False: no memory. */
bool xt_pin_term(xt_pin *pin, ERL_NIF_TERM term, ERL_NIF_TERM *copy);

/* Holds the tensors inside the owner by themselves as well. */
xt_status xt_pin_tensors(ErlNifEnv *env, xt_pin *pin, ERL_NIF_TERM owner, xt_error *error);

/* Lets go of everything; an xt_foreign's `release`. */
void xt_pin_release(void *pin);

#endif
