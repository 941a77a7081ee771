#include "core/pickle/unpickle.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/pickle/unpickle_internal.h"

/* ---- Errors ---- */

/* Returns the name of the current opcode, which must be known. */
static const char *opcode_name(const xt_unpickler *u) { return xt_opcodes[u->in.data[u->rebuild->at]].name; }

xt_status xt_unpickler_corrupt(xt_unpickler *u, const char *format, ...) {
  char reason[256];
  va_list args;
  va_start(args, format);
  vsnprintf(reason, sizeof reason, format, args);
  va_end(args);
  return xt_error_at(u->error, XT_STATUS_corrupt, u->rebuild->at, "invalid pickle: %s (opcode %s)", reason,
                     opcode_name(u));
}

xt_status xt_unpickler_truncated(xt_unpickler *u) {
  return xt_error_at(u->error, XT_STATUS_truncated, u->rebuild->at,
                     "truncated pickle: the data ends inside opcode %s; the file may be incomplete", opcode_name(u));
}

xt_status xt_unpickler_no_memory(xt_unpickler *u) {
  return xt_error_set(u->error, XT_STATUS_no_memory, "out of memory while reading the pickle");
}

/* ---- Stack ---- */

bool xt_unpickler_grow(xt_unpickler *u) {
  return xt_allowance_reserve(u->arena->allowance, &u->stack, &u->room, u->top + 1, sizeof *u->stack);
}

xt_status xt_unpickler_find_mark(xt_unpickler *u, size_t *first) {
  for (size_t at = u->top; at-- > 0;)
    if (u->stack[at] == &u->mark) {
      *first = at + 1;
      return XT_STATUS_ok;
    }
  return xt_unpickler_corrupt(u, "no mark on the stack");
}

/* Also removes a mark. */
static xt_status pop_any(xt_unpickler *u) {
  if (!u->top) return xt_unpickler_corrupt(u, "stack underflow");
  u->top--;
  return XT_STATUS_ok;
}

static xt_status pop_mark(xt_unpickler *u) {
  size_t first = 0;
  xt_status status = xt_unpickler_find_mark(u, &first);
  if (status == XT_STATUS_ok) u->top = first - 1;
  return status;
}

static xt_status duplicate(xt_unpickler *u) {
  xt_node *node = xt_unpickler_top(u);
  if (!node || node == &u->mark) return xt_unpickler_corrupt(u, "stack underflow");
  return xt_unpickler_push(u, node);
}

/* ---- Memo ---- */

enum { MAX_DENSE_GAP = 4096 }; /* entries with an index further above memo_count go into far_memo */

static xt_status memo_put(xt_unpickler *u, uint64_t index) {
  xt_node *node = xt_unpickler_top(u);
  if (!node || node == &u->mark) return xt_unpickler_corrupt(u, "stack underflow");
  if (index < u->memo_room || index <= u->memo_count + MAX_DENSE_GAP) {
    if (index >= u->memo_room) {
      size_t room = u->memo_room;
      if (!xt_allowance_reserve(u->arena->allowance, &u->memo, &u->memo_room, index + 1, sizeof *u->memo))
        return xt_unpickler_no_memory(u);
      memset(u->memo + room, 0, (u->memo_room - room) * sizeof *u->memo);
    }
    if (!u->memo[index]) u->memo_count++;
    u->memo[index] = node;
    return XT_STATUS_ok;
  }
  uint64_t *key = xt_arena_alloc(u->arena, 1, sizeof *key);
  bool is_new;
  if (!key) return xt_unpickler_no_memory(u);
  *key = index;
  size_t *slot = xt_table_put(&u->far_memo, key, sizeof *key, &is_new);
  if (!slot) return xt_unpickler_no_memory(u);
  *slot = (size_t)node;
  return XT_STATUS_ok;
}

static xt_status memo_get(xt_unpickler *u, uint64_t index) {
  if (index < u->memo_room && u->memo[index]) return xt_unpickler_push(u, u->memo[index]);
  size_t *slot = xt_table_get(&u->far_memo, &index, sizeof index);
  if (!slot) return xt_unpickler_corrupt(u, "memo entry %" PRIu64 " was never stored", index);
  return xt_unpickler_push(u, (xt_node *)*slot);
}

/* PUT and GET have a decimal index. */
static xt_status memo_line(xt_unpickler *u, xt_status (*put_or_get)(xt_unpickler *, uint64_t)) {
  uint64_t index;
  xt_status status = xt_unpickler_take_index(u, &index);
  return status == XT_STATUS_ok ? put_or_get(u, index) : status;
}

/* ---- Opcodes ---- */

static xt_status protocol(xt_unpickler *u, uint64_t version) {
  if (version <= 5) return XT_STATUS_ok;
  return xt_error_at(u->error, XT_STATUS_unsupported, u->rebuild->at,
                     "unsupported pickle protocol %" PRIu64 "; 0 to 5 are supported", version);
}

static xt_status frame(xt_unpickler *u, uint64_t size) {
  if (u->in.short_ || size > xt_cursor_left(&u->in)) return xt_unpickler_truncated(u);
  u->frame_end = u->in.at + size;
  return XT_STATUS_ok;
}

/* Executes one opcode. An argument that is cut off reads as 0; run() then returns the error. */
static xt_status step(xt_unpickler *u, xt_opcode opcode) {
  xt_cursor *in = &u->in;
  switch (opcode) {
  case XT_OP_STOP: break; /* see run() */
  case XT_OP_PROTO: return protocol(u, xt_cursor_le(in, 1));
  case XT_OP_FRAME: return frame(u, xt_cursor_le(in, 8));
  case XT_OP_MARK: return xt_unpickler_push(u, &u->mark);
  case XT_OP_POP: return pop_any(u);
  case XT_OP_POP_MARK: return pop_mark(u);
  case XT_OP_DUP: return duplicate(u);

  case XT_OP_NONE: return xt_unpickler_push(u, u->none);
  case XT_OP_NEWTRUE: return xt_unpickler_push(u, u->true_);
  case XT_OP_NEWFALSE: return xt_unpickler_push(u, u->false_);
  case XT_OP_INT: return xt_unpickler_push_decimal(u, true);
  case XT_OP_BININT: return xt_unpickler_push_int(u, (int32_t)xt_cursor_le(in, 4));
  case XT_OP_BININT1: return xt_unpickler_push_int(u, (int64_t)xt_cursor_le(in, 1));
  case XT_OP_BININT2: return xt_unpickler_push_int(u, (int64_t)xt_cursor_le(in, 2));
  case XT_OP_LONG: return xt_unpickler_push_decimal(u, false);
  case XT_OP_LONG1: return xt_unpickler_push_long(u, xt_cursor_le(in, 1));
  case XT_OP_LONG4: return xt_unpickler_push_long(u, xt_cursor_le(in, 4));
  case XT_OP_FLOAT: return xt_unpickler_push_decimal_float(u);
  case XT_OP_BINFLOAT: return xt_unpickler_push_float(u);

  case XT_OP_STRING: return xt_unpickler_push_line(u, false);
  case XT_OP_BINSTRING: return xt_unpickler_push_string(u, xt_cursor_le(in, 4));
  case XT_OP_SHORT_BINSTRING: return xt_unpickler_push_string(u, xt_cursor_le(in, 1));
  case XT_OP_UNICODE: return xt_unpickler_push_line(u, true);
  case XT_OP_BINUNICODE: return xt_unpickler_push_text(u, XT_NODE_TEXT, xt_cursor_le(in, 4));
  case XT_OP_SHORT_BINUNICODE: return xt_unpickler_push_text(u, XT_NODE_TEXT, xt_cursor_le(in, 1));
  case XT_OP_BINUNICODE8: return xt_unpickler_push_text(u, XT_NODE_TEXT, xt_cursor_le(in, 8));
  case XT_OP_BINBYTES: return xt_unpickler_push_text(u, XT_NODE_BYTES, xt_cursor_le(in, 4));
  case XT_OP_SHORT_BINBYTES: return xt_unpickler_push_text(u, XT_NODE_BYTES, xt_cursor_le(in, 1));
  case XT_OP_BINBYTES8: return xt_unpickler_push_text(u, XT_NODE_BYTES, xt_cursor_le(in, 8));
  case XT_OP_BYTEARRAY8: return xt_unpickler_push_text(u, XT_NODE_BYTEARRAY, xt_cursor_le(in, 8));
  case XT_OP_NEXT_BUFFER:
  case XT_OP_READONLY_BUFFER:
    return xt_error_at(u->error, XT_STATUS_unsupported, u->rebuild->at,
                       "the pickle keeps its data in out-of-band buffers, which are not in the file; save it without "
                       "buffer_callback");

  case XT_OP_EMPTY_LIST: return xt_unpickler_push_new(u, XT_NODE_LIST);
  case XT_OP_LIST: return xt_unpickler_push_marked(u, XT_NODE_LIST);
  case XT_OP_APPEND: return xt_unpickler_add(u, XT_NODE_LIST, 1);
  case XT_OP_APPENDS: return xt_unpickler_add_marked(u, XT_NODE_LIST);
  case XT_OP_EMPTY_TUPLE: return xt_unpickler_push(u, u->empty_tuple);
  case XT_OP_TUPLE: return xt_unpickler_push_marked(u, XT_NODE_TUPLE);
  case XT_OP_TUPLE1: return xt_unpickler_push_tuple(u, 1);
  case XT_OP_TUPLE2: return xt_unpickler_push_tuple(u, 2);
  case XT_OP_TUPLE3: return xt_unpickler_push_tuple(u, 3);
  case XT_OP_EMPTY_DICT: return xt_unpickler_push_new(u, XT_NODE_DICT);
  case XT_OP_DICT: return xt_unpickler_push_marked(u, XT_NODE_DICT);
  case XT_OP_SETITEM: return xt_unpickler_add(u, XT_NODE_DICT, 2);
  case XT_OP_SETITEMS: return xt_unpickler_add_marked(u, XT_NODE_DICT);
  case XT_OP_EMPTY_SET: return xt_unpickler_push_new(u, XT_NODE_SET);
  case XT_OP_FROZENSET: return xt_unpickler_push_marked(u, XT_NODE_FROZENSET);
  case XT_OP_ADDITEMS: return xt_unpickler_add_marked(u, XT_NODE_SET);

  case XT_OP_GLOBAL: return xt_unpickler_global(u);
  case XT_OP_STACK_GLOBAL: return xt_unpickler_stack_global(u);
  case XT_OP_EXT1: return xt_unpickler_extension(u, xt_cursor_le(in, 1));
  case XT_OP_EXT2: return xt_unpickler_extension(u, xt_cursor_le(in, 2));
  case XT_OP_EXT4: return xt_unpickler_extension(u, xt_cursor_le(in, 4));
  case XT_OP_REDUCE: return xt_unpickler_reduce(u, false);
  case XT_OP_NEWOBJ: return xt_unpickler_reduce(u, true);
  case XT_OP_NEWOBJ_EX: return xt_unpickler_new_with_keywords(u);
  case XT_OP_INST: return xt_unpickler_instance(u, false);
  case XT_OP_OBJ: return xt_unpickler_instance(u, true);
  case XT_OP_BUILD: return xt_unpickler_build(u);
  case XT_OP_PERSID: return xt_unpickler_persistent_line(u);
  case XT_OP_BINPERSID: return xt_unpickler_persistent(u);

  case XT_OP_PUT: return memo_line(u, memo_put);
  case XT_OP_BINPUT: return memo_put(u, xt_cursor_le(in, 1));
  case XT_OP_LONG_BINPUT: return memo_put(u, xt_cursor_le(in, 4));
  case XT_OP_MEMOIZE: return memo_put(u, u->memo_count);
  case XT_OP_GET: return memo_line(u, memo_get);
  case XT_OP_BINGET: return memo_get(u, xt_cursor_le(in, 1));
  case XT_OP_LONG_BINGET: return memo_get(u, xt_cursor_le(in, 4));
  }
  return xt_error_at(u->error, XT_STATUS_corrupt, u->rebuild->at, "invalid pickle: unknown opcode 0x%02x",
                     (unsigned)opcode);
}

static xt_status stop(xt_unpickler *u, xt_node **root) {
  xt_status status = xt_unpickler_pop(u, root);
  return status == XT_STATUS_ok && u->top ? xt_unpickler_corrupt(u, "%zu values left on the stack", u->top) : status;
}

static xt_status refuse(xt_unpickler *u, uint8_t opcode) {
  const char *name = xt_opcodes[opcode].name;
  return xt_error_at(u->error, XT_STATUS_forbidden, u->rebuild->at,
                     "strict: torch's weights_only unpickler does not support opcode 0x%02x (%s); load it without "
                     "strict: true",
                     opcode, name ? name : "unknown");
}

static xt_status run(xt_unpickler *u, xt_node **root) {
  for (;;) {
    u->rebuild->at = (int64_t)u->in.at;
    const uint8_t *opcode = xt_cursor_take(&u->in, 1);
    if (!opcode)
      return xt_error_at(u->error, XT_STATUS_truncated, u->rebuild->at,
                         "truncated pickle: it has no STOP opcode; the file may be incomplete");
    if (*opcode == XT_OP_STOP) return stop(u, root);
    if (u->rebuild->strict && !xt_opcodes[*opcode].weights_only) return refuse(u, *opcode);
    xt_status status = step(u, (xt_opcode)*opcode);
    if (status != XT_STATUS_ok) return status;
    if (u->in.short_) return xt_unpickler_truncated(u);
    if (u->frame_end && *opcode != XT_OP_FRAME) {
      if (u->in.at > u->frame_end) return xt_unpickler_corrupt(u, "argument crosses the end of the frame");
      if (u->in.at == u->frame_end) u->frame_end = 0;
    }
  }
}

xt_status xt_unpickle(const uint8_t *data, size_t size, xt_rebuild *rebuild, size_t *used, xt_node **root) {
  xt_unpickler u = {.in = {data, size, 0, false}, .rebuild = rebuild, .arena = rebuild->arena, .error = rebuild->error};
  if (!rebuild->nested) rebuild->nested_bytes_left = size;
  u.far_memo.allowance = u.arena->allowance;
  u.none = xt_node_new(u.arena, XT_NODE_NONE);
  u.true_ = xt_node_new(u.arena, XT_NODE_BOOL);
  u.false_ = xt_node_new(u.arena, XT_NODE_BOOL);
  u.empty_tuple = xt_node_new(u.arena, XT_NODE_TUPLE);
  xt_status status = u.none && u.true_ && u.false_ && u.empty_tuple ? XT_STATUS_ok : xt_unpickler_no_memory(&u);
  if (status == XT_STATUS_ok) {
    u.true_->boolean = true;
    status = run(&u, root);
  }
  *used = u.in.at;
  free(u.stack);
  free(u.memo);
  xt_table_free(&u.far_memo);
  xt_allowance_return(u.arena->allowance, (u.room + u.memo_room) * sizeof(xt_node *));
  return status;
}
