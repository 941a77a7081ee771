#include "core/formats/npy_header.h"

#include <string.h>

#include "check.h"

/* Reads a header of version 1 with this text, from a copy of exactly its size. */
static xt_status read_text(const char *text, xt_npy_header *out, xt_error *error) {
  size_t length = strlen(text), size;
  uint8_t *data = malloc(10 + length + 2);
  memcpy(data, "\x93NUMPY\1\0", 8);
  data[8] = (uint8_t)length, data[9] = (uint8_t)(length >> 8);
  memcpy(data + 10, text, length);
  memcpy(data + 10 + length, "xx", 2);
  memset(error, 0, sizeof *error);
  xt_status status = xt_npy_header_size(data, "a", &size, error);
  CHECK(status == XT_STATUS_ok && size == 10 + length);
  uint8_t *exact = malloc(size);
  memcpy(exact, data, size);
  status = xt_npy_read_header(exact, size, "a", out, error);
  CHECK(status == XT_STATUS_ok || (error->status == status && error->message[0]));
  free(data);
  free(exact);
  return status;
}

static void reads_plain_arrays(void) {
  xt_npy_header h;
  xt_error error;
  CHECK(read_text("{'descr': '<f8', 'fortran_order': False, 'shape': (3, 4), }          \n", &h, &error) == 0);
  CHECK(h.dtype == XT_float64 && !h.big_endian && !h.fortran_order && h.ndim == 2 && h.sizes[0] == 3 && h.bytes == 96);
  CHECK(read_text("{\"shape\":(5L,),\"fortran_order\":True,\"descr\":\">i2\"}", &h, &error) == 0);
  CHECK(h.dtype == XT_int16 && h.big_endian && h.fortran_order && h.ndim == 1 && h.sizes[0] == 5 && h.bytes == 10);
  CHECK(read_text("{'descr': '|b1', 'fortran_order': False, 'shape': ()}", &h, &error) == 0);
  CHECK(h.dtype == XT_bool && h.ndim == 0 && h.bytes == 1);
  CHECK(read_text("{'descr': '?', 'fortran_order': False, 'shape': (0, 9000000000000000)}", &h, &error) == 0);
  CHECK(h.dtype == XT_bool && h.bytes == 0);
  CHECK(read_text("{'descr': '>u1', 'fortran_order': False, 'shape': (2,)}", &h, &error) == 0 && !h.big_endian);
}

static void refuses_other_types_by_name(void) {
  static const char *const types[][2] = {{"'|O'", "Python objects"},
                                         {"'<U5'", "strings"},
                                         {"'|S3'", "strings"},
                                         {"'<M8[ns]'", "dates"},
                                         {"'<m8'", "dates"},
                                         {"'|V2'", "void"},
                                         {"'<f16'", "type f16"},
                                         {"[('a', '<f4')]", "structure"},
                                         {"('<f4', (2,))", "structure"},
                                         {"'<f3'", "type f3"},
                                         {"''", "type "},
                                         {"'<'", "type "},
                                         {"'<i99999999999999999999'", "type i9"}};
  for (size_t i = 0; i < COUNT_OF(types); i++) {
    xt_npy_header h;
    xt_error error;
    char text[200];
    snprintf(text, sizeof text, "{'descr': %s, 'fortran_order': False, 'shape': (1,)}", types[i][0]);
    CHECK(read_text(text, &h, &error) == XT_STATUS_unsupported && strstr(error.message, types[i][1]));
  }
}

static void refuses_other_text(void) {
  static const char *const texts[] = {
      "",
      "{",
      "}",
      "{}",
      "()",
      "{'descr': '<f4'}",
      "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)",
      "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)} x",
      "{'descr': '<f4', 'fortran_order': False, 'shape': (1)}",
      "{'descr': '<f4', 'fortran_order': False, 'shape': (1 2)}",
      "{'descr': '<f4', 'fortran_order': False, 'shape': [1]}",
      "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}",
      "{'descr': '<f4', 'fortran_order': False, 'shape': (1.0,)}",
      "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000000000,)}",
      "{'descr': '<f4', 'fortran_order': False, 'shape': (100000000000000000, 100000000000000000)}",
      "{'descr': '<f4', 'fortran_order': 0, 'shape': (1,)}",
      "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'more': 1}",
      "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1,)}",
      "{'descr': '<f4' 'fortran_order': False, 'shape': (1,)}",
      "{'descr': '<f\\x34', 'fortran_order': False, 'shape': (1,)}",
      "{'descr': 4, 'fortran_order': False, 'shape': (1,)}",
      "{descr: '<f4', 'fortran_order': False, 'shape': (1,)}",
  };
  for (size_t i = 0; i < COUNT_OF(texts); i++) {
    xt_npy_header h;
    xt_error error;
    CHECK(read_text(texts[i], &h, &error) == XT_STATUS_corrupt);
  }
}

static void checks_versions_and_sizes(void) {
  xt_error error;
  size_t size;
  CHECK(xt_npy_header_size((const uint8_t *)"\x93NUMPY\2\0\x10\0\0\0", "a", &size, &error) == 0 && size == 28);
  CHECK(xt_npy_header_size((const uint8_t *)"\x93NUMPY\3\0\x10\0\0\0", "a", &size, &error) == 0 && size == 28);
  CHECK(xt_npy_header_size((const uint8_t *)"\x93NUMPY\4\0\x10\0\0\0", "a", &size, &error) == XT_STATUS_unsupported);
  CHECK(xt_npy_header_size((const uint8_t *)"\x93NUMPY\2\0\0\0\0\1", "a", &size, &error) == XT_STATUS_limit);
  CHECK(xt_npy_header_size((const uint8_t *)"\x93NUMPX\1\0\x10\0\0\0", "a", &size, &error) == XT_STATUS_corrupt);
}

static void reads_what_it_writes(void) {
  static const int64_t sizes[] = {2, 3, 1000000007};
  for (int ndim = 0; ndim <= 3; ndim++) {
    xt_buffer out = {0};
    xt_npy_header h;
    xt_error error;
    size_t size;
    xt_npy_write_header(&out, ndim == 2 ? XT_uint8 : XT_complex64, sizes, ndim);
    CHECK(out.size % XT_NPY_ALIGNMENT == 0 && out.data[out.size - 1] == '\n');
    CHECK(xt_npy_header_size(out.data, "a", &size, &error) == 0 && size == out.size);
    CHECK(xt_npy_read_header(out.data, out.size, "a", &h, &error) == 0);
    CHECK(h.ndim == (uint32_t)ndim && !memcmp(h.sizes, sizes, (size_t)ndim * sizeof *sizes));
    xt_buffer_free(&out);
  }
}

int main(void) {
  return RUN_TESTS("npy_header", reads_plain_arrays, refuses_other_types_by_name, refuses_other_text,
                   checks_versions_and_sizes, reads_what_it_writes);
}
