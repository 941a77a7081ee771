/* The lists of all NIFs (name, arity, scheduler) and the list of all resource types.
 *
 * library.c builds the NIF table from the first two lists. lib/extorch/native.ex has a stub for each NIF; a test calls
 * all of them. A NIF on a normal scheduler takes microseconds whatever its arguments are, or reschedules itself on a
 * dirty scheduler.
 */
#ifndef XT_NIF_TABLE_H
#define XT_NIF_TABLE_H

#include <erl_nif.h>

#define XT_NORMAL 0
#define XT_DIRTY_CPU ERL_NIF_DIRTY_JOB_CPU_BOUND
#define XT_DIRTY_IO ERL_NIF_DIRTY_JOB_IO_BOUND

/* These need core only. They also run while LibTorch is not loaded, if that was deferred. */
#define XT_CORE_NIFS(X)                      \
  X(memory_live, 0, XT_NORMAL)               \
  X(memory_budget, 0, XT_NORMAL)             \
  X(memory_set_budget, 1, XT_NORMAL)         \
  X(memory_device_live, 1, XT_NORMAL)        \
  X(memory_device_budget, 1, XT_NORMAL)      \
  X(memory_set_device_budget, 2, XT_NORMAL)  \
  X(memory_set_background, 1, XT_NORMAL)     \
  X(memory_collect_begin, 0, XT_NORMAL)      \
  X(memory_collect_wait, 3, XT_DIRTY_IO)     \
  X(checkpoint_open, 2, XT_DIRTY_IO)         \
  X(checkpoint_open_binary, 2, XT_DIRTY_CPU) \
  X(source_reader_open, 2, XT_NORMAL)        \
  X(source_reader_fill, 2, XT_DIRTY_CPU)     \
  X(checkpoint_close, 1, XT_NORMAL)          \
  X(checkpoint_keys, 1, XT_NORMAL)           \
  X(checkpoint_entries, 2, XT_NORMAL)        \
  X(checkpoint_metadata, 1, XT_NORMAL)       \
  X(checkpoint_storages, 1, XT_NORMAL)       \
  X(checkpoint_records, 1, XT_NORMAL)        \
  X(checkpoint_object, 3, XT_DIRTY_CPU)      \
  X(checkpoint_read_record, 5, XT_DIRTY_IO)  \
  X(source_reader_locate, 3, XT_NORMAL)      \
  X(json_read, 2, XT_DIRTY_IO)               \
  X(json_parse, 1, XT_DIRTY_CPU)             \
  X(directory_list, 3, XT_DIRTY_IO)          \
  X(incoming_begin, 1, XT_NORMAL)            \
  X(incoming_receive, 3, XT_DIRTY_IO)        \
  X(incoming_finish, 1, XT_NORMAL)

#define XT_TORCH_NIFS(X)                    \
  X(info, 0, XT_NORMAL)                     \
  X(manual_seed, 1, XT_NORMAL)              \
  X(dtype_supported, 1, XT_NORMAL)          \
  X(device_types, 0, XT_DIRTY_CPU)          \
  X(device_type, 1, XT_NORMAL)              \
  X(device_memory, 1, XT_DIRTY_CPU)         \
  X(device_synchronize, 1, XT_DIRTY_CPU)    \
  X(device_load_library, 1, XT_DIRTY_IO)    \
  X(op, 3, XT_NORMAL)                       \
  X(tensor, 3, XT_NORMAL)                   \
  X(tensor_to_list, 1, XT_NORMAL)           \
  X(tensor_from_binary, 3, XT_NORMAL)       \
  X(tensor_to_binary, 1, XT_NORMAL)         \
  X(tensor_strides, 1, XT_NORMAL)           \
  X(tensor_equal, 2, XT_DIRTY_CPU)          \
  X(tensor_summary, 1, XT_DIRTY_CPU)        \
  X(tensor_histogram, 4, XT_DIRTY_CPU)      \
  X(tensor_difference, 5, XT_DIRTY_CPU)     \
  X(tensor_requires_grad, 1, XT_NORMAL)     \
  X(tensor_set_requires_grad, 2, XT_NORMAL) \
  X(tensor_release, 1, XT_NORMAL)           \
  X(blob_to_blob, 1, XT_NORMAL)             \
  X(blob_from_blob, 4, XT_NORMAL)           \
  X(lease_keep, 2, XT_NORMAL)               \
  X(lease_hold, 2, XT_NORMAL)               \
  X(lease_release, 2, XT_NORMAL)            \
  X(lease_owner, 1, XT_NORMAL)              \
  X(memory_leases, 0, XT_DIRTY_CPU)         \
  X(checkpoint_match, 2, XT_DIRTY_CPU)      \
  X(checkpoint_tensor, 3, XT_NORMAL)        \
  X(batch_load_run, 5, XT_DIRTY_IO)         \
  X(batch_load_words, 1, XT_NORMAL)         \
  X(batch_load_begin, 4, XT_DIRTY_CPU)      \
  X(batch_load_step, 2, XT_DIRTY_IO)        \
  X(batch_load_fill, 2, XT_DIRTY_CPU)       \
  X(batch_load_ahead, 1, XT_DIRTY_CPU)      \
  X(batch_load_finish, 2, XT_DIRTY_IO)      \
  X(batch_load_close, 1, XT_NORMAL)         \
  X(device_load_begin, 5, XT_DIRTY_CPU)     \
  X(device_load_tensors, 2, XT_DIRTY_CPU)   \
  X(device_load_step, 2, XT_DIRTY_IO)       \
  X(device_load_fill, 2, XT_DIRTY_CPU)      \
  X(device_load_ahead, 1, XT_DIRTY_CPU)     \
  X(device_load_ready, 1, XT_DIRTY_CPU)     \
  X(device_load_finish, 1, XT_DIRTY_CPU)    \
  X(device_load_close, 1, XT_NORMAL)        \
  X(source_reader_decode, 4, XT_DIRTY_CPU)  \
  X(loader_new, 3, XT_NORMAL)               \
  X(loader_select, 2, XT_DIRTY_CPU)         \
  X(loader_stored, 2, XT_NORMAL)            \
  X(loader_feed, 3, XT_NORMAL)              \
  X(loader_finish, 2, XT_DIRTY_CPU)         \
  X(loader_release, 2, XT_NORMAL)           \
  X(loader_ended, 2, XT_DIRTY_CPU)          \
  X(saver_begin, 5, XT_DIRTY_CPU)           \
  X(saver_open, 3, XT_DIRTY_IO)             \
  X(saver_step, 2, XT_DIRTY_IO)             \
  X(saver_next, 2, XT_NORMAL)               \
  X(atomic_file_open, 1, XT_DIRTY_IO)       \
  X(atomic_file_open_index, 1, XT_DIRTY_IO) \
  X(atomic_file_claim, 1, XT_DIRTY_IO)      \
  X(atomic_file_write, 2, XT_DIRTY_IO)      \
  X(atomic_file_sync, 1, XT_DIRTY_IO)       \
  X(atomic_file_close, 2, XT_DIRTY_IO)      \
  X(atomic_file_discard, 1, XT_DIRTY_IO)    \
  X(directory_lock, 1, XT_DIRTY_IO)         \
  X(directory_unlock, 1, XT_DIRTY_IO)       \
  X(archive_start, 4, XT_DIRTY_CPU)         \
  X(archive_answer, 2, XT_NORMAL)           \
  X(archive_result, 1, XT_DIRTY_CPU)

#define XT_NIFS(X) XT_CORE_NIFS(X) XT_TORCH_NIFS(X)

#define XT_DECLARE_NIF(name, arity, scheduler) \
  ERL_NIF_TERM xt_nif_##name(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]);
XT_DECLARE_NIF(native_load, 3, XT_DIRTY_IO) /* loads LibTorch */
XT_DECLARE_NIF(native_defer, 0, XT_NORMAL)  /* LibTorch may be loaded later */
XT_NIFS(XT_DECLARE_NIF)
#undef XT_DECLARE_NIF

/* library.c opens each resource type as "extorch_<name>", with the callbacks that the owning file defines. */
#define XT_RESOURCES(X) \
  X(tensor)             \
  X(frozen_binary)      \
  X(checkpoint)         \
  X(batch_load)         \
  X(device_load)        \
  X(loader)             \
  X(saver)              \
  X(atomic_file)        \
  X(directory)          \
  X(archive)            \
  X(incoming)           \
  X(collection)         \
  X(collection_marker)

#define XT_DECLARE_RESOURCE(name)              \
  extern ErlNifResourceType *xt_##name##_type; \
  extern const ErlNifResourceTypeInit xt_##name##_callbacks;
XT_RESOURCES(XT_DECLARE_RESOURCE)
#undef XT_DECLARE_RESOURCE

#endif
