#include "core/formats/other_file.h"

#include <string.h>

#include "core/base/printable.h"
#include "core/base/utf8.h"

static bool starts_with(const uint8_t *head, size_t size, const char *prefix, size_t length) {
  return size >= length && !memcmp(head, prefix, length);
}

static bool is_space(uint8_t byte) { return byte == ' ' || (byte >= '\t' && byte <= '\r'); }

static size_t skip_space(const uint8_t *head, size_t size, size_t at) {
  while (at < size && is_space(head[at])) at++;
  return at;
}

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

bool xt_other_file_is_text(const uint8_t *head, size_t size) {
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

size_t xt_other_file_http_line(const uint8_t *head, size_t size) {
  const uint8_t *end = memchr(head, '\r', size);
  size_t line = end ? (size_t)(end - head) : 0;
  return starts_with(head, line, "HTTP/1.", 7) || memmem(head, line, " HTTP/1.", 8) ? line : 0;
}

static xt_status report_http(const uint8_t *head, size_t line, xt_error *error) {
  return xt_error_set(error, XT_STATUS_corrupt,
                      "the peer speaks HTTP: \"%s\"; load a URL with ExTorch.load/2, and a request with "
                      "ExTorch.Streaming.Body",
                      xt_printable_text((const char *)head, line).text);
}

/* Reports a download that returned a message instead of the file. */
static xt_status report_text(const uint8_t *head, size_t size, xt_error *error) {
  size_t at = starts_with(head, size, "\xef\xbb\xbf", 3) ? 3 : 0; /* byte order mark */
  at = skip_space(head, size, at);
  const char *start = (const char *)head + at;
  size_t left = size - at;
  while (left && is_space((uint8_t)start[left - 1])) left--;
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

/* A FlatBuffer begins with the offset of its root and the identifier of its schema. */
static const char flatbuffer[] = "\0\0PTMF"; /* from the third byte on */
enum { FLATBUFFER_HEAD = 8 };

bool xt_other_file_may_begin_flatbuffer(const uint8_t *head, size_t size) {
  return size < FLATBUFFER_HEAD && (size <= 2 || !memcmp(head + 2, flatbuffer, size - 2));
}

xt_status xt_other_file_report_flatbuffer(const uint8_t *head, size_t size, xt_error *error) {
  if (size < FLATBUFFER_HEAD || memcmp(head + 2, flatbuffer, FLATBUFFER_HEAD - 2)) return XT_STATUS_ok;
  return xt_error_set(
      error, XT_STATUS_unsupported,
      "the file is a TorchScript module for mobile as a FlatBuffer (PTMF), which is not supported; save "
      "it with module._save_for_lite_interpreter(path, _use_flatbuffer=False), which writes a zip "
      "file, or save its state_dict() with torch.save");
}

xt_status xt_other_file_report(const uint8_t *head, size_t size, xt_error *error) {
  if (is_multipart(head, size)) return report_multipart(error);
  size_t http = xt_other_file_http_line(head, size);
  if (http) return report_http(head, http, error);
  if (is_html(head, size)) return report_html(head, size, error);
  return xt_other_file_is_text(head, size) ? report_text(head, size, error) : XT_STATUS_ok;
}
