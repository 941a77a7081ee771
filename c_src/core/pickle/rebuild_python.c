/* Rebuilds Python types that have their own node kind. */
#include "core/pickle/rebuild_internal.h"

/* _codecs.encode(text, 'latin1'): the bytes of protocol 2. */
xt_status xt_rebuild_latin1(xt_rebuild *r, const xt_node *args, xt_node **out) {
  const xt_node *text = xt_node_arg(args, 0), *codec = xt_node_arg(args, 1);
  if (!text || text->kind != XT_NODE_TEXT || !codec ||
      !(xt_node_is_text(codec, "latin1", 6) || xt_node_is_text(codec, "latin-1", 7)))
    return XT_STATUS_ok;
  uint8_t *bytes = xt_arena_alloc(r->arena, text->text.size, 1);
  *out = xt_node_new(r->arena, XT_NODE_BYTES);
  if (!bytes || !*out) return xt_rebuild_no_memory(r);
  const uint8_t *in = (const uint8_t *)text->text.data;
  size_t size = 0;
  for (size_t i = 0; i < text->text.size; i++, size++) {
    if (in[i] >= 0xC4) return xt_rebuild_corrupt(r, "bytes contain a character above 255");
    bytes[size] = (uint8_t)(in[i] < 0x80 ? in[i] : in[i] << 6 | (in[i + 1] & 0x3F));
    if (in[i] >= 0x80) i++;
  }
  (*out)->text.data = (const char *)bytes;
  (*out)->text.size = size;
  return XT_STATUS_ok;
}

xt_status xt_rebuild_bytearray(xt_rebuild *r, const xt_node *args, xt_node_kind kind, xt_node **out) {
  const xt_node *bytes = xt_node_arg(args, 0);
  if (bytes && bytes->kind != XT_NODE_BYTES) return XT_STATUS_ok;
  *out = xt_node_new(r->arena, kind);
  if (!*out) return xt_rebuild_no_memory(r);
  if (bytes) (*out)->text = bytes->text;
  else (*out)->text.data = "";
  return XT_STATUS_ok;
}

xt_status xt_rebuild_complex(xt_rebuild *r, const xt_node *args, xt_node **out) {
  double re, im;
  if (args->list.count != 2 || !xt_node_number(xt_node_arg(args, 0), &re) || !xt_node_number(xt_node_arg(args, 1), &im))
    return XT_STATUS_ok;
  *out = xt_node_new(r->arena, XT_NODE_COMPLEX);
  if (!*out) return xt_rebuild_no_memory(r);
  (*out)->complex.re = re, (*out)->complex.im = im;
  return XT_STATUS_ok;
}

/* Makes a container of the given kind from the items of the first argument. */
xt_status xt_rebuild_items(xt_rebuild *r, const xt_node *args, xt_node_kind kind, xt_node **out) {
  const xt_node *items = xt_node_arg(args, 0);
  bool listed = items && (items->kind == XT_NODE_LIST || items->kind == XT_NODE_TUPLE);
  if (args->list.count > 1 || (items && !listed)) return XT_STATUS_ok;
  *out = xt_node_new(r->arena, kind);
  if (!*out) return xt_rebuild_no_memory(r);
  for (size_t i = 0; items && i < items->list.count; i++)
    if (!xt_node_append(r->arena, *out, items->list.items[i])) return xt_rebuild_no_memory(r);
  return XT_STATUS_ok;
}

/* OrderedDict(), OrderedDict([(k, v), …]), defaultdict(factory), Counter({…}) */
xt_status xt_rebuild_dict(xt_rebuild *r, const xt_node *args, size_t data, xt_node **out) {
  const xt_node *from = xt_node_arg(args, data);
  *out = xt_node_new(r->arena, XT_NODE_DICT);
  if (!*out) return xt_rebuild_no_memory(r);
  for (size_t i = 0; from && i < (from->kind == XT_NODE_DICT || from->kind == XT_NODE_LIST ? from->list.count : 0);
       i++) {
    xt_node *item = from->list.items[i];
    bool pair = from->kind == XT_NODE_LIST;
    if (pair && ((item->kind != XT_NODE_TUPLE && item->kind != XT_NODE_LIST) || item->list.count != 2))
      return xt_rebuild_corrupt(r, "item of a dict is not a pair");
    for (size_t k = 0; k < (pair ? 2 : 1); k++)
      if (!xt_node_append(r->arena, *out, pair ? item->list.items[k] : item)) return xt_rebuild_no_memory(r);
  }
  return XT_STATUS_ok;
}

xt_status xt_rebuild_device(xt_rebuild *r, const xt_node *args, xt_node **out) {
  const xt_node *type = xt_node_arg(args, 0), *index = xt_node_arg(args, 1);
  if (!type || type->kind != XT_NODE_TEXT || (index && index->kind != XT_NODE_INT)) return XT_STATUS_ok;
  *out = xt_node_new(r->arena, XT_NODE_DEVICE);
  if (!*out) return xt_rebuild_no_memory(r);
  (*out)->device.type = type->text.data;
  (*out)->device.type_size = type->text.size;
  (*out)->device.index = index ? index->integer : -1;
  return XT_STATUS_ok;
}
