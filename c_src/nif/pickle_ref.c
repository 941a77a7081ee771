/* References in pickles: %ExTorch.Python.Ref{} becomes the container that it refers to.
 *
 * A container is written once and then read from the memo. Lists, dicts and objects are in the memo before their items
 * are written. Tuples, sets and the arguments of objects come first, so a reference to one that is being written writes
 * it again inside itself, as Python's pickler does: the inner one becomes the object, and the outer one is dropped when
 * it is complete.
 *
 * Containers are recognized by their terms, which do not move while they are pickled. */
#include <string.h>

#include "core/base/array.h"
#include "nif/pickle_walk.h"
#include "nif/term.h"

/* A reference costs the items of a list that it passes, and REWRITE times the items of a tuple that it writes again. */
enum { TABLE_MIN = 1024, REWRITE = 100, MAX_WORK = 50000000 };

static const char too_much_work[] =
    "too many references point into long lists or dicts, or to large tuples that contain them";

/* ---- Containers ---- */

static bool add_to_table(xt_pickle_walk *w, uint32_t number) {
  bool is_new;
  ERL_NIF_TERM *key = xt_arena_alloc(&w->keys, 1, sizeof *key);
  if (!key) return false;
  *key = w->containers[number - 1].term;
  size_t *slot = xt_table_put(&w->by_term, key, sizeof *key, &is_new);
  if (slot) *slot = number;
  return slot != NULL;
}

static uint32_t find_container(const xt_pickle_walk *w, ERL_NIF_TERM term) {
  size_t *slot = xt_table_get(&w->by_term, &term, sizeof term);
  return slot ? (uint32_t)*slot : 0;
}

/* Returns the number of a new container, or 0 if out of memory. */
static uint32_t new_container(xt_pickle_walk *w, ERL_NIF_TERM term) {
  if (!xt_array_reserve(&w->containers, &w->container_room, w->container_count + 1, sizeof *w->containers)) return 0;
  w->containers[w->container_count++] = (xt_pickle_container){.term = term};
  return w->has_refs && !add_to_table(w, (uint32_t)w->container_count) ? 0 : (uint32_t)w->container_count;
}

static void get(xt_pickle_walk *w, uint32_t number) {
  xt_pickle_container *container = &w->containers[number - 1];
  if (!container->memo) container->memo = 1 + xt_draft_memoize(w->draft, container->created);
  xt_pickler_put_get(w->out, container->memo - 1);
}

xt_status xt_pickle_walk_enter(xt_pickle_walk *w, const xt_pickle_task *t, uint32_t *number, bool *written) {
  *number = w->has_refs ? find_container(w, t->term) : 0;
  const xt_pickle_container *container = *number ? &w->containers[*number - 1] : NULL;
  *written = container && container->created && container->referenced;
  if (!container || (container->created && !*written)) *number = new_container(w, t->term);
  if (!*number) return xt_pickle_walk_no_memory(w);
  w->paths[t->path - 1].container = *number;
  if (*written) get(w, *number);
  return XT_STATUS_ok;
}

void xt_pickle_walk_created(xt_pickle_walk *w, uint32_t container) {
  w->containers[container - 1].created = w->out->out.size;
  w->created_count++;
}

void xt_pickle_walk_complete(xt_pickle_walk *w, const xt_pickle_task *t) {
  xt_pickle_container *container = &w->containers[t->path - 1];
  if (!container->created) {
    xt_pickler_put_op(w->out, (xt_opcode)t->opcode);
    xt_pickle_walk_created(w, t->path);
    return;
  }
  /* written again inside itself */
  if (t->opcode == XT_OP_TUPLE) {
    xt_pickler_put_op(w->out, XT_OP_POP_MARK);
  } else {
    xt_pickler_put_op(w->out, XT_OP_POP); /* the arguments and the class or function */
    xt_pickler_put_op(w->out, XT_OP_POP);
  }
  get(w, t->path);
}

/* ---- References ---- */

/* From the first reference on, containers are looked up. */
static bool index_containers(xt_pickle_walk *w) {
  if (w->has_refs) return true;
  w->has_refs = true;
  if (!xt_table_reserve(&w->by_term, w->container_count + TABLE_MIN)) return false;
  for (size_t i = 0; i < w->container_count; i++)
    if (!add_to_table(w, (uint32_t)i + 1)) return false;
  return true;
}

static bool find_pair(xt_pickle_walk *w, ERL_NIF_TERM list, ERL_NIF_TERM key, ERL_NIF_TERM *out) {
  ERL_NIF_TERM head;
  const ERL_NIF_TERM *pair;
  int arity;
  for (; enif_get_list_cell(w->env, list, &head, &list) && w->ref_work <= MAX_WORK; w->ref_work++)
    if (enif_get_tuple(w->env, head, &arity, &pair) && arity == 2 && enif_is_identical(pair[0], key))
      return *out = pair[1], true;
  return false;
}

static bool find_position(xt_pickle_walk *w, ERL_NIF_TERM list, unsigned long position, ERL_NIF_TERM *out) {
  for (; enif_get_list_cell(w->env, list, out, &list) && w->ref_work <= MAX_WORK; w->ref_work++)
    if (!position--) return true;
  return false;
}

/* Finds the part of a container that a step of `down` leads to. */
static bool follow(xt_pickle_walk *w, ERL_NIF_TERM term, ERL_NIF_TERM step, ERL_NIF_TERM *out) {
  ErlNifEnv *env = w->env;
  const ERL_NIF_TERM *items;
  ERL_NIF_TERM module, pairs;
  unsigned long position;
  int arity;
  bool indexed = enif_get_ulong(env, step, &position);
  if (enif_get_tuple(env, term, &arity, &items))
    return indexed && position < (unsigned long)arity && (*out = items[position], true);
  if (enif_is_list(env, term)) return indexed ? find_position(w, term, position, out) : find_pair(w, term, step, out);
  if (enif_get_map_value(env, term, xt_am___struct__, &module) && module == xt_am_module_dict)
    return enif_get_map_value(env, term, xt_am_pairs, &pairs) && find_pair(w, pairs, step, out);
  return enif_get_map_value(env, term, step, out);
}

/* Returns the path of the part that a step leads to, or 0. Many references may have the same steps. */
static uint32_t step_down(xt_pickle_walk *w, uint32_t path, ERL_NIF_TERM step) {
  const ERL_NIF_TERM wanted[2] = {path, step};
  size_t *slot = xt_table_get(&w->by_step, wanted, sizeof wanted);
  ERL_NIF_TERM term, *key;
  bool is_new;
  if (slot) return (uint32_t)*slot;
  if (!follow(w, w->containers[w->paths[path - 1].container - 1].term, step, &term)) return 0;
  uint32_t number = find_container(w, term);
  xt_pickle_task parent = {.path = path};
  path = xt_pickle_walk_path(w, &parent, step);
  if (!number) number = new_container(w, term);
  if (path) w->paths[path - 1].container = number;
  key = xt_arena_alloc(&w->keys, 2, sizeof *key);
  if (!key) return 0;
  memcpy(key, wanted, sizeof wanted);
  slot = xt_table_put(&w->by_step, key, sizeof wanted, &is_new);
  if (slot) *slot = path;
  return path;
}

/* Returns the path of the container that the reference points to, or 0. Its ancestors become containers that are not
 * written yet, unless they are known. */
static uint32_t resolve(xt_pickle_walk *w, const xt_pickle_task *t) {
  ERL_NIF_TERM down = xt_am_nil, step;
  unsigned long up = 0;
  if (!enif_get_map_value(w->env, t->term, xt_am_up, &step) || !enif_get_ulong(w->env, step, &up) || !up) return 0;
  uint32_t path = t->path;
  for (; up && path; up--) path = w->paths[path - 1].parent;
  enif_get_map_value(w->env, t->term, xt_am_down, &down);
  while (path && w->paths[path - 1].container && enif_get_list_cell(w->env, down, &step, &down))
    path = step_down(w, path, step);
  return path && w->paths[path - 1].container ? path : 0;
}

static size_t item_count(ErlNifEnv *env, ERL_NIF_TERM term) {
  const ERL_NIF_TERM *items;
  ERL_NIF_TERM part;
  size_t size;
  int arity;
  if (enif_get_map_value(env, term, xt_am_map, &part) && enif_get_map_size(env, part, &size)) return size; /* a set */
  if (enif_get_map_value(env, term, xt_am_args, &part)) term = part; /* an object */
  return enif_get_tuple(env, term, &arity, &items) ? (size_t)arity : 1;
}

/* Writes a container that is being written again, inside itself. Each time another container must have been created in
 * between, from which the memo ends the repetition: a tuple that contains itself directly has no end. */
static xt_status put_again(xt_pickle_walk *w, const xt_pickle_task *t, uint32_t path) {
  xt_pickle_container *target = &w->containers[w->paths[path - 1].container - 1];
  if (target->again == 1 + w->created_count)
    return xt_pickle_walk_fail(w, t,
                               "the reference makes a tuple, set or object contain itself directly, without a "
                               "list, dict or state in between");
  target->again = 1 + w->created_count;
  w->ref_work += REWRITE * (uint64_t)item_count(w->env, target->term);
  if (w->ref_work > MAX_WORK) return xt_pickle_walk_fail(w, t, too_much_work);
  return xt_pickle_walk_push_again(w, target->term, path) ? XT_STATUS_ok : xt_pickle_walk_no_memory(w);
}

xt_status xt_pickle_walk_put_ref(xt_pickle_walk *w, const xt_pickle_task *t) {
  if (!index_containers(w)) return xt_pickle_walk_no_memory(w);
  uint32_t path = resolve(w, t);
  if (!path && w->ref_work > MAX_WORK) return xt_pickle_walk_fail(w, t, too_much_work);
  if (!path)
    return xt_pickle_walk_fail(w, t,
                               "the reference points to a container that is not part of the saved term; save the term "
                               "that contains it, or replace the reference");
  uint32_t number = w->paths[path - 1].container;
  xt_pickle_container *target = &w->containers[number - 1];
  if (!enif_is_map(w->env, target->term) && !enif_is_list(w->env, target->term) && !enif_is_tuple(w->env, target->term))
    return xt_pickle_walk_fail(w, t, "the reference does not point to a list, tuple, map or struct");
  target->referenced = true;
  if (target->created) {
    get(w, number);
    return XT_STATUS_ok;
  }
  /* what is being written between the target and the reference must not be written twice */
  for (uint32_t at = w->paths[t->path - 1].parent; at && at != path; at = w->paths[at - 1].parent)
    if (w->paths[at - 1].container) w->containers[w->paths[at - 1].container - 1].referenced = true;
  return put_again(w, t, path);
}
