/* Legacy and streaming checkpoints, and legacy checkpoints inside plain pickles, that must be refused. They are
 * sequences of pickles, here written in protocol 0 after the first. */
#include "failing.h"
#include "refuse.h"

#define PUT(buffer, literal) xt_buffer_put(buffer, literal, sizeof literal - 1)

/* As a file, and as a stream. */
static void opens(const char *what, const xt_buffer *file, xt_status status, const char *message) {
  refuse(what, file->data, file->size, status, message);
}

/* ---- Legacy ---- */

typedef struct {
  const char *protocol, *system, *object, *keys;
  uint64_t numel;
  size_t bytes;
} legacy;

#define TENSOR "ctorch._utils\n_rebuild_tensor\n((Vstorage\nctorch\nFloatStorage\nV0\nVcpu\nI4\nNtQI0\n(I4\nt(I1\nttR."
static const legacy valid = {"I1001\n.", "(d.", TENSOR, "(V0\nl.", 4, 16};

static xt_buffer make_legacy(const legacy *l) {
  xt_buffer out = {0};
  PUT(&out, "\x80\2\x8a\nl\xfc\x9c\x46\xf9 j\xa8P\x19.");
  xt_buffer_text(&out, l->protocol);
  xt_buffer_text(&out, l->system);
  xt_buffer_text(&out, l->object);
  xt_buffer_text(&out, l->keys);
  xt_buffer_le(&out, l->numel, 8);
  xt_buffer_fill(&out, 1, l->bytes);
  return out;
}

/* A plain pickle that contains the legacy checkpoint `times` times. */
static xt_buffer make_nested(const legacy *l, int times) {
  xt_buffer inner = make_legacy(l), out = {0};
  PUT(&out, "\x80\3(B");
  xt_buffer_le(&out, inner.size, 4);
  xt_buffer_put(&out, inner.data, inner.size);
  PUT(&out, "q\0000");
  for (int i = 0; i < times; i++) PUT(&out, "ctorch.storage\n_load_from_bytes\n(h\0tR");
  PUT(&out, "l.");
  xt_buffer_free(&inner);
  return out;
}

static const struct {
  const char *what;
  legacy file;
  xt_status status;
  const char *message;       /* as a file */
  const char *inner_message; /* inside a pickle; NULL: not checked there */
} legacies[] = {
    {"valid", {"I1001\n.", "(d.", TENSOR, "(V0\nl.", 4, 16}, XT_STATUS_ok, "", ""},
    {"protocol", {"I7\n.", "(d.", TENSOR, "(V0\nl.", 4, 16}, XT_STATUS_unsupported, "protocol", NULL},
    {"no dict", {"I1001\n.", "N.", TENSOR, "(V0\nl.", 4, 16}, XT_STATUS_corrupt, "third pickle", NULL},
    {"no list", {"I1001\n.", "(d.", TENSOR, "N.", 4, 16}, XT_STATUS_corrupt, "fifth pickle", "not a list"},
    {"no keys", {"I1001\n.", "(d.", TENSOR, "(l.", 4, 16}, XT_STATUS_corrupt, "number of listed", "does not contain"},
    {"another key", {"I1001\n.", "(d.", TENSOR, "(V1\nl.", 4, 16}, XT_STATUS_corrupt, "not used", "does not use"},
    {"no text as key",
     {"I1001\n.", "(d.", TENSOR, "(I0\nl.", 4, 16},
     XT_STATUS_corrupt,
     "not used",
     "invalid storage key"},
    {"another size",
     {"I1001\n.", "(d.", TENSOR, "(V0\nl.", 5, 20},
     XT_STATUS_corrupt,
     "number of elements",
     "unexpected size"},
    {"truncated", {"I1001\n.", "(d.", TENSOR, "(V0\nl.", 4, 15}, XT_STATUS_truncated, "", NULL},
    {"a bad pickle", {"I1001\n.", "(d.", "0.", "(V0\nl.", 4, 16}, XT_STATUS_corrupt, "underflow", "underflow"},
    {"two keys",
     {"I1001\n.", "(d.",
      "(ctorch._utils\n_rebuild_tensor\n((Vstorage\nctorch\nFloatStorage\nV0\nVcpu\nI4\nNtQI0\n(I4\nt(I1\nttR"
      "ctorch._utils\n_rebuild_tensor\n((Vstorage\nctorch\nFloatStorage\nV1\nVcpu\nI4\nNtQI0\n(I4\nt(I1\nttRl.",
      "(V0\nV0\nl.", 4, 16 + 24},
     XT_STATUS_corrupt,
     "duplicate storage key",
     NULL},
};

static void legacy_files(void) {
  for (size_t i = 0; i < COUNT_OF(legacies); i++) {
    xt_buffer file = make_legacy(&legacies[i].file);
    if (i == COUNT_OF(legacies) - 1) { /* the second storage's number of elements */
      memset(file.data + file.size - 24, 0, 8);
      file.data[file.size - 24] = 4;
    }
    opens(legacies[i].what, &file, legacies[i].status, legacies[i].message);
    xt_buffer_free(&file);
    if (!legacies[i].inner_message) continue;
    file = make_nested(&legacies[i].file, 1);
    opens(legacies[i].what, &file, legacies[i].status, legacies[i].inner_message);
    xt_buffer_free(&file);
  }
  /* the bytes of a nested checkpoint can be used once */
  xt_buffer file = make_nested(&valid, 2);
  opens("nested twice", &file, XT_STATUS_corrupt, "used more than once");
  xt_buffer_free(&file);
  CHECK(!wrong);
}

static void nested_checkpoints_without_memory(void) {
  xt_buffer file = make_nested(&valid, 1);
  for (fail_at = 0, fail_arenas = true;; fail_at++) {
    sample s;
    allocations = 0;
    xt_status status = sample_open(&s, file.data, file.size);
    bool failed = allocations > fail_at;
    CHECK(status == (failed ? XT_STATUS_no_memory : XT_STATUS_ok));
    sample_free(&s);
    if (!failed) break;
  }
  fail_at = -1, fail_arenas = false;
  xt_buffer_free(&file);
}

/* ---- Streaming ---- */

#define ENTRY(key, length) "ctorch.distributed._serialization\n_Entry\n(tR(Vkey\nV" key "\nVlength\nI" length "\ndb"
#define OBJECT \
  "ctorch._utils\n_rebuild_tensor_v2\n((Vstorage\nctorch\nFloatStorage\nV0\nVcpu\nI4\ntQI0\n(I4\nt(I1\ntI00\nNtR."
#define OBJECT_SIZE "98"

static const struct {
  const char *what, *list, *rest;
  size_t zeros; /* bytes after `rest` */
  xt_status status;
  const char *message;
} streams[] = {
    {"valid", "(" ENTRY("data.pkl", OBJECT_SIZE) ENTRY("data/0", "16") "l.", OBJECT, 16, XT_STATUS_ok, ""},
    {"no entry", "(" ENTRY("data.pkl", OBJECT_SIZE) "Nl.", OBJECT, 16, XT_STATUS_corrupt, "class _Entry"},
    {"no length", "(" ENTRY("data.pkl", "-1") "l.", OBJECT, 16, XT_STATUS_corrupt, "key or length"},
    {"twice", "(" ENTRY("data.pkl", OBJECT_SIZE) ENTRY("data.pkl", "1") "l.", OBJECT, 1, XT_STATUS_corrupt,
     "duplicate record"},
    {"no storage", "(" ENTRY("data.pkl", OBJECT_SIZE) "l.", OBJECT, 0, XT_STATUS_corrupt, ""},
    {"a short storage", "(" ENTRY("data.pkl", OBJECT_SIZE) ENTRY("data/0", "12") "l.", OBJECT, 12, XT_STATUS_corrupt,
     "12 bytes"},
    {"a long text", "(" ENTRY("data.pkl", OBJECT_SIZE) ENTRY("data/0", "16") ENTRY("version", "5000") "l.", OBJECT,
     5016, XT_STATUS_limit, "version has 5000 bytes"},
    {"a bad byte order", "(" ENTRY("data.pkl", OBJECT_SIZE) ENTRY("byteorder", "3") ENTRY("data/0", "16") "l.", OBJECT,
     19, XT_STATUS_corrupt, "byteorder"},
};

static void streaming_files(void) {
  CHECK(sizeof OBJECT - 1 == atoi(OBJECT_SIZE));
  for (size_t i = 0; i < COUNT_OF(streams); i++) {
    xt_buffer file = {0};
    PUT(&file, "\x80\2");
    xt_buffer_text(&file, streams[i].list);
    xt_buffer_text(&file, streams[i].rest);
    xt_buffer_fill(&file, 0, streams[i].zeros);
    opens(streams[i].what, &file, streams[i].status, streams[i].message);
    xt_buffer_free(&file);
  }
  CHECK(!wrong);
}

/* The list is one object, and an object that is larger than the list. */
static void unusual_streams(void) {
  xt_buffer file = {0};
  PUT(&file, "\x80\2" ENTRY("data.pkl", OBJECT_SIZE) ".");
  xt_buffer_text(&file, OBJECT);
  sample s;
  CHECK(sample_open(&s, file.data, file.size) != XT_STATUS_ok);
  sample_free(&s);
  xt_buffer_free(&file);
  PUT(&file, "\x80\2(" ENTRY("data.pkl", "1004") "l.(V");
  xt_buffer_fill(&file, 'x', 999);
  PUT(&file, "\nt.");
  for (uint64_t limit = 1004; limit >= 1003; limit--) {
    xt_limits limits = sample_limits;
    xt_error error;
    limits.pickle_bytes = limit;
    xt_status expected = limit == 1004 ? XT_STATUS_ok : XT_STATUS_limit;
    sample_open_with(&s, file.data, file.size, &limits, false, 0);
    expect("a large object", s.status, &s.error, expected, "");
    sample_free(&s);
    xt_status got = sample_push(file.data, file.size, 50, &limits, 1 << 20, false, &error);
    expect("a large object in a stream", got, &error, expected, expected == XT_STATUS_ok ? "" : "pickle_bytes");
  }
  xt_buffer_free(&file);
  CHECK(!wrong);
}

/* A nested checkpoint whose object is a nested checkpoint. */
static void nested_in_nested(void) {
  xt_buffer inner = make_legacy(&valid), middle = {0}, file = {0};
  PUT(&middle, "\x80\2\x8a\nl\xfc\x9c\x46\xf9 j\xa8P\x19.I1001\n.(d.\x80\3ctorch.storage\n_load_from_bytes\n(B");
  xt_buffer_le(&middle, inner.size, 4);
  xt_buffer_put(&middle, inner.data, inner.size);
  PUT(&middle, "tR.(l.");
  PUT(&file, "\x80\3ctorch.storage\n_load_from_bytes\n(B");
  xt_buffer_le(&file, middle.size, 4);
  xt_buffer_put(&file, middle.data, middle.size);
  PUT(&file, "tR.");
  opens("nested in nested", &file, XT_STATUS_corrupt, "inside a nested checkpoint");
  xt_buffer_free(&inner);
  xt_buffer_free(&middle);
  xt_buffer_free(&file);
  CHECK(!wrong);
}

/* A legacy checkpoint with a tensor and a nested checkpoint. It lists the storage of the nested one, whose data it has
 * already, instead of its own. */
static void a_storage_of_a_nested_checkpoint_is_listed(void) {
  static const struct {
    const char *keys;
    xt_status status;
    const char *message, *of_stream;
  } lists[] = {{"(V0\nl.", XT_STATUS_ok, "", ""},
               {"(Vbytes0/0\nl.", XT_STATUS_corrupt, "the data of storage 0 is missing", "already inside the pickle"},
               {"(V0\nVbytes0/0\nl.", XT_STATUS_corrupt, "number of listed", "number of listed"}};
  for (size_t i = 0; i < COUNT_OF(lists); i++) {
    xt_buffer inner = make_legacy(&valid), file = {0};
    xt_error error;
    PUT(&file, "\x80\2\x8a\nl\xfc\x9c\x46\xf9 j\xa8P\x19.I1001\n.(d.\x80\3(");
    xt_buffer_put(&file, TENSOR, sizeof TENSOR - 2); /* without STOP */
    PUT(&file, "ctorch.storage\n_load_from_bytes\n(B");
    xt_buffer_le(&file, inner.size, 4);
    xt_buffer_put(&file, inner.data, inner.size);
    PUT(&file, "tRt.");
    xt_buffer_text(&file, lists[i].keys);
    xt_buffer_le(&file, 4, 8);
    xt_buffer_fill(&file, 2, 16);
    refuse_with("a listed storage", file.data, file.size, &sample_limits, lists[i].status, lists[i].message, true);
    expect("a listed storage of a stream", sample_push(file.data, file.size, 50, &sample_limits, 1 << 20, true, &error),
           &error, lists[i].status, lists[i].of_stream);
    xt_buffer_free(&inner);
    xt_buffer_free(&file);
  }
  CHECK(!wrong);
}

/* The storages come first, so all of it is kept; and a record that nobody needs must fit the spool as well. */
static void spools_of_streams(void) {
  static const char *const lists[] = {"(" ENTRY("data/0", "16") ENTRY("data.pkl", OBJECT_SIZE) "l.",
                                      "(" ENTRY("data.pkl", OBJECT_SIZE) ENTRY("data/0", "16")
                                          ENTRY("extra", "9000") "l."};
  for (int i = 0; i < 2; i++) {
    xt_buffer file = {0};
    xt_error error;
    PUT(&file, "\x80\2");
    xt_buffer_text(&file, lists[i]);
    if (i) xt_buffer_text(&file, OBJECT);
    xt_buffer_fill(&file, 0, 16);
    if (!i) xt_buffer_text(&file, OBJECT);
    if (i) xt_buffer_fill(&file, 0, 9000);
    size_t limit = i ? 9000 : file.size;
    CHECK(sample_push(file.data, file.size, 50, &sample_limits, limit, false, &error) == XT_STATUS_ok);
    CHECK(sample_push(file.data, file.size, 50, &sample_limits, limit - 1, false, &error) == XT_STATUS_limit);
    CHECK(strstr(error.message, "spool_bytes"));
    xt_buffer_free(&file);
  }
}

/* ---- Limits of the tree ---- */

/* A pickle that creates more objects than its size allows, and one whose objects are large. */
static void trees_that_are_too_large(void) {
  xt_buffer many = {0};
  PUT(&many, "\x80\2(");
  xt_buffer_fill(&many, ']', 1200001);
  PUT(&many, "t.");
  opens("many objects", &many, XT_STATUS_limit, "");
  xt_buffer_free(&many);
  CHECK(!wrong);
}

int main(void) {
  return RUN_TESTS("sequence", legacy_files, nested_checkpoints_without_memory, nested_in_nested,
                   a_storage_of_a_nested_checkpoint_is_listed, streaming_files, unusual_streams, spools_of_streams,
                   trees_that_are_too_large);
}
