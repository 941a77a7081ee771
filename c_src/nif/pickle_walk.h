/* The walk over a term that is being pickled, shared by pickle_term.c and pickle_struct.c.
 *
 * A stack of tasks replaces recursion, since terms can be nested to any depth. A task is a term to write, or an opcode
 * to write, which ends a container. */
#ifndef XT_NIF_PICKLE_WALK_H
#define XT_NIF_PICKLE_WALK_H

#include <erl_nif.h>

#include "core/checkpoint/draft.h"

typedef struct {
  ERL_NIF_TERM term;
  uint32_t path;  /* 1 + index in `paths`; of an opcode: 1 + index of the container that it completes, or 0 */
  uint8_t opcode; /* if not 0, this opcode is written instead of a term */
  bool is_key;    /* the term is a key of a dict */
} xt_pickle_task;

/* One step of the path to a part of the term: a key or an index of the parent. The whole term has no parent. */
typedef struct {
  uint32_t parent;
  uint32_t is_index : 1;
  uint32_t hidden : 1;     /* not part of descriptions: the step to a key of a dict */
  uint32_t container : 30; /* 1 + index in `containers` if the part is one, else 0 */
  ERL_NIF_TERM key;
  size_t index;
} xt_term_path;

/* A list, dict, tuple, set or object, which references may refer to. */
typedef struct {
  ERL_NIF_TERM term;
  size_t created; /* offset in the draft where the object exists and can be memoized; 0 before that */
  uint32_t memo;  /* 1 + memo index; 0 if it has none */
  bool referenced;
  size_t again; /* 1 + `created_count` when a reference last made the walk write it again */
} xt_pickle_container;

typedef struct {
  ErlNifEnv *env;
  xt_draft *draft;
  xt_pickler *out; /* &draft->pickle */
  xt_error *error;
  xt_pickle_task *tasks;
  size_t count, room;
  xt_term_path *paths;
  size_t path_count, path_room;
  xt_pickle_container *containers;
  size_t container_count, container_room;
  size_t created_count; /* containers that exist, in the order of writing */
  uint64_t ref_work;    /* how many items references have made the walk pass or write again */
  int64_t charged;      /* bytes charged to the budget */
  bool has_refs;        /* there was a reference: `by_term` has the containers */
  xt_table by_step;     /* path and step down from it → path */
  xt_table by_term;     /* term → 1 + index of the latest container with it */
  xt_arena keys;        /* of these tables */
} xt_pickle_walk;

/* Errors. xt_pickle_walk_describe writes the path to a part, for example ["a"][0]. xt_pickle_walk_fail returns the
 * error "cannot save term["a"][0]: reason". */
enum { XT_PATH_TEXT = 600 };
void xt_pickle_walk_describe(const xt_pickle_walk *w, uint32_t path, char *text, size_t size);
xt_status xt_pickle_walk_fail(xt_pickle_walk *w, const xt_pickle_task *t, const char *reason);
xt_status xt_pickle_walk_no_memory(xt_pickle_walk *w);

/* Push a task. Return false if out of memory. */
bool xt_pickle_walk_push_op(xt_pickle_walk *w, xt_opcode opcode);
bool xt_pickle_walk_push_at(xt_pickle_walk *w, const xt_pickle_task *in, ERL_NIF_TERM term, bool is_index,
                            ERL_NIF_TERM key, size_t index);

/* Pushes the opcode that completes a container: TUPLE, REDUCE or NEWOBJ. */
bool xt_pickle_walk_push_complete(xt_pickle_walk *w, xt_opcode opcode, uint32_t container);

/* Pushes a term whose path exists. */
bool xt_pickle_walk_push_again(xt_pickle_walk *w, ERL_NIF_TERM term, uint32_t path);

/* Returns the path to the part of a task's term that has the key, or 0 if out of memory. */
uint32_t xt_pickle_walk_path(xt_pickle_walk *w, const xt_pickle_task *in, ERL_NIF_TERM key);

/* Reverses the tasks from the given index on: the items of a list are pushed in order but popped last first. */
void xt_pickle_walk_reverse(xt_pickle_walk *w, size_t from);

/* Writes a string. Fails if it is not valid UTF-8, unless `raw`. */
xt_status xt_pickle_walk_put_text(xt_pickle_walk *w, const xt_pickle_task *t, const char *text, size_t size, bool raw);

/* Writes a list of {key, value} as a dict. */
xt_status xt_pickle_walk_put_pairs(xt_pickle_walk *w, const xt_pickle_task *t, ERL_NIF_TERM list);

/* Push the items of a dict (or the elements of a set, with keys_only), which follow its MARK. */
xt_status xt_pickle_walk_push_pairs(xt_pickle_walk *w, const xt_pickle_task *t, ERL_NIF_TERM list);
xt_status xt_pickle_walk_push_map(xt_pickle_walk *w, const xt_pickle_task *t, ERL_NIF_TERM map, bool keys_only);

/* ---- References (pickle_ref.c) ---- */

/* Called before a container that is not empty is written: sets its number. If it has been written before and is
 * referred to, it is read from the memo and *written is set. */
xt_status xt_pickle_walk_enter(xt_pickle_walk *w, const xt_pickle_task *t, uint32_t *number, bool *written);

/* Called when the object exists: at once for lists and dicts, by xt_pickle_walk_complete for others. */
void xt_pickle_walk_created(xt_pickle_walk *w, uint32_t container);

/* Writes the opcode of a task of xt_pickle_walk_push_complete. */
void xt_pickle_walk_complete(xt_pickle_walk *w, const xt_pickle_task *t);

xt_status xt_pickle_walk_put_ref(xt_pickle_walk *w, const xt_pickle_task *t);

/* Writes a struct of ExTorch or a MapSet. Fails for other structs. */
xt_status xt_pickle_walk_put_struct(xt_pickle_walk *w, const xt_pickle_task *t, ERL_NIF_TERM module);

#endif
