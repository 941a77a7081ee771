/* Converts Erlang terms to pickles: the inverse of object.c. */
#ifndef XT_NIF_PICKLE_TERM_H
#define XT_NIF_PICKLE_TERM_H

#include <erl_nif.h>

#include "core/checkpoint/draft.h"

/* Writes a term to a draft. The error for a part that cannot be saved contains the path to it. */
xt_status xt_pickle_term(ErlNifEnv *env, ERL_NIF_TERM term, xt_draft *draft, xt_error *error);

#endif
