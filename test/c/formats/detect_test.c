#include "core/formats/detect.h"

#include <string.h>

#include "check.h"
#include "core/formats/gzip.h"
#include "core/formats/legacy.h"
#include "core/formats/plain_pickle.h"
#include "core/formats/safetensors.h"
#include "core/formats/tar.h"
#include "core/formats/torch_stream.h"
#include "core/formats/zip.h"

/* Detects a copy of exactly this size, so that the sanitizer reports a read past its end. */
static xt_status detect(const void *head, size_t size, const xt_format **format, xt_error *error) {
  uint8_t *copy = malloc(size ? size : 1);
  memcpy(copy, head, size);
  memset(error, 0, sizeof *error);
  xt_status status = xt_detect(copy, size, format, error);
  CHECK((status == XT_STATUS_ok) == (*format != NULL));
  CHECK(status == XT_STATUS_ok || (error->status == status && error->message[0]));
  free(copy);
  return status;
}

static bool is_format(const void *head, size_t size, const xt_format *expected) {
  xt_error error;
  const xt_format *format;
  return detect(head, size, &format, &error) == XT_STATUS_ok && format == expected;
}

static bool is_refused(const void *head, size_t size, xt_status status, const char *message_part) {
  xt_error error;
  const xt_format *format;
  return detect(head, size, &format, &error) == status && strstr(error.message, message_part);
}

#define BYTES(text) text, sizeof(text) - 1

static void zip_and_gzip(void) {
  CHECK(is_format(BYTES("PK\3\4"), &xt_zip_format));
  CHECK(is_format(BYTES("PK\3\4 and more"), &xt_zip_format));
  CHECK(is_format(BYTES("\x1f\x8b\x08"), &xt_gzip_format));
}

#define MAGIC "\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."

static void legacy_files_of_every_protocol(void) {
  CHECK(is_format(BYTES("\x80\x02" MAGIC), &xt_legacy_format));
  CHECK(is_format(BYTES("\x80\x03" MAGIC "more"), &xt_legacy_format));
  CHECK(is_format(BYTES("\x80\x04\x95\x0d\0\0\0\0\0\0\0" MAGIC), &xt_legacy_format));
  CHECK(is_format(BYTES("\x80\x05\x95\x0d\0\0\0\0\0\0\0" MAGIC), &xt_legacy_format));
  /* A magic number that is cut off, or another one, is an ordinary pickle. */
  CHECK(is_format(BYTES("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"), &xt_plain_pickle_format));
  CHECK(is_format(BYTES("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x18."), &xt_plain_pickle_format));
}

static void tar_files(void) {
  char head[1024] = "name.txt";
  memcpy(head + 257, "ustar", 5);
  CHECK(is_format(head, sizeof head, &xt_tar_format) && is_format(head, 512, &xt_tar_format));
  CHECK(is_refused(head, 511, XT_STATUS_corrupt, "")); /* less than a header */
}

static void torch_streams(void) {
  CHECK(is_format(BYTES("\x80\x02]q\0(ctorch.distributed._serialization\n_Entry\nq\1"), &xt_torch_stream_format));
  CHECK(is_format(
      BYTES("\x80\x04\x95\x10\0\0\0\0\0\0\0]\x94(\x8c torch.distributed._serialization\x94\x8c\6_Entry\x94\x93"),
      &xt_torch_stream_format));
  CHECK(is_format(BYTES("\x80\x02]q\0(ctorch.distributed._serialization\n_Other\nq\1"), &xt_plain_pickle_format));
  CHECK(is_format(BYTES("\x80\x02]q\0(ctorch.distributed._serializatio"), &xt_plain_pickle_format));
  CHECK(is_format(BYTES("\x80\x02]q\0(ctorch.distributed.checkpoint\n_Entry\nq\1"), &xt_plain_pickle_format));
}

static void safetensors(void) {
  CHECK(is_format(BYTES("\x02\0\0\0\0\0\0\0{}"), &xt_safetensors_format));
  CHECK(is_format(BYTES("\xff\xff\xff\xff\xff\0\0\0{"), &xt_safetensors_format));
  /* lengths that begin like an HTML page */
  CHECK(is_format(BYTES("<\0\0\0\0\0\0\0{\""), &xt_safetensors_format));
  CHECK(is_format(BYTES(" <\0\0\0\0\0\0{\""), &xt_safetensors_format));
  CHECK(is_refused(BYTES("\0\0\0\0\0\x01\0\0{}"), XT_STATUS_corrupt, "")); /* a header of 1 TiB */
  CHECK(is_refused(BYTES("\x02\0\0\0\0\0\0\0[]"), XT_STATUS_corrupt, ""));
  CHECK(is_refused(BYTES("\x02\0\0\0\0\0\0\0"), XT_STATUS_corrupt, ""));
}

/* The first bytes of a safetensors file are a number, so they may look like anything. */
static void safetensors_before_everything_else(void) {
  CHECK(is_format(BYTES("\x3c\0\0\0\0\0\0\0{\"a\""), &xt_safetensors_format));     /* HTML */
  CHECK(is_format(BYTES("\x1f\x8b\x08\0\0\0\0\0{\"a\""), &xt_safetensors_format)); /* gzip */
  CHECK(is_format(BYTES("PK\3\4\0\0\0\0{\"a\""), &xt_safetensors_format));
  CHECK(is_format(BYTES("\x80\x02}\0\0\0\0\0{}"), &xt_safetensors_format));
  CHECK(is_format(BYTES("]q\0\0\0\0\0\0{ \"a\""), &xt_safetensors_format));
  CHECK(is_format(BYTES("\x08\0\0\0\0\0\0\0 \t\r\n{}"), &xt_safetensors_format));
  CHECK(is_format(BYTES("\x40\0\0\0\0\0\0\0          "), &xt_safetensors_format));
  /* and others whose bytes look like its length */
  CHECK(is_format(BYTES("]q\0X\5\0\0\0{abc}a."), &xt_plain_pickle_format));
  CHECK(is_format(BYTES("\x1f\x8b\x08\0\0\0\0\0\2\xff"), &xt_gzip_format));
  CHECK(is_format(BYTES("PK\3\4\0\0\x08\x08\0\0"), &xt_zip_format));
}

static void plain_pickles_of_every_protocol(void) {
  for (char protocol = 0; protocol <= 5; protocol++)
    CHECK(is_format((char[]){'\x80', protocol, '}', '.'}, 4, &xt_plain_pickle_format));
  CHECK(is_refused(BYTES("\x80\x06}."), XT_STATUS_corrupt, ""));
  CHECK(is_refused(BYTES("\x80"), XT_STATUS_corrupt, ""));
  CHECK(is_format(BYTES("(dp0\n."), &xt_plain_pickle_format));
  CHECK(is_format(BYTES("]q\0."), &xt_plain_pickle_format));
  CHECK(is_format(BYTES("}q\0."), &xt_plain_pickle_format));
  CHECK(is_format(BYTES("ccollections\nOrderedDict\n"), &xt_plain_pickle_format));
  CHECK(is_format(BYTES("Vtext\np0\n."), &xt_plain_pickle_format));
  CHECK(is_format(BYTES("F1.5\n."), &xt_plain_pickle_format));
  CHECK(is_format(BYTES("(icollections\nOrderedDict\n"), &xt_plain_pickle_format));
  CHECK(is_format(BYTES("L119547037146038801333356L\n.I1001\n."), &xt_legacy_format));
  CHECK(is_format(BYTES("L119547037146038801333357L\n."), &xt_plain_pickle_format));
}

static void refuses_the_rest_with_a_reason(void) {
  CHECK(is_refused("", 0, XT_STATUS_truncated, "empty"));
  CHECK(is_refused(BYTES("PK\5\6\0\0\0\0"), XT_STATUS_corrupt, "zip"));
  CHECK(is_refused(BYTES("version https://git-lfs.github.com/spec/v1\n"), XT_STATUS_corrupt, "git lfs pull"));
  CHECK(is_refused(BYTES("<!DOCTYPE html><html>"), XT_STATUS_corrupt, "HTML"));
  CHECK(is_refused(BYTES("\r\n  <html>"), XT_STATUS_corrupt, "HTML"));
  CHECK(is_refused(BYTES("<HTML><Title>\n Sign in </Title>"), XT_STATUS_corrupt, "checkpoint: \"Sign in \""));
  CHECK(is_refused(BYTES("HTTP/1.1 400 Bad Request\r\nServer: x"), XT_STATUS_corrupt, "\"HTTP/1.1 400 Bad Request\""));
  CHECK(is_refused(BYTES("PUT /a HTTP/1.0\r\n"), XT_STATUS_corrupt, "speaks HTTP"));
  CHECK(is_refused(BYTES("HTTP/1.1 400"), XT_STATUS_corrupt, "text, not a checkpoint"));
  CHECK(is_refused(BYTES("<html><body>caf\xe9"), XT_STATUS_corrupt, "HTML"));
  CHECK(is_refused(BYTES("<\0\0\0"), XT_STATUS_corrupt, "3c 00 00 00"));
  CHECK(is_refused(BYTES("{\"error\": \"gated\n repo\"}"), XT_STATUS_corrupt,
                   "JSON, not a checkpoint: \"{\"error\": \"gated\\x0a repo\"}\""));
  CHECK(is_refused(BYTES("\xef\xbb\xbf"
                         "Access to model x is restricted"),
                   XT_STATUS_corrupt, "text, not a checkpoint: \"Access"));
  CHECK(is_refused(BYTES("could not resolve host: example.com\n"), XT_STATUS_corrupt, "\"could not"));
  CHECK(is_refused(BYTES("curl: (22) The requested URL returned error: 404"), XT_STATUS_corrupt, "\"curl"));
  CHECK(is_refused(BYTES("(The requested URL"), XT_STATUS_corrupt, "\"(The"));
  CHECK(is_refused(BYTES("N.B. not found"), XT_STATUS_corrupt, "\"N.B."));
  CHECK(is_refused(BYTES("--x\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\nPK\3\4"), XT_STATUS_corrupt,
                   "multipart"));
  CHECK(is_refused(BYTES("--x\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\n(dp0"), XT_STATUS_corrupt,
                   "multipart"));
  CHECK(is_refused(BYTES(",\0\0\0PTMF\0\0\0\0"), XT_STATUS_unsupported, "FlatBuffer (PTMF)"));
  CHECK(is_refused(BYTES("(\0\0\0PTMF"), XT_STATUS_unsupported, "_use_flatbuffer=False"));
  CHECK(is_refused(BYTES("\x89PNG\r\n\x1a\n"), XT_STATUS_corrupt, "89 50 4e 47"));
  CHECK(is_refused(BYTES("\x7f"
                         "ELF"),
                   XT_STATUS_corrupt, "7f 45 4c 46"));
  CHECK(is_refused(BYTES("hello world"), XT_STATUS_corrupt, "text, not a checkpoint: \"hello world\""));
  CHECK(is_refused(BYTES("P"), XT_STATUS_corrupt, "50"));
  CHECK(is_refused(BYTES("PK"), XT_STATUS_corrupt, "50 4b"));
  CHECK(is_refused(BYTES("\0"), XT_STATUS_corrupt, "00"));
}

int main(void) {
  return RUN_TESTS("detect", zip_and_gzip, legacy_files_of_every_protocol, tar_files, torch_streams, safetensors,
                   safetensors_before_everything_else, plain_pickles_of_every_protocol, refuses_the_rest_with_a_reason);
}
