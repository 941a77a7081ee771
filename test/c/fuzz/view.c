/* Fuzz target (`make fuzz`): reads any view of a large storage, and any range of its record, from a file and from
 * memory. The storage is stored at an aligned offset, at an odd one, compressed, or in the other byte order. */
#include "containers.h"
#include "reading.h"

enum { ALIGNED, COMPRESSED, SWAPPED, UNALIGNED, KINDS };
enum { STORAGE_BYTES = 600000, SECOND_BYTES = 3 << 20 /* too large for a slab of a batch load */ };

typedef struct {
  uint8_t *bytes;
  size_t size;
  xt_region memory;
  xt_file file;
  xt_checkpoint checkpoint;
  xt_region *raw[2]; /* the records of the two storages */
} source;

static uint8_t contents[2][SECOND_BYTES];

/* A file with two byte storages. The first one, which is read in parts, is the last in the file, so that a read past
 * its end is an error. */
static void make_file(int kind, xt_buffer *out) {
  static const int64_t bytes[] = {STORAGE_BYTES, SECOND_BYTES}, one = 1;
  storages s = {.count = 2};
  xt_pickler p;
  xt_pickler_begin(&p);
  xt_pickler_put_list(&p);
  xt_pickler_put_mark(&p);
  for (int i = 0; i < 2; i++) {
    const char *key = i ? "1" : "0";
    fill_content(key, 1, contents[i], (size_t)bytes[i]);
    s.payloads[1 - i] = (xt_payload){{key[0]}, XT_uint8, bytes[i], (uint64_t)bytes[i], contents[i], 0};
    put_tensor(&p, &(tensor_spec){key, XT_uint8, bytes[i], 0, 1, &bytes[i], &one, false});
  }
  xt_pickler_put_appends(&p);
  xt_pickler_stop(&p);
  zip_record records[] = {{"a/data.pkl", 10, p.out.data, p.out.size, false, true},
                          {"a/byteorder", 11, (const uint8_t *)"big", 3, false, false},
                          {"a/data/1", 8, contents[1], SECOND_BYTES, kind == COMPRESSED, kind != COMPRESSED},
                          {"a/data/0", 8, contents[0], STORAGE_BYTES, kind == COMPRESSED, kind != COMPRESSED}};
  if (kind != SWAPPED) records[1] = (zip_record){"a/version", 9, (const uint8_t *)"3\n", 2, false, false};
  zip_writer z = {.zip64 = true};
  if (kind == UNALIGNED) save_as(&xt_legacy_write, p.out.data, p.out.size, &s, out);
  else zip_write(&z, records, 4), *out = z.out;
  xt_pickler_free(&p);
}

static void open_source(source *s, int kind) {
  xt_error error;
  xt_buffer file = {0};
  char path[64];
  make_file(kind, &file);
  s->bytes = exact_copy(&file, &s->size);
  s->memory = (xt_region){.data = s->bytes, .size = s->size};
  atomic_init(&s->memory.references, 1 << 30); /* never freed */
  int fd = memfd_create("fuzz", 0);
  REQUIRE(fd >= 0 && write(fd, s->bytes, s->size) == (ssize_t)s->size);
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  REQUIRE(xt_file_open(&s->file, path, &error) == XT_STATUS_ok);
  close(fd);
  xt_checkpoint_begin(&s->checkpoint, s->size, 0, &limits, false, true);
  xt_record_reader reader = {.checkpoint = &s->checkpoint, .memory = &s->memory, .verify = true};
  REQUIRE(open_with(&s->checkpoint, &reader, &error) == XT_STATUS_ok && s->checkpoint.storages.count == 2);
  for (int i = 0; i < 2; i++) {
    REQUIRE(xt_record_reader_whole(&reader, s->checkpoint.records[i], &s->raw[i], &error) == XT_STATUS_ok);
    REQUIRE(!memcmp(s->raw[i]->data, contents[i], i ? SECOND_BYTES : STORAGE_BYTES));
  }
}

/* Chooses a view inside the first storage. Returns false if the chosen one is too large. */
static bool choose_view(choices *in, xt_tensor_desc *t) {
  static int64_t sizes[8], strides[8];
  t->dtype = (xt_dtype)(choose_byte(in) % XT_DTYPE_COUNT);
  t->ndim = choose_byte(in) % 8;
  t->sizes = sizes;
  t->strides = strides;
  int64_t item = (int64_t)xt_dtype_get(t->dtype)->size;
  wide numel = 1, shape = 1; /* shape: without the zeros; core refuses one that overflows */
  for (uint32_t d = 0; d < t->ndim; d++) {
    uint8_t how = choose_byte(in);
    sizes[d] = (int64_t)choose_number(in, how & 1 ? 2 : 1) % (how & 2 ? 5000 : 9);
    strides[d] = (int64_t)choose_number(in, how & 4 ? 2 : 1) % (how & 8 ? 65536 : 20);
    numel *= sizes[d];
    shape *= shape > INT64_MAX || !sizes[d] ? 1 : sizes[d];
  }
  t->offset = (int64_t)choose_number(in, 3) % (STORAGE_BYTES / item);
  return shape * item <= INT64_MAX && numel * item <= 1 << 20 &&
         (!numel || (t->offset + last_element(t, strides) + 1) * item <= STORAGE_BYTES);
}

static void check_span(const xt_record_reader *reader, const xt_tensor_desc *t) {
  const xt_record *record = reader->checkpoint->records[0];
  uint64_t data = record->data_offset;
  wide item = (wide)xt_dtype_get(t->dtype)->size;
  xt_range ranges[XT_MAX_RANGES];
  size_t count = xt_record_reader_ranges(reader, t, ranges);
  if (is_empty(t)) return;
  REQUIRE(count == 1);
  uint64_t offset = ranges[0].offset, size = ranges[0].size;
  REQUIRE(offset >= data && (wide)offset + size <= (wide)data + record->packed);
  if (record->method == XT_RECORD_DEFLATED) return;
  REQUIRE((wide)offset <= (wide)data + t->offset * item);
  REQUIRE((wide)offset + size >= (wide)data + (t->offset + last_element(t, t->strides) + 1) * item);
}

static void read_view(source *s, const xt_record_reader *reader, const xt_tensor_desc *t) {
  xt_error error;
  xt_view view;
  usage u = usage_begin();
  REQUIRE(xt_record_reader_view(reader, t, &view, &error) == XT_STATUS_ok);
  usage_check(&u, s->size, logical_bytes(t) + 2 * STORAGE_BYTES);
  compare_tensor(&s->checkpoint, t, &view, s->raw[0]);
  xt_region_drop(view.region);
}

static void read_range(source *s, const xt_record_reader *reader, uint64_t from, size_t size) {
  xt_error error;
  uint8_t *to = malloc(size ? size : 1);
  xt_status status = xt_record_reader_range(reader, s->checkpoint.records[0], from, size, to, &error);
  REQUIRE((status == XT_STATUS_ok) == ((wide)from + size <= STORAGE_BYTES));
  if (status == XT_STATUS_ok) REQUIRE(!memcmp(to, s->raw[0]->data + from, size));
  free(to);
}

static void load_all(source *s, const xt_record_reader *reader, const xt_tensor_desc *t, uint64_t budget) {
  xt_error error;
  xt_batch_load load;
  xt_view view;
  bool finished = false, wanted[] = {true, true};
  REQUIRE(xt_batch_load_begin(&load, reader, wanted, &error) == XT_STATUS_ok &&
          load.total == STORAGE_BYTES + SECOND_BYTES);
  while (!finished) REQUIRE(xt_batch_load_step(&load, budget, &finished, &error) == XT_STATUS_ok);
  REQUIRE(load.done == load.total && load.regions[1]->size >= SECOND_BYTES);
  if (!xt_checkpoint_needs_swap(&s->checkpoint, 1))
    REQUIRE(!memcmp(load.regions[1]->data, s->raw[1]->data, SECOND_BYTES));
  xt_record_reader_view_region(load.regions[0], t, &view);
  compare_tensor(&s->checkpoint, t, &view, s->raw[0]);
  xt_region_drop(view.region);
  xt_batch_load_free(&load);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static source sources[KINDS];
  choices in = {data, size, 0};
  xt_tensor_desc t = {.storage = 0};
  source *s = &sources[choose_byte(&in) % KINDS];
  uint8_t options = choose_byte(&in);
  if (!s->bytes) open_source(s, (int)(s - sources));
  int64_t before = atomic_load(&xt_memory_live.bytes);
  if (!choose_view(&in, &t)) return 0;
  xt_storage *storage = &s->checkpoint.storages.list[0];
  storage->element = t.dtype; /* as the pickle of the tensor would do */
  storage->alignment = (uint8_t)xt_dtype_get(t.dtype)->size;
  xt_record_reader reader = {.checkpoint = &s->checkpoint, .file = &s->file, .verify = (options & 3) == 3};
  if (options & 4) reader.memory = &s->memory;
  check_span(&reader, &t);
  read_view(s, &reader, &t);
  if (options & 8) read_range(s, &reader, choose_number(&in, 3) % (STORAGE_BYTES + 2), choose_number(&in, 2) * 3);
  if (options >> 4 == 15) load_all(s, &reader, &t, 1 + choose_number(&in, 3));
  REQUIRE(atomic_load(&xt_memory_live.bytes) == before);
  return 0;
}
