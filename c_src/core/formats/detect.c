#include "core/formats/detect.h"

#include <string.h>

#include "core/base/cursor.h"
#include "core/formats/gzip.h"
#include "core/formats/legacy.h"
#include "core/formats/plain_pickle.h"
#include "core/formats/safetensors.h"
#include "core/formats/tar.h"
#include "core/formats/torch_stream.h"
#include "core/formats/zip.h"

static bool starts_with(const uint8_t *head, size_t size, const void *prefix, size_t length) {
  return size >= length && !memcmp(head, prefix, length);
}

static bool is_space(uint8_t byte) { return byte == ' ' || (byte >= '\t' && byte <= '\r'); }

static bool is_html(const uint8_t *head, size_t size) {
  size_t i = 0;
  while (i < size && is_space(head[i])) i++;
  return i < size && head[i] == '<';
}

/* A legacy file starts with a pickle of the magic number. From protocol 4 on the pickle has a FRAME opcode. */
static bool is_legacy(const uint8_t *head, size_t size) {
  if (size < 2 || head[0] != 0x80) return false;
  size_t skip = size > 11 && head[2] == 0x95 ? 11 : 2;
  return starts_with(head + skip, size - skip, XT_LEGACY_MAGIC, sizeof XT_LEGACY_MAGIC - 1);
}

/* The first class named by the pickle is torch.distributed._serialization._Entry. */
static bool is_torch_stream(const uint8_t *head, size_t size) {
  static const char module[] = "torch.distributed._serialization";
  const uint8_t *found = size && head[0] == 0x80 ? memmem(head, size < 64 ? size : 64, module, 16) : NULL;
  size_t rest = found ? size - (size_t)(found - head) : 0;
  return found && rest > sizeof module + 6 && !memcmp(found, module, sizeof module - 1) &&
         memmem(found + sizeof module - 1, rest - sizeof module + 1 < 16 ? rest - sizeof module + 1 : 16, "_Entry", 6);
}

/* A header length followed by '{'. Lengths above the format's limit are accepted here, up to 1 TiB, so that they are
 * reported as safetensors errors. */
static bool is_safetensors(const uint8_t *head, size_t size) {
  return size > 8 && head[8] == '{' && xt_le(head, 8) >> 40 == 0;
}

/* Pickles of protocol 0 and 1 have no PROTO opcode. The first opcode is a mark, a list, a dict or a class. */
static bool may_be_old_pickle(const uint8_t *head, size_t size) {
  return size > 2 && strchr("(]}c", head[0]) && head[0];
}

xt_status xt_detect(const uint8_t *head, size_t size, const xt_format **format, xt_error *error) {
  *format = NULL;
  if (size == 0) return xt_error_set(error, XT_STATUS_truncated, "the file is empty");
  if (starts_with(head, size, "PK\3\4", 4)) *format = &xt_zip_format;
  else if (starts_with(head, size, "\x1f\x8b", 2)) *format = &xt_gzip_format;
  else if (is_legacy(head, size)) *format = &xt_legacy_format;
  else if (size >= 512 && !memcmp(head + 257, "ustar", 5)) *format = &xt_tar_format;
  else if (is_torch_stream(head, size)) *format = &xt_torch_stream_format;
  else if (starts_with(head, size, "PK\5\6", 4))
    return xt_error_set(error, XT_STATUS_corrupt, "the file is a zip file without records, not a checkpoint");
  else if (starts_with(head, size, "version https://git-lfs", 23))
    return xt_error_set(error, XT_STATUS_corrupt,
                        "the file is a Git LFS pointer, not the checkpoint; run `git lfs pull` in its repository");
  else if (is_html(head, size))
    return xt_error_set(error, XT_STATUS_corrupt,
                        "the file is an HTML page, not a checkpoint; the download returned an error or login page");
  else if (is_safetensors(head, size)) *format = &xt_safetensors_format;
  else if (size > 1 && head[0] == 0x80 && head[1] <= 5) *format = &xt_plain_pickle_format;
  else if (may_be_old_pickle(head, size)) *format = &xt_plain_pickle_format;
  if (*format) return XT_STATUS_ok;
  return xt_error_set(error, XT_STATUS_corrupt,
                      "unknown file format: expected a zip, legacy, tar, streaming, safetensors, pickle or gzip "
                      "checkpoint, got a file that starts with %02x %02x %02x %02x",
                      head[0], size > 1 ? head[1] : 0, size > 2 ? head[2] : 0, size > 3 ? head[3] : 0);
}
