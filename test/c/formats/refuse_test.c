/* Zip files, gzip files and pickles that must be refused, and how: by the reader of whole files and by the push parser.
 */
#include "core/checkpoint/push_stored.h"
#include "core/formats/zip.h"
#include "failing.h"
#include "refuse.h"

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

/* Empty records, and records that are small only while they are compressed. */
static void unusual_sizes(void) {
  zip_builder zip;
  begin_zip(&zip, ZIP_STORED, 0);
  zip_add(&zip, "a/version", "", 0);
  zip_add(&zip, "a/data/0", data, sizeof data);
  end_zip("an empty text", &zip, &sample_limits, XT_STATUS_ok, "", false);
  zip = (zip_builder){0};
  zip_add(&zip, "a/data.pkl", "", 0);
  end_zip("an empty pickle", &zip, &sample_limits, XT_STATUS_truncated, "no STOP", false);
  xt_buffer pickle = {0};
  xt_buffer_text(&pickle, "(V");
  xt_buffer_fill(&pickle, 'x', 5000);
  xt_buffer_text(&pickle, "\nt.");
  for (int flags = 0; flags <= ZIP_DESCRIPTOR; flags += ZIP_DESCRIPTOR) {
    xt_limits limits = sample_limits;
    limits.pickle_bytes = 1000;
    zip = (zip_builder){0};
    zip_add_with(&zip, "a/data.pkl", pickle.data, pickle.size, ZIP_DEFLATED, flags);
    end_zip("a compressed pickle", &zip, &limits, XT_STATUS_limit, "pickle_bytes", false);
  }
  xt_buffer_free(&pickle);
  CHECK(!wrong);
}

/* More tensors than storages: the index grows. */
static void many_views(void) {
  enum { COUNT = 200 };
  static sample_view many[COUNT];
  static char names[COUNT][16];
  xt_pickler p;
  zip_builder zip = {0};
  for (int i = 0; i < COUNT; i++) {
    snprintf(names[i], sizeof names[i], "%d", i);
    many[i] = views[0];
    many[i].name = names[i];
  }
  put_views(&p, many, COUNT);
  zip_add(&zip, "a/data.pkl", p.out.data, p.out.size);
  zip_add(&zip, "a/data/0", data, sizeof data);
  zip_finish(&zip);
  for (fail_at = 0;; fail_at++) {
    sample s;
    allocations = 0;
    xt_status status = sample_open(&s, zip.out.data, zip.out.size);
    bool failed = allocations > fail_at;
    CHECK(status == (failed ? XT_STATUS_no_memory : XT_STATUS_ok));
    if (!failed) CHECK(s.checkpoint.index.count == COUNT);
    sample_free(&s);
    if (!failed) break;
  }
  fail_at = -1;
  zip_free(&zip);
  xt_pickler_free(&p);
}

/* A compressed storage that nobody wants is not decompressed: its damage is not noticed. */
static void unwanted_storages(void) {
  for (int method = ZIP_STORED; method <= ZIP_DEFLATED; method += ZIP_DEFLATED) {
    zip_builder zip;
    xt_checkpoint c;
    xt_push p;
    xt_error error;
    xt_push_event event;
    size_t at = 0, used;
    begin_zip(&zip, ZIP_STORED, 0);
    zip_add_with(&zip, "a/data/0", data, sizeof data, method, 0);
    zip_finish(&zip);
    xt_push_begin_checkpoint(&c, &sample_limits, false, false);
    xt_push_begin(&p, &c, 1 << 20);
    do {
      CHECK(xt_push_feed(&p, zip.out.data + at, zip.out.size - at, &used, &event, &error) == XT_STATUS_ok);
      at += used;
      if (event == XT_PUSH_DESCRIBED) p.wanted[0] = false;
    } while (event != XT_PUSH_DONE);
    CHECK(p.completed[0] && !p.regions[0]);
    xt_push_free(&p);
    xt_checkpoint_free(&c);
    zip_free(&zip);
  }
}

/* Directories that no zip file of this test has. */
static void parts_of_directories(void) {
  enum { ENTRY = 46, ENTRIES = 8, MORE = 65535 };
  xt_zip zip = {.file_size = 1000, .directory = 500};
  xt_arena arena = {0};
  xt_records records = {0};
  xt_error error;
  CHECK(xt_zip_read_directory(&zip, NULL, &arena, &records, &error) == XT_STATUS_corrupt);
  CHECK(strstr(error.message, "no entries"));
  xt_records_free(&records);
  /* the zip64 field is longer than the extra fields */
  uint8_t entry[ENTRY + 1 + 4] = "PK\1\2";
  memset(entry + 20, 0xff, 8);
  entry[28] = 1, entry[30] = 4, entry[ENTRY] = 'n', entry[ENTRY + 1] = 1, entry[ENTRY + 3] = 24;
  zip.entry_count = 1, zip.directory_size = sizeof entry;
  CHECK(xt_zip_read_directory(&zip, entry, &arena, &records, &error) == XT_STATUS_corrupt);
  CHECK(strstr(error.message, "no zip64 field"));
  xt_records_free(&records);
  xt_arena_free(&arena);
  /* a stream stops before it keeps megabytes of a directory for a few records */
  zip_builder file;
  begin_zip(&file, ZIP_STORED, 0);
  zip_add(&file, "a/data/0", data, sizeof data);
  for (int i = 0; i < ENTRIES; i++) {
    char name[] = "a/x0";
    name[3] = (char)('0' + i);
    zip_add(&file, name, "", 0);
  }
  file.central.size = 0;
  for (int i = 0; i < ENTRIES; i++) {
    uint8_t fixed[ENTRY] = "PK\1\2";
    memset(fixed + 28, 0xff, 6); /* name, extra fields and comment */
    xt_buffer_put(&file.central, fixed, ENTRY);
    xt_buffer_fill(&file.central, 'x', 3 * MORE);
  }
  zip_finish(&file);
  expect("a large directory", sample_push(file.out.data, file.out.size, 10000, &sample_limits, 1 << 24, false, &error),
         &error, XT_STATUS_limit, "much larger than needed");
  zip_free(&file);
  CHECK(!wrong);
}

/* Archives of other kinds are named. */
static void other_archives(void) {
  static const struct {
    const char *record;
    xt_status status;
    const char *message;
  } kinds[] = {{"a/.data/extern_modules", XT_STATUS_unsupported, "torch.package archive"},
               {"a/model.json", XT_STATUS_unsupported, "torch 1.0 to 1.3 (model.json)"},
               {"a/attributes.pkl", XT_STATUS_unsupported, "torch 1.1 to 1.3"},
               {"a/weights.bin", XT_STATUS_corrupt, "no record data.pkl"}};
  for (size_t i = 0; i < COUNT_OF(kinds); i++) {
    zip_builder zip = {0};
    zip_add(&zip, kinds[i].record, "x", 1);
    end_zip(kinds[i].record, &zip, &sample_limits, kinds[i].status, kinds[i].message, false);
  }
  CHECK(!wrong);
}

/* Constants of modules with and without attributes, and of an object that is no module. */
static void constants_of_objects(void) {
  static const struct {
    const char *object;
    int kind; /* of the state of the object; -1 if it has none */
  } objects[] = {{"c__torch__\nM\n)\x81.", XT_NODE_DICT},
                 {"c__torch__\nM\n)\x81}b.", XT_NODE_DICT},
                 {"c__torch__\nM\n)\x81I1\nb.", XT_NODE_INT},
                 {"I1\n.", -1}};
  for (size_t i = 0; i < COUNT_OF(objects); i++) {
    zip_builder zip = {0};
    xt_pickler p;
    sample s;
    xt_pickler_begin(&p);
    xt_pickler_put_mark(&p);
    put_view(&p, &views[0], "cpu"); /* its name and the tensor */
    xt_pickler_put_tuple(&p);
    xt_pickler_stop(&p);
    zip_add(&zip, "a/data.pkl", objects[i].object, strlen(objects[i].object));
    zip_add(&zip, "a/constants.pkl", p.out.data, p.out.size);
    zip_add(&zip, "a/constants/0", data, sizeof data);
    zip_finish(&zip);
    CHECK(sample_open(&s, zip.out.data, zip.out.size) == XT_STATUS_ok);
    CHECK(s.checkpoint.is_torchscript && s.checkpoint.constants == 2 && s.checkpoint.index.count == 1);
    const xt_index_entry *entry = &s.checkpoint.index.entries[0];
    CHECK(entry->name_size == strlen("CONSTANTS.c1") && !memcmp(entry->name, "CONSTANTS.c1", entry->name_size));
    const xt_node *root = s.checkpoint.root;
    if (objects[i].kind < 0) CHECK(root->kind == XT_NODE_INT);
    else CHECK(root->kind == XT_NODE_OBJECT && (int)root->object->state->kind == objects[i].kind);
    sample_free(&s);
    zip_free(&zip);
    xt_pickler_free(&p);
  }
}

/* A record without a checksum before one that has one. */
static void a_missing_checksum_in_a_stream(void) {
  xt_error error;
  for (int verify = 0; verify < 2; verify++) {
    zip_builder zip;
    begin_zip(&zip, ZIP_STORED, 0);
    memset(zip.out.data + 14, 0, 4); /* the CRC in the header and in the directory */
    memset(zip.central.data + 16, 0, 4);
    zip_add(&zip, "a/data/0", data, sizeof data);
    zip_finish(&zip);
    xt_status status = sample_push(zip.out.data, zip.out.size, 50, &sample_limits, 1 << 20, verify, &error);
    expect("a missing checksum", status, &error, verify ? XT_STATUS_corrupt : XT_STATUS_ok,
           "a record before a/data/0 is damaged");
    zip_free(&zip);
  }
  CHECK(!wrong);
}

/* Two records of the same name: the data of a storage is refused before it is read, the others after that. */
static void duplicate_records_of_a_stream(void) {
  static const struct {
    const char *name;
    int method;
    const char *message;
  } records[] = {{"a/data/0", ZIP_STORED, "the stream contains the data of storage 0 twice"},
                 {"a/data/0", ZIP_DEFLATED, "the stream contains the data of storage 0 twice"},
                 {"a/extra", ZIP_STORED, "duplicate record name"},
                 {"a/extra", ZIP_DEFLATED, "duplicate record name"}};
  for (size_t i = 0; i < COUNT_OF(records); i++) {
    zip_builder zip;
    xt_error error;
    begin_zip(&zip, ZIP_STORED, 0);
    for (int k = 0; k < 2; k++) zip_add_with(&zip, records[i].name, data, sizeof data, records[i].method, 0);
    zip_finish(&zip);
    xt_status status = sample_push(zip.out.data, zip.out.size, 50, &sample_limits, 1 << 20, true, &error);
    expect(records[i].name, status, &error, XT_STATUS_corrupt, records[i].message);
    zip_free(&zip);
  }
  CHECK(!wrong);
}

/* Streams that were unpacked: few bytes must not become many, besides the data of tensors. */
static xt_status push_unpacked(const zip_builder *zip, const xt_limits *limits, xt_error *error) {
  xt_checkpoint c;
  xt_push p;
  xt_push_event event = XT_PUSH_MORE;
  xt_status status = XT_STATUS_ok;
  size_t at = 0, used;
  xt_push_begin_checkpoint(&c, limits, false, true);
  xt_push_begin(&p, &c, 1 << 20);
  xt_push_set_stored(&p, 123);
  while (status == XT_STATUS_ok && event != XT_PUSH_DONE && (event != XT_PUSH_MORE || at < zip->out.size)) {
    size_t size = zip->out.size - at < 1000 ? zip->out.size - at : 1000;
    status = xt_push_feed(&p, zip->out.data + at, size, &used, &event, error);
    at += used;
  }
  CHECK(status != XT_STATUS_ok || event == XT_PUSH_DONE);
  xt_push_free(&p);
  xt_checkpoint_free(&c);
  return status;
}

static void an_unpacked_stream_has_a_limit(void) {
  static const char zeros[500000];
  xt_error error;
  for (int i = 0; i < 2; i++) {
    zip_builder zip = {0};
    xt_pickler p;
    xt_limits limits = sample_limits;
    put_views(&p, views, 1);
    if (i) zip_add(&zip, "a/extra", zeros, sizeof zeros); /* before the object: it is kept in memory */
    zip_add(&zip, "a/data.pkl", p.out.data, p.out.size);
    zip_add(&zip, "a/data/0", data, sizeof data);
    zip_finish(&zip);
    CHECK(push_unpacked(&zip, &limits, &error) == XT_STATUS_ok); /* 56 MiB and 15 times the size */
    limits.memory = 200000;
    xt_status status = push_unpacked(&zip, &limits, &error);
    expect("an unpacked stream", status, &error, i ? XT_STATUS_limit : XT_STATUS_ok,
           "123 bytes of gzip data become more than 200000 bytes");
    zip_free(&zip);
    xt_pickler_free(&p);
  }
  CHECK(!wrong);
}

/* A storage outside a tensor gets a tensor when the index is built. */
static void a_bare_storage_without_memory(void) {
  static const char pickle[] = "\x80\2(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0"
                               "0X\3\0\0\0cpuK\4tQ.";
  zip_builder zip = {0};
  zip_add(&zip, "a/data.pkl", pickle, sizeof pickle - 1);
  zip_add(&zip, "a/data/0", data, 16);
  zip_finish(&zip);
  for (fail_at = 0, fail_arenas = true;; fail_at++) {
    sample s;
    allocations = 0;
    xt_status status = sample_open(&s, zip.out.data, zip.out.size);
    bool failed = allocations > fail_at;
    CHECK(status == (failed ? XT_STATUS_no_memory : XT_STATUS_ok));
    if (!failed) CHECK(s.checkpoint.index.count == 1 && s.checkpoint.index.entries[0].tensor->bare);
    sample_free(&s);
    if (!failed) break;
  }
  fail_at = -1, fail_arenas = false;
  zip_free(&zip);
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
  xt_checkpoint_begin(&c, (uint64_t)1 << 62, 0, &sample_limits, false, false);
  expect("a huge file", xt_open_step(&c, &need, &s.error), &s.error, XT_STATUS_limit, "2 ** 62");
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
  return RUN_TESTS("refuse", a_bare_storage_without_memory, zip_records, unusual_sizes, many_views, unwanted_storages,
                   parts_of_directories, other_archives, constants_of_objects, a_missing_checksum_in_a_stream,
                   duplicate_records_of_a_stream, an_unpacked_stream_has_a_limit, late_records_of_a_stream,
                   zip_directories, zip_end_records, files_at_an_offset, a_gzip_file_in_a_gzip_file, limits_of_pickles);
}
