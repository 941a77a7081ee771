#include "core/formats/detect.h"

#include <ctype.h>
#include <string.h>

#include "core/base/cursor.h"
#include "core/formats/format.h"

static bool starts(const uint8_t *head, size_t size, const void *with, size_t length) {
  return size >= length && !memcmp(head, with, length);
}

static bool looks_like_html(const uint8_t *head, size_t size) {
  size_t i = 0;
  while (i < size && isspace(head[i])) i++;
  return i < size && head[i] == '<';
}

/* The magic number as a pickle of its own, of any protocol from 2 on: with a FRAME from 4 on. */
static bool is_legacy(const uint8_t *head, size_t size) {
  static const uint8_t magic[] = {0x8a, 0x0a, 0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19, '.'};
  if (size < 2 || head[0] != 0x80) return false;
  size_t skip = size > 11 && head[2] == 0x95 ? 11 : 2;
  return starts(head + skip, size - skip, magic, sizeof magic);
}

/* A pickle whose first class is the streaming format's own. */
static bool is_stream(const uint8_t *head, size_t size) {
  static const char module[] = "torch.distributed._serialization";
  const uint8_t *found = size && head[0] == 0x80 ? memmem(head, size < 64 ? size : 64, module, 16) : NULL;
  size_t left = found ? size - (size_t)(found - head) : 0;
  return found && left > sizeof module + 6 && !memcmp(found, module, sizeof module - 1) &&
         memmem(found + sizeof module - 1, left - sizeof module + 1 < 16 ? left - sizeof module + 1 : 16, "_Entry", 6);
}

/* A header whose length is the file's, or one too long that can be nothing else. */
static bool is_safetensors(const uint8_t *head, size_t size) {
  return size > 8 && head[8] == '{' && xt_le(head, 8) >> 40 == 0;
}

/* Protocols 0 and 1 have no mark: a pickle begins with a container, a class or a mark. */
static bool may_be_old_pickle(const uint8_t *head, size_t size) {
  return size > 2 && strchr("(]}c", head[0]) && head[0];
}

xt_status xt_detect(const uint8_t *head, size_t size, const xt_format **format, xt_error *error) {
  *format = NULL;
  if (size == 0) return xt_error_set(error, XT_STATUS_truncated, "the file is empty");
  if (starts(head, size, "PK\3\4", 4)) *format = &xt_zip_format;
  else if (starts(head, size, "\x1f\x8b", 2)) *format = &xt_gzip_format;
  else if (is_legacy(head, size)) *format = &xt_legacy_format;
  else if (size >= 512 && !memcmp(head + 257, "ustar", 5)) *format = &xt_tar_format;
  else if (is_stream(head, size)) *format = &xt_torch_stream_format;
  else if (starts(head, size, "PK\5\6", 4))
    return xt_error_set(error, XT_STATUS_corrupt, "the file is a zip with nothing in it");
  else if (starts(head, size, "version https://git-lfs", 23))
    return xt_error_set(error, XT_STATUS_corrupt,
                        "this is a git-lfs pointer, not the file: run `git lfs pull` where it came from");
  else if (looks_like_html(head, size))
    return xt_error_set(error, XT_STATUS_corrupt,
                        "this is an HTML page, not a checkpoint: the download gave an error page or a login form");
  else if (is_safetensors(head, size)) *format = &xt_safetensors_format;
  else if (size > 1 && head[0] == 0x80 && head[1] <= 5) *format = &xt_plain_pickle_format;
  else if (may_be_old_pickle(head, size)) *format = &xt_plain_pickle_format;
  if (*format) return XT_STATUS_ok;
  return xt_error_set(error, XT_STATUS_corrupt,
                      "this is no checkpoint that ExTorch knows: it begins with %02x %02x %02x %02x", head[0],
                      size > 1 ? head[1] : 0, size > 2 ? head[2] : 0, size > 3 ? head[3] : 0);
}
