#include "sniff.h"

#include <ctype.h>
#include <string.h>

static bool starts(const uint8_t *head, size_t size, const void *with, size_t length) {
  return size >= length && !memcmp(head, with, length);
}

static bool looks_like_html(const uint8_t *head, size_t size) {
  size_t i = 0;
  while (i < size && isspace(head[i])) i++;
  return i < size && head[i] == '<';
}

xt_status xt_sniff(const uint8_t *head, size_t size, xt_error *error) {
  static const uint8_t legacy[] = {0x80, 0x02, 0x8a, 0x0a, 0x6c, 0xfc, 0x9c, 0x46,
                                   0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19, '.'};
  if (size == 0) return xt_error_set(error, XT_STATUS_truncated, "the file is empty");
  if (starts(head, size, "PK\3\4", 4)) return XT_STATUS_ok;
  if (starts(head, size, "PK\5\6", 4))
    return xt_error_set(error, XT_STATUS_corrupt, "the file is a zip with nothing in it");
  if (starts(head, size, legacy, sizeof legacy))
    return xt_error_set(error, XT_STATUS_unsupported,
                        "this is a checkpoint of torch before 1.6 (the legacy format), which is not read yet; "
                        "load it in Python and torch.save it again");
  if (starts(head, size, "\x1f\x8b", 2))
    return xt_error_set(error, XT_STATUS_unsupported, "this is a gzip: unpack it first (gunzip)");
  if (starts(head, size, "version https://git-lfs", 23))
    return xt_error_set(error, XT_STATUS_corrupt,
                        "this is a git-lfs pointer, not the file: run `git lfs pull` where it came from");
  if (looks_like_html(head, size))
    return xt_error_set(error, XT_STATUS_corrupt,
                        "this is an HTML page, not a checkpoint: the download gave an error page or a login form");
  if (size > 9 && head[8] == '{')
    return xt_error_set(error, XT_STATUS_unsupported, "this looks like safetensors, which is not read yet");
  if (head[0] == 0x80)
    return xt_error_set(error, XT_STATUS_unsupported,
                        "this is a plain pickle, which is not read yet; torch.save it again");
  return xt_error_set(error, XT_STATUS_corrupt,
                      "this is no checkpoint that ExTorch knows: it begins with %02x %02x %02x %02x", head[0],
                      size > 1 ? head[1] : 0, size > 2 ? head[2] : 0, size > 3 ? head[3] : 0);
}
