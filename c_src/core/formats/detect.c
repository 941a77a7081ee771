#include "core/formats/detect.h"

#include <string.h>

#include "core/base/cursor.h"
#include "core/base/printable.h"
#include "core/base/utf8.h"
#include "core/formats/gzip.h"
#include "core/formats/legacy.h"
#include "core/formats/plain_pickle.h"
#include "core/formats/safetensors.h"
#include "core/formats/tar.h"
#include "core/formats/torch_stream.h"
#include "core/formats/zip.h"
#include "core/pickle/scan.h"

static bool starts_with(const uint8_t *head, size_t size, const void *prefix, size_t length) {
  return size >= length && !memcmp(head, prefix, length);
}

static bool is_space(uint8_t byte) { return byte == ' ' || (byte >= '\t' && byte <= '\r'); }

static size_t skip_space(const uint8_t *head, size_t size, size_t at) {
  while (at < size && is_space(head[at])) at++;
  return at;
}

/* A legacy file starts with a pickle of the magic number. From protocol 4 on the pickle has a FRAME opcode.
 * Protocols 0 and 1 write the number in decimal. */
static bool is_legacy(const uint8_t *head, size_t size) {
  if (starts_with(head, size, XT_LEGACY_TEXT_MAGIC, sizeof XT_LEGACY_TEXT_MAGIC - 1)) return true;
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

/* ---- safetensors ---- */

/* No other format has such bytes: the length makes bytes 4 to 7 zero, and then comes JSON. */
xt_detection xt_detect_safetensors(const uint8_t *head, size_t size) {
  if (size < 8) return XT_DETECT_MORE;
  if (xt_le(head, 8) > XT_SAFETENSORS_MAX_HEADER || xt_le(head, 8) < 2) return XT_DETECT_NO;
  size_t at = skip_space(head, size, 8);
  if (at == size) return XT_DETECT_MORE;
  if (head[at] != '{') return XT_DETECT_NO;
  at = skip_space(head, size, at + 1);
  if (at == size) return XT_DETECT_MORE;
  return head[at] == '"' || head[at] == '}' ? XT_DETECT_YES : XT_DETECT_NO;
}

/* A length above the format's limit, up to 1 TiB, or JSON that is invalid from the start. They are reported as
 * safetensors errors, if nothing else fits. */
static bool may_be_safetensors(const uint8_t *head, size_t size) {
  return size > 8 && head[8] == '{' && xt_le(head, 8) >> 40 == 0;
}

/* ---- Text ---- */

static bool has_controls(const uint8_t *head, size_t size) {
  for (size_t i = 0; i < size; i++)
    if ((head[i] < 0x20 && !is_space(head[i])) || head[i] == 0x7F) return true;
  return false;
}

/* In any encoding. */
static bool is_html(const uint8_t *head, size_t size) {
  size_t at = skip_space(head, size, 0);
  return at < size && head[at] == '<' && !has_controls(head, size);
}

/* Also true for text whose last character is cut off. */
static bool is_text(const uint8_t *head, size_t size) {
  if (has_controls(head, size)) return false;
  for (size_t cut = 0; cut < 4 && cut < size; cut++)
    if (xt_utf8_check(head, size - cut) == XT_UTF8_VALID) return size >= 4;
  return false;
}

static bool is_tag(const uint8_t *at, const char *tag) {
  for (; *tag; at++, tag++)
    if ((*at >= 'A' && *at <= 'Z' ? *at + 32 : *at) != *tag) return false;
  return true;
}

/* Finds the title of an HTML page. Returns false if there is none in the first bytes. */
static bool find_title(const uint8_t *head, size_t size, xt_printable *out) {
  for (size_t i = 0; i + 7 < size; i++) {
    if (!is_tag(head + i, "<title>")) continue;
    size_t from = skip_space(head, size, i + 7);
    const uint8_t *end = memchr(head + from, '<', size - from);
    *out = xt_printable_text((const char *)head + from, end ? (size_t)(end - head) - from : size - from);
    return true;
  }
  return false;
}

static xt_status report_html(const uint8_t *head, size_t size, xt_error *error) {
  xt_printable title;
  bool titled = find_title(head, size, &title);
  return xt_error_set(error, XT_STATUS_corrupt,
                      "the file is an HTML page, not a checkpoint%s%s%s; the download returned an error or login page",
                      titled ? ": \"" : "", titled ? title.text : "", titled ? "\"" : "");
}

/* Reports a download that returned a message instead of the file. */
static xt_status report_text(const uint8_t *head, size_t size, xt_error *error) {
  size_t at = starts_with(head, size, "\xef\xbb\xbf", 3) ? 3 : 0; /* byte order mark */
  at = skip_space(head, size, at);
  const char *start = (const char *)head + at;
  size_t left = size - at;
  if (starts_with(head + at, left, "version https://git-lfs", 23))
    return xt_error_set(error, XT_STATUS_corrupt,
                        "the file is a Git LFS pointer, not the checkpoint; run `git lfs pull` in its repository");
  if (left && *start == '<') return report_html(head, size, error);
  bool json = left && (*start == '{' || *start == '[');
  return xt_error_set(error, XT_STATUS_corrupt,
                      "the file is %s, not a checkpoint: \"%s\"; the download may have returned an error message",
                      json ? "JSON" : "text", xt_printable_text(start, left).text);
}

static bool is_multipart(const uint8_t *head, size_t size) {
  return starts_with(head, size, "--", 2) && memmem(head, size, "Content-Disposition:", 20);
}

static xt_status report_multipart(xt_error *error) {
  return xt_error_set(error, XT_STATUS_corrupt,
                      "the data is a multipart body, which contains the checkpoint as one of its parts; let "
                      "Plug.Parsers read the body and load the path of the %%Plug.Upload{}");
}

/* ---- Pickles without PROTO ---- */

bool xt_detect_may_be_pickle(uint8_t first) { return first == 0x80 || (first && strchr("(]}cL", first)); }

static bool is_name(uint8_t c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.';
}

/* Returns whether the line at this position is the name of a module. */
static bool is_module(const uint8_t *head, size_t size, size_t at) {
  size_t end = at;
  while (end < size && is_name(head[end])) end++;
  return end > at && (end == size || head[end] == '\n' || head[end] == '\r');
}

/* Pickles of protocol 0 and 1 have no PROTO opcode, and those of protocol 0 are text. The first opcode is a mark, a
 * list, a dict or a class; or the whole pickle is here. What comes next distinguishes them from other text. */
static bool is_old_pickle(const uint8_t *head, size_t size) {
  enum { MIN_PICKLE = 3, TEXT_LENGTH = 0x09090909 /* a length that consists of text */ };
  xt_pickle_scan_state scan = {0};
  if (size < MIN_PICKLE || head[0] == 0x80) return false;
  size_t global = head[0] == '(' ? 1 : 0;
  if ((head[global] == 'c' || (global && head[global] == 'i')) && !is_module(head, size, global + 1)) return false;
  switch (xt_pickle_scan(head, size, &scan)) {
  case XT_SCAN_INVALID: return false;
  case XT_SCAN_END: return scan.at >= MIN_PICKLE;
  default: return xt_detect_may_be_pickle(head[0]) && !(scan.wanted >= TEXT_LENGTH && is_text(head, size));
  }
}

xt_status xt_detect(const uint8_t *head, size_t size, const xt_format **format, xt_error *error) {
  *format = NULL;
  if (size == 0) return xt_error_set(error, XT_STATUS_truncated, "the file is empty");
  xt_detection safetensors = xt_detect_safetensors(head, size);
  if (safetensors == XT_DETECT_YES || (safetensors == XT_DETECT_MORE && size > 8)) *format = &xt_safetensors_format;
  else if (starts_with(head, size, "PK\3\4", 4)) *format = &xt_zip_format;
  else if (starts_with(head, size, "\x1f\x8b", 2)) *format = &xt_gzip_format;
  else if (is_legacy(head, size)) *format = &xt_legacy_format;
  else if (size >= 512 && !memcmp(head + 257, "ustar", 5)) *format = &xt_tar_format;
  else if (is_torch_stream(head, size)) *format = &xt_torch_stream_format;
  else if (starts_with(head, size, "PK\5\6", 4))
    return xt_error_set(error, XT_STATUS_corrupt, "the file is a zip file without records, not a checkpoint");
  else if (size > 1 && head[0] == 0x80 && head[1] <= 5) *format = &xt_plain_pickle_format;
  else if (is_old_pickle(head, size)) *format = &xt_plain_pickle_format;
  else if (is_multipart(head, size)) return report_multipart(error);
  else if (is_html(head, size)) return report_html(head, size, error);
  else if (is_text(head, size)) return report_text(head, size, error);
  else if (may_be_safetensors(head, size)) *format = &xt_safetensors_format;
  if (*format) return XT_STATUS_ok;
  return xt_error_set(error, XT_STATUS_corrupt,
                      "unknown file format: expected a zip, legacy, tar, streaming, safetensors, pickle or gzip "
                      "checkpoint, got a file that starts with %02x %02x %02x %02x",
                      head[0], size > 1 ? head[1] : 0, size > 2 ? head[2] : 0, size > 3 ? head[3] : 0);
}
