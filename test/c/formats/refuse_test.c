/* Files of each format that must be refused, and how: by the reader of whole files and by the push parser. */
#include "core/formats/zip.h"
#include "failing.h"
#include "sample.h"

static int wrong;

static void expect(const char *what, xt_status status, const xt_error *error, xt_status expected, const char *message) {
  if (status == expected && (status == XT_STATUS_ok || strstr(error->message, message))) return;
  fprintf(stderr, "%s: expected %d \"%s\", got %d \"%s\"\n", what, (int)expected, message, (int)status, error->message);
  wrong++;
}

/* Opens the bytes as a file, and unless `file_only` is set also as a stream. */
static void refuse_with(const char *what, const void *data, size_t size, const xt_limits *limits, xt_status status,
                        const char *message, bool file_only) {
  sample s;
  xt_error error;
  xt_batch_load load;
  /* A copy of exactly this size, so that the sanitizer reports a read past its end. */
  uint8_t *exact = malloc(size ? size : 1);
  memcpy(exact, data, size);
  xt_status got = sample_open_with(&s, exact, size, limits, false, 0);
  if (got == XT_STATUS_ok && sample_load(&s, &load) == XT_STATUS_ok) xt_batch_load_free(&load);
  expect(what, s.status, &s.error, status, message);
  sample_free(&s);
  if (!file_only) {
    got = sample_push(exact, size, size, limits, 1 << 20, true, &error);
    expect("the same as a stream", got, &error, status, message);
  }
  free(exact);
}

static void refuse(const char *what, const void *data, size_t size, xt_status status, const char *message) {
  refuse_with(what, data, size, &sample_limits, status, message, false);
}

/* ---- safetensors ---- */

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

static void safetensors(void) {
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
static void many_short_safetensors(void) {
  xt_buffer file = {0};
  enum { COUNT = 1000 };
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
  for (fail_at = 0, fail_arenas = true;; fail_at = fail_at < 200 ? fail_at + 1 : fail_at + 97) {
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

/* ---- zip ---- */

static const sample_view views[] = {{"w", "0", "torch\nFloatStorage\n", 4, 0, 1, {4}, {1}}};
static const float data[] = {1, 2, 3, 4};

static void begin_zip(zip_builder *zip, int method, int flags) {
  xt_pickler p;
  *zip = (zip_builder){0};
  put_views(&p, views, 1);
  zip_add_with(zip, "a/data.pkl", p.out.data, p.out.size, method, flags);
  xt_pickler_free(&p);
}

static void end_zip(const char *what, zip_builder *zip, const xt_limits *limits, xt_status status, const char *message,
                    bool file_only) {
  zip_finish(zip);
  refuse_with(what, zip->out.data, zip->out.size, limits, status, message, file_only);
  zip_free(zip);
}

/* The same checkpoint with stored and compressed records, with and without descriptors. */
static void zip_records(void) {
  for (int i = 0; i < 4; i++) {
    int method = i & 1 ? ZIP_DEFLATED : ZIP_STORED, flags = i & 2 ? ZIP_DESCRIPTOR : 0;
    zip_builder zip;
    begin_zip(&zip, method, flags);
    zip_add_with(&zip, "a/byteorder", "little", 6, method, flags);
    zip_add_with(&zip, "a/data/0", data, sizeof data, method, flags);
    zip_add_with(&zip, "a/version", "3\n", 2, method, flags);
    end_zip("a valid zip file", &zip, &sample_limits, XT_STATUS_ok, "", false);

    begin_zip(&zip, method, flags);
    end_zip("a missing record", &zip, &sample_limits, XT_STATUS_corrupt, "data/0 is missing", false);

    begin_zip(&zip, method, flags);
    zip_add_with(&zip, "a/data/0", data, 12, method, flags);
    end_zip("a record that is too short", &zip, &sample_limits, XT_STATUS_corrupt, "", false);

    begin_zip(&zip, method, flags);
    uint8_t longer[20] = {0};
    zip_add_with(&zip, "a/data/0", longer, 20, method, flags);
    end_zip("a record that is too long", &zip, &sample_limits, XT_STATUS_corrupt, "", false);

    begin_zip(&zip, method, flags);
    zip_add_with(&zip, "a/byteorder", "middle", 6, method, flags);
    end_zip("an unknown byte order", &zip, &sample_limits, XT_STATUS_corrupt, "byteorder", false);

    zip = (zip_builder){0};
    zip_add_with(&zip, "a/other", "x", 1, method, flags);
    end_zip("no object", &zip, &sample_limits, XT_STATUS_corrupt, "no record data.pkl", false);

    begin_zip(&zip, method, flags);
    xt_limits small = sample_limits;
    small.pickle_bytes = 20;
    end_zip("a pickle above the limit", &zip, &small, XT_STATUS_limit, "pickle_bytes", false);

    begin_zip(&zip, method, flags);
    char text[5000] = {0};
    zip_add_with(&zip, "a/version", text, sizeof text, method, flags);
    end_zip("a text above the limit", &zip, &sample_limits, XT_STATUS_limit, "version", false);
  }
  CHECK(!wrong);
}

/* What only a stream cannot do: the byte order and constants come too late. */
static void late_records_of_a_stream(void) {
  xt_error error;
  zip_builder zip;
  begin_zip(&zip, ZIP_STORED, 0);
  zip_add(&zip, "a/data/0", data, sizeof data);
  zip_add(&zip, "a/byteorder", "little", 6);
  zip_finish(&zip);
  expect("a late byte order", sample_push(zip.out.data, zip.out.size, 100, &sample_limits, 1 << 20, true, &error),
         &error, XT_STATUS_unsupported, "byteorder comes after");
  zip_free(&zip);
  static const struct {
    const char *pickle;
    xt_status status;
    const char *message;
  } constants[] = {{").", XT_STATUS_ok, ""},
                   {"(I1\nt.", XT_STATUS_unsupported, "constants.pkl comes after"},
                   {"x", XT_STATUS_corrupt, "opcode"}};
  for (size_t i = 0; i < COUNT_OF(constants); i++) {
    begin_zip(&zip, ZIP_STORED, 0);
    zip_add(&zip, "a/data/0", data, sizeof data);
    zip_add(&zip, "a/constants.pkl", constants[i].pickle, strlen(constants[i].pickle));
    zip_finish(&zip);
    expect("late constants", sample_push(zip.out.data, zip.out.size, 100, &sample_limits, 1 << 20, true, &error),
           &error, constants[i].status, constants[i].message);
    zip_free(&zip);
  }
  /* a compressed or unknown record must fit the spool */
  char large[5000] = {0};
  for (int flags = 0; flags <= ZIP_DESCRIPTOR; flags += ZIP_DESCRIPTOR) {
    begin_zip(&zip, ZIP_STORED, 0);
    zip_add(&zip, "a/data/0", data, sizeof data);
    zip_add_with(&zip, "a/extra", large, sizeof large, ZIP_STORED, flags);
    zip_finish(&zip);
    expect("a large record", sample_push(zip.out.data, zip.out.size, 100, &sample_limits, 4000, true, &error), &error,
           XT_STATUS_limit, "spool_bytes");
    zip_free(&zip);
  }
  CHECK(!wrong);
}

/* Each change makes the end record or the directory contradict the file. */
static void zip_directories(void) {
  enum { END = 22, ENTRY = 46 };
  static const struct {
    const char *what;
    bool in_end; /* the offset is in the end record, else in the first entry of the directory */
    int at, value, size;
    xt_status status;
    const char *message;
  } changes[] = {
      {"many entries", true, 10, 0xFFFF, 2, XT_STATUS_corrupt, "zip64 end record is missing"},
      {"a large directory", true, 12, 0x7FFFFFFF, 4, XT_STATUS_corrupt, ""},
      {"a late directory", true, 16, 0x7FFFFFFF, 4, XT_STATUS_corrupt, ""},
      {"too many entries", true, 8, 0x03E803E8, 4, XT_STATUS_corrupt, "number of entries"},
      {"another disk", true, 4, 1, 2, XT_STATUS_unsupported, "split into several"},
      {"other entries on this disk", true, 8, 1, 2, XT_STATUS_unsupported, "split into several"},
      {"one entry fewer", true, 10, 1, 2, XT_STATUS_unsupported, "split into several"},
      {"a wrong signature", false, 0, 'X', 1, XT_STATUS_corrupt, ""},
      {"encrypted", false, 8, 1, 1, XT_STATUS_unsupported, "encrypted"},
      {"an unknown method", false, 10, 99, 1, XT_STATUS_unsupported, "method 99"},
      {"two sizes", false, 20, 1, 4, XT_STATUS_corrupt, "two different sizes"},
      {"a large name", false, 28, 0xFFFF, 2, XT_STATUS_corrupt, ""},
      {"a record in the directory", false, 42, 0x7FFFFFFF, 4, XT_STATUS_corrupt, "past the start"},
      {"saturated without a zip64 field", false, 42, -1, 4, XT_STATUS_corrupt, "no zip64 field"},
  };
  for (size_t i = 0; i < COUNT_OF(changes); i++) {
    zip_builder zip;
    begin_zip(&zip, ZIP_STORED, 0);
    zip_add(&zip, "a/data/0", data, sizeof data);
    zip_finish(&zip);
    uint8_t *at = zip.out.data + zip.out.size - END - (changes[i].in_end ? 0 : zip.central.size) + changes[i].at;
    for (int k = 0; k < changes[i].size; k++) at[k] = (uint8_t)(changes[i].value >> 8 * k);
    refuse_with(changes[i].what, zip.out.data, zip.out.size, &sample_limits, changes[i].status, changes[i].message,
                true);
    xt_error error;
    CHECK(sample_push(zip.out.data, zip.out.size, 50, &sample_limits, 1 << 20, true, &error) != XT_STATUS_ok);
    zip_free(&zip);
  }
  CHECK(!wrong);
}

static void zip_end_records(void) {
  zip_builder zip;
  xt_error error;
  /* a second end record after the directory */
  begin_zip(&zip, ZIP_STORED, 0);
  zip_add(&zip, "a/data/0", data, sizeof data);
  zip_finish(&zip);
  size_t size = zip.out.size;
  uint8_t *end = malloc(22);
  memcpy(end, zip.out.data + size - 22, 22);
  xt_buffer_put(&zip.out, end, 22);
  refuse_with("two end records", zip.out.data, zip.out.size, &sample_limits, XT_STATUS_corrupt, "two end records",
              true);
  free(end);
  zip_free(&zip);
  /* the directory of a stream lists another offset than its own */
  begin_zip(&zip, ZIP_STORED, 0);
  zip_add(&zip, "a/data/0", data, sizeof data);
  zip_finish(&zip);
  zip.out.data[zip.out.size - 22 + 16] ^= 1;
  CHECK(sample_push(zip.out.data, zip.out.size, 50, &sample_limits, 1 << 20, true, &error) != XT_STATUS_ok);
  zip_free(&zip);
  /* no entries at all, and an entry fewer than the file has */
  zip = (zip_builder){0};
  zip_finish(&zip);
  refuse_with("no entries", zip.out.data, zip.out.size, &sample_limits, XT_STATUS_corrupt, "", true);
  zip_free(&zip);
  begin_zip(&zip, ZIP_STORED, 0);
  zip_add(&zip, "a/data/0", data, sizeof data);
  zip.central.size -= 46 + strlen("a/data/0");
  zip.records--;
  zip_finish(&zip);
  expect("a record that is not listed",
         sample_push(zip.out.data, zip.out.size, 50, &sample_limits, 1 << 20, true, &error), &error, XT_STATUS_corrupt,
         "missing in the central directory");
  zip_free(&zip);
  /* a directory that is much larger than needed */
  begin_zip(&zip, ZIP_STORED, 0);
  zip_add(&zip, "a/data/0", data, sizeof data);
  zip.central.data[30] = zip.central.data[31] = 0xff; /* 64 KiB of extra fields for each of two records … */
  xt_buffer_fill(&zip.central, 0, 1 << 21);
  zip_finish(&zip);
  CHECK(sample_push(zip.out.data, zip.out.size, 1 << 20, &sample_limits, 1 << 24, true, &error) != XT_STATUS_ok);
  zip_free(&zip);
  CHECK(!wrong);
}

/* ---- Others ---- */

static void files_at_an_offset(void) {
  sample s;
  zip_builder zip;
  begin_zip(&zip, ZIP_STORED, 0);
  zip_add(&zip, "a/data/0", data, sizeof data);
  zip_finish(&zip);
  size_t size = zip.out.size;
  uint8_t *shifted = malloc(size + 8);
  memcpy(shifted + 8, zip.out.data, size);
  sample_open_with(&s, shifted, size + 8, &sample_limits, false, 8);
  expect("a zip file at an offset", s.status, &s.error, XT_STATUS_unsupported, "only supported at offset 0");
  sample_free(&s);
  sample_open_with(&s, shifted, size, &sample_limits, false, size);
  expect("an offset at the end", s.status, &s.error, XT_STATUS_bad_argument, "past the end");
  sample_free(&s);
  xt_need need;
  xt_checkpoint c;
  xt_checkpoint_begin(&c, (uint64_t)1 << 62, 0, &sample_limits, false, false, &s.error);
  expect("a huge file", xt_checkpoint_step(&c, &need, &s.error), &s.error, XT_STATUS_limit, "2 ** 62");
  xt_checkpoint_free(&c);
  free(shifted);
  zip_free(&zip);
  CHECK(!wrong);
}

static void a_gzip_file_in_a_gzip_file(void) {
  struct libdeflate_compressor *compressor = libdeflate_alloc_compressor(1);
  uint8_t once[200], twice[300];
  size_t size = libdeflate_gzip_compress(compressor, "\x80\2}q\0.", 6, once, sizeof once);
  refuse_with("a pickle in a gzip file", once, size, &sample_limits, XT_STATUS_ok, "", true);
  size_t size_twice = libdeflate_gzip_compress(compressor, once, size, twice, sizeof twice);
  refuse_with("gzip in gzip", twice, size_twice, &sample_limits, XT_STATUS_unsupported, "another gzip", true);
  memcpy(once + size, "\x1f\x8b\x08 not a gzip member at all", 28); /* after the first member */
  refuse_with("a damaged second member", once, size + 28, &sample_limits, XT_STATUS_corrupt, "gzip", true);
  libdeflate_free_compressor(compressor);
  CHECK(!wrong);
}

static void limits_of_pickles(void) {
  xt_limits small = sample_limits;
  char pickle[600] = "(";
  for (int i = 0; i < 100; i++) strcat(pickle, "I1\n");
  strcat(pickle, "t.");
  small.pickle_bytes = strlen(pickle);
  refuse_with("a pickle at the limit", pickle, strlen(pickle), &small, XT_STATUS_ok, "", true);
  small.pickle_bytes--;
  refuse_with("a pickle above the limit", pickle, strlen(pickle), &small, XT_STATUS_limit, "pickle_bytes", true);
  CHECK(!wrong);
}

int main(void) {
  return RUN_TESTS("refuse", safetensors, many_short_safetensors, zip_records, late_records_of_a_stream,
                   zip_directories, zip_end_records, files_at_an_offset, a_gzip_file_in_a_gzip_file, limits_of_pickles);
}
