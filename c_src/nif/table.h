/* The NIFs, once: name, arity, scheduler. nif.c makes the table of it, every nif_*.c its prototypes, and
 * lib/extorch/native.ex has a stub for each (a test calls them all).
 *
 * BRIEF runs on a normal scheduler: it takes microseconds whatever it is given, or moves itself to a dirty one.
 */
#ifndef XT_NIF_TABLE_H
#define XT_NIF_TABLE_H

#include <erl_nif.h>

#define XT_BRIEF 0
#define XT_DIRTY_CPU ERL_NIF_DIRTY_JOB_CPU_BOUND
#define XT_DIRTY_IO ERL_NIF_DIRTY_JOB_IO_BOUND

#define XT_NIFS(X)                           \
  X(torch_open, 2, XT_DIRTY_IO)              \
  X(torch_info, 0, XT_BRIEF)                 \
  X(torch_seed, 1, XT_BRIEF)                 \
  X(torch_empty_call, 0, XT_BRIEF)           \
  X(dtype_supported, 1, XT_BRIEF)            \
  X(device_count, 1, XT_DIRTY_CPU)           \
  X(device_memory, 1, XT_DIRTY_CPU)          \
  X(memory_live, 0, XT_BRIEF)                \
  X(memory_budget, 0, XT_BRIEF)              \
  X(memory_set_budget, 1, XT_BRIEF)          \
  X(collect_mark, 0, XT_BRIEF)               \
  X(collect_wait, 3, XT_DIRTY_IO)            \
  X(op, 3, XT_BRIEF)                         \
  X(tensor_from_list, 3, XT_BRIEF)           \
  X(tensor_to_list, 1, XT_BRIEF)             \
  X(tensor_from_binary, 3, XT_BRIEF)         \
  X(tensor_to_binary, 1, XT_BRIEF)           \
  X(tensor_strides, 1, XT_BRIEF)             \
  X(tensor_equal, 2, XT_DIRTY_CPU)           \
  X(tensor_requires_grad, 1, XT_BRIEF)       \
  X(tensor_with_requires_grad, 2, XT_BRIEF)  \
  X(tensor_release, 1, XT_BRIEF)             \
  X(blob_to, 1, XT_BRIEF)                    \
  X(blob_from, 3, XT_BRIEF)                  \
  X(lease_keep, 1, XT_BRIEF)                 \
  X(lease_end, 1, XT_BRIEF)                  \
  X(checkpoint_open, 2, XT_DIRTY_IO)         \
  X(checkpoint_open_binary, 2, XT_DIRTY_CPU) \
  X(checkpoint_begin, 2, XT_BRIEF)           \
  X(checkpoint_give, 2, XT_DIRTY_CPU)        \
  X(checkpoint_close, 1, XT_BRIEF)           \
  X(checkpoint_keys, 1, XT_DIRTY_CPU)        \
  X(checkpoint_entries, 1, XT_DIRTY_CPU)     \
  X(checkpoint_find, 2, XT_DIRTY_CPU)        \
  X(checkpoint_about, 1, XT_DIRTY_CPU)       \
  X(checkpoint_object, 4, XT_DIRTY_CPU)      \
  X(checkpoint_tensor, 3, XT_DIRTY_IO)       \
  X(checkpoint_load_begin, 3, XT_DIRTY_CPU)  \
  X(checkpoint_load_step, 2, XT_DIRTY_IO)    \
  X(checkpoint_read, 5, XT_DIRTY_IO)         \
  X(checkpoint_where, 3, XT_BRIEF)           \
  X(checkpoint_place, 3, XT_BRIEF)           \
  X(checkpoint_made_of, 5, XT_DIRTY_CPU)     \
  X(stream_begin, 2, XT_BRIEF)               \
  X(stream_claim, 2, XT_BRIEF)               \
  X(stream_release, 2, XT_BRIEF)             \
  X(stream_select, 2, XT_DIRTY_CPU)          \
  X(stream_feed, 2, XT_BRIEF)                \
  X(stream_end, 1, XT_DIRTY_CPU)             \
  X(json_decode, 1, XT_DIRTY_CPU)            \
  X(save_begin, 5, XT_DIRTY_CPU)             \
  X(save_open, 3, XT_DIRTY_IO)               \
  X(save_step, 2, XT_DIRTY_IO)               \
  X(save_next, 2, XT_BRIEF)                  \
  X(outfile_open, 1, XT_DIRTY_IO)            \
  X(outfile_write, 2, XT_DIRTY_IO)           \
  X(outfile_close, 2, XT_DIRTY_IO)           \
  X(archive_start, 4, XT_DIRTY_CPU)          \
  X(archive_answer, 2, XT_BRIEF)             \
  X(archive_result, 1, XT_DIRTY_CPU)

#define XT_DECLARE_NIF(name, arity, scheduler) \
  ERL_NIF_TERM xt_nif_##name(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]);
XT_NIFS(XT_DECLARE_NIF)
#undef XT_DECLARE_NIF

#endif
