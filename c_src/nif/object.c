/* Converts object trees to Elixir terms. */
#include "nif/object.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/array.h"
#include "nif/checkpoint.h"
#include "nif/table.h"

/* ---- Leaves ---- */

/* The size comes from the file, so the allocation must be able to fail. */
static bool make_bytes(ErlNifEnv *env, const char *data, size_t size, ERL_NIF_TERM *out) {
  *out = xt_make_text(env, data, size);
  return *out != xt_am_nil;
}

static bool make_wrapped(ErlNifEnv *env, ERL_NIF_TERM module, const xt_node *node, ERL_NIF_TERM *out) {
  ERL_NIF_TERM data;
  if (!make_bytes(env, node->text.data, node->text.size, &data)) return false;
  *out = xt_make_struct(env, (ERL_NIF_TERM[]){xt_am___struct__, xt_am_data}, (ERL_NIF_TERM[]){module, data}, 2);
  return true;
}

/* Makes an integer of any size through the external term format: LARGE_BIG_EXT, with magnitude and sign. `node` holds a
 * little-endian two's complement number. */
static bool make_big(ErlNifEnv *env, const xt_node *node, ERL_NIF_TERM *out) {
  size_t size = node->text.size;
  const uint8_t *bytes = (const uint8_t *)node->text.data;
  bool negative = bytes[size - 1] & 0x80;
  uint8_t *external = enif_alloc(size + 8);
  if (!external) return false;
  uint8_t *magnitude = external + 7;
  unsigned carry = 1;
  for (size_t i = 0; i < size; i++) {
    unsigned byte = negative ? (uint8_t)~bytes[i] + carry : bytes[i];
    carry = byte >> 8;
    magnitude[i] = (uint8_t)byte;
  }
  magnitude[size] = 1; /* the magnitude of -2^(8n) has one byte more */
  size_t length = negative && carry ? size + 1 : size;
  while (length > 1 && !magnitude[length - 1]) length--;
  external[0] = 131; /* version */
  external[1] = 111; /* LARGE_BIG_EXT */
  for (int i = 0; i < 4; i++) external[2 + i] = (uint8_t)(length >> (24 - 8 * i));
  external[6] = negative;
  bool made = enif_binary_to_term(env, external, 7 + length, out, 0) != 0;
  enif_free(external);
  return made;
}

static bool make_numpy_scalar(ErlNifEnv *env, const xt_node *node, ERL_NIF_TERM *out) {
  ERL_NIF_TERM value = xt_make_element(env, node->scalar.dtype, node->scalar.bytes);
  *out = xt_make_struct(env, (ERL_NIF_TERM[]){xt_am___struct__, xt_am_dtype, xt_am_value},
                        (ERL_NIF_TERM[]){xt_am_module_numpy_scalar, xt_make_dtype(node->scalar.dtype), value}, 3);
  return true;
}

static ERL_NIF_TERM make_part(xt_part part) {
  switch (part) {
  case XT_PART_CLASS: return xt_am_class;
  case XT_PART_ARGS: return xt_am_args;
  case XT_PART_STATE: return xt_am_state;
  case XT_PART_LIST: return xt_am_list;
  case XT_PART_DICT: return xt_am_dict;
  case XT_PART_TENSOR: return xt_am_tensor;
  default: return xt_am_key;
  }
}

static bool make_step(ErlNifEnv *env, const xt_checkpoint *c, const xt_path *step, ERL_NIF_TERM *out) {
  if (step->key) return xt_make_node(env, c, step->key, out);
  if (step->position >= 0) *out = enif_make_int64(env, step->position);
  else *out = make_part((xt_part)XT_PART_STEP(step->position));
  return true;
}

/* The terms of `down` are the last ones of the path. */
static bool make_ref(ErlNifEnv *env, const xt_checkpoint *c, const xt_node *node, ERL_NIF_TERM *out) {
  ERL_NIF_TERM path = enif_make_list(env, 0), down = path, step;
  uint32_t steps = 0;
  for (const xt_path *at = node->ref.place; at; at = at->parent) {
    if (!make_step(env, c, at, &step)) return false;
    path = enif_make_list_cell(env, step, path);
    if (++steps == node->ref.down) down = path;
  }
  *out = xt_make_struct(env, (ERL_NIF_TERM[]){xt_am___struct__, xt_am_down, xt_am_path, xt_am_up},
                        (ERL_NIF_TERM[]){xt_am_module_ref, down, path, enif_make_uint64(env, node->ref.up)}, 4);
  return true;
}

static bool make_storage(ErlNifEnv *env, const xt_storage *storage, int64_t numel, ERL_NIF_TERM tensor,
                         ERL_NIF_TERM *out) {
  ERL_NIF_TERM key, location;
  if (!make_bytes(env, storage->key, storage->key_size, &key) ||
      !make_bytes(env, storage->location, storage->location_size, &location))
    return false;
  ERL_NIF_TERM keys[] = {xt_am___struct__, xt_am_dtype, xt_am_key, xt_am_location, xt_am_numel, xt_am_tensor};
  ERL_NIF_TERM values[] = {
      xt_am_module_storage, xt_make_dtype(storage->dtype), key, location, enif_make_int64(env, numel), tensor};
  *out = xt_make_struct(env, keys, values, 6);
  return true;
}

static bool make_leaf(ErlNifEnv *env, const xt_checkpoint *c, const xt_node *node, ERL_NIF_TERM *out) {
  ERL_NIF_TERM a, b;
  switch (node->kind) {
  case XT_NODE_NONE: *out = xt_am_nil; return true;
  case XT_NODE_BOOL: *out = xt_make_bool(node->boolean); return true;
  case XT_NODE_INT: *out = enif_make_int64(env, node->integer); return true;
  case XT_NODE_BIG: return make_big(env, node, out);
  case XT_NODE_FLOAT: *out = xt_make_float(env, node->number); return true;
  case XT_NODE_COMPLEX: *out = xt_make_complex(env, node->complex.re, node->complex.im); return true;
  case XT_NODE_TEXT: return make_bytes(env, node->text.data, node->text.size, out);
  case XT_NODE_RAW_TEXT: return make_wrapped(env, xt_am_module_raw_text, node, out);
  case XT_NODE_BYTES: return make_wrapped(env, xt_am_module_bytes, node, out);
  case XT_NODE_BYTEARRAY: return make_wrapped(env, xt_am_module_byte_array, node, out);
  case XT_NODE_DTYPE:
    *out = xt_make_struct(env, (ERL_NIF_TERM[]){xt_am___struct__, xt_am_name},
                          (ERL_NIF_TERM[]){xt_am_module_dtype, xt_make_dtype(node->dtype)}, 2);
    return true;
  case XT_NODE_DEVICE:
    if (!make_bytes(env, node->device.type, node->device.type_size, &a)) return false;
    b = node->device.index < 0 ? xt_am_nil : enif_make_int64(env, node->device.index);
    *out = xt_make_struct(env, (ERL_NIF_TERM[]){xt_am___struct__, xt_am_index, xt_am_type},
                          (ERL_NIF_TERM[]){xt_am_module_device, b, a}, 3);
    return true;
  case XT_NODE_GLOBAL:
    if (!make_bytes(env, node->global.module, node->global.module_size, &a) ||
        !make_bytes(env, node->global.name, node->global.name_size, &b))
      return false;
    *out = xt_make_struct(env, (ERL_NIF_TERM[]){xt_am___struct__, xt_am_module, xt_am_name},
                          (ERL_NIF_TERM[]){xt_am_module_global, a, b}, 3);
    return true;
  case XT_NODE_STORAGE: {
    const xt_storage *storage = &c->storages.list[node->storage.index];
    int64_t numel = node->storage.count < 0 ? storage->numel : node->storage.count;
    return make_storage(env, storage, numel, xt_am_nil, out);
  }
  case XT_NODE_SCALAR: return make_numpy_scalar(env, node, out);
  case XT_NODE_REF: return make_ref(env, c, node, out);
  default: return false;
  }
}

/* ---- Containers ----
 *
 * Uses a stack of frames instead of recursion, since the depth comes from the file. */

typedef struct {
  const xt_node *node;
  size_t next; /* the next child to convert */
  size_t base; /* where the terms of its children begin */
} frame;

typedef struct {
  ErlNifEnv *env;
  const xt_checkpoint *c;
  const ERL_NIF_TERM *tensors; /* the term for each tensor, in index order */
  size_t tensor_count, tensor_next;
  bool ordered;
  ERL_NIF_TERM set; /* a MapSet of one element that serves as a template; 0 if there is none */
  xt_arena arena;   /* of the arrays below */
  frame *frames;
  size_t depth, depth_room;
  ERL_NIF_TERM *terms;
  size_t count, room;
  ERL_NIF_TERM *keys; /* and values of a map */
  size_t keys_room;
  ERL_NIF_TERM *shared; /* the term of each shared node, 0 if not made yet; NULL to make a term for each occurrence */
} builder;

/* A shared node with tensors has other tensors at each occurrence if the tensors are represented by their entries. */
static ERL_NIF_TERM *shared_term(const builder *b, const xt_node *node) {
  return b->shared && node->shared && !node->has_tensors ? &b->shared[node->shared - 1] : NULL;
}

static void remember(builder *b, const xt_node *node, ERL_NIF_TERM term) {
  ERL_NIF_TERM *slot = shared_term(b, node);
  if (slot) *slot = term;
}

static bool push_term(builder *b, ERL_NIF_TERM term) {
  if (!xt_arena_reserve(&b->arena, &b->terms, &b->room, b->count + 1, sizeof term)) return false;
  b->terms[b->count++] = term;
  return true;
}

static bool push_node(builder *b, const xt_node *node) {
  ERL_NIF_TERM term, *made = shared_term(b, node);
  if (made && *made) return push_term(b, *made);
  if (node->kind == XT_NODE_TENSOR)
    return b->tensor_next < b->tensor_count && push_term(b, b->tensors[b->tensor_next++]);
  bool container = (node->kind >= XT_NODE_LIST && node->kind <= XT_NODE_DICT) || node->kind == XT_NODE_OBJECT ||
                   node->kind == XT_NODE_SUBCLASS || node->kind == XT_NODE_BARE;
  if (!container) {
    if (!make_leaf(b->env, b->c, node, &term)) return false;
    remember(b, node, term);
    return push_term(b, term);
  }
  if (!xt_arena_reserve(&b->arena, &b->frames, &b->depth_room, b->depth + 1, sizeof *b->frames) ||
      !xt_arena_reserve(&b->arena, &b->terms, &b->room, b->count + xt_child_count(node), sizeof term))
    return false;
  b->frames[b->depth++] = (frame){node, 0, b->count};
  return true;
}

/* The keys and values of a map: of a dict from its items, of a set from its elements and one value. */
static bool make_map(builder *b, const ERL_NIF_TERM *items, size_t count, bool is_dict, ERL_NIF_TERM value,
                     ERL_NIF_TERM *out) {
  size_t pairs = is_dict ? count / 2 : count;
  if (!xt_arena_reserve(&b->arena, &b->keys, &b->keys_room, 2 * pairs + 1, sizeof *b->keys)) return false;
  ERL_NIF_TERM *keys = b->keys;
  for (size_t i = 0; i < pairs; i++) {
    keys[i] = items[is_dict ? 2 * i : i];
    keys[pairs + i] = is_dict ? items[2 * i + 1] : value;
  }
  return xt_make_map(b->env, keys, keys + pairs, pairs, out);
}

static ERL_NIF_TERM make_pairs(builder *b, const ERL_NIF_TERM *items, size_t count) {
  ERL_NIF_TERM list = enif_make_list(b->env, 0);
  for (size_t i = count; i >= 2; i -= 2)
    list = enif_make_list_cell(b->env, enif_make_tuple2(b->env, items[i - 2], items[i - 1]), list);
  return xt_make_struct(b->env, (ERL_NIF_TERM[]){xt_am___struct__, xt_am_pairs},
                        (ERL_NIF_TERM[]){xt_am_module_dict, list}, 2);
}

/* A MapSet has its elements as the keys of a map. The value of each key is copied from the template. */
static bool make_set(builder *b, const ERL_NIF_TERM *items, size_t count, ERL_NIF_TERM *out) {
  ERL_NIF_TERM map, inner, key, value = xt_am_nil;
  ErlNifMapIterator at;
  if (enif_get_map_value(b->env, b->set, xt_am_map, &inner) &&
      enif_map_iterator_create(b->env, inner, &at, ERL_NIF_MAP_ITERATOR_FIRST)) {
    enif_map_iterator_get_pair(b->env, &at, &key, &value);
    enif_map_iterator_destroy(b->env, &at);
  }
  return make_map(b, items, count, false, value, &map) && enif_make_map_update(b->env, b->set, xt_am_map, map, out);
}

static ERL_NIF_TERM make_object(builder *b, const xt_node *node, const ERL_NIF_TERM *items) {
  ERL_NIF_TERM parts[5] = {xt_am_nil, xt_am_nil, xt_am_nil, xt_am_nil, xt_am_nil};
  for (size_t i = 0; i < xt_child_count(node); i++) parts[xt_child_at(node, i).position] = items[i];
  ERL_NIF_TERM keys[] = {xt_am___struct__, xt_am_args, xt_am_class, xt_am_dict, xt_am_list, xt_am_new, xt_am_state};
  ERL_NIF_TERM values[] = {
      xt_am_module_object, parts[1], parts[0], parts[4], parts[3], xt_make_bool(node->object->is_new), parts[2]};
  return xt_make_struct(b->env, keys, values, 7);
}

static ERL_NIF_TERM make_subclass(builder *b, const ERL_NIF_TERM *items) {
  ERL_NIF_TERM keys[] = {xt_am___struct__, xt_am_class, xt_am_state, xt_am_tensor};
  return xt_make_struct(b->env, keys, (ERL_NIF_TERM[]){xt_am_module_tensor_subclass, items[1], items[2], items[0]}, 4);
}

/* Makes the term of a container from the terms of its children. Returns false if out of memory. */
static bool make_container(builder *b, const xt_node *node, const ERL_NIF_TERM *items, size_t count,
                           ERL_NIF_TERM *out) {
  switch (node->kind) {
  case XT_NODE_TUPLE: *out = enif_make_tuple_from_array(b->env, items, (unsigned)count); return true;
  case XT_NODE_OBJECT: *out = make_object(b, node, items); return true;
  case XT_NODE_SUBCLASS: *out = make_subclass(b, items); return true;
  case XT_NODE_BARE: {
    const xt_tensor_desc *t = node->list.items[0]->tensor;
    return make_storage(b->env, &b->c->storages.list[t->storage], t->sizes[0], items[0], out);
  }
  case XT_NODE_DICT:
    if (!b->ordered) return make_map(b, items, count, true, 0, out);
    *out = make_pairs(b, items, count);
    return true;
  case XT_NODE_SET:
  case XT_NODE_FROZENSET:
    if (b->set) return make_set(b, items, count, out);
    break;
  default: break;
  }
  *out = enif_make_list_from_array(b->env, items, (unsigned)count);
  return true;
}

static bool finish_container(builder *b) {
  frame *at = &b->frames[--b->depth];
  ERL_NIF_TERM term;
  if (!make_container(b, at->node, b->terms + at->base, b->count - at->base, &term)) return false;
  b->count = at->base;
  remember(b, at->node, term);
  return push_term(b, term);
}

static bool build(builder *b, const xt_node *root, ERL_NIF_TERM *out) {
  bool ok = push_node(b, root);
  while (ok && b->depth) {
    frame *at = &b->frames[b->depth - 1];
    ok = at->next < xt_child_count(at->node) ? push_node(b, xt_child_at(at->node, at->next++).node)
                                             : finish_container(b);
  }
  if (ok) *out = b->terms[0];
  xt_arena_free(&b->arena);
  return ok;
}

bool xt_make_node(ErlNifEnv *env, const xt_checkpoint *c, const xt_node *node, ERL_NIF_TERM *out) {
  if (make_leaf(env, c, node, out)) return true;
  builder b = {.env = env, .c = c};
  return build(&b, node, out);
}

bool xt_get_object_style(ErlNifEnv *env, ERL_NIF_TERM term, xt_object_style *out) {
  const ERL_NIF_TERM *parts;
  int arity;
  if (!enif_get_tuple(env, term, &arity, &parts) || arity != 2) return false;
  out->set = parts[1];
  return xt_get_bool(env, parts[0], &out->ordered) && enif_is_map(env, parts[1]);
}

xt_status xt_make_object(ErlNifEnv *env, const xt_checkpoint *c, const ERL_NIF_TERM *tensors, xt_object_style style,
                         ERL_NIF_TERM *out, xt_error *error) {
  builder b = {.env = env,
               .c = c,
               .tensors = tensors,
               .tensor_count = c->index.count,
               .ordered = style.ordered,
               .set = style.set};
  /* usually, a dict has all tensors: its items, and the keys and values of the map */
  b.arena.expected = (c->index.shared + 4 * c->index.count) * sizeof *b.shared;
  b.shared = xt_arena_alloc(&b.arena, c->index.shared + 1, sizeof *b.shared);
  bool built = b.shared && build(&b, c->root, out);
  return built ? XT_STATUS_ok : xt_error_set(error, XT_STATUS_no_memory, "out of memory while building the object");
}

static ERL_NIF_TERM object(ErlNifEnv *env, xt_checkpoint_resource *resource, const ERL_NIF_TERM argv[]) {
  const xt_checkpoint *c = &resource->handle->checkpoint;
  const ERL_NIF_TERM *tensors;
  ERL_NIF_TERM term = xt_am_nil;
  xt_object_style style;
  xt_error error;
  int arity;
  if (!enif_get_tuple(env, argv[1], &arity, &tensors) || (size_t)arity != c->index.count ||
      !xt_get_object_style(env, argv[2], &style))
    return enif_make_badarg(env);
  xt_status status = xt_make_object(env, c, tensors, style, &term, &error);
  return xt_make_result(env, status, term, &error);
}

/* checkpoint_object(checkpoint, tuple with a term for each tensor, {ordered?, MapSet of one element})
 *   :: {:ok, term, 0} | {:error, e} */
ERL_NIF_TERM xt_nif_checkpoint_object(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  (void)argc;
  return xt_checkpoint_run(env, argv, object);
}
