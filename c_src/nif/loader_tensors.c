/* The tensors of a loader: which ones are selected, and which storages each of them waits for. */
#include <stdlib.h>
#include <string.h>

#include "core/memory/memory.h"
#include "nif/loader.h"
#include "nif/materialize.h"
#include "nif/tensor.h"

const xt_loader_limits xt_loader_dirty_limits = {32 << 20, 10000, false};
const xt_loader_limits xt_loader_brief_limits = {256 << 10, 32, true};

/* What the arrays of a loader take. Most entries wait for one storage. */
enum {
  ENTRY_COST = sizeof(uint32_t) + 2 * sizeof(size_t),
  STORAGE_COST = 2 * sizeof(size_t) + sizeof(bool),
};

/* After this many tensors, asks whether the caller is alive. */
enum { STOP_TENSORS = 1024 };

typedef void storage_callback(xt_loader *loader, size_t entry, uint32_t storage);

/* Calls the function for every storage whose bytes the entry needs. */
static void each_storage(xt_loader *loader, size_t entry, storage_callback *callback) {
  const xt_checkpoint *c = loader->push.checkpoint;
  const xt_tensor_desc *t = c->index.entries[entry].tensor;
  if (t->storage != XT_NO_STORAGE && c->records[t->storage]) callback(loader, entry, t->storage);
  for (uint32_t part = 0; part < t->part_count; part++) {
    uint32_t storage = t->more->parts[part]->storage;
    if (storage != XT_NO_STORAGE && c->records[storage]) callback(loader, entry, storage);
  }
}

/* ---- Selection ---- */

static xt_status no_memory(xt_error *error) {
  return xt_error_set(error, XT_STATUS_no_memory, "out of memory while loading tensors");
}

static void count_user(xt_loader *loader, size_t entry, uint32_t storage) {
  loader->missing[entry]++;
  loader->users[storage]++;
  loader->first[storage + 1]++;
  loader->push.wanted[storage] = true;
}

static void add_waiting(xt_loader *loader, size_t entry, uint32_t storage) {
  loader->waiting[loader->first[storage]++] = entry;
}

/* Counts the storages of each selected entry and the entries of each storage. */
static void count_users(xt_loader *loader, const bool *selected) {
  const xt_checkpoint *c = loader->push.checkpoint;
  loader->plain = true;
  for (size_t i = 0; i < c->index.count; i++) {
    if (!selected || selected[i]) {
      each_storage(loader, i, count_user);
      loader->plain &= xt_materialize_is_plain(c, c->index.entries[i].tensor);
      loader->selected[loader->selected_count++] = i;
    } else {
      loader->missing[i] = UINT32_MAX;
    }
  }
  /* the entries of one storage are created in the same call */
  for (size_t i = 0; i < c->storages.count; i++) loader->plain &= loader->users[i] <= xt_loader_brief_limits.tensors;
  loader->plain |= loader->deferred;
}

static uint64_t add_saturated(uint64_t a, uint64_t b) { return b > INT64_MAX - a ? INT64_MAX : a + b; }

/* Checks the bytes of all tensors, and of their storages, against the limit. */
static xt_status check_sizes(const xt_loader *loader, uint64_t *bytes, xt_error *error) {
  const xt_checkpoint *c = loader->push.checkpoint;
  uint64_t tensors = 0;
  *bytes = 0;
  for (size_t i = 0; i < loader->selected_count; i++)
    tensors = add_saturated(tensors, (uint64_t)xt_tensor_desc_bytes(c->index.entries[loader->selected[i]].tensor));
  for (size_t i = 0; i < loader->push.storages; i++)
    if (loader->push.wanted[i] && !c->storages.list[i].data) *bytes = add_saturated(*bytes, c->storages.list[i].bytes);
  return xt_checkpoint_check_total(loader->checkpoint->handle, *bytes > tensors ? *bytes : tensors, error);
}

xt_status xt_loader_select(xt_loader *loader, const bool *selected, uint64_t *to_receive, xt_error *error) {
  const xt_checkpoint *c = loader->push.checkpoint;
  size_t entries = c->index.count, storages = c->storages.count;
  int64_t bytes = (int64_t)(entries * ENTRY_COST + storages * STORAGE_COST);
  if (!xt_memory_charge(bytes)) return xt_region_refused(error);
  loader->charged = bytes;
  loader->missing = calloc(entries + 1, sizeof *loader->missing);
  loader->users = calloc(storages + 1, sizeof *loader->users);
  loader->first = calloc(storages + 2, sizeof *loader->first);
  loader->counted = calloc(storages + 1, sizeof *loader->counted);
  loader->selected = calloc(entries + 1, sizeof *loader->selected);
  if (!loader->missing || !loader->users || !loader->first || !loader->counted || !loader->selected)
    return no_memory(error);
  memset(loader->push.wanted, 0, storages);
  count_users(loader, selected);
  for (size_t i = 0; i < storages; i++) loader->first[i + 1] += loader->first[i];
  loader->waiting = calloc(loader->first[storages] + 1, sizeof *loader->waiting);
  if (!loader->waiting) return no_memory(error);
  for (size_t i = 0; i < entries; i++)
    if (!selected || selected[i]) each_storage(loader, i, add_waiting);
  /* add_waiting has advanced every start to the start of the next storage */
  memmove(loader->first + 1, loader->first, storages * sizeof *loader->first);
  loader->first[0] = 0;
  return check_sizes(loader, to_receive, error);
}

/* ---- Creation ---- */

static void release_user(xt_loader *loader, size_t entry, uint32_t storage) {
  (void)entry;
  if (--loader->users[storage]) return;
  xt_region_drop(loader->push.regions[storage]); /* the tensors have their own references */
  loader->push.regions[storage] = NULL;
}

static xt_status make_entry(xt_loader *loader, size_t i, xt_ready_tensors *out, xt_error *error) {
  const xt_checkpoint *c = loader->push.checkpoint;
  xt_storage_origin origin = {c, NULL, loader->push.regions};
  ERL_NIF_TERM term;
  if (out->count % STOP_TENSORS == STOP_TENSORS - 1 && !enif_is_current_process_alive(out->env))
    return xt_error_set(error, XT_STATUS_stopping, "the calling process has exited");
  xt_status status = xt_materialize_term(out->env, &origin, c->index.entries[i].tensor, &out->like, &term, error);
  if (status != XT_STATUS_ok) {
    error->collect = false; /* the state has changed already, so the call cannot be repeated */
    return status;
  }
  ERL_NIF_TERM pair = enif_make_tuple2(out->env, enif_make_uint64(out->env, i), term);
  out->list = enif_make_list_cell(out->env, pair, out->list);
  out->count++;
  each_storage(loader, i, release_user);
  return status;
}

xt_status xt_loader_make_immediate(xt_loader *loader, xt_ready_tensors *out, xt_error *error) {
  xt_status status = XT_STATUS_ok;
  size_t count = loader->push.checkpoint->index.count;
  if (loader->deferred) loader->next_immediate = count + 1;
  for (; loader->next_immediate < count && status == XT_STATUS_ok; loader->next_immediate++)
    if (!loader->missing[loader->next_immediate]) status = make_entry(loader, loader->next_immediate, out, error);
  return status;
}

xt_status xt_loader_storage_complete(xt_loader *loader, size_t storage, xt_ready_tensors *out, xt_error *error) {
  xt_status status = XT_STATUS_ok;
  if (loader->deferred || loader->counted[storage]) return status;
  loader->counted[storage] = true;
  for (size_t i = loader->first[storage]; i < loader->first[storage + 1] && status == XT_STATUS_ok; i++) {
    size_t entry = loader->waiting[i];
    if (--loader->missing[entry] == 0) status = make_entry(loader, entry, out, error);
  }
  return status;
}
