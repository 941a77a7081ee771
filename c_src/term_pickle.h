/* Erlang terms to pickles: the inverse of nif_object.c. */
#ifndef XT_TERM_PICKLE_H
#define XT_TERM_PICKLE_H

#include "core/pickler.h"
#include "save_tensors.h"

/* Walks the term and lists its tensors; what cannot be saved is refused with its place in the term. */
xt_status xt_term_collect(ErlNifEnv *env, ERL_NIF_TERM term, xt_save_tensors *tensors, xt_error *error);

/* Walks it again and writes, once their storages are known. `views`: persistent ids have a view, as legacy files do. */
xt_status xt_term_pickle(ErlNifEnv *env, ERL_NIF_TERM term, const xt_save_tensors *tensors, bool views, xt_pickler *out,
                         xt_error *error);

#endif
