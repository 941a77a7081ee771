#include "core/formats/detect.h"

#include <string.h>

#include "core/formats/gzip.h"
#include "core/formats/legacy.h"
#include "core/formats/npy.h"
#include "core/formats/other_file.h"
#include "core/formats/plain_pickle.h"
#include "core/formats/safetensors.h"
#include "core/formats/tar.h"
#include "core/formats/torch_stream.h"
#include "core/formats/zip.h"

static const xt_format *const formats[] = {
    &xt_safetensors_format, &xt_zip_format, &xt_gzip_format,         &xt_legacy_format,
    &xt_npy_format,         &xt_tar_format, &xt_torch_stream_format, &xt_plain_pickle_format,
};
enum { FORMAT_COUNT = sizeof formats / sizeof *formats };

const xt_format *xt_detect_guess(const uint8_t *head, size_t size) {
  for (size_t i = 0; i < FORMAT_COUNT; i++)
    if (formats[i]->resembles && formats[i]->resembles(head, size)) return formats[i];
  return NULL;
}

xt_status xt_detect(const uint8_t *head, size_t size, const xt_format **format, xt_error *error) {
  *format = NULL;
  if (size == 0) return xt_error_set(error, XT_STATUS_truncated, "the file is empty");
  if (size >= 4 && !memcmp(head, "PK\5\6", 4))
    return xt_error_set(error, XT_STATUS_corrupt, "the file is a zip file without records, not a checkpoint");
  xt_status status = xt_other_file_report_flatbuffer(head, size, error);
  if (status != XT_STATUS_ok) return status;
  for (size_t i = 0; i < FORMAT_COUNT; i++)
    if (formats[i]->matches(head, size) != XT_MATCH_NO) return *format = formats[i], XT_STATUS_ok;
  status = xt_other_file_report(head, size, error);
  if (status != XT_STATUS_ok) return status;
  *format = xt_detect_guess(head, size);
  if (*format) return XT_STATUS_ok;
  return xt_error_set(error, XT_STATUS_corrupt,
                      "unknown file format: expected a zip, legacy, tar, streaming, safetensors, pickle, npy or "
                      "gzip file, got a file that starts with %02x %02x %02x %02x",
                      head[0], size > 1 ? head[1] : 0, size > 2 ? head[2] : 0, size > 3 ? head[3] : 0);
}

/* Safetensors has the longest signature. It begins with a length below 1 TiB, so that bytes 5 to 7 are zero. */
bool xt_detect_no_signature(const uint8_t *head, size_t size) {
  enum { OTHERS = 6, LENGTH = 8 };
  bool length = true;
  if (size < OTHERS) return false;
  for (size_t i = 0; i < FORMAT_COUNT; i++)
    if (formats[i]->signature && formats[i]->signature <= size && formats[i]->matches(head, size) != XT_MATCH_NO)
      return false;
  for (size_t i = OTHERS - 1; i < size && i < LENGTH; i++) length = length && !head[i];
  return size >= xt_safetensors_format.signature || !length;
}

const xt_format *xt_detect_signature(const uint8_t *head, size_t size, size_t *needed) {
  *needed = 0;
  for (size_t i = 0; i < FORMAT_COUNT; i++) {
    size_t signature = formats[i]->signature;
    if (!signature) continue;
    xt_match match = size < signature ? XT_MATCH_MORE : formats[i]->matches(head, size);
    if (match == XT_MATCH_MORE && size < XT_DETECT_SIZE) return *needed = size < signature ? signature : size + 1, NULL;
    if (match != XT_MATCH_NO) return formats[i];
  }
  return NULL;
}
