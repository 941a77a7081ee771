/* Jobs of LibTorch's own archives. */
#ifndef XT_NIF_ARCHIVE_H
#define XT_NIF_ARCHIVE_H

#include <erl_nif.h>
#include <stdbool.h>

bool xt_archive_register(ErlNifEnv *env);

#endif
