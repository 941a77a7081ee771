/* Writes a legacy checkpoint. The payloads are in the order of their keys. */
#include "core/formats/legacy.h"

#include "core/pickle/pickler.h"

static void put_pickle(xt_saver *s, xt_pickler *p) {
  xt_pickler_stop(p);
  xt_buffer_put(&s->out, p->out.data, p->out.size);
  s->out.failed |= p->out.failed;
  xt_pickler_free(p);
}

static void put_sizes(xt_pickler *p) {
  static const struct {
    const char *name;
    int bytes;
  } sizes[] = {{"short", 2}, {"int", 4}, {"long", 4}};
  xt_pickler_put_text(p, "type_sizes", 10);
  xt_pickler_put_dict(p);
  xt_pickler_put_mark(p);
  for (int i = 0; i < 3; i++) {
    size_t size = sizes[i].name[0] == 'i' ? 3 : sizes[i].name[0] == 's' ? 5 : 4;
    xt_pickler_put_text(p, sizes[i].name, size);
    xt_pickler_put_int(p, sizes[i].bytes);
  }
  xt_pickler_put_set_items(p);
}

static void begin(xt_saver *s) {
  xt_pickler p;
  xt_buffer_put(&s->out, "\x80\2" XT_LEGACY_MAGIC, 2 + sizeof XT_LEGACY_MAGIC - 1);
  xt_pickler_begin(&p);
  xt_pickler_put_int(&p, XT_LEGACY_PROTOCOL);
  put_pickle(s, &p);
  xt_pickler_begin(&p);
  xt_pickler_put_dict(&p);
  xt_pickler_put_mark(&p);
  xt_pickler_put_text(&p, "protocol_version", 16);
  xt_pickler_put_int(&p, XT_LEGACY_PROTOCOL);
  xt_pickler_put_text(&p, "little_endian", 13);
  xt_pickler_put_bool(&p, true);
  put_sizes(&p);
  xt_pickler_put_set_items(&p);
  put_pickle(s, &p);
  xt_saver_append(s, s->plan->pickle.data, s->plan->pickle.size);
  xt_pickler_begin(&p);
  xt_pickler_put_list(&p);
  xt_pickler_put_mark(&p);
  for (size_t i = 0; i < s->plan->count; i++) {
    size_t size = 0;
    while (s->plan->payloads[i].key[size]) size++;
    xt_pickler_put_text(&p, s->plan->payloads[i].key, size);
  }
  xt_pickler_put_appends(&p);
  put_pickle(s, &p);
}

static void before(xt_saver *s, size_t i) { xt_buffer_le(&s->out, (uint64_t)s->plan->payloads[i].numel, 8); }

const xt_format_writer xt_legacy_write = {
    .name = "legacy", .sorted = true, .id_views = true, .begin = begin, .before = before};
