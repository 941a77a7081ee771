#ifndef XT_NIF_TENSOR_BINARY_H
#define XT_NIF_TENSOR_BINARY_H

#include <erl_nif.h>
#include <stdbool.h>

bool xt_tensor_binary_register(ErlNifEnv *env);

#endif
