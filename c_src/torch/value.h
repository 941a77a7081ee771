/* Arguments and results of operators, independent of Erlang and C++. The NIF layer converts terms to and from values;
 * the torch layer converts values to and from the types of an operator's schema. */
#ifndef XT_TORCH_VALUE_H
#define XT_TORCH_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct xt_tensor;

typedef enum {
  XT_VALUE_NIL,
  XT_VALUE_BOOL,
  XT_VALUE_INT,
  XT_VALUE_FLOAT,
  XT_VALUE_COMPLEX,
  XT_VALUE_TEXT,
  XT_VALUE_NAME, /* an atom or {atom, integer}: a dtype, a device, a layout …, depending on the schema */
  XT_VALUE_TENSOR,
  XT_VALUE_LIST
} xt_value_kind;

typedef struct xt_value {
  xt_value_kind kind;
  union {
    bool boolean;
    int64_t integer;
    double number;
    struct {
      double re, im;
    } complex;
    struct {
      const char *data;
      size_t size;
    } text; /* `data` is also NUL-terminated */
    struct {
      const char *text;
      bool indexed;
      int64_t index;
    } name;
    struct xt_tensor *tensor;
    struct {
      struct xt_value *items;
      size_t count;
    } list;
  };
} xt_value;

typedef struct {
  const char *name;
  xt_value value;
} xt_named_value;

#endif
