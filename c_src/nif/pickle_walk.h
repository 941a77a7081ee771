/* The walk over a term that is being pickled, which term_pickle.c and term_structs.c do together.
 *
 * What is to be done lies on a stack, last first: a term to write, or an instruction that ends what was begun. No
 * recursion: a term may be as deep as its maker likes. */
#ifndef XT_NIF_PICKLE_WALK_H
#define XT_NIF_PICKLE_WALK_H

#include "nif/pickle_template.h"

typedef struct {
  ERL_NIF_TERM term;
  uint32_t path;  /* 1 + where in `places`; 0: the whole term */
  uint8_t opcode; /* not 0: this instruction, and no term */
  bool is_key;
} xt_pickle_task;

/* How a part is reached from what it is a part of. */
typedef struct {
  uint32_t parent;
  bool is_index;
  ERL_NIF_TERM key;
  size_t index;
} xt_term_path;

typedef struct {
  ErlNifEnv *env;
  xt_save_tensors *tensors;
  xt_pickle_template *template;
  xt_pickler *out; /* the draft's */
  xt_error *error;
  xt_pickle_task *tasks;
  size_t count, room;
  xt_term_path *paths;
  size_t path_count, path_room;
} xt_pickle_walk;

/* Errors, which say where in the term. */
enum { XT_PATH_TEXT = 600 };
void xt_pickle_walk_describe(const xt_pickle_walk *w, uint32_t at, char *text, size_t room);
xt_status xt_pickle_walk_refuse(xt_pickle_walk *w, const xt_pickle_task *t, const char *what);
xt_status xt_pickle_walk_no_memory(xt_pickle_walk *w);

/* What is to be done next; false without memory. */
bool xt_pickle_walk_push_op(xt_pickle_walk *w, uint8_t opcode);
bool xt_pickle_walk_push_at(xt_pickle_walk *w, const xt_pickle_task *in, ERL_NIF_TERM term, bool is_index,
                            ERL_NIF_TERM key, size_t index);

/* The part of what is at hand that this key names; 0 without memory. */
uint32_t xt_pickle_walk_path(xt_pickle_walk *w, const xt_pickle_task *in, ERL_NIF_TERM key);

/* Tasks come off last first, so what a list holds is turned round once it is pushed. */
void xt_pickle_walk_turn(xt_pickle_walk *w, size_t from);

xt_status xt_pickle_walk_put_text(xt_pickle_walk *w, const xt_pickle_task *t, const char *text, size_t size, bool raw);

/* A list of {key, value}: as a dict, or into the dict below the mark. */
xt_status xt_pickle_walk_put_pairs(xt_pickle_walk *w, const xt_pickle_task *t, ERL_NIF_TERM list);
xt_status xt_pickle_walk_push_pairs(xt_pickle_walk *w, const xt_pickle_task *t, ERL_NIF_TERM list);
xt_status xt_pickle_walk_push_map(xt_pickle_walk *w, const xt_pickle_task *t, ERL_NIF_TERM map, bool keys_only);

/* A struct: ours, or refused. */
xt_status xt_pickle_walk_put_struct(xt_pickle_walk *w, const xt_pickle_task *t, ERL_NIF_TERM module);

#endif
