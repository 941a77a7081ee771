/* An operator's argument or result, neither Erlang nor C++: the NIF floor makes and reads these, the torch floor
 * turns them into what a schema asks for. */
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
  XT_VALUE_TEXT, /* a string */
  XT_VALUE_NAME, /* an atom, alone or as {atom, integer}: a dtype, a device, a layout …: the schema decides */
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
    } text; /* NUL-terminated too */
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
