/* The streaming format: the list of records, and the records. */
#include <string.h>

#include "core/checkpoint/saver.h"
#include "core/pickle/pickler.h"

static const struct {
  const char *name, *text;
} small[] = {{".format_version", "1"}, {".storage_alignment", "64"}, {"byteorder", "little"}};
enum { SMALL = sizeof small / sizeof *small };

static void put_entry(xt_pickler *p, const char *prefix, const char *name, bool is_storage, uint64_t size) {
  char key[64] = "";
  strncat(key, prefix, sizeof key - 1);
  strncat(key, name, sizeof key - strlen(key) - 1);
  xt_put_global(p, "torch.distributed._serialization\n_Entry\n");
  xt_put_tuple_of(p, 0);
  xt_put_new(p);
  xt_put_dict(p);
  xt_put_mark(p);
  xt_put_text(p, "key", 3);
  xt_put_text(p, key, strlen(key));
  xt_put_text(p, "is_storage", 10);
  xt_put_bool(p, is_storage);
  xt_put_text(p, "length", 6);
  xt_put_int(p, (int64_t)size);
  xt_put_set_items(p);
  xt_put_build(p);
}

static void begin(xt_writer *w) {
  xt_pickler p;
  xt_pickler_begin(&p);
  xt_put_list(&p);
  xt_put_mark(&p);
  put_entry(&p, "", "data.pkl", false, w->pickle_size);
  for (int i = 0; i < SMALL; i++) put_entry(&p, "", small[i].name, false, strlen(small[i].text));
  for (size_t i = 0; i < w->count; i++) put_entry(&p, "data/", w->payloads[i].key, true, w->payloads[i].bytes);
  xt_put_appends(&p);
  xt_pickler_stop(&p);
  xt_buffer_put(&w->out, p.out.data, p.out.size);
  w->out.failed |= p.out.failed;
  xt_pickler_free(&p);
  xt_writer_append(w, w->pickle, w->pickle_size);
  for (int i = 0; i < SMALL; i++) xt_buffer_text(&w->out, small[i].text);
}

const xt_layout_writer xt_write_stream = {"streaming", false, begin, NULL, NULL, NULL};
