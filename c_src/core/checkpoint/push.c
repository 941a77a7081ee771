#include "core/checkpoint/push.h"

#include <inttypes.h>
#include <libdeflate.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/cursor.h"
#include "core/formats/detect.h"
#include "core/formats/format.h"
#include "core/memory/memory.h"
#include "core/memory/prefault.h"

enum { LARGE = 4 << 20, TOUCHED_AHEAD = 16 << 20, BEHIND = 2 << 20 };
enum { AHEAD = 64 << 10, CACHED = 256 << 10, SAFETENSORS_HEAD = XT_SAFETENSORS_PREFIX + 1, SHORTEST = 3 };

/* More than can come; an offset from XT_INLINE on would be taken for an address. */
#define ENDLESS (XT_INLINE - 1)

static xt_status begin(xt_push *p, xt_error *error);

void xt_push_begin_checkpoint(xt_checkpoint *c, const xt_limits *limits, bool strict, bool verify, xt_error *error) {
  xt_checkpoint_begin(c, ENDLESS, 0, limits, strict, verify, error);
  c->endless = true;
}

void xt_push_begin(xt_push *p, xt_checkpoint *checkpoint, uint64_t spool_bytes) {
  memset(p, 0, sizeof *p);
  p->checkpoint = checkpoint;
  p->strict = checkpoint->rebuild.strict;
  p->spool_bytes = spool_bytes;
  p->doing = "the first bytes, which tell the format,";
  p->step = begin;
  p->want = SHORTEST;
}

/* ---- What the formats say ---- */

xt_status xt_push_take(xt_push *p, size_t n, size_t want) {
  p->taken = n;
  p->want = want;
  p->ahead = 0;
  return XT_STATUS_ok;
}

xt_status xt_push_ask(xt_push *p, size_t want, size_t ahead) {
  p->want = want;
  p->ahead = ahead;
  return XT_STATUS_ok;
}

bool xt_push_pickle(xt_push *p, size_t *size, xt_status *status, xt_error *error) {
  const uint8_t *data = xt_push_data(p);
  uint64_t limit = p->checkpoint->limits.pickle_bytes;
  xt_pickle_scan_result result = xt_pickle_scan(data, xt_push_have(p), &p->scan);
  xt_pickle_scan_state scan = p->scan;
  size_t at = scan.at;
  *status = XT_STATUS_ok;
  *size = at;
  if (result != XT_SCAN_SHORT) p->scan = (xt_pickle_scan_state){0};
  if (result == XT_SCAN_INVALID)
    *status = xt_error_at(error, XT_STATUS_corrupt, (int64_t)(p->at + at),
                          "the pickle is broken: there is no instruction 0x%02x", data[at]);
  else if (at > limit || (result == XT_SCAN_SHORT && scan.wanted > limit - at))
    *status = xt_error_at(error, XT_STATUS_limit, (int64_t)p->at,
                          "a pickle of more than %" PRIu64 " bytes; the limit is pickle_bytes", limit);
  else if (result == XT_SCAN_END) return true;
  if (*status != XT_STATUS_ok) return false;
  *status = xt_push_ask(p, at + (size_t)scan.wanted, AHEAD);
  return false;
}

uint8_t *xt_push_copy(xt_push *p, const uint8_t *data, size_t size) {
  uint8_t *copy = xt_arena_alloc(&p->checkpoint->arena, size ? size : 1, 1);
  if (copy && size) memcpy(copy, data, size);
  return copy;
}

xt_status xt_push_described(xt_push *p, xt_error *error) {
  p->storages = p->checkpoint->rebuild.storage_count;
  p->regions = calloc(p->storages + 1, sizeof *p->regions);
  p->wanted = malloc(p->storages + 1);
  p->came = calloc(p->storages + 1, sizeof *p->came);
  if (!p->regions || !p->wanted || !p->came) return xt_open_no_memory(error);
  memset(p->wanted, true, p->storages + 1);
  p->light = !p->spool;

  /* the records of a zip may turn out to be compressed, and so shorter */
  for (size_t i = 0; i < p->storages && !p->spool && p->step != xt_zip_push; i++) {
    const xt_storage *storage = &p->checkpoint->rebuild.storages[i];
    bool comes = !storage->data && p->checkpoint->records[i];
    if (comes && __builtin_add_overflow(p->to_come, storage->bytes, &p->to_come)) p->to_come = UINT64_MAX;
  }
  p->event = XT_PUSH_DESCRIBED;
  return XT_STATUS_ok;
}

void xt_push_receive(xt_push *p, uint32_t storage) {
  p->storage = storage;
  p->left = p->checkpoint->rebuild.storages[storage].bytes;
  p->to_come -= p->to_come < p->left ? p->to_come : p->left;
  p->crc = 0;
  p->receiving = true;
  p->doing = "a storage";
}

void xt_push_complete(xt_push *p, uint32_t storage, xt_region *region) {
  if (region && xt_checkpoint_swaps(p->checkpoint, storage))
    xt_record_reader_swap(region->data, region->size, p->checkpoint->rebuild.storages[storage].element);
  p->regions[storage] = region;
  p->came[storage] = true;
  p->storage = storage;
  p->event = XT_PUSH_STORAGE;
}

/* ---- What it is ---- */

static xt_status cannot(const char *format, xt_error *error) {
  return xt_error_set(error, XT_STATUS_unsupported, "%s cannot be read as a stream: write it to a file and load that",
                      format);
}

/* A pickle by itself. */
static xt_status plain_pickle(xt_push *p, xt_error *error) {
  xt_status status;
  size_t size;
  p->keeps = true;
  return xt_push_pickle(p, &size, &status, error) ? xt_push_open_spool(p, size, error) : status;
}

/* Streams of torch.distributed and legacy files begin with a pickle that only they have. */
static xt_status first_pickle(xt_push *p, xt_error *error) {
  xt_status status;
  const xt_format *format;
  size_t size;
  if (!xt_push_pickle(p, &size, &status, error)) return status;
  status = xt_detect(xt_push_data(p), size, &format, error);
  if (status != XT_STATUS_ok) return status;
  if (format == &xt_legacy_format) p->step = xt_legacy_push;
  else if (format == &xt_torch_stream_format) p->step = xt_torch_stream_push;
  else p->step = plain_pickle;
  return p->step(p, error);
}

static xt_status say_what(xt_push *p, xt_error *error) {
  const xt_format *format;
  size_t have = xt_push_have(p);
  xt_status status = xt_detect(xt_push_data(p), have < XT_DETECT_SIZE ? have : XT_DETECT_SIZE, &format, error);
  if (status != XT_STATUS_ok) return status;
  return cannot(format == &xt_tar_format ? "a tar file" : "this format", error);
}

static bool may_be_pickle(uint8_t first) { return first == 0x80 || (first && strchr("(]}c", first)); }

/* The length of a safetensors header may look like the start of a pickle until the header begins: but a pickle may end
 * before that. */
static bool tells_pickle(xt_push *p, size_t *want) {
  xt_pickle_scan_state scan = {0};
  xt_pickle_scan_result result = xt_pickle_scan(xt_push_data(p), xt_push_have(p), &scan);
  *want = SAFETENSORS_HEAD;
  if (result == XT_SCAN_SHORT && scan.at + scan.wanted < SAFETENSORS_HEAD) *want = scan.at + (size_t)scan.wanted;
  return result == XT_SCAN_END;
}

static xt_status begin(xt_push *p, xt_error *error) {
  const uint8_t *data = xt_push_data(p);
  size_t have = xt_push_have(p), want = SAFETENSORS_HEAD;
  bool pickle = may_be_pickle(data[0]);
  if (have < 4 && !(pickle && tells_pickle(p, &want))) return xt_push_ask(p, 4, 0);
  if (have >= 4 && !memcmp(data, "PK\3\4", 4)) p->step = xt_zip_push;
  else if (!memcmp(data, "\x1f\x8b", 2)) return cannot("a gzip", error);
  else if (have < SAFETENSORS_HEAD && !(pickle && tells_pickle(p, &want))) return xt_push_ask(p, want, 0);
  else if (have >= SAFETENSORS_HEAD && data[8] == '{' && xt_le(data, 8) >> 40 == 0) p->step = xt_safetensors_push;
  else if (pickle) p->step = first_pickle;
  else if (have < XT_DETECT_SIZE) return xt_push_ask(p, XT_DETECT_SIZE, 0);
  else return say_what(p, error);
  return p->step(p, error);
}

/* ---- The spool ---- */

/* A format's notes live with the checkpoint, but for what only it can free. */
static void drop_work(xt_push *p) {
  if (p->free_work) p->free_work(p->work);
  p->free_work = NULL;
  p->work = NULL;
}

static void free_spool(xt_region *self) {
  atomic_fetch_sub(&xt_memory_live.bytes, (int64_t)self->size);
  free(self->owner);
}

static xt_status load_spool(xt_push *p, xt_error *error) {
  bool finished = false;
  xt_record_reader reader = {.checkpoint = p->checkpoint, .memory = p->spool, .verify = p->checkpoint->verify};
  xt_status status = xt_batch_load_begin(&p->loader, &reader, p->wanted, error);
  if (status == XT_STATUS_ok) status = xt_batch_load_step(&p->loader, UINT64_MAX / 2, &finished, error);
  for (size_t i = 0; status == XT_STATUS_ok && i < p->storages; i++) {
    p->regions[i] = p->loader.regions[i];
    p->came[i] = p->regions[i] != NULL;
    p->loader.regions[i] = NULL;
  }
  p->received = p->loader.done;
  xt_batch_load_free(&p->loader);
  if (status == XT_STATUS_ok) p->event = XT_PUSH_DONE;
  return status;
}

xt_status xt_push_open_spool(xt_push *p, size_t n, xt_error *error) {
  xt_checkpoint *c = p->checkpoint;
  xt_need need;
  xt_status status;
  size_t size = p->kept + n;
  uint8_t *data = p->held.data;
  p->spool = xt_region_foreign(data, size, data, free_spool); /* the engine forgets the buffer */
  if (!p->spool) return xt_open_no_memory(error);
  atomic_fetch_add(&xt_memory_live.bytes, (int64_t)size);
  xt_limits limits = c->limits;
  bool verify = c->verify;
  drop_work(p);
  /* It begins again, as one whose size is known and whose bytes are all here. */
  xt_checkpoint_free(c);
  xt_checkpoint_begin(c, size, 0, &limits, p->strict, verify, error);
  while ((status = xt_checkpoint_step(c, &need, error)) == XT_STATUS_ok && need.size)
    memcpy(need.to, data + need.offset, need.size);
  p->step = load_spool;
  xt_push_take(p, n, 0);
  return status == XT_STATUS_ok ? xt_push_described(p, error) : status;
}

/* ---- The engine ---- */

static xt_status take_memory(xt_push *p, xt_error *error) {
  if (p->region || !p->wanted[p->storage]) return XT_STATUS_ok;
  p->region = xt_region_new(p->left ? p->left : 1, 0);
  if (!p->region) return xt_region_refused(error);
  p->region->size = p->left;
  p->touched = 0;
  return XT_STATUS_ok;
}

/* Has memory touched a little ahead: no more than that may be taken for what a stream only claims. */
static void touch_ahead(xt_push *p) {
  size_t size = p->region->size, came = size - (size_t)p->left;
  size_t goal = size - came < TOUCHED_AHEAD ? size : came + TOUCHED_AHEAD;
  if (size < LARGE || (goal < p->touched + TOUCHED_AHEAD / 2 && goal != size) || goal <= p->touched) return;
  /* what is being filled right now is not worth a race */
  size_t from = p->touched > came + BEHIND ? p->touched : came + BEHIND;
  if (from < goal) xt_prefault(p->region, from, goal);
  p->touched = goal;
}

static xt_status receive(xt_push *p, const uint8_t *data, size_t size, size_t *at, xt_error *error) {
  xt_status status = take_memory(p, error);
  if (status != XT_STATUS_ok) return status;
  if (p->region) touch_ahead(p);
  size_t n = p->left < size - *at ? (size_t)p->left : size - *at;
  uint64_t bytes = p->checkpoint->rebuild.storages[p->storage].bytes;
  if (p->region && n) memcpy(p->region->data + (bytes - p->left), data + *at, n);
  for (size_t done = 0; p->checkpoint->verify && done < n; done += CACHED)
    p->crc = libdeflate_crc32(p->crc, data + *at + done, n - done < CACHED ? n - done : CACHED);
  *at += n;
  p->at += n;
  p->left -= n;
  p->received += n;
  if (p->left) return status;
  xt_region *region = p->region;
  if (region && p->touched) xt_prefault_cancel(region);
  p->region = NULL;
  p->receiving = false;
  xt_push_complete(p, p->storage, region);
  return status;
}

/* Bytes that came with the pickle: the next of them that is wanted, if there is one. */
static xt_status complete_inline(xt_push *p, xt_error *error) {
  for (; p->inline_next < p->storages; p->inline_next++) {
    const xt_storage *storage = &p->checkpoint->rebuild.storages[p->inline_next];
    if (!storage->data || !p->wanted[p->inline_next]) continue;
    xt_region *region = xt_region_new(storage->bytes ? storage->bytes : 1, 0);
    if (!region) return xt_region_refused(error);
    region->size = storage->bytes;
    memcpy(region->data, storage->data, storage->bytes);
    xt_push_complete(p, (uint32_t)p->inline_next++, region);
    break;
  }
  return XT_STATUS_ok;
}

/* Lets go of what a step has taken. What it did not want yet came with this piece, and is left there to be fed again:
 * so nothing of the payload is ever copied twice. */
static size_t let_go(xt_push *p, size_t given) {
  size_t left = xt_push_have(p) - p->taken, back = left < given ? left : given;
  p->at += p->taken;
  p->held.size -= back;
  if (p->keeps) {
    p->kept += p->taken;
  } else {
    memmove(p->held.data, p->held.data + p->kept + p->taken, left - back);
    p->held.size = left - back;
    p->kept = 0;
  }
  p->taken = 0;
  return back;
}

/* A step that took nothing may want less than it was given ahead of that. */
static size_t give_back(xt_push *p, size_t given) {
  size_t have = xt_push_have(p), surplus = have > p->want ? have - p->want : 0;
  size_t back = surplus < given ? surplus : given;
  p->held.size -= back;
  return back;
}

static xt_status look(xt_push *p, const uint8_t *data, size_t size, size_t *at, xt_error *error) {
  size_t have = xt_push_have(p), missing = p->want > have ? p->want - have : 0;
  size_t given = missing > p->ahead ? missing : p->ahead;
  if (given > size - *at) given = size - *at;
  if (p->keeps && given && p->held.size + given > p->spool_bytes)
    return xt_error_at(error, XT_STATUS_limit, (int64_t)p->at,
                       "the description of the tensors has not come within %" PRIu64
                       " bytes, and so they cannot be told apart; the limit is spool_bytes",
                       p->spool_bytes);
  xt_buffer_put(&p->held, data + *at, given);
  if (p->held.failed) return xt_open_no_memory(error);
  *at += given;
  if (xt_push_have(p) < p->want) return XT_STATUS_ok;
  xt_status status = p->step(p, error);
  if (status == XT_STATUS_ok && p->taken) *at -= let_go(p, given);
  else if (status == XT_STATUS_ok && !p->spool) *at -= give_back(p, given);
  if (p->spool && p->held.data == p->spool->data) {
    p->held = (xt_buffer){0};
    p->kept = 0;
    p->keeps = false;
  }
  return status;
}

xt_status xt_push_feed(xt_push *p, const uint8_t *data, size_t size, size_t *used, xt_push_event *event,
                       xt_error *error) {
  xt_status status = XT_STATUS_ok;
  *used = 0;
  p->event = XT_PUSH_MORE;
  error->collect = false;
  if (p->failed) return xt_error_set(error, XT_STATUS_stale, "this stream failed before; begin again");
  if (p->regions && !p->spool) status = complete_inline(p, error);
  while (status == XT_STATUS_ok && p->event == XT_PUSH_MORE) {
    bool idle = p->receiving ? p->left != 0 : xt_push_have(p) < p->want;
    if (idle && *used == size) break;
    status = p->receiving ? receive(p, data, size, used, error) : look(p, data, size, used, error);
  }
  p->failed = (status != XT_STATUS_ok && !error->collect) || p->event == XT_PUSH_DONE;
  *event = p->event;
  return status;
}

uint64_t xt_push_missing(const xt_push *p) {
  size_t have = xt_push_have(p);
  uint64_t now = p->receiving ? p->left : p->want > have ? p->want - have : 0;
  return now > UINT64_MAX - p->to_come ? UINT64_MAX : now + p->to_come;
}

xt_status xt_push_end(xt_push *p, xt_error *error) {
  uint64_t here = p->at + xt_push_have(p);
  if (p->step == begin && here > XT_SAFETENSORS_PREFIX) {
    xt_status status = say_what(p, error);
    if (status != XT_STATUS_unsupported) return status;
  }
  return xt_error_at(error, XT_STATUS_truncated, (int64_t)here,
                     "the stream ended after %" PRIu64 " bytes, in the middle: %s is not complete, and %" PRIu64
                     " bytes or more are missing",
                     here, p->doing, xt_push_missing(p));
}

void xt_push_free(xt_push *p) {
  drop_work(p);
  for (size_t i = 0; p->regions && i < p->storages; i++) xt_region_drop(p->regions[i]);
  free(p->regions);
  free(p->wanted);
  free(p->came);
  if (p->region && p->touched) xt_prefault_cancel(p->region);
  xt_region_drop(p->region);
  xt_region_drop(p->spool);
  xt_buffer_free(&p->held);
  memset(p, 0, sizeof *p);
}
