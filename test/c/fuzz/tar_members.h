/* Members of a correct tar checkpoint: storages with the keys 1 and 2, a view 3 of the first, and tensors with the keys
 * 10, 11 and 12 (see formats/tar.h). */
#ifndef XT_FUZZ_TAR_MEMBERS_H
#define XT_FUZZ_TAR_MEMBERS_H

#include "containers.h"

static void put_tar_storage(xt_buffer *out, char key, const char *class, uint64_t numel, size_t item) {
  uint8_t content[256];
  xt_buffer_put(out, "\x80\2K", 3);
  xt_buffer_byte(out, (uint8_t)(key - '0'));
  xt_buffer_put(out, "X\3\0\0\0cpuc", 9);
  xt_buffer_text(out, class);
  xt_buffer_put(out, "\x87.", 2);
  xt_buffer_le(out, numel, 8);
  fill_content(&key, 1, content, numel * item);
  xt_buffer_put(out, content, numel * item);
}

static void put_tar_storages(xt_buffer *out) {
  xt_buffer_put(out, "\x80\2K\2.", 5);
  put_tar_storage(out, '1', "torch\nFloatStorage\n", 10, 4);
  put_tar_storage(out, '2', "torch\nLongStorage\n", 4, 8);
  xt_buffer_put(out, "\x80\2](K\3K\1K\4K\5ta.", 15);
}

static void put_tar_tensor(xt_buffer *out, uint8_t key, uint8_t storage, const char *class, int ndim,
                           const int64_t *sizes, const int64_t *strides, int64_t offset) {
  xt_buffer_put(out, "\x80\2K", 3);
  xt_buffer_byte(out, key);
  xt_buffer_byte(out, 'K');
  xt_buffer_byte(out, storage);
  xt_buffer_byte(out, 'c');
  xt_buffer_text(out, class);
  xt_buffer_put(out, "\x87.", 2);
  xt_buffer_le(out, (uint64_t)ndim, 8);
  for (int d = 0; d < ndim; d++) xt_buffer_le(out, (uint64_t)sizes[d], 8);
  for (int d = 0; d < ndim; d++) xt_buffer_le(out, (uint64_t)strides[d], 8);
  xt_buffer_le(out, (uint64_t)offset, 8);
}

static void put_tar_tensors(xt_buffer *out) {
  xt_buffer_put(out, "\x80\2K\3.", 5);
  put_tar_tensor(out, 10, 1, "torch\nFloatTensor\n", 2, (const int64_t[]){2, 5}, (const int64_t[]){5, 1}, 0);
  put_tar_tensor(out, 11, 2, "torch\nLongTensor\n", 1, (const int64_t[]){3}, (const int64_t[]){1}, 1);
  put_tar_tensor(out, 12, 3, "torch\nFloatTensor\n", 2, (const int64_t[]){2, 2}, (const int64_t[]){1, 2}, 1);
}

/* [tensor 10, tensor 11, tensor 12] */
#define TAR_PICKLE "\x80\2](X\2\0\0\00010QX\2\0\0\00011QX\2\0\0\00012Qe."

#endif
