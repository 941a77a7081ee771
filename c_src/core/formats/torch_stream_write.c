/* Writes the streaming format. */
#include "core/formats/torch_stream.h"

#include <string.h>

#include "core/pickle/pickler.h"

static const struct {
  const char *name, *text;
} texts[] = {{".format_version", "1"}, {".storage_alignment", "64"}, {"byteorder", "little"}};
enum { TEXT_COUNT = sizeof texts / sizeof *texts };

static void put_entry(xt_pickler *p, const char *prefix, const char *name, bool is_storage, uint64_t size) {
  char key[64] = "";
  strncat(key, prefix, sizeof key - 1);
  strncat(key, name, sizeof key - strlen(key) - 1);
  xt_pickler_put_global(p, "torch.distributed._serialization\n_Entry\n");
  xt_pickler_put_tuple_of(p, 0);
  xt_pickler_put_new(p);
  xt_pickler_put_dict(p);
  xt_pickler_put_mark(p);
  xt_pickler_put_text(p, "key", 3);
  xt_pickler_put_text(p, key, strlen(key));
  xt_pickler_put_text(p, "is_storage", 10);
  xt_pickler_put_bool(p, is_storage);
  xt_pickler_put_text(p, "length", 6);
  xt_pickler_put_int(p, (int64_t)size);
  xt_pickler_put_set_items(p);
  xt_pickler_put_build(p);
}

static void begin(xt_saver *s) {
  xt_pickler p;
  xt_pickler_begin(&p);
  xt_pickler_put_list(&p);
  xt_pickler_put_mark(&p);
  put_entry(&p, "", "data.pkl", false, s->plan->pickle.size);
  for (int i = 0; i < TEXT_COUNT; i++) put_entry(&p, "", texts[i].name, false, strlen(texts[i].text));
  for (size_t i = 0; i < s->plan->count; i++)
    put_entry(&p, "data/", s->plan->payloads[i].key, true, s->plan->payloads[i].bytes);
  xt_pickler_put_appends(&p);
  xt_pickler_stop(&p);
  xt_buffer_put(&s->out, p.out.data, p.out.size);
  s->out.failed |= p.out.failed;
  xt_pickler_free(&p);
  xt_saver_append(s, s->plan->pickle.data, s->plan->pickle.size);
  for (int i = 0; i < TEXT_COUNT; i++) xt_buffer_text(&s->out, texts[i].text);
}

const xt_format_writer xt_torch_stream_write = {.name = "streaming", .begin = begin};
