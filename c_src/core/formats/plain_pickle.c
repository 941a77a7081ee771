/* Opens a plain pickle. The whole file is in memory. */
#include "core/formats/plain_pickle.h"

#include <inttypes.h>
#include <string.h>

#include "core/formats/other_file.h"

bool xt_plain_pickle_may_begin(uint8_t first) { return first == 0x80 || (first && strchr("(]}cL", first)); }

bool xt_plain_pickle_may_begin_short(const uint8_t *head, size_t size) {
  uint8_t first = size ? head[0] : 0, next = size > 1 ? head[1] : 0;
  if (!first || !strchr("NIJKMLFGSTUVX])}(cP", first)) return first == 0x80;
  if (!next) return true;
  if (first == 'S') return next == '\'' || next == '"';
  if (first == 'I' || first == 'L') return (next >= '0' && next <= '9') || next == '-';
  return first != 'F' || (next >= '0' && next <= '9') || strchr("-.ni", next);
}

size_t xt_plain_pickle_min_size(uint8_t first) { return xt_plain_pickle_may_begin(first) ? 3 : 4; }

static bool is_name(uint8_t c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.';
}

/* Returns whether the line at this position is the name of a module. */
static bool is_module(const uint8_t *head, size_t size, size_t at) {
  size_t end = at;
  while (end < size && is_name(head[end])) end++;
  return end > at && (end == size || head[end] == '\n' || head[end] == '\r');
}

/* Pickles of protocol 0 and 1 have no PROTO opcode, and those of protocol 0 are text. The first opcode is a mark, a
 * list, a dict or a class; or the whole pickle is here. What comes next distinguishes them from other text. */
static bool is_old_pickle(const uint8_t *head, size_t size) {
  enum { TEXT_LENGTH = 0x09090909 /* a length that consists of text */ };
  xt_pickle_scan_state scan = {0};
  if (size < xt_plain_pickle_min_size(head[0]) || head[0] == 0x80) return false;
  size_t global = head[0] == '(' ? 1 : 0;
  if ((head[global] == 'c' || (global && head[global] == 'i')) && !is_module(head, size, global + 1)) return false;
  switch (xt_pickle_scan(head, size, &scan)) {
  case XT_SCAN_INVALID: return false;
  case XT_SCAN_END: return scan.at >= xt_plain_pickle_min_size(head[0]);
  default:
    return xt_plain_pickle_may_begin(head[0]) && !(scan.wanted >= TEXT_LENGTH && xt_other_file_is_text(head, size));
  }
}

static xt_match matches(const uint8_t *head, size_t size) {
  bool has_protocol = size > 1 && head[0] == 0x80 && head[1] <= 5;
  return has_protocol || is_old_pickle(head, size) ? XT_MATCH_YES : XT_MATCH_NO;
}

static xt_status open(xt_opening *o, xt_need *need, xt_error *error) {
  xt_checkpoint *c = o->checkpoint;
  xt_pickle_scan_state scan = {0};
  const uint8_t *data = c->memory->data + (c->unpacked ? c->base : 0);
  size_t size = c->file_size - c->base;
  (void)need;
  xt_pickle_scan_result result = xt_pickle_scan(data, size, &scan);
  size_t used = scan.at;
  switch (result) {
  case XT_SCAN_END: break;
  case XT_SCAN_SHORT:
    return xt_error_at(error, XT_STATUS_truncated, (int64_t)c->file_size,
                       "the pickle does not end within the file of %" PRIu64
                       " bytes, probably an incomplete download; download it again",
                       c->file_size);
  default:
    return xt_error_at(error, XT_STATUS_corrupt, (int64_t)(c->base + used),
                       "unknown file format: the file is not a valid pickle, opcode 0x%02x does not exist", data[used]);
  }
  /* pickle_bytes limits the work of parsing, so the data of tensors and arrays does not count */
  uint64_t structure = used - scan.payload;
  if (structure > o->limits.pickle_bytes)
    return xt_error_set(error, XT_STATUS_limit,
                        "the pickle has %" PRIu64 " bytes besides tensor data, which exceeds the limit of %" PRIu64
                        "; raise it with limits: [pickle_bytes: n]",
                        structure, o->limits.pickle_bytes);
  o->rebuild.ids = XT_IDS_NONE;
  xt_status status = xt_opening_pickle(o, data, used, (int64_t)c->base, &c->root, error);
  c->next = c->base + used < c->file_size ? c->base + used : 0;
  return status == XT_STATUS_ok ? xt_opening_finish(o, NULL, error) : status;
}

static xt_status push_step(xt_push *p, xt_error *error) {
  xt_status status;
  size_t size;
  p->spooling = true;
  return xt_push_scan_pickle(p, &size, &status, error) ? xt_push_end_spool(p, size) : status;
}

static const xt_push_parser push = {.step = push_step};

const xt_format xt_plain_pickle_format = {
    .name = "pickle",
    .at_any_offset = true,
    .whole_file = true,
    .matches = matches,
    .open = open,
    .push = &push,
};
