#ifndef XT_NIF_SAVER_H
#define XT_NIF_SAVER_H

#include <erl_nif.h>
#include <stdbool.h>

bool xt_saver_register(ErlNifEnv *env);

#endif
