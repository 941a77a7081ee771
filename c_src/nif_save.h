#ifndef XT_NIF_SAVE_H
#define XT_NIF_SAVE_H

#include <erl_nif.h>
#include <stdbool.h>

bool xt_saving_load(ErlNifEnv *env);

#endif
