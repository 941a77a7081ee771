/* Shared by the unpickle*.c files. unpickle.c runs the opcodes, the others implement groups of them:
 *
 *   unpickle_values.c       numbers and strings
 *   unpickle_lines.c        the same as text lines
 *   unpickle_containers.c   tuples, lists, dicts and sets
 *   unpickle_calls.c        globals, calls, states and persistent ids
 */
#ifndef XT_PICKLE_UNPICKLE_INTERNAL_H
#define XT_PICKLE_UNPICKLE_INTERNAL_H

#include "core/base/cursor.h"
#include "core/pickle/opcodes.h"
#include "core/pickle/rebuild.h"

/* The stack holds nodes; a mark is a pointer to `mark`. The memo is an array, except for entries with an index far
 * above the number of entries. */
typedef struct {
  xt_cursor in;
  xt_rebuild *rebuild;
  xt_arena *arena;
  xt_error *error;
  xt_node **stack;
  size_t top, room; /* of the stack */
  xt_node **memo;
  size_t memo_room, memo_count;
  xt_table far_memo; /* index → node; the keys are in the arena */
  size_t frame_end;  /* no opcode of a frame may read past it; 0 outside of a frame */
  xt_node *none, *true_, *false_, *empty_tuple;
  xt_node *small_ints[256]; /* made once and then shared, because integers cannot change */
  xt_node mark;
} xt_unpickler;

/* ---- Errors ---- */

/* These set the error and return its status. The message names the current opcode. */
xt_status xt_unpickler_corrupt(xt_unpickler *u, const char *format, ...) __attribute__((cold, format(printf, 2, 3)));
xt_status xt_unpickler_truncated(xt_unpickler *u) __attribute__((cold));

/* A node or other memory could not be allocated. */
xt_status xt_unpickler_no_memory(xt_unpickler *u) __attribute__((cold));

/* ---- Stack ---- */

bool xt_unpickler_grow(xt_unpickler *u);

/* Pushes a node; NULL is the error of xt_unpickler_no_memory. */
static inline xt_status xt_unpickler_push(xt_unpickler *u, xt_node *node) {
  if (!node || (u->top == u->room && !xt_unpickler_grow(u))) return xt_unpickler_no_memory(u);
  u->stack[u->top++] = node;
  return XT_STATUS_ok;
}

static inline xt_status xt_unpickler_push_new(xt_unpickler *u, xt_node_kind kind) {
  return xt_unpickler_push(u, xt_node_new(u->arena, kind));
}

/* Returns the top of the stack, which may be a mark, or NULL if the stack is empty. */
static inline xt_node *xt_unpickler_top(const xt_unpickler *u) { return u->top ? u->stack[u->top - 1] : NULL; }

/* Pops the top of the stack, which must not be a mark. */
static inline xt_status xt_unpickler_pop(xt_unpickler *u, xt_node **out) {
  if (!u->top || u->stack[u->top - 1] == &u->mark) return xt_unpickler_corrupt(u, "stack underflow");
  *out = u->stack[--u->top];
  return XT_STATUS_ok;
}

/* Finds the position of the first value above the topmost mark. */
xt_status xt_unpickler_find_mark(xt_unpickler *u, size_t *first);

/* ---- Numbers and strings ---- */

xt_status xt_unpickler_push_int(xt_unpickler *u, int64_t value);
xt_status xt_unpickler_push_long(xt_unpickler *u, uint64_t size);
xt_status xt_unpickler_push_double(xt_unpickler *u, double value);
xt_status xt_unpickler_push_bytes(xt_unpickler *u, xt_node_kind kind, const char *data, size_t size);
xt_status xt_unpickler_push_float(xt_unpickler *u);
xt_status xt_unpickler_push_text(xt_unpickler *u, xt_node_kind kind, uint64_t size);
xt_status xt_unpickler_push_string(xt_unpickler *u, uint64_t size);

/* Reads a line of text, without its line end. */
xt_status xt_unpickler_take_line(xt_unpickler *u, const char **line, size_t *size);

/* Reads a line with the index of a memo entry. */
xt_status xt_unpickler_take_index(xt_unpickler *u, uint64_t *index);

xt_status xt_unpickler_push_decimal(xt_unpickler *u, bool may_be_bool);
xt_status xt_unpickler_push_decimal_float(xt_unpickler *u);
xt_status xt_unpickler_push_line(xt_unpickler *u, bool unicode);

/* ---- Containers ---- */

/* Replaces the values from `first` to the top by a container of them. */
xt_status xt_unpickler_push_items(xt_unpickler *u, xt_node_kind kind, size_t first);

xt_status xt_unpickler_push_tuple(xt_unpickler *u, size_t count);       /* of the last count values */
xt_status xt_unpickler_push_marked(xt_unpickler *u, xt_node_kind kind); /* of the values above the mark */
xt_status xt_unpickler_add(xt_unpickler *u, xt_node_kind kind,
                           size_t count);                              /* the last count values to the one below */
xt_status xt_unpickler_add_marked(xt_unpickler *u, xt_node_kind kind); /* the values above the mark to the one below */

/* ---- Globals, calls, states and persistent ids ---- */

xt_status xt_unpickler_global(xt_unpickler *u);
xt_status xt_unpickler_stack_global(xt_unpickler *u);
xt_status xt_unpickler_extension(xt_unpickler *u, uint64_t code);
xt_status xt_unpickler_reduce(xt_unpickler *u, bool is_new);
xt_status xt_unpickler_new_with_keywords(xt_unpickler *u);
xt_status xt_unpickler_instance(xt_unpickler *u, bool class_on_stack);
xt_status xt_unpickler_build(xt_unpickler *u);
xt_status xt_unpickler_persistent(xt_unpickler *u);
xt_status xt_unpickler_persistent_line(xt_unpickler *u);

#endif
