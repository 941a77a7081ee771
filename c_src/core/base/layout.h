/* The layouts of tensors. */
#ifndef XT_BASE_LAYOUT_H
#define XT_BASE_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>

/* X(name, number of c10::Layout, name in torch). The numbers are the same in every LibTorch. */
#define XT_LAYOUTS(X)      \
  X(STRIDED, 0, "strided") \
  X(COO, 1, "sparse_coo")  \
  X(CSR, 2, "sparse_csr")  \
  X(CSC, 4, "sparse_csc")  \
  X(BSR, 5, "sparse_bsr")  \
  X(BSC, 6, "sparse_bsc")

#define XT_LAYOUT_NUMBER(name, number, text) XT_LAYOUT_##name = number,
typedef enum { XT_LAYOUTS(XT_LAYOUT_NUMBER) } xt_layout;
#undef XT_LAYOUT_NUMBER

/* Returns the name in torch ("sparse_coo"), or NULL if the number is not one of a layout. */
const char *xt_layout_name(int layout);

/* Finds a layout by its name. Returns false if there is none. */
bool xt_layout_from_name(const char *name, size_t size, xt_layout *out);

#endif
