/* Operators that make tensors of a shape, and the table of all operators. */
#include <math.h>
#include <string.h>

#include "core/base/convert.h"
#include "plain/arguments.h"

/* The parameters that all these operators have, one after another: dtype, layout, device, pin_memory. */
static void options(xt_plain_call *call, int first, xt_dtype otherwise, xt_plain_shape *shape, xt_device *device) {
  const xt_value *layout = call->values[first + 1];
  shape->dtype = xt_plain_dtype_arg(call, first, otherwise);
  if (layout && (layout->kind != XT_VALUE_NAME || strcmp(layout->name.text, "strided")))
    xt_plain_invalid(call, first + 1, "is not supported without LibTorch; expected :strided");
  if (call->values[first + 2]) *device = xt_plain_device_arg(call, first + 2);
  if (xt_plain_bool_arg(call, first + 3, false))
    xt_plain_invalid(call, first + 3, "is true, but pinned memory needs LibTorch and a device");
  if (xt_dtype_get(shape->dtype)->kind == XT_KIND_QUANT)
    xt_plain_invalid(call, first, "is quantized and needs a scale");
}

/* Makes the tensor with its strides, and writes the number to it if there is one. */
static xt_status make(xt_plain_call *call, const xt_plain_shape *shape, xt_device device, const xt_plain_scalar *number,
                      xt_value *out) {
  xt_tensor *tensor = NULL;
  if (call->status != XT_STATUS_ok) return call->status;
  if (number && !xt_convert_supported(shape->dtype))
    return xt_error_set(call->error, XT_STATUS_unsupported, "%s: elements of %s are not numbers", call->name,
                        xt_dtype_get(shape->dtype)->name);
  xt_status status = device.type == XT_DEVICE_META ? xt_plain_meta(shape, &tensor, call->error)
                                                   : xt_plain_alloc(shape, &tensor, call->error);
  if (status != XT_STATUS_ok) return status;
  if (number && device.type != XT_DEVICE_META) xt_plain_fill(tensor, number);
  *out = (xt_value){.kind = XT_VALUE_TENSOR, .tensor = tensor};
  return status;
}

static xt_status sized(xt_plain_call *call, int first, xt_dtype dtype, const xt_plain_scalar *number, xt_value *out) {
  xt_plain_shape shape = {.ndim = 0};
  xt_device device = {XT_DEVICE_CPU, -1};
  xt_plain_ints_arg(call, 0, shape.sizes, &shape.ndim);
  options(call, first, dtype, &shape, &device);
  xt_plain_shape_contiguous(&shape);
  return make(call, &shape, device, number, out);
}

static const xt_plain_scalar zero = {.dtype = XT_int64}, one = {.dtype = XT_int64, .integer = 1};

xt_status xt_plain_op_empty(xt_plain_call *call, xt_value *out) { return sized(call, 1, XT_float32, NULL, out); }
xt_status xt_plain_op_zeros(xt_plain_call *call, xt_value *out) { return sized(call, 1, XT_float32, &zero, out); }
xt_status xt_plain_op_ones(xt_plain_call *call, xt_value *out) { return sized(call, 1, XT_float32, &one, out); }

/* The dtype of a number, as torch chooses it. */
static xt_dtype default_dtype(xt_dtype dtype) {
  return dtype == XT_float64 ? XT_float32 : dtype == XT_complex128 ? XT_complex64 : dtype;
}

xt_status xt_plain_op_full(xt_plain_call *call, xt_value *out) {
  xt_plain_scalar number = xt_plain_scalar_arg(call, 1, 0);
  if (!xt_plain_has(call, 1)) return xt_plain_invalid(call, 1, "is missing");
  return sized(call, 2, default_dtype(number.dtype), &number, out);
}

xt_status xt_plain_op_empty_strided(xt_plain_call *call, xt_value *out) {
  xt_plain_shape shape = {.ndim = 0};
  xt_device device = {XT_DEVICE_CPU, -1};
  int strides;
  xt_plain_ints_arg(call, 0, shape.sizes, &shape.ndim);
  xt_plain_ints_arg(call, 1, shape.strides, &strides);
  options(call, 2, XT_float32, &shape, &device);
  if (strides != shape.ndim) xt_plain_invalid(call, 1, "does not have as many items as `size`");
  return make(call, &shape, device, NULL, out);
}

static xt_status like(xt_plain_call *call, const xt_plain_scalar *number, xt_value *out) {
  xt_tensor *self = xt_plain_tensor_arg(call, 0);
  if (call->status != XT_STATUS_ok) return call->status;
  xt_plain_shape shape = xt_plain_shape_of(self);
  xt_device device = self->info.device;
  xt_plain_keep_order(self, &shape);
  options(call, 1, self->info.dtype, &shape, &device);
  return make(call, &shape, device, number, out);
}

xt_status xt_plain_op_zeros_like(xt_plain_call *call, xt_value *out) { return like(call, &zero, out); }
xt_status xt_plain_op_ones_like(xt_plain_call *call, xt_value *out) { return like(call, &one, out); }
xt_status xt_plain_op_empty_like(xt_plain_call *call, xt_value *out) { return like(call, NULL, out); }

/* ---- arange ---- */

typedef struct {
  bool integer; /* all are integers */
  double start, end, step;
  int64_t first, by;
} range;

static bool is_integer(const xt_plain_call *call, int parameter) {
  return !call->values[parameter] || call->values[parameter]->kind == XT_VALUE_INT;
}

static int64_t range_size(xt_plain_call *call, const range *r) {
  double size = ceil((r->end - r->start) / r->step);
  if (!isfinite(size) || size < 0 || size > 0x1p62) {
    xt_plain_invalid(call, 1, "is not reached from `start` with this `step`");
    return 0;
  }
  return (int64_t)size;
}

static void write_range(const range *r, const xt_tensor_info *info) {
  xt_numbers numbers = {.kind = r->integer ? XT_KIND_INT : XT_KIND_FLOAT};
  size_t total = (size_t)info->numel, size = xt_dtype_get(info->dtype)->size;
  for (size_t done = 0; done < total; done += XT_NUMBERS) {
    size_t count = total - done < XT_NUMBERS ? total - done : XT_NUMBERS;
    for (size_t n = 0; n < count; n++) {
      if (r->integer) numbers.i[n] = (int64_t)((uint64_t)r->first + (uint64_t)(done + n) * (uint64_t)r->by);
      else numbers.re[n] = r->start + (double)(done + n) * r->step;
    }
    xt_numbers_write(&numbers, info->dtype, (char *)info->data + done * size, count);
  }
}

xt_status xt_plain_op_arange(xt_plain_call *call, xt_value *out) {
  if (!call->values[1]) { /* arange(end) */
    call->values[1] = call->values[0];
    call->values[0] = NULL;
  }
  range r = {.integer = is_integer(call, 0) && is_integer(call, 1) && is_integer(call, 2)};
  r.start = xt_plain_float_arg(call, 0, 0);
  r.end = xt_plain_float_arg(call, 1, NAN);
  r.step = xt_plain_float_arg(call, 2, 1);
  if (r.integer) r.first = xt_plain_int_arg(call, 0, 0), r.by = xt_plain_int_arg(call, 2, 1);
  xt_plain_shape shape = {.ndim = 1, .sizes = {range_size(call, &r)}, .strides = {1}};
  xt_device device = {XT_DEVICE_CPU, -1};
  options(call, 3, r.integer ? XT_int64 : XT_float32, &shape, &device);
  xt_status status = make(call, &shape, device, NULL, out);
  if (status == XT_STATUS_ok && device.type != XT_DEVICE_META) write_range(&r, &out->tensor->info);
  return status;
}

/* ---- Random numbers: a counter, whose bits are mixed (splitmix64) ---- */

static atomic_uint_least64_t random_state = 0x5bd1e995;

void xt_plain_seed(uint64_t seed) { atomic_store(&random_state, seed); }

/* From 0 to 1, without 1. */
static double next_random(void) {
  uint64_t bits = atomic_fetch_add(&random_state, 0x9e3779b97f4a7c15) + 0x9e3779b97f4a7c15;
  bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9;
  bits = (bits ^ bits >> 27) * 0x94d049bb133111eb;
  return (double)((bits ^ bits >> 31) >> 40) * 0x1p-24;
}

/* Box and Muller's method. */
static double next_normal(void) { return sqrt(-2 * log(1 - next_random())) * cos(6.283185307179586 * next_random()); }

static xt_status filled(xt_plain_call *call, double (*next)(void), xt_value *out) {
  xt_kind kind = xt_dtype_get(xt_plain_dtype_arg(call, 1, XT_float32))->kind;
  if (kind != XT_KIND_FLOAT && kind != XT_KIND_COMPLEX)
    return xt_plain_invalid(call, 1, "is not a dtype of floats or complex numbers");
  xt_status status = sized(call, 1, XT_float32, NULL, out);
  if (status != XT_STATUS_ok) return status;
  const xt_tensor_info *info = &out->tensor->info;
  xt_numbers numbers = {.kind = kind};
  size_t total = info->data ? (size_t)info->numel : 0, size = xt_dtype_get(info->dtype)->size;
  for (size_t done = 0; done < total; done += XT_NUMBERS) {
    size_t count = total - done < XT_NUMBERS ? total - done : XT_NUMBERS;
    for (size_t n = 0; n < count; n++) {
      numbers.re[n] = next();
      if (kind == XT_KIND_COMPLEX) numbers.im[n] = next();
    }
    xt_numbers_write(&numbers, info->dtype, (char *)info->data + done * size, count);
  }
  return status;
}

xt_status xt_plain_op_rand(xt_plain_call *call, xt_value *out) { return filled(call, next_random, out); }
xt_status xt_plain_op_randn(xt_plain_call *call, xt_value *out) { return filled(call, next_normal, out); }

/* ---- The table ---- */

static const struct {
  const char *name, *parameters;
  xt_plain_operator *run;
} operators[] = {
#define XT_PLAIN_ENTRY(name, parameters) {#name, parameters, xt_plain_op_##name},
    XT_PLAIN_OPERATORS(XT_PLAIN_ENTRY)
#undef XT_PLAIN_ENTRY
};

xt_status xt_plain_op(const xt_op_call *op, xt_arena *arena, xt_value **results, size_t *count, xt_error *error) {
  const char *name = strncmp(op->name, "aten::", 6) ? op->name : op->name + 6;
  size_t length = strcspn(name, "."); /* without the overload */
  for (size_t i = 0; *op->name != '_' && i < sizeof operators / sizeof *operators; i++) {
    if (strlen(operators[i].name) != length || memcmp(operators[i].name, name, length)) continue;
    xt_plain_call call = {
        .name = operators[i].name, .parameters = operators[i].parameters, .error = error, .arena = arena};
    *results = xt_arena_alloc(arena, 1, sizeof **results);
    if (!*results) return xt_error_set(error, XT_STATUS_no_memory, "out of memory");
    xt_status status = xt_plain_bind(&call, op);
    if (status == XT_STATUS_ok) status = operators[i].run(&call, *results);
    *count = (*results)->kind != XT_VALUE_NIL;
    return status;
  }
  return xt_error_set(error, XT_STATUS_unsupported, "the operator %.200s needs LibTorch. %s", op->name, xt_plain_hint);
}
