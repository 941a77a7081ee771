/* Tensors in pickles: the calls of torch._utils that rebuild them. */
#ifndef XT_NIF_PICKLE_TENSOR_H
#define XT_NIF_PICKLE_TENSOR_H

#include "nif/pickle_template.h"

/* Writes the function that rebuilds a tensor, and the tuple of its arguments. */
void xt_pickle_tensor_function(xt_pickle_template *template, const xt_save_tensor *t);
void xt_pickle_tensor_args(xt_pickle_template *template, const xt_save_tensors *s, const xt_save_tensor *t);

/* Writes the function, the arguments and REDUCE. */
void xt_pickle_tensor(xt_pickle_template *template, const xt_save_tensors *s, const xt_save_tensor *t);

/* Same for the last view of the list, which holds the bytes of a dtype that the linked LibTorch does not have. */
void xt_pickle_tensor_bytes(xt_pickle_template *template, const xt_save_tensors *s, const int64_t *sizes,
                            const int64_t *strides, int ndim);

#endif
