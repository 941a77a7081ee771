/* Devices: their number and their memory, waiting for them, and libraries that register more of them. */
#include <string.h>

#include "core/os/libraries.h"
#include "nif/table.h"
#include "nif/tensor.h"
#include "nif/term.h"

/* A library may have registered a backend under a name since the last call. */
static void learn_name(void) {
  const char *name = xt_torch->private_name();
  if (name) xt_device_set_private_name(name);
}

/* device_types() :: [{type, number of devices}]     those that LibTorch has a backend for, the CPU first */
ERL_NIF_TERM xt_nif_device_types(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  (void)argc, (void)argv;
  ERL_NIF_TERM list = enif_make_list(env, 0);
  learn_name();
  for (int type = XT_DEVICE_OTHER - 1; type >= 0; type--) {
    int count = xt_torch->device_count((xt_device_type)type);
    if (count < 0) continue;
    ERL_NIF_TERM name = enif_make_atom(env, xt_device_type_name((xt_device_type)type));
    list = enif_make_list_cell(env, enif_make_tuple2(env, name, enif_make_int(env, count)), list);
  }
  return list;
}

/* device_type(type's name) :: type | nil     the atom of a type, also if LibTorch has no backend for it */
ERL_NIF_TERM xt_nif_device_type(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  ErlNifBinary text;
  char name[XT_DEVICE_NAME];
  (void)argc;
  if (!enif_inspect_binary(env, argv[0], &text)) return enif_make_badarg(env);
  if (text.size >= sizeof name) return xt_am_nil;
  memcpy(name, text.data, text.size);
  name[text.size] = 0;
  learn_name();
  xt_device_type type = xt_device_type_from_name(name);
  return type == XT_DEVICE_OTHER ? xt_am_nil : enif_make_atom(env, xt_device_type_name(type));
}

/* device_memory(device) :: {:ok, {free, total}, 0} | {:error, e} */
ERL_NIF_TERM xt_nif_device_memory(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  xt_error error;
  xt_device device;
  size_t free_bytes, total;
  (void)argc;
  if (!xt_get_device(env, argv[0], &device)) return enif_make_badarg(env);
  if (xt_torch->device_memory(device, &free_bytes, &total, &error) != XT_STATUS_ok) return xt_make_error(env, &error);
  return xt_make_ok(env, enif_make_tuple2(env, enif_make_uint64(env, free_bytes), enif_make_uint64(env, total)));
}

/* device_synchronize(device) :: {:ok, nil, 0} | {:error, e} */
ERL_NIF_TERM xt_nif_device_synchronize(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  xt_error error;
  xt_device device;
  (void)argc;
  if (!xt_get_device(env, argv[0], &device)) return enif_make_badarg(env);
  return xt_make_result(env, xt_torch->device_synchronize(device, &error), xt_am_nil, &error);
}

/* device_load_library(path) :: {:ok, nil, 0} | {:error, e} */
ERL_NIF_TERM xt_nif_device_load_library(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  char path[XT_PATH_SIZE];
  const char *reason;
  xt_error error;
  xt_status status = XT_STATUS_ok;
  (void)argc;
  if (!xt_get_path(env, argv[0], path)) return enif_make_badarg(env);
  if (!xt_torch->version)
    status = xt_error_set(&error, XT_STATUS_unsupported,
                          "the library needs LibTorch, which this node does not have (ExTorch.info/0)");
  else if (!xt_libraries_open(path, &reason))
    status = xt_error_set(&error, XT_STATUS_io, "cannot load the library: %s", reason);
  learn_name();
  return xt_make_result(env, status, xt_am_nil, &error);
}
