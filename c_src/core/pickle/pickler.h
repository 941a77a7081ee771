/* Writes pickles of protocol 2 with only the opcodes that every torch and its weights_only unpickler support.
 *
 * Values are written one after the other. The items of a container follow a mark, and a last opcode collects them:
 *
 *   {"a": [1]}   →   dict · mark · text a · list · mark · int 1 · appends · set_items
 */
#ifndef XT_PICKLE_PICKLER_H
#define XT_PICKLE_PICKLER_H

#include "core/base/buffer.h"
#include "core/base/dtype.h"
#include "core/memory/table.h"
#include "core/pickle/opcodes.h"

typedef struct {
  xt_buffer out;
  xt_table globals; /* "module\nname\n" → 1 + memo index: each name is written once and then read from the memo */
  uint32_t memo;    /* next free memo index */
} xt_pickler;

void xt_pickler_begin(xt_pickler *p);
void xt_pickler_stop(xt_pickler *p);
void xt_pickler_free(xt_pickler *p);

void xt_pickler_put_none(xt_pickler *p);
void xt_pickler_put_bool(xt_pickler *p, bool value);
void xt_pickler_put_int(xt_pickler *p, int64_t value);
void xt_pickler_put_big(xt_pickler *p, const uint8_t *magnitude, size_t size,
                        bool negative); /* little-endian magnitude */
void xt_pickler_put_float(xt_pickler *p, double value);
/* Texts have at most UINT32_MAX bytes, and bytes at most half as many: they can take two bytes each. */
void xt_pickler_put_text(xt_pickler *p, const char *text, size_t size);
void xt_pickler_put_bytes(xt_pickler *p, const uint8_t *data, size_t size);

/* Writes a class or function given as "torch\nFloatStorage\n". It is memoized: the text must live as long as the
 * pickler. */
void xt_pickler_put_global(xt_pickler *p, const char *module_and_name);

/* Writes a class or function without memoizing it. */
void xt_pickler_put_name(xt_pickler *p, const char *module, size_t module_size, const char *name, size_t name_size);

/* Write values of torch, numpy and Python as calls. numpy must have the dtype of a scalar. The index of a device
 * may be NULL. */
void xt_pickler_put_dtype(xt_pickler *p, xt_dtype dtype);
void xt_pickler_put_device(xt_pickler *p, const char *type, size_t size, const int64_t *index);
void xt_pickler_put_complex(xt_pickler *p, double re, double im);
void xt_pickler_put_numpy_scalar(xt_pickler *p, xt_dtype dtype, const uint8_t *bytes);

/* Writes a value that is in the memo. */
void xt_pickler_put_get(xt_pickler *p, uint32_t memo);

/* Writes an opcode that has no argument. */
static inline void xt_pickler_put_op(xt_pickler *p, xt_opcode opcode) { xt_buffer_byte(&p->out, (uint8_t)opcode); }

void xt_pickler_put_mark(xt_pickler *p);
void xt_pickler_put_list(xt_pickler *p);                /* [] */
void xt_pickler_put_dict(xt_pickler *p);                /* {} */
void xt_pickler_put_appends(xt_pickler *p);             /* adds the values above the mark to the list below it */
void xt_pickler_put_set_items(xt_pickler *p);           /* same for keys and values of a dict */
void xt_pickler_put_tuple(xt_pickler *p);               /* of the values above the mark */
void xt_pickler_put_tuple_of(xt_pickler *p, int count); /* of the last 0 to 3 values; needs no mark */
void xt_pickler_put_reduce(xt_pickler *p);              /* callable, tuple of arguments */
void xt_pickler_put_new(xt_pickler *p);                 /* class, tuple of arguments */
void xt_pickler_put_build(xt_pickler *p);               /* object, state */
void xt_pickler_put_persistent(xt_pickler *p);          /* persistent id */

/* Returns the storage class as "torch\nFloatStorage\n", or NULL for dtypes that have none. */
const char *xt_pickler_storage_class(xt_dtype dtype);

#endif
