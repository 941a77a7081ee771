/* Headers of safetensors files that must be refused, and some that are unusual. */
#include "failing.h"
#include "refuse.h"

#define T(fields) "{\"a\":{" fields "}}"
#define F32(shape, from, to) "\"dtype\":\"F32\",\"shape\":[" shape "],\"data_offsets\":[" from "," to "]"
#define TWICE(text) text text
#define TIMES_64(text) TWICE(TWICE(TWICE(TWICE(TWICE(TWICE(text))))))

static const struct {
  const char *header;
  size_t data; /* bytes after the header */
  xt_status status;
  const char *message;
} headers[] = {
    {"{}", 0, XT_STATUS_ok, ""},
    {T(F32("2", "0", "8")), 8, XT_STATUS_ok, ""},
    {T(F32(TIMES_64("1,") "1", "0", "4")), 4, XT_STATUS_corrupt, "more than 64 dimensions"},
    {T(F32("-1", "0", "4")), 4, XT_STATUS_corrupt, "negative"},
    {T(F32("2", "0", "4")), 4, XT_STATUS_corrupt, "does not fit its data_offsets"},
    {T(F32("1", "4", "0")), 4, XT_STATUS_corrupt, "not a valid range"},
    {T(F32("1", "-4", "0")), 4, XT_STATUS_corrupt, "not a valid range"},
    {T(F32("4611686018427387904,4611686018427387904", "0", "4")), 4, XT_STATUS_corrupt, "overflows"},
    {T("\"dtype\":\"X32\",\"shape\":[1],\"data_offsets\":[0,4]"), 4, XT_STATUS_corrupt, "unknown dtype"},
    {T("\"dtype\":\"F32\", \"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]"), 4, XT_STATUS_corrupt,
     "duplicate key"},
    {T("\"dtype\":\"F32\", \"shape\":[1],\"data_offsets\":[0]"), 4, XT_STATUS_corrupt, "two integers"},
    {T("\"dtype\":\"F32\", \"shape\":[1],\"data_offsets\":[0,4,8]"), 4, XT_STATUS_corrupt, "two integers"},
    {T("\"dtype\":\"F32\", \"shape\":[1]"), 4, XT_STATUS_corrupt, "missing field"},
    {T("\"dtype\":\"F32\", \"size\":[1]"), 4, XT_STATUS_corrupt, "unknown field"},
    {T("\"dtype\": 5"), 4, XT_STATUS_corrupt, "expected a string"},
    {T("\"shape\": [1.5]"), 4, XT_STATUS_corrupt, "fraction"},
    {T("\"shape\": [01]"), 4, XT_STATUS_corrupt, "begins with 0"},
    {T("\"shape\": [99999999999999999999]"), 4, XT_STATUS_corrupt, "64 bits"},
    {"{\"a\":{" F32("1", "0", "4") "},\"b\":{" F32("1", "8", "12") "}}", 12, XT_STATUS_corrupt, "gap"},
    {"{\"a\":{" F32("2", "0", "8") "},\"b\":{" F32("1", "4", "8") "}}", 8, XT_STATUS_corrupt, "overlap"},
    {"{\"a\":{" F32("1", "4", "8") "},\"b\":{" F32("1", "0", "4") "}}", 8, XT_STATUS_ok, ""},
    {"{\"a\":{" F32("1", "0", "4") "},\"a\":{" F32("1", "4", "8") "}}", 8, XT_STATUS_corrupt, "defined twice"},
    {"{\"__metadata__\":{\"k\":\"v\",\"k\":\"w\"}}", 0, XT_STATUS_corrupt, "duplicate key"},
    {"{\"__metadata__\":{\"k\":1}}", 0, XT_STATUS_corrupt, "string"},
    {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, XT_STATUS_corrupt, "duplicate key"},
    {"{}x", 0, XT_STATUS_corrupt, "more text follows"},
    {T("\"dtype\":\"F4\",\"shape\":[4],\"data_offsets\":[0,2]"), 2, XT_STATUS_ok, ""},
    {T("\"dtype\":\"F4\",\"shape\":[2,3],\"data_offsets\":[0,3]"), 3, XT_STATUS_ok, ""},
    {T("\"dtype\":\"F6_E2M3\",\"shape\":[4],\"data_offsets\":[0,3]"), 3, XT_STATUS_ok, ""},
    {T("\"dtype\":\"F4\",\"shape\":[0,4611686018427387904],\"data_offsets\":[0,0]"), 0, XT_STATUS_corrupt, "overflows"},
};

static void headers_are_checked(void) {
  for (size_t i = 0; i < COUNT_OF(headers); i++) {
    xt_buffer file = {0};
    xt_buffer_le(&file, strlen(headers[i].header), 8);
    xt_buffer_text(&file, headers[i].header);
    xt_buffer_fill(&file, 1, headers[i].data);
    refuse(headers[i].header, file.data, file.size, headers[i].status, headers[i].message);
    if (headers[i].status == XT_STATUS_ok) { /* a stream may have more bytes, a file may not */
      xt_buffer_byte(&file, 0);
      refuse_with(headers[i].header, file.data, file.size, &sample_limits, XT_STATUS_corrupt, "bytes", true);
    }
    xt_buffer_free(&file);
  }
  CHECK(!wrong);
}

/* More tensors than a header of this size usually has: the first guess of their number is too small. */
static void many_short_descriptions(void) {
  xt_buffer file = {0};
  enum { COUNT = 60 };
  xt_buffer_le(&file, 0, 8);
  for (int i = 0; i < COUNT; i++) {
    char text[80];
    snprintf(text, sizeof text, "%c\"%d\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[%d,%d]}", i ? ',' : '{', i,
             i, i + 1);
    xt_buffer_text(&file, text);
  }
  xt_buffer_byte(&file, '}');
  for (int i = 0; i < 8; i++) file.data[i] = (uint8_t)((file.size - 8) >> 8 * i);
  xt_buffer_fill(&file, 1, COUNT);
  for (fail_at = 0, fail_arenas = true;; fail_at++) {
    sample s;
    allocations = 0;
    xt_status status = sample_open(&s, file.data, file.size);
    if (status == XT_STATUS_ok) CHECK(s.checkpoint.index.count == COUNT);
    bool failed = allocations > fail_at;
    CHECK(status == (failed ? XT_STATUS_no_memory : XT_STATUS_ok));
    sample_free(&s);
    if (!failed) break;
  }
  fail_at = -1, fail_arenas = false;
  xt_buffer_free(&file);
}

int main(void) { return RUN_TESTS("safetensors", headers_are_checked, many_short_descriptions); }
