/* Converts object trees to Elixir terms. */
#ifndef XT_NIF_OBJECT_H
#define XT_NIF_OBJECT_H

#include <erl_nif.h>

#include "core/checkpoint/checkpoint.h"

/* Converts a node that contains no tensors. Returns false if out of memory. */
bool xt_make_node(ErlNifEnv *env, const xt_checkpoint *c, const xt_node *node, ERL_NIF_TERM *out);

/* How containers become terms. */
typedef struct {
  bool ordered;     /* dicts become %Dict{}, which keeps their order */
  ERL_NIF_TERM set; /* a MapSet of one element: the template of sets */
} xt_object_style;

/* Decodes {ordered?, MapSet}. */
bool xt_get_object_style(ErlNifEnv *env, ERL_NIF_TERM term, xt_object_style *out);

/* Converts the whole tree, with one of the terms, in index order, in place of each tensor. */
xt_status xt_make_object(ErlNifEnv *env, const xt_checkpoint *c, const ERL_NIF_TERM *tensors, xt_object_style style,
                         ERL_NIF_TERM *out, xt_error *error);

#endif
