/* Fuzz target (`make fuzz`): a mutated pickle inside a correct checkpoint of each format, which contains the storages
 * that the pickle refers to. The first bytes of the input choose the format and the options; the rest is the pickle. */
#include "containers.h"
#include "mutate_pickle.h"
#include "pushing.h"
#include "tar_members.h"

enum { ZIP, ZIP_DEFLATED, TORCHSCRIPT, LEGACY, STREAM, TAR, PLAIN, FORMATS };
enum {
  STRICT = 1,
  VERIFY = 2,
  GZIP = 4,
  BIG_ENDIAN_FILE = 8,
  SIZES_BEFORE = 16,
  PLAIN_END = 32,
  SOME = 64,
  STRAY = 128
};

static zip_record text_record(const char *name, const char *text) {
  return (zip_record){name, strlen(name), (const uint8_t *)text, strlen(text), false, false};
}

static void make_zip(const uint8_t *pickle, size_t size, int format, uint8_t options, storages *s, xt_buffer *out) {
  zip_record records[MAX_STORAGES + 5];
  char names[MAX_STORAGES][64];
  size_t count = 0;
  zip_writer z = {.zip64 = !(options & PLAIN_END)};
  bool described = !(options & SIZES_BEFORE), deflated = format == ZIP_DEFLATED;
  records[count++] = (zip_record){"archive/data.pkl", 16, pickle, size, deflated, described && !deflated};
  records[count++] = text_record("archive/version", "3\n");
  if (options & BIG_ENDIAN_FILE) records[count++] = text_record("archive/byteorder", "big");
  if (format == TORCHSCRIPT)
    records[count++] = (zip_record){"archive/constants.pkl", 21, (const uint8_t *)"\x80\2).", 4, false, described};
  for (size_t i = 0; i < s->count; i++) {
    snprintf(names[i], sizeof names[i], "archive/data/%s", s->payloads[i].key);
    /* A record may have fewer than an element's bytes more than its storage. */
    size_t stray = options & STRAY && xt_dtype_get(s->payloads[i].dtype)->size > 1;
    records[count++] = (zip_record){names[i], strlen(names[i]),      s->payloads[i].data, s->payloads[i].bytes + stray,
                                    deflated, described && !deflated};
  }
  zip_write(&z, records, count);
  *out = z.out;
}

static void make_tar(const uint8_t *pickle, size_t size, xt_buffer *out) {
  uint8_t header[512];
  xt_buffer parts = {0};
  put_tar_storages(&parts);
  make_tar_header(header, "storages", parts.size);
  put_tar_member(out, header, parts.data, parts.size);
  parts.size = 0;
  put_tar_tensors(&parts);
  make_tar_header(header, "tensors", parts.size);
  put_tar_member(out, header, parts.data, parts.size);
  make_tar_header(header, "pickle", size);
  put_tar_member(out, header, pickle, size);
  xt_buffer_fill(out, 0, 1024);
  xt_buffer_free(&parts);
}

static void make_file(const uint8_t *pickle, size_t size, int format, uint8_t options, xt_buffer *out) {
  storages s = {.count = 0};
  if (format != TAR && format != PLAIN)
    find_storages(&s, pickle, size, format == LEGACY ? XT_IDS_LEGACY : XT_IDS_RECORDS);
  switch (format) {
  case LEGACY: save_as(&xt_legacy_write, pickle, size, &s, out); break;
  case STREAM: save_as(&xt_torch_stream_write, pickle, size, &s, out); break;
  case TAR: make_tar(pickle, size, out); break;
  case PLAIN: xt_buffer_put(out, pickle, size); break;
  default: make_zip(pickle, size, format, options, &s, out);
  }
  free_storages(&s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  xt_buffer file = {0};
  size_t file_size;
  if (size < PICKLE_AT) return 0;
  int format = data[0] % FORMATS;
  uint8_t options = data[1];
  push_options push = {options & STRICT, options & VERIFY, options & SOME, data[2]};
  make_file(data + PICKLE_AT, size - PICKLE_AT, format, options, &file);
  if (options & GZIP) gzip(&file);
  uint8_t *bytes = exact_copy(&file, &file_size);
  read_bytes(bytes, file_size, push.strict, push.verify, format == PLAIN ? NULL : has_content);
  if (!(options & GZIP) && format != TAR) push_bytes(bytes, file_size, &push);
  free(bytes);
  return 0;
}
