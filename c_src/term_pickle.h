/* Erlang terms to pickles: the inverse of nif_object.c. */
#ifndef XT_TERM_PICKLE_H
#define XT_TERM_PICKLE_H

#include "draft.h"

/* Walks the term: the pickle but for its tensors, and the list of those. What cannot be saved is refused with its place
 * in the term. */
xt_status xt_term_draft(ErlNifEnv *env, ERL_NIF_TERM term, xt_save_tensors *tensors, xt_draft *draft, xt_error *error);

#endif
