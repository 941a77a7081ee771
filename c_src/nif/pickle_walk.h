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
  uint32_t path;  /* 1 + index in `paths`; 0 for the whole term */
  uint8_t opcode; /* if not 0, this opcode is written instead of a term */
  bool is_key;    /* the term is a key of a dict */
} xt_pickle_task;

/* One step of the path to a part of the term: a key or an index of the parent. */
typedef struct {
  uint32_t parent;
  bool is_index;
  ERL_NIF_TERM key;
  size_t index;
} xt_term_path;

typedef struct {
  ErlNifEnv *env;
  xt_draft *draft;
  xt_pickler *out; /* &draft->pickle */
  xt_error *error;
  xt_pickle_task *tasks;
  size_t count, room;
  xt_term_path *paths;
  size_t path_count, path_room;
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

/* Writes a struct of ExTorch or a MapSet. Fails for other structs. */
xt_status xt_pickle_walk_put_struct(xt_pickle_walk *w, const xt_pickle_task *t, ERL_NIF_TERM module);

#endif
