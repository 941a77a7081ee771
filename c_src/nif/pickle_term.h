/* Erlang terms to pickles: the inverse of nif_object.c. */
#ifndef XT_NIF_PICKLE_TERM_H
#define XT_NIF_PICKLE_TERM_H

#include "nif/pickle_template.h"

/* Walks the term: the pickle but for its tensors, and the list of those. What cannot be saved is refused with its place
 * in the term. */
xt_status xt_pickle_term(ErlNifEnv *env, ERL_NIF_TERM term, xt_save_tensors *tensors, xt_pickle_template *template,
                         xt_error *error);

#endif
