/* Converts Erlang terms to pickles: the inverse of object.c. */
#ifndef XT_NIF_PICKLE_TERM_H
#define XT_NIF_PICKLE_TERM_H

#include "nif/pickle_template.h"

/* Writes the pickle of a term, with gaps for the storages, and lists its tensors. The error for a part that cannot be
 * saved contains the path to it. */
xt_status xt_pickle_term(ErlNifEnv *env, ERL_NIF_TERM term, xt_save_tensors *tensors, xt_pickle_template *template,
                         xt_error *error);

#endif
