/* The library's side of include/extorch.h. */
#ifndef XT_NIF_EXPORT_H
#define XT_NIF_EXPORT_H

#include <erl_nif.h>

/* The tensor resource's dyncall: fills an extorch_export. */
void xt_export_tensor(ErlNifEnv *env, void *resource, void *export_data);

#endif
