/* The implementation behind include/extorch.h. */
#ifndef XT_NIF_EXPORT_H
#define XT_NIF_EXPORT_H

#include <erl_nif.h>

/* The dyncall of the tensor resource. Fills an extorch_export. */
void xt_export_tensor(ErlNifEnv *env, void *resource, void *export_data);

#endif
