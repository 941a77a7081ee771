/* Tar checkpoints that must be refused. The valid one has two storages, a view of the first, and two tensors. */
#include "failing.h"
#include "sample.h"

enum { BLOCK = 512 };

/* The parts of the three members, as protocol 0 pickles and little-endian numbers. */
typedef struct {
  const char *count, *storage, *views, *tensor_count, *tensor, *pickle;
  uint64_t numel;
  uint32_t ndim;
  int64_t size, stride, offset;
} parts;

#define STORAGE_0 "(I0\nVcpu\nctorch\nFloatStorage\nt."
static const parts valid = {.count = "I2\n.",
                            .storage = STORAGE_0,
                            .views = "((Vv\nI0\nI1\nI3\ntl.",
                            .tensor_count = "I2\n.",
                            .tensor = "(I7\nI0\nctorch\nFloatTensor\nt.",
                            .pickle = "(P7\nP8\nl.",
                            .numel = 4,
                            .ndim = 1,
                            .size = 4,
                            .stride = 1,
                            .offset = 0};

static void put_member(xt_buffer *tar, const char *name, const xt_buffer *content, char type) {
  size_t at = tar->size, sum = 0;
  char text[16];
  xt_buffer_fill(tar, 0, BLOCK);
  uint8_t *header = tar->data + at;
  memcpy(header, name, strlen(name));
  snprintf(text, sizeof text, "%011o", (unsigned)content->size);
  memcpy(header + 124, text, 11);
  header[156] = (uint8_t)type;
  memcpy(header + 257, "ustar", 5);
  memset(header + 148, ' ', 8);
  for (int i = 0; i < BLOCK; i++) sum += header[i];
  snprintf(text, sizeof text, "%06o", (unsigned)sum);
  memcpy(header + 148, text, 7);
  xt_buffer_put(tar, content->data, content->size);
  xt_buffer_fill(tar, 0, (BLOCK - content->size % BLOCK) % BLOCK);
}

static void make_members(const parts *p, xt_buffer members[3]) {
  xt_buffer *storages = &members[0], *tensors = &members[1];
  memset(members, 0, 3 * sizeof *members);
  xt_buffer_text(storages, p->count);
  xt_buffer_text(storages, p->storage);
  xt_buffer_le(storages, p->numel, 8);
  xt_buffer_fill(storages, 1, 16);
  xt_buffer_text(storages, "(I1\nVcpu\nctorch\nByteStorage\nt.");
  xt_buffer_le(storages, 0, 8);
  xt_buffer_text(storages, p->views);
  xt_buffer_text(tensors, p->tensor_count);
  for (int i = 0; i < 2; i++) {
    xt_buffer_text(tensors, i ? "(I8\nVv\nctorch\nFloatTensor\nt." : p->tensor);
    xt_buffer_le(tensors, i ? 1 : p->ndim, 4);
    xt_buffer_le(tensors, 0, 4);
    xt_buffer_le(tensors, i ? 3 : (uint64_t)p->size, 8);
    xt_buffer_le(tensors, i ? 1 : (uint64_t)p->stride, 8);
    xt_buffer_le(tensors, i ? 0 : (uint64_t)p->offset, 8);
  }
  xt_buffer_text(&members[2], p->pickle);
}

static void make_tar(const parts *p, xt_buffer *tar) {
  static const char *const names[] = {"storages", "./tensors", "pickle"};
  xt_buffer members[3];
  *tar = (xt_buffer){0};
  make_members(p, members);
  for (int i = 0; i < 3; i++) {
    put_member(tar, names[i], &members[i], i ? '0' : 0);
    xt_buffer_free(&members[i]);
  }
  put_member(tar, "other", &(xt_buffer){.data = (uint8_t *)"x", .size = 1}, '0');
  xt_buffer_fill(tar, 0, 2 * BLOCK);
}

static bool opens_as(const xt_buffer *tar, const xt_limits *limits, bool strict, xt_status status,
                     const char *message) {
  sample s;
  sample_open_with(&s, tar->data, tar->size, limits, strict, 0);
  bool right = s.status == status && strstr(s.error.message, message);
  if (!right)
    fprintf(stderr, "expected %d \"%s\", got %d \"%s\"\n", (int)status, message, (int)s.status, s.error.message);
  if (status == XT_STATUS_ok && right) CHECK(s.checkpoint.index.count == 2);
  sample_free(&s);
  return right;
}

static void a_valid_file_is_read(void) {
  xt_buffer tar;
  make_tar(&valid, &tar);
  CHECK(opens_as(&tar, &sample_limits, false, XT_STATUS_ok, ""));
  CHECK(opens_as(&tar, &sample_limits, true, XT_STATUS_forbidden, "strict"));
  for (fail_at = 0, fail_arenas = true;; fail_at++) {
    allocations = 0;
    sample s;
    xt_status status = sample_open(&s, tar.data, tar.size);
    bool failed = allocations > fail_at;
    CHECK(status == XT_STATUS_ok ? true : failed && status == XT_STATUS_no_memory);
    sample_free(&s);
    if (!failed) break;
  }
  fail_at = -1, fail_arenas = false;
  xt_buffer_free(&tar);
}

static int wrong;

static void refuse(parts changed, const char *message) {
  xt_buffer tar;
  make_tar(&changed, &tar);
  wrong += !opens_as(&tar, &sample_limits, false, XT_STATUS_corrupt, message);
  xt_buffer_free(&tar);
}

/* The valid file with one part replaced. */
#define CHANGED(field, value) (changed = valid, changed.field = (value), changed)

static void changed_parts_are_refused(void) {
  parts changed;
  refuse(CHANGED(count, "Vx\n."), "number of storages");
  refuse(CHANGED(count, "I-1\n."), "number of storages");
  refuse(CHANGED(count, "I99999\n."), "number of storages");
  refuse(CHANGED(count, "I1\n."), "list of views");
  refuse(CHANGED(storage, "N."), "(key, location, class)");
  refuse(CHANGED(storage, "(NVcpu\nctorch\nFloatStorage\nt."), "(key, location, class)");
  refuse(CHANGED(storage, "(I0\nVcpu\nctorch\nNoStorage\nt."), "(key, location, class)");
  refuse(CHANGED(storage, "(I1\nVcpu\nctorch\nFloatStorage\nt."), "duplicate key");
  refuse(CHANGED(numel, UINT64_MAX), "negative or too large");
  refuse(CHANGED(numel, 1 << 20), "ends after its member");
  refuse(CHANGED(views, "N."), "list of views");
  refuse(CHANGED(views, "(Nl."), "existing storage, offset, count");
  refuse(CHANGED(views, "((Vv\nNI0\nI1\ntl."), "existing storage, offset, count");
  refuse(CHANGED(views, "((NI0\nI0\nI1\ntl."), "existing storage, offset, count");
  refuse(CHANGED(views, "((Vv\nI9\nI0\nI1\ntl."), "existing storage, offset, count");
  refuse(CHANGED(views, "((Vv\nI0\nI2\nI3\ntl."), "past the end of its storage");
  refuse(CHANGED(views, "((Vv\nI0\nI-1\nI1\ntl."), "past the end of its storage");
  refuse(CHANGED(views, "((I0\nI0\nI0\nI1\ntl."), "duplicate key");
  refuse(CHANGED(tensor_count, "Vx\n."), "number of tensors");
  refuse(CHANGED(tensor_count, "I-2\n."), "number of tensors");
  refuse(CHANGED(tensor, "N."), "existing storage, class");
  refuse(CHANGED(tensor, "(NI0\nNt."), "existing storage, class");
  refuse(CHANGED(tensor, "(I7\nI9\nNt."), "existing storage, class");
  refuse(CHANGED(tensor, "(I0\nI0\nNt."), "duplicate key");
  refuse(CHANGED(ndim, 65), "more than 64 dimensions");
  refuse(CHANGED(ndim, 60), "ends too early");
  refuse(CHANGED(size, 5), "past the end of its storage");
  refuse(CHANGED(size, -1), "negative");
  refuse(CHANGED(stride, -1), "negative");
  refuse(CHANGED(offset, -1), "negative or overflows");
  refuse(CHANGED(offset, INT64_MAX), "");
  refuse(CHANGED(pickle, "P9\n."), "not the key");
  CHECK(!wrong);
}

static void changed_headers_are_refused(void) {
  xt_buffer tar, members[3];
  make_tar(&valid, &tar);
  tar.data[10] ^= 1;
  CHECK(opens_as(&tar, &sample_limits, false, XT_STATUS_corrupt, "checksum"));
  xt_buffer_free(&tar);
  make_members(&valid, members);
  /* the member ends after the pickle of a storage */
  xt_buffer cut = members[0];
  cut.size = strlen(valid.count) + strlen(valid.storage) + 7;
  tar = (xt_buffer){0};
  put_member(&tar, "storages", &cut, '0');
  put_member(&tar, "tensors", &members[1], '0');
  put_member(&tar, "pickle", &members[2], '0');
  CHECK(opens_as(&tar, &sample_limits, false, XT_STATUS_corrupt, "ends too early"));
  xt_buffer_free(&tar);
  /* a link, a member twice, a member that is missing, and one that is longer than the file */
  for (int i = 0; i < 4; i++) {
    static const char *const messages[] = {"link or directory", "duplicate member", "is missing", "incomplete"};
    tar = (xt_buffer){0};
    put_member(&tar, "storages", &members[0], '0');
    put_member(&tar, "tensors", &members[1], i == 0 ? '2' : '0');
    if (i != 2) put_member(&tar, "pickle", &members[2], '0');
    if (i == 1) put_member(&tar, "pickle", &members[2], '0');
    if (i == 3) tar.size -= BLOCK + 100;
    xt_status status = i == 3 ? XT_STATUS_truncated : XT_STATUS_corrupt;
    CHECK(opens_as(&tar, &sample_limits, false, status, messages[i]));
    xt_buffer_free(&tar);
  }
  for (int i = 0; i < 3; i++) xt_buffer_free(&members[i]);
}

static void members_above_the_limit_are_refused(void) {
  xt_buffer tar, members[3];
  xt_limits limits = sample_limits;
  make_members(&valid, members);
  make_tar(&valid, &tar);
  limits.pickle_bytes = members[1].size;
  CHECK(opens_as(&tar, &limits, false, XT_STATUS_ok, ""));
  limits.pickle_bytes--;
  CHECK(opens_as(&tar, &limits, false, XT_STATUS_limit, "pickle_bytes"));
  xt_buffer_free(&tar);
  for (int i = 0; i < 3; i++) xt_buffer_free(&members[i]);
}

/* Storages before a window's end: the number of elements is not read together with its pickle. */
static void storages_across_windows(void) {
  enum { COUNT = 3000 };
  xt_buffer storages = {0}, tensors = {0}, pickle = {0}, tar = {0};
  char text[64];
  snprintf(text, sizeof text, "I%d\n.", COUNT);
  xt_buffer_text(&storages, text);
  for (int i = 0; i < COUNT; i++) {
    snprintf(text, sizeof text, "(I%d\nVcpu\nctorch\nByteStorage\nt.", i);
    xt_buffer_text(&storages, text);
    xt_buffer_le(&storages, 1, 8);
    xt_buffer_byte(&storages, (uint8_t)i);
  }
  xt_buffer_text(&storages, "(l.");
  xt_buffer_text(&tensors, "I0\n.");
  xt_buffer_text(&pickle, "N.");
  put_member(&tar, "storages", &storages, '0');
  put_member(&tar, "tensors", &tensors, '0');
  put_member(&tar, "pickle", &pickle, '0');
  sample s;
  CHECK(sample_open(&s, tar.data, tar.size) == XT_STATUS_ok && s.checkpoint.storages.count == COUNT);
  for (int i = 0; i < COUNT; i++) CHECK(tar.data[atomic_load(&s.checkpoint.records[i]->data_offset)] == (uint8_t)i);
  sample_free(&s);
  xt_buffer_free(&storages);
  xt_buffer_free(&tensors);
  xt_buffer_free(&pickle);
  xt_buffer_free(&tar);
}

int main(void) {
  return RUN_TESTS("tar", a_valid_file_is_read, changed_parts_are_refused, changed_headers_are_refused,
                   members_above_the_limit_are_refused, storages_across_windows);
}
