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

static xt_status begin(xt_forward *f, xt_error *error);

void xt_forward_open(xt_checkpoint *c, const xt_limits *limits, bool strict, bool verify, xt_error *error) {
  xt_checkpoint_begin(c, ENDLESS, 0, limits, strict, verify, error);
  c->endless = true;
}

void xt_forward_begin(xt_forward *f, xt_checkpoint *checkpoint, uint64_t spool_bytes) {
  memset(f, 0, sizeof *f);
  f->checkpoint = checkpoint;
  f->strict = checkpoint->meaning.strict;
  f->spool_bytes = spool_bytes;
  f->doing = "the first bytes, which tell the format,";
  f->step = begin;
  f->want = SHORTEST;
}

/* ---- What the formats say ---- */

xt_status xt_forward_take(xt_forward *f, size_t n, size_t want) {
  f->taken = n;
  f->want = want;
  f->ahead = 0;
  return XT_STATUS_ok;
}

xt_status xt_forward_ask(xt_forward *f, size_t want, size_t ahead) {
  f->want = want;
  f->ahead = ahead;
  return XT_STATUS_ok;
}

bool xt_forward_pickle(xt_forward *f, size_t *size, xt_status *status, xt_error *error) {
  const uint8_t *data = xt_forward_data(f);
  uint64_t limit = f->checkpoint->limits.pickle_bytes;
  xt_skim_result result = xt_skim(data, xt_forward_have(f), &f->skimmed);
  xt_skimmed skimmed = f->skimmed;
  size_t at = skimmed.at;
  *status = XT_STATUS_ok;
  *size = at;
  if (result != XT_SKIM_SHORT) f->skimmed = (xt_skimmed){0};
  if (result == XT_SKIM_BROKEN)
    *status = xt_error_at(error, XT_STATUS_corrupt, (int64_t)(f->at + at),
                          "the pickle is broken: there is no instruction 0x%02x", data[at]);
  else if (at > limit || (result == XT_SKIM_SHORT && skimmed.wanted > limit - at))
    *status = xt_error_at(error, XT_STATUS_limit, (int64_t)f->at,
                          "a pickle of more than %" PRIu64 " bytes; the limit is pickle_bytes", limit);
  else if (result == XT_SKIM_END) return true;
  if (*status != XT_STATUS_ok) return false;
  *status = xt_forward_ask(f, at + (size_t)skimmed.wanted, AHEAD);
  return false;
}

uint8_t *xt_forward_copy(xt_forward *f, const uint8_t *data, size_t size) {
  uint8_t *copy = xt_arena_alloc(&f->checkpoint->arena, size ? size : 1, 1);
  if (copy && size) memcpy(copy, data, size);
  return copy;
}

xt_status xt_forward_described(xt_forward *f, xt_error *error) {
  f->storages = f->checkpoint->meaning.storage_count;
  f->regions = calloc(f->storages + 1, sizeof *f->regions);
  f->wanted = malloc(f->storages + 1);
  f->came = calloc(f->storages + 1, sizeof *f->came);
  if (!f->regions || !f->wanted || !f->came) return xt_opening_no_memory(error);
  memset(f->wanted, true, f->storages + 1);
  f->light = !f->spool;

  /* the records of a zip may turn out to be compressed, and so shorter */
  for (size_t i = 0; i < f->storages && !f->spool && f->step != xt_forward_zip; i++) {
    const xt_storage *storage = &f->checkpoint->meaning.storages[i];
    bool comes = !storage->data && f->checkpoint->records[i];
    if (comes && __builtin_add_overflow(f->to_come, storage->bytes, &f->to_come)) f->to_come = UINT64_MAX;
  }
  f->event = XT_FORWARD_DESCRIBED;
  return XT_STATUS_ok;
}

void xt_forward_receive(xt_forward *f, uint32_t storage) {
  f->storage = storage;
  f->left = f->checkpoint->meaning.storages[storage].bytes;
  f->to_come -= f->to_come < f->left ? f->to_come : f->left;
  f->crc = 0;
  f->receiving = true;
  f->doing = "a storage";
}

void xt_forward_complete(xt_forward *f, uint32_t storage, xt_region *region) {
  if (region && xt_checkpoint_swaps(f->checkpoint, storage))
    xt_reader_swap(region->data, region->size, f->checkpoint->meaning.storages[storage].element);
  f->regions[storage] = region;
  f->came[storage] = true;
  f->storage = storage;
  f->event = XT_FORWARD_STORAGE;
}

/* ---- What it is ---- */

static xt_status cannot(const char *format, xt_error *error) {
  return xt_error_set(error, XT_STATUS_unsupported, "%s cannot be read as a stream: write it to a file and load that",
                      format);
}

/* A pickle by itself. */
static xt_status plain_pickle(xt_forward *f, xt_error *error) {
  xt_status status;
  size_t size;
  f->keeps = true;
  return xt_forward_pickle(f, &size, &status, error) ? xt_forward_open_spool(f, size, error) : status;
}

/* Streams of torch.distributed and legacy files begin with a pickle that only they have. */
static xt_status first_pickle(xt_forward *f, xt_error *error) {
  xt_status status;
  const xt_format *format;
  size_t size;
  if (!xt_forward_pickle(f, &size, &status, error)) return status;
  status = xt_sniff(xt_forward_data(f), size, &format, error);
  if (status != XT_STATUS_ok) return status;
  if (format == &xt_format_legacy) f->step = xt_forward_legacy;
  else if (format == &xt_format_stream) f->step = xt_forward_stream;
  else f->step = plain_pickle;
  return f->step(f, error);
}

static xt_status say_what(xt_forward *f, xt_error *error) {
  const xt_format *format;
  size_t have = xt_forward_have(f);
  xt_status status = xt_sniff(xt_forward_data(f), have < XT_SNIFF_SIZE ? have : XT_SNIFF_SIZE, &format, error);
  if (status != XT_STATUS_ok) return status;
  return cannot(format == &xt_format_tar ? "a tar file" : "this format", error);
}

static bool may_be_pickle(uint8_t first) { return first == 0x80 || (first && strchr("(]}c", first)); }

/* The length of a safetensors header may look like the start of a pickle until the header begins: but a pickle may end
 * before that. */
static bool tells_pickle(xt_forward *f, size_t *want) {
  xt_skimmed skimmed = {0};
  xt_skim_result result = xt_skim(xt_forward_data(f), xt_forward_have(f), &skimmed);
  *want = SAFETENSORS_HEAD;
  if (result == XT_SKIM_SHORT && skimmed.at + skimmed.wanted < SAFETENSORS_HEAD)
    *want = skimmed.at + (size_t)skimmed.wanted;
  return result == XT_SKIM_END;
}

static xt_status begin(xt_forward *f, xt_error *error) {
  const uint8_t *data = xt_forward_data(f);
  size_t have = xt_forward_have(f), want = SAFETENSORS_HEAD;
  bool pickle = may_be_pickle(data[0]);
  if (have < 4 && !(pickle && tells_pickle(f, &want))) return xt_forward_ask(f, 4, 0);
  if (have >= 4 && !memcmp(data, "PK\3\4", 4)) f->step = xt_forward_zip;
  else if (!memcmp(data, "\x1f\x8b", 2)) return cannot("a gzip", error);
  else if (have < SAFETENSORS_HEAD && !(pickle && tells_pickle(f, &want))) return xt_forward_ask(f, want, 0);
  else if (have >= SAFETENSORS_HEAD && data[8] == '{' && xt_le(data, 8) >> 40 == 0) f->step = xt_forward_safetensors;
  else if (pickle) f->step = first_pickle;
  else if (have < XT_SNIFF_SIZE) return xt_forward_ask(f, XT_SNIFF_SIZE, 0);
  else return say_what(f, error);
  return f->step(f, error);
}

/* ---- The spool ---- */

/* A format's notes live with the checkpoint, but for what only it can free. */
static void drop_work(xt_forward *f) {
  if (f->free_work) f->free_work(f->work);
  f->free_work = NULL;
  f->work = NULL;
}

static void free_spool(xt_region *self) {
  atomic_fetch_sub(&xt_memory_live.bytes, (int64_t)self->size);
  free(self->owner);
}

static xt_status load_spool(xt_forward *f, xt_error *error) {
  bool finished = false;
  xt_reader reader = {.checkpoint = f->checkpoint, .memory = f->spool, .verify = f->checkpoint->verify};
  xt_status status = xt_loader_begin(&f->loader, &reader, f->wanted, error);
  if (status == XT_STATUS_ok) status = xt_loader_step(&f->loader, UINT64_MAX / 2, &finished, error);
  for (size_t i = 0; status == XT_STATUS_ok && i < f->storages; i++) {
    f->regions[i] = f->loader.regions[i];
    f->came[i] = f->regions[i] != NULL;
    f->loader.regions[i] = NULL;
  }
  f->received = f->loader.done;
  xt_loader_free(&f->loader);
  if (status == XT_STATUS_ok) f->event = XT_FORWARD_DONE;
  return status;
}

xt_status xt_forward_open_spool(xt_forward *f, size_t n, xt_error *error) {
  xt_checkpoint *c = f->checkpoint;
  xt_need need;
  xt_status status;
  size_t size = f->kept + n;
  uint8_t *data = f->held.data;
  f->spool = xt_region_foreign(data, size, data, free_spool); /* the engine forgets the buffer */
  if (!f->spool) return xt_opening_no_memory(error);
  atomic_fetch_add(&xt_memory_live.bytes, (int64_t)size);
  xt_limits limits = c->limits;
  bool verify = c->verify;
  drop_work(f);
  /* It begins again, as one whose size is known and whose bytes are all here. */
  xt_checkpoint_free(c);
  xt_checkpoint_begin(c, size, 0, &limits, f->strict, verify, error);
  while ((status = xt_checkpoint_step(c, &need, error)) == XT_STATUS_ok && need.size)
    memcpy(need.to, data + need.offset, need.size);
  f->step = load_spool;
  xt_forward_take(f, n, 0);
  return status == XT_STATUS_ok ? xt_forward_described(f, error) : status;
}

/* ---- The engine ---- */

static xt_status take_memory(xt_forward *f, xt_error *error) {
  if (f->region || !f->wanted[f->storage]) return XT_STATUS_ok;
  f->region = xt_region_new(f->left ? f->left : 1, 0);
  if (!f->region) return xt_reader_refused(error);
  f->region->size = f->left;
  f->touched = 0;
  return XT_STATUS_ok;
}

/* Has memory touched a little ahead: no more than that may be taken for what a stream only claims. */
static void touch_ahead(xt_forward *f) {
  size_t size = f->region->size, came = size - (size_t)f->left;
  size_t goal = size - came < TOUCHED_AHEAD ? size : came + TOUCHED_AHEAD;
  if (size < LARGE || (goal < f->touched + TOUCHED_AHEAD / 2 && goal != size) || goal <= f->touched) return;
  /* what is being filled right now is not worth a race */
  size_t from = f->touched > came + BEHIND ? f->touched : came + BEHIND;
  if (from < goal) xt_prefault(f->region, from, goal);
  f->touched = goal;
}

static xt_status receive(xt_forward *f, const uint8_t *data, size_t size, size_t *at, xt_error *error) {
  xt_status status = take_memory(f, error);
  if (status != XT_STATUS_ok) return status;
  if (f->region) touch_ahead(f);
  size_t n = f->left < size - *at ? (size_t)f->left : size - *at;
  uint64_t bytes = f->checkpoint->meaning.storages[f->storage].bytes;
  if (f->region && n) memcpy(f->region->data + (bytes - f->left), data + *at, n);
  for (size_t done = 0; f->checkpoint->verify && done < n; done += CACHED)
    f->crc = libdeflate_crc32(f->crc, data + *at + done, n - done < CACHED ? n - done : CACHED);
  *at += n;
  f->at += n;
  f->left -= n;
  f->received += n;
  if (f->left) return status;
  xt_region *region = f->region;
  if (region && f->touched) xt_prefault_forget(region);
  f->region = NULL;
  f->receiving = false;
  xt_forward_complete(f, f->storage, region);
  return status;
}

/* Bytes that came with the pickle: the next of them that is wanted, if there is one. */
static xt_status complete_inline(xt_forward *f, xt_error *error) {
  for (; f->inline_next < f->storages; f->inline_next++) {
    const xt_storage *storage = &f->checkpoint->meaning.storages[f->inline_next];
    if (!storage->data || !f->wanted[f->inline_next]) continue;
    xt_region *region = xt_region_new(storage->bytes ? storage->bytes : 1, 0);
    if (!region) return xt_reader_refused(error);
    region->size = storage->bytes;
    memcpy(region->data, storage->data, storage->bytes);
    xt_forward_complete(f, (uint32_t)f->inline_next++, region);
    break;
  }
  return XT_STATUS_ok;
}

/* Lets go of what a step has taken. What it did not want yet came with this piece, and is left there to be fed again:
 * so nothing of the payload is ever copied twice. */
static size_t let_go(xt_forward *f, size_t given) {
  size_t left = xt_forward_have(f) - f->taken, back = left < given ? left : given;
  f->at += f->taken;
  f->held.size -= back;
  if (f->keeps) {
    f->kept += f->taken;
  } else {
    memmove(f->held.data, f->held.data + f->kept + f->taken, left - back);
    f->held.size = left - back;
    f->kept = 0;
  }
  f->taken = 0;
  return back;
}

/* A step that took nothing may want less than it was given ahead of that. */
static size_t give_back(xt_forward *f, size_t given) {
  size_t have = xt_forward_have(f), surplus = have > f->want ? have - f->want : 0;
  size_t back = surplus < given ? surplus : given;
  f->held.size -= back;
  return back;
}

static xt_status look(xt_forward *f, const uint8_t *data, size_t size, size_t *at, xt_error *error) {
  size_t have = xt_forward_have(f), missing = f->want > have ? f->want - have : 0;
  size_t given = missing > f->ahead ? missing : f->ahead;
  if (given > size - *at) given = size - *at;
  if (f->keeps && given && f->held.size + given > f->spool_bytes)
    return xt_error_at(error, XT_STATUS_limit, (int64_t)f->at,
                       "the description of the tensors has not come within %" PRIu64
                       " bytes, and so they cannot be told apart; the limit is spool_bytes",
                       f->spool_bytes);
  xt_buffer_put(&f->held, data + *at, given);
  if (f->held.failed) return xt_opening_no_memory(error);
  *at += given;
  if (xt_forward_have(f) < f->want) return XT_STATUS_ok;
  xt_status status = f->step(f, error);
  if (status == XT_STATUS_ok && f->taken) *at -= let_go(f, given);
  else if (status == XT_STATUS_ok && !f->spool) *at -= give_back(f, given);
  if (f->spool && f->held.data == f->spool->data) {
    f->held = (xt_buffer){0};
    f->kept = 0;
    f->keeps = false;
  }
  return status;
}

xt_status xt_forward_feed(xt_forward *f, const uint8_t *data, size_t size, size_t *used, xt_forward_event *event,
                          xt_error *error) {
  xt_status status = XT_STATUS_ok;
  *used = 0;
  f->event = XT_FORWARD_MORE;
  error->collect = false;
  if (f->failed) return xt_error_set(error, XT_STATUS_stale, "this stream failed before; begin again");
  if (f->regions && !f->spool) status = complete_inline(f, error);
  while (status == XT_STATUS_ok && f->event == XT_FORWARD_MORE) {
    bool idle = f->receiving ? f->left != 0 : xt_forward_have(f) < f->want;
    if (idle && *used == size) break;
    status = f->receiving ? receive(f, data, size, used, error) : look(f, data, size, used, error);
  }
  f->failed = (status != XT_STATUS_ok && !error->collect) || f->event == XT_FORWARD_DONE;
  *event = f->event;
  return status;
}

uint64_t xt_forward_missing(const xt_forward *f) {
  size_t have = xt_forward_have(f);
  uint64_t now = f->receiving ? f->left : f->want > have ? f->want - have : 0;
  return now > UINT64_MAX - f->to_come ? UINT64_MAX : now + f->to_come;
}

xt_status xt_forward_end(xt_forward *f, xt_error *error) {
  uint64_t here = f->at + xt_forward_have(f);
  if (f->step == begin && here > XT_SAFETENSORS_PREFIX) {
    xt_status status = say_what(f, error);
    if (status != XT_STATUS_unsupported) return status;
  }
  return xt_error_at(error, XT_STATUS_truncated, (int64_t)here,
                     "the stream ended after %" PRIu64 " bytes, in the middle: %s is not complete, and %" PRIu64
                     " bytes or more are missing",
                     here, f->doing, xt_forward_missing(f));
}

void xt_forward_free(xt_forward *f) {
  drop_work(f);
  for (size_t i = 0; f->regions && i < f->storages; i++) xt_region_drop(f->regions[i]);
  free(f->regions);
  free(f->wanted);
  free(f->came);
  if (f->region && f->touched) xt_prefault_forget(f->region);
  xt_region_drop(f->region);
  xt_region_drop(f->spool);
  xt_buffer_free(&f->held);
  memset(f, 0, sizeof *f);
}
