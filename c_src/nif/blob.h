#ifndef XT_NIF_BLOB_H
#define XT_NIF_BLOB_H

#include <erl_nif.h>
#include <stdbool.h>

bool xt_blob_register(ErlNifEnv *env);

#endif
