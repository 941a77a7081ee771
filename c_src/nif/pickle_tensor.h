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

#endif
