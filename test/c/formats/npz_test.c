/* npz files that must be refused, and files whose headers are at any place of the windows that are read. */
#include "core/formats/npy.h"
#include "failing.h"
#include "refuse.h"

#define PUT(buffer, literal) xt_buffer_put(buffer, literal, sizeof literal - 1)

static const float data[] = {1, 2, 3, 4};

/* A float32 array of four elements, whose header has `size` bytes. */
static xt_buffer make_array(size_t size) {
  static const char text[] = "{'descr': '<f4', 'fortran_order': False, 'shape': (4,)}";
  xt_buffer out = {0};
  PUT(&out, "\x93NUMPY\1\0");
  xt_buffer_le(&out, size - 10, 2);
  xt_buffer_text(&out, text);
  xt_buffer_fill(&out, ' ', size - out.size - 1);
  xt_buffer_byte(&out, '\n');
  xt_buffer_put(&out, data, sizeof data);
  CHECK(!out.failed && out.size == size + sizeof data);
  return out;
}

static void refused_members(void) {
  static const struct {
    const char *what, *name;
    size_t header, cut; /* bytes of the header, and bytes that are missing at the end */
    xt_status status;
    const char *message;
  } members[] = {
      {"valid", "w.npy", 128, 0, XT_STATUS_ok, ""},
      {"aligned to an element only", "w.npy", 100, 0, XT_STATUS_ok, ""},
      {"not aligned", "w.npy", 126, 0, XT_STATUS_unsupported, "the npy header of w.npy has 126 bytes"},
      {"a name that is not UTF-8", "\xff.npy", 128, 0, XT_STATUS_corrupt, "is not valid UTF-8"},
      {"an element is missing", "w.npy", 128, 4, XT_STATUS_corrupt, "the array w.npy does not fit its record"},
      {"no elements", "w.npy", 128, 17, XT_STATUS_corrupt, "the array w.npy does not fit its record"},
      {"no header", "w.npy", 128, 140, XT_STATUS_corrupt, "the array w.npy does not fit its record"},
  };
  for (size_t i = 0; i < 2 * COUNT_OF(members); i++) {
    size_t m = i / 2;
    zip_builder zip = {0};
    xt_buffer array = make_array(members[m].header);
    zip_add_with(&zip, members[m].name, array.data, array.size - members[m].cut, i % 2 ? ZIP_DEFLATED : ZIP_STORED, 0);
    zip_add(&zip, "readme.txt", "not an array", 12);
    zip_finish(&zip);
    refuse(members[m].what, zip.out.data, zip.out.size, members[m].status, members[m].message);
    zip_free(&zip);
    xt_buffer_free(&array);
  }
  CHECK(!wrong);
}

static void damaged_members(void) {
  zip_builder zip = {0};
  xt_buffer array = make_array(128);
  zip_add_with(&zip, "w.npy", array.data, array.size, ZIP_DEFLATED, 0);
  memset(zip.out.data + 30 + strlen("w.npy"), 0xff, 8);
  zip_finish(&zip);
  refuse("damaged", zip.out.data, zip.out.size, XT_STATUS_corrupt,
         "the compressed data of the record w.npy is invalid");
  zip_free(&zip);
  zip = (zip_builder){0};
  /* a method that is not supported */
  zip_add(&zip, "w.npy", array.data, array.size);
  zip.out.data[8] = zip.central.data[10] = 12;
  zip_finish(&zip);
  refuse_with("another method", zip.out.data, zip.out.size, &sample_limits, XT_STATUS_unsupported, "method 12", true);
  zip_free(&zip);
  xt_buffer_free(&array);
  CHECK(!wrong);
}

/* The windows have 16 KiB and more: the second header begins before, at and after their end. */
static void headers_at_the_end_of_a_window(void) {
  static uint8_t noise[18000];
  uint32_t state = 1;
  for (size_t i = 0; i < sizeof noise; i++) state = state * 1664525 + 1013904223, noise[i] = (uint8_t)(state >> 24);
  xt_buffer array = make_array(128);
  for (size_t size = 16000; size < 17600; size += 8)
    for (int method = ZIP_STORED; method <= ZIP_DEFLATED; method += ZIP_DEFLATED) {
      zip_builder zip = {0};
      xt_buffer first = {0};
      int64_t sizes = (int64_t)size;
      sample s;
      xt_batch_load load;
      xt_npy_write_header(&first, XT_uint8, &sizes, 1);
      xt_buffer_put(&first, noise, size);
      zip_add(&zip, "first.npy", first.data, first.size);
      zip_add_with(&zip, "second.npy", array.data, array.size, method, 0);
      zip_finish(&zip);
      CHECK(sample_open(&s, zip.out.data, zip.out.size) == XT_STATUS_ok && sample_load(&s, &load) == XT_STATUS_ok);
      CHECK(s.checkpoint.index.count == 2);
      const xt_tensor_desc *tensor = s.checkpoint.index.entries[1].tensor;
      CHECK(tensor->dtype == XT_float32 && tensor->sizes[0] == 4 && tensor->offset == 32);
      CHECK(!memcmp(load.regions[tensor->storage]->data + 128, data, sizeof data));
      xt_batch_load_free(&load);
      sample_free(&s);
      zip_free(&zip);
      xt_buffer_free(&first);
    }
  xt_buffer_free(&array);
}

static void every_failing_allocation_is_reported(void) {
  for (int method = ZIP_STORED; method <= ZIP_DEFLATED; method += ZIP_DEFLATED) {
    zip_builder zip = {0};
    xt_buffer array = make_array(128);
    zip_add_with(&zip, "w.npy", array.data, array.size, method, 0);
    zip_finish(&zip);
    for (fail_at = 0, fail_arenas = true;; fail_at++) {
      sample s;
      allocations = 0;
      xt_status status = sample_open(&s, zip.out.data, zip.out.size);
      bool failed = allocations > fail_at;
      CHECK(status == (failed ? XT_STATUS_no_memory : XT_STATUS_ok));
      sample_free(&s);
      if (!failed) break;
    }
    fail_at = -1, fail_arenas = false;
    zip_free(&zip);
    xt_buffer_free(&array);
  }
}

int main(void) {
  return RUN_TESTS("npz", refused_members, damaged_members, headers_at_the_end_of_a_window,
                   every_failing_allocation_is_reported);
}
