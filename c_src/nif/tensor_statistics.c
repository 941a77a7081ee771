/* Statistics of tensors, and of the differences between two of them. */
#include "core/base/convert.h"
#include "core/memory/memory.h"
#include "core/tensor/statistics.h"
#include "nif/table.h"
#include "nif/tensor.h"
#include "nif/term.h"

/* Returns the values as contiguous memory. */
static xt_status take_values(xt_tensor_resource *resource, xt_tensor **handle, xt_tensor **plain, xt_error *error) {
  xt_status status = xt_tensor_take(resource, handle, error);
  if (status == XT_STATUS_ok) status = xt_torch->tensor_plain(*handle, plain, error);
  if (status != XT_STATUS_ok || xt_convert_supported((*plain)->info.dtype)) return status;
  return xt_error_set(error, XT_STATUS_unsupported, "the elements of %s are not numbers",
                      xt_dtype_get((*plain)->info.dtype)->name);
}

/* Ends the use of the values: they must still have been there. */
static xt_status drop_values(xt_tensor *handle, xt_tensor *plain, xt_status status, xt_error *error) {
  if (status == XT_STATUS_ok) status = xt_tensor_check_memory(handle, error);
  if (plain) xt_tensor_drop(plain);
  if (handle) xt_tensor_drop(handle);
  return status;
}

/* tensor_summary(tensor) :: {:ok, {nan, infinite, zeros, finite, min, max, mean, m2}, bytes} | {:error, e}
 *
 * min and max are infinities if there are no finite values. */
ERL_NIF_TERM xt_nif_tensor_summary(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  xt_tensor_resource *resource;
  xt_tensor *handle = NULL, *plain = NULL;
  xt_statistics found = {0};
  xt_error error;
  (void)argc;
  if (!xt_get_tensor(env, argv[0], &resource)) return enif_make_badarg(env);
  xt_status status = take_values(resource, &handle, &plain, &error);
  if (status == XT_STATUS_ok) xt_statistics_of(plain->info.dtype, plain->info.data, (size_t)plain->info.numel, &found);
  status = drop_values(handle, plain, status, &error);
  ERL_NIF_TERM result = enif_make_tuple(env, 8, enif_make_int64(env, found.nan), enif_make_int64(env, found.infinite),
                                        enif_make_int64(env, found.zeros), enif_make_int64(env, found.finite),
                                        xt_make_float(env, found.min), xt_make_float(env, found.max),
                                        xt_make_float(env, found.mean), xt_make_float(env, found.m2));
  return xt_make_result(env, status, result, &error);
}

/* tensor_histogram(tensor, bins, low, high) :: {:ok, [count], bytes} | {:error, e} */
ERL_NIF_TERM xt_nif_tensor_histogram(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  enum { MAX_BINS = 65536 };
  xt_tensor_resource *resource;
  xt_tensor *handle = NULL, *plain = NULL;
  xt_error error;
  unsigned bins;
  double low, high;
  (void)argc;
  if (!xt_get_tensor(env, argv[0], &resource) || !enif_get_uint(env, argv[1], &bins) || !bins || bins > MAX_BINS ||
      !xt_get_float(env, argv[2], &low) || !xt_get_float(env, argv[3], &high))
    return enif_make_badarg(env);
  int64_t *counts = enif_alloc(bins * sizeof *counts);
  for (unsigned i = 0; i < bins; i++) counts[i] = 0;
  xt_status status = take_values(resource, &handle, &plain, &error);
  if (status == XT_STATUS_ok)
    xt_statistics_histogram(plain->info.dtype, plain->info.data, (size_t)plain->info.numel, low, high, bins, counts);
  status = drop_values(handle, plain, status, &error);
  ERL_NIF_TERM list = enif_make_list(env, 0);
  for (unsigned i = bins; i--;) list = enif_make_list_cell(env, enif_make_int64(env, counts[i]), list);
  enif_free(counts);
  return xt_make_result(env, status, list, &error);
}

/* tensor_difference(a, b, rtol, atol, equal_nan?) :: {:ok, {differing, beyond, nan, max, sum}, bytes} | {:error, e} */
ERL_NIF_TERM xt_nif_tensor_difference(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  xt_tensor_resource *a, *b;
  xt_tensor *a_handle = NULL, *b_handle = NULL, *a_plain = NULL, *b_plain = NULL;
  xt_tolerance tolerance;
  xt_difference found = {0};
  xt_error error;
  (void)argc;
  if (!xt_get_tensor(env, argv[0], &a) || !xt_get_tensor(env, argv[1], &b) ||
      !xt_get_float(env, argv[2], &tolerance.rtol) || !xt_get_float(env, argv[3], &tolerance.atol) ||
      !xt_get_bool(env, argv[4], &tolerance.equal_nan))
    return enif_make_badarg(env);
  xt_status status = take_values(a, &a_handle, &a_plain, &error);
  if (status == XT_STATUS_ok) status = take_values(b, &b_handle, &b_plain, &error);
  if (status == XT_STATUS_ok && a_plain->info.numel != b_plain->info.numel)
    status = xt_error_set(&error, XT_STATUS_bad_argument, "the tensors do not have the same number of elements");
  if (status == XT_STATUS_ok)
    xt_statistics_compare(a_plain->info.dtype, a_plain->info.data, b_plain->info.dtype, b_plain->info.data,
                          (size_t)a_plain->info.numel, &tolerance, &found);
  status = drop_values(a_handle, a_plain, status, &error);
  status = drop_values(b_handle, b_plain, status, &error);
  ERL_NIF_TERM result =
      enif_make_tuple5(env, enif_make_int64(env, found.differing), enif_make_int64(env, found.beyond),
                       enif_make_int64(env, found.nan), xt_make_float(env, found.max), xt_make_float(env, found.sum));
  return xt_make_result(env, status, result, &error);
}
