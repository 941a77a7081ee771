/* Every limit of c_src/core that a file can reach: what is at the limit is read, one more is refused. The limits of
 * dimensions, texts and mappings are also in unpickle_test.c, tar_test.c, refuse_test.c and mapping_test.c. */
#include "core/formats/safetensors.h"
#include "sample.h"

static int wrong;

#define PUT(buffer, literal) xt_buffer_put(buffer, literal, sizeof literal - 1)

/* Opens a plain pickle, or any file, and compares the status. */
static void opens(const char *what, const xt_buffer *file, const xt_limits *limits, xt_status status,
                  const char *message) {
  sample s;
  CHECK(!file->failed);
  sample_open_with(&s, file->data, file->size, limits, false, 0);
  if (s.status != status || !strstr(s.error.message, message)) {
    fprintf(stderr, "%s: expected %d \"%s\", got %d \"%s\"\n", what, (int)status, message, (int)s.status,
            s.error.message);
    wrong++;
  }
  sample_free(&s);
}

/* `count` times `item` between `before` and `after`, as a pickle of protocol 2. */
static xt_buffer repeated(const char *before, const char *item, size_t count, const char *after) {
  xt_buffer out = {0};
  PUT(&out, "\x80\2");
  xt_buffer_text(&out, before);
  for (size_t i = 0; i < count; i++) xt_buffer_text(&out, item);
  xt_buffer_text(&out, after);
  xt_buffer_byte(&out, '.');
  return out;
}

typedef struct {
  const char *what, *before, *item, *after;
  size_t most; /* how many items are allowed */
  xt_status status;
  const char *message;
} counted;

#define STORAGE(key, location) "(Vstorage\nctorch\nFloatStorage\nV" key "\nV" location "\nI4\ntQ"
#define ARRAY "cnumpy.core.multiarray\n_reconstruct\n(tR(I1\n("
#define ARRAY_END "tcnumpy\ndtype\n(Vf4\ntRI00\nS'1234'\ntb"

/* In plain pickles there are no storages; those limits are in zip_limits. */
static const counted in_pickles[] = {
    {"dimensions of an array", ARRAY, "I1\n", ARRAY_END, 64, XT_STATUS_corrupt, "65 dimensions"},
    {"nodes of a key", "}(", "I7\n", "tI1\ns", 999, XT_STATUS_limit, "dict key has more than 1000 nodes"},
    {"digits of an integer", "I", "7", "\n", 39000, XT_STATUS_unsupported, "decimal integer of 39001 digits"},
    {"digits of a float", "F", "0", "\n", 63, XT_STATUS_corrupt, "invalid decimal float"},
};

static void limits_in_pickles(void) {
  for (size_t i = 0; i < COUNT_OF(in_pickles); i++) {
    const counted *limit = &in_pickles[i];
    xt_buffer at = repeated(limit->before, limit->item, limit->most, limit->after);
    xt_buffer above = repeated(limit->before, limit->item, limit->most + 1, limit->after);
    opens(limit->what, &at, &sample_limits, XT_STATUS_ok, "");
    opens(limit->what, &above, &sample_limits, limit->status, limit->message);
    xt_buffer_free(&at);
    xt_buffer_free(&above);
  }
  CHECK(!wrong);
}

/* An Erlang tuple has at most 2^24 - 1 items. */
static void items_of_a_tuple(void) {
  xt_buffer above = repeated("(", "N", 1 << 24, "t");
  opens("items of a tuple", &above, &sample_limits, XT_STATUS_limit, "");
  xt_buffer_free(&above);
  xt_buffer below = repeated("(", "N", 1 << 20, "t");
  opens("items of a tuple", &below, &sample_limits, XT_STATUS_ok, "");
  xt_buffer_free(&below);
  CHECK(!wrong);
}

/* To print an integer takes time that grows with the square of its size. */
static void bytes_of_an_integer(void) {
  enum { MOST = 16384, LONG4 = 0x8b };
  for (uint32_t size = MOST; size <= MOST + 1; size++) {
    xt_buffer pickle = {0};
    PUT(&pickle, "\x80\2");
    xt_buffer_byte(&pickle, LONG4);
    for (int i = 0; i < 4; i++) xt_buffer_byte(&pickle, (uint8_t)(size >> 8 * i));
    for (uint32_t i = 0; i < size; i++) xt_buffer_byte(&pickle, 1);
    xt_buffer_byte(&pickle, '.');
    opens("bytes of an integer", &pickle, &sample_limits, size > MOST ? XT_STATUS_limit : XT_STATUS_ok,
          size > MOST ? "printing larger ones" : "");
    xt_buffer_free(&pickle);
  }
  CHECK(!wrong);
}

/* Lists in lists, for several limits. An empty list needs no level. */
static void depth(void) {
  static const uint64_t depths[] = {1, 2, 1000, 5000};
  for (size_t i = 0; i < COUNT_OF(depths); i++) {
    xt_limits limits = sample_limits;
    limits.depth = depths[i];
    for (uint64_t more = 0; more < 2; more++) {
      xt_buffer pickle = {0};
      PUT(&pickle, "\x80\2");
      xt_buffer_fill(&pickle, ']', depths[i] + more + 1);
      xt_buffer_fill(&pickle, 'a', depths[i] + more);
      xt_buffer_byte(&pickle, '.');
      opens("depth", &pickle, &limits, more ? XT_STATUS_limit : XT_STATUS_ok, more ? "limits: [depth: n]" : "");
      xt_buffer_free(&pickle);
    }
  }
  CHECK(!wrong);
}

/* A zip file with this pickle and a storage of four floats. */
static void opens_zip(const char *what, const xt_buffer *pickle, const char *key, const xt_limits *limits,
                      xt_status status, const char *message) {
  zip_builder zip = {0};
  char name[600];
  zip_add(&zip, "a/data.pkl", pickle->data, pickle->size);
  snprintf(name, sizeof name, "a/data/%s", key);
  zip_add(&zip, name, "0123456789abcdef", 16);
  zip_finish(&zip);
  opens(what, &zip.out, limits, status, message);
  zip_free(&zip);
}

static const counted in_zip[] = {
    {"dimensions", "ctorch._utils\n_rebuild_tensor_v2\n(" STORAGE("0", "cpu") "I0\n(", "I1\n", "t(I1\nttR", 64,
     XT_STATUS_corrupt, "65 dimensions"},
    {"bytes of a location", "(Vstorage\nctorch\nFloatStorage\nV0\nV", "x", "\nI4\ntQ0N", 256, XT_STATUS_corrupt,
     "longer than 256 bytes"},
    {"metadata of a tensor", "ctorch._utils\n_rebuild_tensor_v2\n(" STORAGE("0", "cpu") "I0\n(I4\nt(I1\ntI00\nN(",
     "Va\nI1\n", "dtR", 16, XT_STATUS_corrupt, "too many entries"},
};

static void limits_in_zip_files(void) {
  for (size_t i = 0; i < COUNT_OF(in_zip); i++) {
    const counted *limit = &in_zip[i];
    xt_buffer at = repeated(limit->before, limit->item, limit->most, limit->after);
    xt_buffer above = repeated(limit->before, limit->item, limit->most + 1, limit->after);
    if (i) opens_zip(limit->what, &at, "0", &sample_limits, XT_STATUS_ok, "");
    else opens_zip(limit->what, &at, "0", &sample_limits, XT_STATUS_corrupt, "64 sizes but 1 strides");
    opens_zip(limit->what, &above, "0", &sample_limits, limit->status, limit->message);
    xt_buffer_free(&at);
    xt_buffer_free(&above);
  }
  CHECK(!wrong);
}

static void keys_of_storages(void) {
  for (size_t size = 122; size <= 123; size++) {
    char key[124] = {0};
    memset(key, 'k', size);
    xt_buffer pickle = {0};
    PUT(&pickle, "\x80\2(Vstorage\nctorch\nFloatStorage\nV");
    xt_buffer_text(&pickle, key);
    xt_buffer_text(&pickle, "\nVcpu\nI4\ntQ0N.");
    opens_zip("a key", &pickle, key, &sample_limits, size == 122 ? XT_STATUS_ok : XT_STATUS_corrupt,
              size == 122 ? "" : "at most 122");
    xt_buffer_free(&pickle);
  }
  CHECK(!wrong);
}

static const sample_view view = {"w", "0", "torch\nFloatStorage\n", 4, 0, 1, {4}, {1}};

static void bytes_of_tensors_and_pickles(void) {
  xt_pickler p;
  put_views(&p, &view, 1);
  xt_limits limits = sample_limits;
  limits.tensor_bytes = 16;
  opens_zip("tensor_bytes", &p.out, "0", &limits, XT_STATUS_ok, "");
  limits.tensor_bytes = 15;
  opens_zip("tensor_bytes", &p.out, "0", &limits, XT_STATUS_limit, "tensor_bytes");
  limits = sample_limits;
  limits.pickle_bytes = p.out.size;
  opens_zip("pickle_bytes", &p.out, "0", &limits, XT_STATUS_ok, "");
  limits.pickle_bytes--;
  opens_zip("pickle_bytes", &p.out, "0", &limits, XT_STATUS_limit, "pickle_bytes");
  xt_pickler_free(&p);
  CHECK(!wrong);
}

/* A text record: 4,096 bytes. */
static void texts(void) {
  for (size_t size = 4096; size <= 4097; size++) {
    zip_builder zip = {0};
    char text[4097] = {0};
    xt_pickler p;
    put_views(&p, &view, 1);
    zip_add(&zip, "a/data.pkl", p.out.data, p.out.size);
    zip_add(&zip, "a/version", text, size);
    zip_add(&zip, "a/data/0", "0123456789abcdef", 16);
    zip_finish(&zip);
    xt_error error;
    xt_status expected = size == 4096 ? XT_STATUS_ok : XT_STATUS_limit;
    opens("a text", &zip.out, &sample_limits, expected, "");
    CHECK(sample_push(zip.out.data, zip.out.size, 100, &sample_limits, 1 << 20, false, &error) == expected);
    zip_free(&zip);
    xt_pickler_free(&p);
  }
  CHECK(!wrong);
}

/* Legacy and streaming files: each pickle is limited, also while its end is searched for. */
static void pickles_in_sequence(void) {
  char *large = malloc(200001);
  memset(large, 'x', 200000), large[200000] = 0;
  xt_buffer legacy = {0};
  PUT(&legacy, "\x80\2\x8a\nl\xfc\x9c\x46\xf9 j\xa8P\x19.\x80\2M\xe9\3.\x80\2}q\0.\x80\2X");
  xt_buffer_le(&legacy, 200000, 4);
  xt_buffer_text(&legacy, large);
  PUT(&legacy, "0N.\x80\2]q\0.");
  size_t object = 2 + 1 + 4 + 200000 + 3;
  for (size_t limit = object; limit >= object - 1; limit--) {
    xt_limits limits = sample_limits;
    limits.pickle_bytes = limit;
    opens("a legacy pickle", &legacy, &limits, limit == object ? XT_STATUS_ok : XT_STATUS_limit, "");
    xt_error error;
    CHECK(sample_push(legacy.data, legacy.size, 1000, &limits, 1 << 20, false, &error) ==
          (limit == object ? XT_STATUS_ok : XT_STATUS_limit));
  }
  xt_limits limits = sample_limits;
  limits.pickle_bytes = 100;
  opens("a legacy pickle far above the limit", &legacy, &limits, XT_STATUS_limit, "pickle_bytes");
  xt_buffer_free(&legacy);
  free(large);
  CHECK(!wrong);
}

/* The header of a safetensors file: 100 MB. Its size alone is checked, so the file need not exist. */
static void header_of_safetensors(void) {
  xt_checkpoint c;
  xt_error error;
  uint64_t size;
  for (uint64_t more = 0; more < 2; more++) {
    uint8_t prefix[8];
    for (int i = 0; i < 8; i++) prefix[i] = (uint8_t)((100000000 + more) >> 8 * i);
    xt_checkpoint_begin(&c, 1 << 30, 0, &sample_limits, false, false);
    CHECK(xt_safetensors_header_size(&c, prefix, &size, &error) == (more ? XT_STATUS_limit : XT_STATUS_ok));
    xt_checkpoint_free(&c);
  }
}

/* What a stream keeps: here all of it, because a record that is not a text comes before the object. */
static void spool(void) {
  zip_builder zip = {0};
  xt_pickler p;
  xt_error error;
  put_views(&p, &view, 1);
  zip_add(&zip, "a/code.py", "pass", 4);
  zip_add(&zip, "a/data.pkl", p.out.data, p.out.size);
  zip_add(&zip, "a/data/0", "0123456789abcdef", 16);
  zip_finish(&zip);
  size_t size = zip.out.size;
  for (size_t piece = 1; piece <= size; piece += size - 1) {
    CHECK(sample_push(zip.out.data, size, piece, &sample_limits, size, false, &error) == XT_STATUS_ok);
    CHECK(sample_push(zip.out.data, size, piece, &sample_limits, size - 1, false, &error) == XT_STATUS_limit);
    CHECK(strstr(error.message, "spool_bytes"));
  }
  zip_free(&zip);
  xt_pickler_free(&p);
}

/* After an error, a stream cannot go on. */
static void a_stream_that_failed(void) {
  xt_checkpoint c;
  xt_push p;
  xt_error error;
  xt_push_event event;
  size_t used;
  static const uint8_t bad[2000] = "PK\3\4";
  xt_push_begin_checkpoint(&c, &sample_limits, false, false);
  xt_push_begin(&p, &c, 1000);
  CHECK(xt_push_feed(&p, bad, sizeof bad, &used, &event, &error) != XT_STATUS_ok);
  CHECK(xt_push_feed(&p, bad, 0, &used, &event, &error) == XT_STATUS_stale && strstr(error.message, "new loader"));
  xt_push_free(&p);
  xt_checkpoint_free(&c);
}

int main(void) {
  return RUN_TESTS("limits", limits_in_pickles, items_of_a_tuple, bytes_of_an_integer, depth, limits_in_zip_files,
                   keys_of_storages, bytes_of_tensors_and_pickles, texts, pickles_in_sequence, header_of_safetensors,
                   spool, a_stream_that_failed);
}
