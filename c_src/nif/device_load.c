#include "nif/device_load.h"

#include <stdlib.h>
#include <string.h>

#include "nif/materialize.h"
#include "nif/table.h"

enum { BUFFERS = 8 }; /* of XT_STAGE_BYTES each, for each device */

typedef xt_device_load_contents contents;

static void free_contents(xt_reapable *self) {
  contents *c = (contents *)self;
  for (size_t i = 0; i < c->queue_count; i++)
    if (c->queues[i].stager) xt_torch->stager_free(c->queues[i].stager);
  for (size_t i = 0; i < c->unit_count; i++)
    if (c->memory[i]) xt_tensor_drop(c->memory[i]);
  for (size_t i = 0; i < c->item_count; i++)
    if (c->items[i].source) xt_tensor_drop(c->items[i].source);
  xt_staged_load_free(&c->load);
  free(c->unit_queues);
  free(c->unit_sizes);
  free(c->memory);
  free(c->items);
  free(c);
}

void xt_device_load_close(xt_device_load *self) {
  if (self->contents) xt_reaper_push(&self->contents->reapable);
  if (self->checkpoint) xt_checkpoint_let_go(self->checkpoint);
  self->contents = NULL;
  self->checkpoint = NULL;
}

static void destroy_device_load(ErlNifEnv *env, void *object) {
  (void)env;
  xt_device_load_close(object);
}

const ErlNifResourceTypeInit xt_device_load_callbacks = {.dtor = destroy_device_load};

static xt_status no_memory(xt_error *error) {
  return xt_error_set(error, XT_STATUS_no_memory, "out of memory while loading tensors to a device");
}

/* ---- Where the bytes go ---- */

static xt_status take(void *context, uint32_t number, uint8_t **buffer, xt_error *error) {
  contents *c = context;
  xt_device_load_queue *q = &c->queues[number];
  xt_status status = XT_STATUS_ok;
  if (!q->stager) status = xt_torch->stager_new(q->device, c->buffer_size, BUFFERS, &q->stager, error);
  return status == XT_STATUS_ok ? xt_torch->stager_take(q->stager, buffer, error) : status;
}

xt_status xt_device_load_allocate(contents *c, size_t id, xt_error *error) {
  if (c->memory[id]) return XT_STATUS_ok;
  return xt_torch->tensor_bytes(c->queues[c->unit_queues[id]].device, c->unit_sizes[id], &c->memory[id], error);
}

static xt_status put(void *context, size_t id, size_t from, uint64_t at, size_t size, xt_error *error) {
  contents *c = context;
  xt_status status = xt_device_load_allocate(c, id, error);
  if (status != XT_STATUS_ok) return status;
  return xt_torch->stager_copy(c->queues[c->unit_queues[id]].stager, from, c->memory[id], at, size, error);
}

static xt_status pass(void *context, uint32_t number, xt_error *error) {
  contents *c = context;
  return xt_torch->stager_pass(c->queues[number].stager, error);
}

/* ---- Begin ---- */

/* Finds the queue of a device, or adds it. Returns false if there are too many. */
static bool find_queue(contents *c, xt_device device, uint32_t *out) {
  if (device.index < 0) device.index = 0;
  for (*out = 0; *out < c->queue_count; ++*out)
    if (c->queues[*out].device.type == device.type && c->queues[*out].device.index == device.index) return true;
  if (c->queue_count == XT_MAX_QUEUES) return false;
  c->queues[c->queue_count++] = (xt_device_load_queue){device, NULL};
  return true;
}

static contents *new_contents(size_t items) {
  contents *c = calloc(1, sizeof *c);
  if (!c) return NULL;
  c->reapable.run = free_contents;
  c->buffer_size = XT_STAGE_BYTES;
  c->items = calloc(items + 1, sizeof *c->items);
  c->memory = calloc(items + 1, sizeof *c->memory);
  c->unit_queues = calloc(items + 1, sizeof *c->unit_queues);
  c->unit_sizes = calloc(items + 1, sizeof *c->unit_sizes);
  if (c->items && c->memory && c->unit_queues && c->unit_sizes) return c;
  free_contents(&c->reapable);
  return NULL;
}

/* Whether tensors of the device are views of memory that bytes can be copied to. */
static bool can_stage(xt_device device) {
  return device.type != XT_DEVICE_CPU && device.type != XT_DEVICE_META && device.type != XT_DEVICE_XLA;
}

/* The tensors of a load that is begun. */
typedef struct {
  ErlNifEnv *env;
  const xt_checkpoint *checkpoint;
  bool verify, sparing;
  uint64_t *used;  /* bytes of the tensors of each storage */
  size_t *unit_of; /* 1 + the unit of each storage that is read as a whole */
  xt_staged_unit *units;
  uint64_t total;
} beginning;

/* The bytes from the first to the last element. */
static uint64_t span_of(const xt_tensor_desc *t) {
  uint64_t last = 0;
  for (uint32_t d = 0; d < t->ndim; d++) {
    if (!t->sizes[d]) return 0;
    last += (uint64_t)(t->sizes[d] - 1) * (uint64_t)t->strides[d];
  }
  return (last + 1) * xt_dtype_get(t->dtype)->size;
}

/* Whether only the bytes of the tensor are read: of a storage that is mostly not used. */
static bool is_part(const beginning *b, const xt_tensor_desc *t) {
  const xt_record *record = b->checkpoint->records[t->storage];
  return b->sparing && record->method == XT_RECORD_STORED && !b->verify &&
         !xt_checkpoint_needs_swap(b->checkpoint, t->storage) && b->used[t->storage] < record->size / 2;
}

static size_t add_unit(contents *c, beginning *b, xt_staged_unit unit) {
  size_t id = c->unit_count++;
  unit.id = id;
  b->units[id] = unit;
  c->unit_queues[id] = unit.queue;
  c->unit_sizes[id] = unit.size;
  return id;
}

/* Adds a tensor. Returns false if it cannot be staged: Elixir loads it to the CPU and converts it. */
static bool add_tensor(contents *c, beginning *b, const xt_tensor_desc *t, xt_device device) {
  uint32_t number;
  if (!can_stage(device) || !xt_materialize_is_plain(b->checkpoint, t) || !xt_torch->has_dtype(t->dtype)) return false;
  bool part = is_part(b, t);
  if (part && span_of(t) / 2 > (uint64_t)xt_tensor_desc_bytes(t)) return false; /* most of it is not the tensor's */
  if (!find_queue(c, device, &number)) return false;
  uint64_t size = b->checkpoint->records[t->storage]->size, item_size = xt_dtype_get(t->dtype)->size;
  size_t known = part ? 0 : b->unit_of[t->storage], unit;
  if (known && c->unit_queues[known - 1] != number) known = 0;
  if (known) unit = known - 1;
  else if (part)
    unit = add_unit(
        c, b,
        (xt_staged_unit){
            .storage = t->storage, .queue = number, .from = (uint64_t)t->offset * item_size, .size = span_of(t)});
  else unit = add_unit(c, b, (xt_staged_unit){.storage = t->storage, .queue = number, .size = size});
  if (!part) b->unit_of[t->storage] = unit + 1;
  c->items[c->item_count++] = (xt_device_load_item){.desc = t, .unit = unit};
  return true;
}

/* Adds the tensors, and lists the positions of those that cannot be staged in *rest. Returns bad_argument, without a
 * message, for a term of the wrong type. */
static xt_status add_tensors(contents *c, beginning *b, ERL_NIF_TERM entries, ERL_NIF_TERM devices,
                             ERL_NIF_TERM *rest) {
  ERL_NIF_TERM entry, device_term;
  xt_device device;
  ErlNifUInt64 i;
  unsigned position = 0;
  *rest = enif_make_list(b->env, 0);
  while (enif_get_list_cell(b->env, entries, &entry, &entries)) {
    if (!enif_get_list_cell(b->env, devices, &device_term, &devices) || !enif_get_uint64(b->env, entry, &i) ||
        i >= b->checkpoint->index.count || !xt_get_device(b->env, device_term, &device))
      return XT_STATUS_bad_argument;
    const xt_tensor_desc *t = b->checkpoint->index.entries[i].tensor;
    b->total += (uint64_t)xt_tensor_desc_bytes(t);
    if (!add_tensor(c, b, t, device)) *rest = enif_make_list_cell(b->env, enif_make_uint(b->env, position), *rest);
    position++;
  }
  enif_make_reverse_list(b->env, *rest, rest);
  return XT_STATUS_ok;
}

static void sum_used(beginning *b, ERL_NIF_TERM entries) {
  ERL_NIF_TERM entry;
  ErlNifUInt64 i;
  while (enif_get_list_cell(b->env, entries, &entry, &entries)) {
    if (!enif_get_uint64(b->env, entry, &i) || i >= b->checkpoint->index.count) continue;
    const xt_tensor_desc *t = b->checkpoint->index.entries[i].tensor;
    if (t->storage != XT_NO_STORAGE) b->used[t->storage] += (uint64_t)xt_tensor_desc_bytes(t);
  }
}

static xt_stage_sink sink_of(contents *c) { return (xt_stage_sink){c, take, put, pass}; }

static ERL_NIF_TERM make_load(ErlNifEnv *env, contents *c, xt_checkpoint_resource *checkpoint) {
  xt_device_load *self = enif_alloc_resource(xt_device_load_type, sizeof *self);
  memset(self, 0, sizeof *self);
  self->contents = c;
  self->checkpoint = checkpoint;
  if (checkpoint) xt_checkpoint_hold(checkpoint);
  ERL_NIF_TERM term = enif_make_resource(env, self);
  enif_release_resource(self);
  return term;
}

static xt_status begin(contents *c, beginning *b, xt_checkpoint_resource *resource, const ERL_NIF_TERM argv[],
                       ERL_NIF_TERM *rest, xt_error *error) {
  size_t storages = b->checkpoint->storages.count;
  b->used = calloc(storages + 1, sizeof *b->used);
  b->unit_of = calloc(storages + 1, sizeof *b->unit_of);
  if (!b->used || !b->unit_of || !b->units) return no_memory(error);
  sum_used(b, argv[1]);
  xt_status status = add_tensors(c, b, argv[1], argv[2], rest);
  if (status == XT_STATUS_ok) status = xt_checkpoint_check_total(resource->handle, b->total, error);
  if (status != XT_STATUS_ok) return status;
  xt_record_reader reader = xt_checkpoint_handle_reader(resource->handle, b->env, b->verify);
  xt_stage_sink sink = sink_of(c);
  xt_staged_unit *units = b->units;
  b->units = NULL;
  return xt_staged_load_begin(&c->load, &reader, &sink, units, c->unit_count, error);
}

static ERL_NIF_TERM begin_load(ErlNifEnv *env, xt_checkpoint_resource *resource, const ERL_NIF_TERM argv[]) {
  beginning b = {.env = env, .checkpoint = &resource->handle->checkpoint};
  xt_error error = {.status = XT_STATUS_ok};
  unsigned count, devices;
  ERL_NIF_TERM rest = xt_am_nil;
  if (!enif_get_list_length(env, argv[1], &count) || !enif_get_list_length(env, argv[2], &devices) ||
      count != devices || !xt_get_bool(env, argv[3], &b.verify) || !xt_get_bool(env, argv[4], &b.sparing))
    return enif_make_badarg(env);
  contents *c = new_contents(count);
  b.units = calloc(count + 1, sizeof *b.units);
  xt_status status = c ? begin(c, &b, resource, argv, &rest, &error) : no_memory(&error);
  free(b.used);
  free(b.unit_of);
  free(b.units);
  if (status == XT_STATUS_ok) {
    ERL_NIF_TERM load = make_load(env, c, resource);
    return xt_make_ok(env, enif_make_tuple3(env, load, enif_make_uint64(env, c->load.total), rest));
  }
  if (c) free_contents(&c->reapable);
  return error.status == XT_STATUS_ok ? enif_make_badarg(env) : xt_make_error(env, &error);
}

/* device_load_begin(checkpoint, [entry's index], [device of each], verify?, sparing?)
 *   :: {:ok, {device_load, bytes to read, [position]}, 0} | {:error, e}
 *
 * The positions are those of tensors that cannot be staged, and are not part of the load: sparse and quantized ones,
 * those without values, and those for the CPU. If `sparing?`, only their bytes are read of storages that are mostly not
 * used. */
ERL_NIF_TERM xt_nif_device_load_begin(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  (void)argc;
  return xt_checkpoint_run(env, argv, begin_load);
}

/* ---- Tensors of the CPU ---- */

/* Whether the elements fill their memory, so that it can be copied as it is. */
static bool is_dense(const xt_tensor_info *info) {
  return info->plain && info->device.type == XT_DEVICE_CPU &&
         info->span == (size_t)info->numel * xt_dtype_get(info->dtype)->size;
}

/* Returns unsupported, without a message, for a tensor that cannot be staged. */
static xt_status add_source(ErlNifEnv *env, contents *c, beginning *b, ERL_NIF_TERM term, xt_device device,
                            xt_error *error) {
  xt_tensor_resource *resource;
  xt_tensor *tensor;
  uint32_t number;
  if (!xt_get_tensor(env, term, &resource)) return XT_STATUS_bad_argument;
  xt_status status = xt_tensor_take(resource, &tensor, error);
  if (status != XT_STATUS_ok) return status;
  const xt_tensor_info *info = &tensor->info;
  if (!is_dense(info) || !can_stage(device) || !find_queue(c, device, &number)) {
    xt_tensor_drop(tensor);
    return XT_STATUS_unsupported;
  }
  const uint8_t *data = info->span ? info->data : (const uint8_t *)""; /* an empty tensor may have no address */
  size_t unit = add_unit(c, b, (xt_staged_unit){.queue = number, .size = info->span, .memory = data});
  c->items[c->item_count++] = (xt_device_load_item){.source = tensor, .unit = unit};
  return XT_STATUS_ok;
}

/* Units of memory have no headers, so no buffer has to be larger than the largest of them. */
static size_t largest_unit(const contents *c) {
  uint64_t largest = 1;
  for (size_t i = 0; i < c->unit_count; i++)
    if (c->unit_sizes[i] > largest) largest = c->unit_sizes[i];
  return largest < XT_STAGE_BYTES ? (size_t)largest : XT_STAGE_BYTES;
}

/* device_load_tensors([tensor], device) :: {:ok, {device_load, bytes} | nil, 0} | {:error, e}
 *
 * Returns nil if one of the tensors cannot be staged. */
ERL_NIF_TERM xt_nif_device_load_tensors(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  beginning b = {.env = env};
  xt_error error = {.status = XT_STATUS_ok};
  ERL_NIF_TERM head, list = argv[0];
  xt_device device;
  unsigned count;
  (void)argc;
  if (!enif_get_list_length(env, list, &count) || !xt_get_device(env, argv[1], &device)) return enif_make_badarg(env);
  contents *c = new_contents(count);
  b.units = calloc(count + 1, sizeof *b.units);
  xt_status status = c && b.units ? XT_STATUS_ok : no_memory(&error);
  while (status == XT_STATUS_ok && enif_get_list_cell(env, list, &head, &list))
    status = add_source(env, c, &b, head, device, &error);
  if (status == XT_STATUS_ok) {
    xt_stage_sink sink = sink_of(c);
    c->buffer_size = largest_unit(c);
    status =
        xt_staged_load_begin(&c->load, &(xt_record_reader){.checkpoint = NULL}, &sink, b.units, c->unit_count, &error);
    b.units = NULL;
  }
  free(b.units);
  if (status == XT_STATUS_ok)
    return xt_make_ok(env, enif_make_tuple2(env, make_load(env, c, NULL), enif_make_uint64(env, c->load.total)));
  if (c) xt_reaper_push(&c->reapable);
  if (error.status != XT_STATUS_ok) return xt_make_error(env, &error);
  return status == XT_STATUS_unsupported ? xt_make_ok(env, xt_am_nil) : enif_make_badarg(env);
}
