/* The resource types by which a collection is seen to be over. */
#ifndef XT_NIF_MEMORY_COLLECT_H
#define XT_NIF_MEMORY_COLLECT_H

#include <erl_nif.h>
#include <stdbool.h>

bool xt_memory_collect_register(ErlNifEnv *env);

#endif
