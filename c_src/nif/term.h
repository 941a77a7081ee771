/* Erlang terms: the atoms, and the functions that decode (xt_get_*) and encode (xt_make_*) terms. */
#ifndef XT_NIF_TERM_H
#define XT_NIF_TERM_H

#include <erl_nif.h>
#include <stdbool.h>

#include "core/base/dtype.h"
#include "core/base/error.h"
#include "torch/torch.h"

/* xt_am_ok is the atom `ok`. */
#define XT_ATOMS(X) \
  X(ok)             \
  X(error)          \
  X(collect)        \
  X(nil)            \
  X(true)           \
  X(false)          \
  X(infinity)       \
  X(neg_infinity)   \
  X(nan)            \
  X(cpu)            \
  X(meta)           \
  X(resource)       \
  X(tensor)         \
  X(shape)          \
  X(strides)        \
  X(dtype)          \
  X(device)         \
  X(element_size)   \
  X(owner)          \
  X(ptr)            \
  X(re)             \
  X(im)             \
  X(reason)         \
  X(message)        \
  X(path)           \
  X(offset)         \
  X(result)         \
  X(tensors)        \
  X(bytes)          \
  X(leased)         \
  X(mapped)         \
  X(threads)        \
  X(data)           \
  X(name)           \
  X(module)         \
  X(args)           \
  X(class)          \
  X(dict)           \
  X(list)           \
  X(new)            \
  X(state)          \
  X(map)            \
  X(pairs)          \
  X(index)          \
  X(type)           \
  X(key)            \
  X(location)       \
  X(numel)          \
  X(nbytes)         \
  X(kind)           \
  X(requires_grad)  \
  X(storage)        \
  X(parameter)      \
  X(alignment)      \
  X(byteorder)      \
  X(format)         \
  X(format_version) \
  X(version)        \
  X(big)            \
  X(little)         \
  X(gzip)           \
  X(zip)            \
  X(legacy)         \
  X(streaming)      \
  X(safetensors)    \
  X(compression)    \
  X(metadata)       \
  X(next_offset)    \
  X(value)          \
  X(need)           \
  X(all)            \
  X(quantized)      \
  X(header)         \
  X(open)           \
  X(more)           \
  X(wait)           \
  X(again)          \
  X(write)          \
  X(read)           \
  X(size)           \
  X(load)           \
  X(described)      \
  X(done)           \
  X(up)             \
  X(npy)            \
  X(npz)            \
  X(checksums)      \
  X(constants)      \
  X(present)        \
  X(absent)         \
  X(down)           \
  X(directory)      \
  X(large)          \
  X(__struct__)     \
  X(__exception__)

/* Atoms of Elixir modules. */
#define XT_MODULES(X)                                               \
  X(module_tensor, "Elixir.ExTorch.Tensor")                         \
  X(module_blob, "Elixir.ExTorch.Tensor.Blob")                      \
  X(module_error, "Elixir.ExTorch.Error")                           \
  X(module_complex, "Elixir.ExTorch.Python.Complex")                \
  X(module_raw_text, "Elixir.ExTorch.Python.RawText")               \
  X(module_bytes, "Elixir.ExTorch.Python.Bytes")                    \
  X(module_byte_array, "Elixir.ExTorch.Python.ByteArray")           \
  X(module_dtype, "Elixir.ExTorch.Python.DType")                    \
  X(module_device, "Elixir.ExTorch.Python.Device")                  \
  X(module_global, "Elixir.ExTorch.Python.Global")                  \
  X(module_object, "Elixir.ExTorch.Python.Object")                  \
  X(module_storage, "Elixir.ExTorch.Python.Storage")                \
  X(module_dict, "Elixir.ExTorch.Python.Dict")                      \
  X(module_raw_tensor, "Elixir.ExTorch.Python.RawTensor")           \
  X(module_numpy_scalar, "Elixir.ExTorch.Python.NumpyScalar")       \
  X(module_tensor_subclass, "Elixir.ExTorch.Python.TensorSubclass") \
  X(module_ref, "Elixir.ExTorch.Python.Ref")                        \
  X(module_entry, "Elixir.ExTorch.Checkpoint.Entry")                \
  X(module_blob_view, "Elixir.ExTorch.Tensor.BlobView")             \
  X(module_cast, "Elixir.ExTorch.Saver.Cast")                       \
  X(module_map_set, "Elixir.MapSet")

#define XT_DECLARE_ATOM(name) extern ERL_NIF_TERM xt_am_##name;
#define XT_DECLARE_MODULE(name, text) extern ERL_NIF_TERM xt_am_##name;
XT_ATOMS(XT_DECLARE_ATOM)
XT_MODULES(XT_DECLARE_MODULE)
#undef XT_DECLARE_ATOM
#undef XT_DECLARE_MODULE

/* Creates the atoms. */
void xt_term_load(ErlNifEnv *env);

/* Decoding. Each function returns false if the term has another type or is out of range. */
bool xt_get_bool(ErlNifEnv *env, ERL_NIF_TERM term, bool *out);
bool xt_get_dtype(ErlNifEnv *env, ERL_NIF_TERM term, xt_dtype *out);   /* torch's names, short names, Nx types */
bool xt_get_cast(ErlNifEnv *env, ERL_NIF_TERM term, xt_dtype *out);    /* the dtype of a %Cast{} */
bool xt_get_device(ErlNifEnv *env, ERL_NIF_TERM term, xt_device *out); /* :cpu, :cuda, {:xpu, n} … */
bool xt_get_dims(ErlNifEnv *env, ERL_NIF_TERM term, int64_t *dims, int *ndim); /* a tuple or list of integers */
bool xt_get_float(ErlNifEnv *env, ERL_NIF_TERM term, double *out);             /* also :nan, :infinity, :neg_infinity */
bool xt_get_complex(ErlNifEnv *env, ERL_NIF_TERM term, double *re, double *im);

/* Decodes a number to the bytes of an element of the dtype. */
bool xt_get_element(ErlNifEnv *env, ERL_NIF_TERM term, xt_dtype dtype, uint8_t bytes[16]);

/* Decodes a path to a NUL-terminated string. Returns false if it is too long or contains a NUL. */
enum { XT_PATH_SIZE = 4096 };
bool xt_get_path(ErlNifEnv *env, ERL_NIF_TERM term, char path[XT_PATH_SIZE]);

ERL_NIF_TERM xt_make_bool(bool value);
ERL_NIF_TERM xt_make_float(ErlNifEnv *env, double value);
ERL_NIF_TERM xt_make_complex(ErlNifEnv *env, double re, double im);
ERL_NIF_TERM xt_make_element(ErlNifEnv *env, xt_dtype dtype, const void *data); /* the element at that address */
ERL_NIF_TERM xt_make_dtype(xt_dtype dtype);
ERL_NIF_TERM xt_make_device(ErlNifEnv *env, xt_device device);
ERL_NIF_TERM xt_make_dims(ErlNifEnv *env, const int64_t *dims, int ndim); /* a tuple */
ERL_NIF_TERM xt_make_dim_list(ErlNifEnv *env, const int64_t *dims, int ndim);
ERL_NIF_TERM xt_make_text(ErlNifEnv *env, const char *text, size_t size); /* nil if a large text cannot be allocated */
ERL_NIF_TERM xt_make_struct(ErlNifEnv *env, const ERL_NIF_TERM *keys, const ERL_NIF_TERM *values, size_t count);

/* Makes a map of any size in linear time (map.c). If a key occurs twice, the later value is used. The arrays are
 * changed. Returns false if out of memory. */
bool xt_make_map(ErlNifEnv *env, ERL_NIF_TERM *keys, ERL_NIF_TERM *values, size_t count, ERL_NIF_TERM *out);

/* {:ok, value, bytes}, where bytes is the native memory that the call allocated (see ExTorch.Memory). */
ERL_NIF_TERM xt_make_ok(ErlNifEnv *env, ERL_NIF_TERM value);

/* {:error, %ExTorch.Error{}}, or {:collect, %ExTorch.Error{}} if the call may succeed after a garbage collection. */
ERL_NIF_TERM xt_make_error(ErlNifEnv *env, const xt_error *error);

/* Raises %ExTorch.Error{}. */
ERL_NIF_TERM xt_raise_error(ErlNifEnv *env, const xt_error *error);

/* xt_make_error of a new error. */
ERL_NIF_TERM xt_make_failure(ErlNifEnv *env, xt_status status, const char *message);

/* xt_make_ok if the status is ok, otherwise xt_make_error. */
ERL_NIF_TERM xt_make_result(ErlNifEnv *env, xt_status status, ERL_NIF_TERM value, const xt_error *error);

#endif
