/* Tensors in pickles: the calls of torch._utils that make them again. */
#ifndef XT_NIF_PICKLE_TENSOR_H
#define XT_NIF_PICKLE_TENSOR_H

#include "nif/pickle_template.h"

/* The function that makes a tensor again, and the tuple of its arguments. */
void xt_pickle_tensor_function(xt_pickle_template *t, const xt_save_tensor *tensor);
void xt_pickle_tensor_args(xt_pickle_template *t, const xt_save_tensors *s, const xt_save_tensor *tensor);

/* function · args · REDUCE */
void xt_pickle_tensor(xt_pickle_template *t, const xt_save_tensors *s, const xt_save_tensor *tensor);

/* The same for bytes of a dtype that the linked LibTorch lacks, which are the list's last view. */
void xt_pickle_tensor_bytes(xt_pickle_template *t, const xt_save_tensors *s, const int64_t *sizes,
                            const int64_t *strides, int ndim);

/* "f4" of float32; false where numpy has no such dtype. */
bool xt_pickle_numpy_code(xt_dtype dtype, char code[8]);
/* A number as the bytes of that dtype; false when it does not fit. */
bool xt_get_element(ErlNifEnv *env, ERL_NIF_TERM term, xt_dtype dtype, uint8_t bytes[16]);
void xt_pickle_numpy_scalar(xt_pickler *p, xt_dtype dtype, const char *code, const uint8_t *bytes);

#endif
