#include "core/pickle/unpickle.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "core/base/cursor.h"
#include "core/base/utf8.h"
#include "core/pickle/escape.h"

/* The stack holds nodes; a mark is a pointer to `mark_node`. FRAME only bounds what opcodes may read, so `frame_end` is
 * checked and otherwise ignored. */
typedef struct {
  xt_cursor in;
  xt_rebuild *rebuild;
  xt_arena *arena;
  xt_error *error;
  xt_node **stack;
  size_t top, room;
  xt_node **memo; /* dense part */
  size_t memo_room, memo_count;
  xt_table far; /* entries with an index far above memo_room; the keys are in the arena */
  size_t nodes, max_nodes;
  size_t frame_end; /* 0 if there is none */
  xt_node *none, *yes, *no, *empty;
  xt_node *bytes[256]; /* integers 0 to 255, which are shared because they cannot change */
} machine;

static xt_node mark_node;

enum { MAX_LINE = 1 << 20, MAX_DENSE_GAP = 4096 };

static xt_status corrupt(machine *m, const char *what) {
  return xt_error_at(m->error, XT_STATUS_corrupt, m->rebuild->at, "invalid pickle: %s", what);
}

static xt_status no_memory(machine *m) {
  return xt_error_set(m->error, XT_STATUS_no_memory, "not enough memory for the objects of the pickle");
}

static xt_status truncated(machine *m) {
  return xt_error_at(m->error, XT_STATUS_truncated, m->rebuild->at,
                     "truncated pickle: it ends inside an opcode; the file may be incomplete");
}

/* ---- Stack and memo ---- */

static xt_status push(machine *m, xt_node *node) {
  if (!node) return no_memory(m);
  if (m->top == m->room) {
    size_t room = m->room ? 2 * m->room : 256;
    xt_node **grown = realloc(m->stack, room * sizeof *grown);
    if (!grown) return no_memory(m);
    m->stack = grown;
    m->room = room;
  }
  m->stack[m->top++] = node;
  return XT_STATUS_ok;
}

static xt_node *make(machine *m, xt_node_kind kind) {
  return ++m->nodes > m->max_nodes ? NULL : xt_node_new(m->arena, kind);
}

static xt_status push_new(machine *m, xt_node_kind kind) {
  if (m->nodes >= m->max_nodes)
    return xt_error_at(m->error, XT_STATUS_limit, m->rebuild->at, "pickle creates more than %zu objects", m->max_nodes);
  return push(m, make(m, kind));
}

static xt_node *top(machine *m) { return m->top ? m->stack[m->top - 1] : NULL; }

/* Pops the top of the stack, which must not be a mark. */
static xt_status pop(machine *m, xt_node **out) {
  if (!m->top || m->stack[m->top - 1] == &mark_node) return corrupt(m, "stack underflow");
  *out = m->stack[--m->top];
  return XT_STATUS_ok;
}

/* Finds the position of the first value above the topmost mark. */
static xt_status find_mark(machine *m, size_t *first) {
  for (size_t at = m->top; at-- > 0;)
    if (m->stack[at] == &mark_node) {
      *first = at + 1;
      return XT_STATUS_ok;
    }
  return corrupt(m, "no mark on the stack");
}

static xt_status memo_put(machine *m, uint64_t index) {
  xt_node *node = top(m);
  if (!node || node == &mark_node) return corrupt(m, "no value to store in the memo");
  if (index < m->memo_room || index <= m->memo_count + MAX_DENSE_GAP) {
    if (index >= m->memo_room) {
      size_t room = m->memo_room ? m->memo_room : 1024;
      while (room <= index) room *= 2;
      xt_node **grown = realloc(m->memo, room * sizeof *grown);
      if (!grown) return no_memory(m);
      memset(grown + m->memo_room, 0, (room - m->memo_room) * sizeof *grown);
      m->memo = grown;
      m->memo_room = room;
    }
    if (!m->memo[index]) m->memo_count++;
    m->memo[index] = node;
    return XT_STATUS_ok;
  }
  uint64_t *key = xt_arena_alloc(m->arena, 1, sizeof *key);
  bool is_new;
  if (!key) return no_memory(m);
  *key = index;
  size_t *slot = xt_table_put(&m->far, key, sizeof *key, &is_new);
  if (!slot) return no_memory(m);
  *slot = (size_t)node;
  return XT_STATUS_ok;
}

static xt_status memo_get(machine *m, uint64_t index) {
  if (index < m->memo_room && m->memo[index]) return push(m, m->memo[index]);
  size_t *slot = xt_table_get(&m->far, &index, sizeof index);
  if (slot) return push(m, (xt_node *)*slot);
  return xt_error_at(m->error, XT_STATUS_corrupt, m->rebuild->at,
                     "invalid pickle: memo entry %" PRIu64 " was never stored", index);
}

/* ---- Values ---- */

static xt_status push_int(machine *m, int64_t value) {
  bool small = value >= 0 && value < 256;
  if (small && m->bytes[value]) return push(m, m->bytes[value]);
  xt_status status = push_new(m, XT_NODE_INT);
  if (status != XT_STATUS_ok) return status;
  top(m)->integer = value;
  if (small) m->bytes[value] = top(m);
  return status;
}

static xt_status push_text(machine *m, xt_node_kind kind, uint64_t size) {
  if (size > xt_cursor_left(&m->in)) return truncated(m);
  const uint8_t *data = xt_cursor_take(&m->in, size);
  if (kind == XT_NODE_TEXT) {
    xt_utf8 check = xt_utf8_check(data, size);
    if (check == XT_UTF8_INVALID) return corrupt(m, "string is not valid UTF-8");
    if (check == XT_UTF8_SURROGATES) kind = XT_NODE_RAW_TEXT;
  }
  xt_status status = push_new(m, kind);
  if (status != XT_STATUS_ok) return status;
  top(m)->text.data = (const char *)data;
  top(m)->text.size = size;
  return status;
}

/* Python 2 strings: text if they are valid UTF-8, otherwise bytes. */
static xt_status push_string(machine *m, uint64_t size) {
  bool text = size <= xt_cursor_left(&m->in) && xt_utf8_check(m->in.data + m->in.at, size) == XT_UTF8_VALID;
  return push_text(m, text ? XT_NODE_TEXT : XT_NODE_BYTES, size);
}

static xt_status push_long(machine *m, uint64_t size) {
  if (size > xt_cursor_left(&m->in)) return truncated(m);
  const uint8_t *bytes = xt_cursor_take(&m->in, size);
  if (size > 8) {
    xt_status status = push_new(m, XT_NODE_BIG);
    if (status != XT_STATUS_ok) return status;
    top(m)->text.data = (const char *)bytes;
    top(m)->text.size = size;
    return status;
  }
  uint64_t value = size && bytes[size - 1] & 0x80 ? ~0ull : 0;
  for (size_t i = size; i-- > 0;) value = value << 8 | bytes[i];
  return push_int(m, (int64_t)value);
}

static xt_status push_float(machine *m) {
  const uint8_t *bytes = xt_cursor_take(&m->in, 8);
  if (!bytes) return truncated(m);
  uint64_t bits = 0;
  for (int i = 0; i < 8; i++) bits = bits << 8 | bytes[i]; /* big-endian */
  xt_status status = push_new(m, XT_NODE_FLOAT);
  if (status == XT_STATUS_ok) memcpy(&top(m)->number, &bits, 8);
  return status;
}

static xt_status push_number(machine *m, double value) {
  xt_status status = push_new(m, XT_NODE_FLOAT);
  if (status == XT_STATUS_ok) top(m)->number = value;
  return status;
}

/* ---- Lines of text: protocol 0 ---- */

static xt_status take_line(machine *m, const char **line, size_t *size) {
  const uint8_t *start = m->in.data + m->in.at;
  size_t left = xt_cursor_left(&m->in);
  const uint8_t *end = memchr(start, '\n', left < MAX_LINE ? left : MAX_LINE);
  if (!end) return left < MAX_LINE ? truncated(m) : corrupt(m, "text line is too long");
  *line = (const char *)start;
  *size = (size_t)(end - start);
  xt_cursor_take(&m->in, *size + 1);
  if (*size && (*line)[*size - 1] == '\r') --*size;
  return XT_STATUS_ok;
}

/* Reads a decimal integer; "00" and "01" are booleans. */
static xt_status take_decimal(machine *m, int64_t *value, bool *boolean) {
  const char *line;
  size_t size;
  char copy[64], *end;
  xt_status status = take_line(m, &line, &size);
  if (status != XT_STATUS_ok) return status;
  if (size && line[size - 1] == 'L') size--;
  if (!size || size >= sizeof copy)
    return xt_error_at(m->error, XT_STATUS_unsupported, m->rebuild->at, "decimal integer of %zu digits", size);
  memcpy(copy, line, size);
  copy[size] = 0;
  errno = 0;
  *value = strtoll(copy, &end, 10);
  if (errno || *end) return corrupt(m, "decimal integer is invalid or does not fit in 64 bits");
  if (boolean) *boolean = size == 2 && copy[0] == '0' && *value <= 1 && *value >= 0;
  return XT_STATUS_ok;
}

static xt_status push_decimal(machine *m, bool may_be_bool) {
  int64_t value;
  bool boolean = false;
  xt_status status = take_decimal(m, &value, &boolean);
  if (status != XT_STATUS_ok) return status;
  return may_be_bool && boolean ? push(m, value ? m->yes : m->no) : push_int(m, value);
}

static xt_status push_decimal_float(machine *m) {
  const char *line;
  size_t size;
  char copy[64], *end;
  xt_status status = take_line(m, &line, &size);
  if (status != XT_STATUS_ok) return status;
  if (!size || size >= sizeof copy) return corrupt(m, "invalid decimal float");
  memcpy(copy, line, size);
  copy[size] = 0;
  double value = strtod(copy, &end);
  return *end ? corrupt(m, "invalid decimal float") : push_number(m, value);
}

/* STRING is quoted; UNICODE is the whole line. */
static xt_status push_line_text(machine *m, bool unicode) {
  const char *line;
  size_t size, length;
  xt_status status = take_line(m, &line, &size);
  if (status != XT_STATUS_ok) return status;
  if (!unicode) {
    if (size < 2 || (line[0] != '\'' && line[0] != '"') || line[size - 1] != line[0])
      return corrupt(m, "string is not enclosed in quotes");
    line++, size -= 2;
  }
  char *text = xt_arena_alloc(m->arena, size, 2);
  if (!text) return no_memory(m);
  if (!(unicode ? xt_escape_unicode : xt_escape_string)(line, size, text, &length))
    return corrupt(m, "invalid escape sequence");
  xt_utf8 check = xt_utf8_check((uint8_t *)text, length);
  xt_node_kind kind = check == XT_UTF8_VALID ? XT_NODE_TEXT : unicode ? XT_NODE_RAW_TEXT : XT_NODE_BYTES;
  status = push_new(m, kind);
  if (status == XT_STATUS_ok) top(m)->text.data = text, top(m)->text.size = length;
  return status;
}

/* ---- Globals, calls and building ---- */

static xt_status push_global(machine *m, const char *module, size_t module_size, const char *name, size_t name_size) {
  xt_status status = push_new(m, XT_NODE_GLOBAL);
  if (status != XT_STATUS_ok) return status;
  xt_node *node = top(m);
  node->global.module = module, node->global.module_size = module_size;
  node->global.name = name, node->global.name_size = name_size;
  return xt_rebuild_global(m->rebuild, node);
}

static xt_status global_lines(machine *m) {
  const char *module, *name;
  size_t module_size, name_size;
  xt_status status = take_line(m, &module, &module_size);
  if (status == XT_STATUS_ok) status = take_line(m, &name, &name_size);
  if (status == XT_STATUS_ok && (xt_utf8_check((const uint8_t *)module, module_size) != XT_UTF8_VALID ||
                                 xt_utf8_check((const uint8_t *)name, name_size) != XT_UTF8_VALID))
    return corrupt(m, "name of a global is not valid UTF-8");
  return status == XT_STATUS_ok ? push_global(m, module, module_size, name, name_size) : status;
}

static xt_status stack_global(machine *m) {
  xt_node *name = NULL, *module = NULL;
  xt_status status = pop(m, &name);
  if (status == XT_STATUS_ok) status = pop(m, &module);
  if (status != XT_STATUS_ok) return status;
  if (name->kind != XT_NODE_TEXT || module->kind != XT_NODE_TEXT) return corrupt(m, "name of a global is not a string");
  return push_global(m, module->text.data, module->text.size, name->text.data, name->text.size);
}

static xt_status call(machine *m, xt_node *callable, xt_node *args, bool is_new) {
  xt_node *out = NULL;
  if (args->kind != XT_NODE_TUPLE) return corrupt(m, "arguments are not a tuple");
  /* copyreg.__newobj__(class, *args) is what NEWOBJ does */
  if (args->list.count &&
      (xt_node_is_global(callable, "copyreg", "__newobj__") || xt_node_is_global(callable, "copy_reg", "__newobj__"))) {
    xt_node *rest = make(m, XT_NODE_TUPLE);
    if (!rest) return no_memory(m);
    rest->list.items = args->list.items + 1;
    rest->list.count = rest->list.room = args->list.count - 1;
    callable = args->list.items[0];
    args = rest;
    is_new = true;
  }
  xt_status status = xt_rebuild_reduce(m->rebuild, callable, args, &out);
  if (status != XT_STATUS_ok) return status;
  if (out) return push(m, out);
  status = push_new(m, XT_NODE_OBJECT);
  if (status != XT_STATUS_ok) return status;
  top(m)->object->callable = callable;
  top(m)->object->args = args;
  top(m)->object->is_new = is_new;
  return status;
}

static xt_status reduce(machine *m, bool is_new) {
  xt_node *args = NULL, *callable = NULL;
  xt_status status = pop(m, &args);
  if (status == XT_STATUS_ok) status = pop(m, &callable);
  return status == XT_STATUS_ok ? call(m, callable, args, is_new) : status;
}

static xt_status new_with_keywords(machine *m) {
  xt_node *keywords = NULL;
  xt_status status = pop(m, &keywords);
  if (status != XT_STATUS_ok) return status;
  if (keywords->kind != XT_NODE_DICT) return corrupt(m, "keyword arguments are not a dict");
  status = reduce(m, true);
  if (status == XT_STATUS_ok && keywords->list.count && top(m)->kind == XT_NODE_OBJECT) top(m)->object->dict = keywords;
  return status;
}

static xt_status push_items(machine *m, xt_node_kind kind, size_t first) {
  size_t count = m->top - first;
  xt_node *node = make(m, kind);
  if (!node) return no_memory(m);
  node->list.items = xt_arena_alloc(m->arena, count, sizeof *node->list.items);
  if (!node->list.items) return no_memory(m);
  if (count) memcpy(node->list.items, m->stack + first, count * sizeof *node->list.items);
  node->list.count = node->list.room = count;
  m->top = first;
  return push(m, node);
}

/* INST and OBJ: the arguments are above a mark; the class is in the opcode or is the first value above the mark. */
static xt_status instance(machine *m, bool class_on_stack) {
  size_t first = 0;
  xt_node *callable = NULL, *args = NULL;
  xt_status status = find_mark(m, &first);
  if (status != XT_STATUS_ok) return status;
  if (!class_on_stack) {
    status = global_lines(m);
    if (status == XT_STATUS_ok) status = pop(m, &callable);
  } else if (first == m->top) {
    return corrupt(m, "no class above the mark");
  } else {
    callable = m->stack[first];
    memmove(&m->stack[first], &m->stack[first + 1], (m->top - first - 1) * sizeof *m->stack);
    m->top--;
  }
  if (status == XT_STATUS_ok) status = push_items(m, XT_NODE_TUPLE, first);
  if (status == XT_STATUS_ok) status = pop(m, &args);
  if (status != XT_STATUS_ok) return status;
  m->top = first - 1;
  return call(m, callable, args, true);
}

static xt_status build(machine *m) {
  xt_node *state = NULL, *target;
  xt_status status = pop(m, &state);
  if (status != XT_STATUS_ok) return status;
  target = top(m);
  if (!target || target == &mark_node) return corrupt(m, "no object to set the state of");
  bool done;
  status = xt_rebuild_build(m->rebuild, target, state, &done);
  if (status != XT_STATUS_ok || done) return status;
  if (target->kind == XT_NODE_OBJECT) {
    target->object->state = state;
    return status;
  }
  /* The _metadata of a state dict and other attributes of an OrderedDict are dropped: a map cannot hold them. */
  if (target->kind == XT_NODE_DICT) return status;
  return corrupt(m, "value cannot have a state");
}

/* Finds the container below the mark. */
static xt_status target_below(machine *m, size_t first, xt_node **target) {
  if (first < 2 || m->stack[first - 2] == &mark_node) return corrupt(m, "no container below the mark");
  *target = m->stack[first - 2];
  return XT_STATUS_ok;
}

/* Returns the list or dict that items are added to: the container itself, or the list or dict of an object. */
static xt_node *items_of(machine *m, xt_node *target, xt_node_kind kind) {
  if (target->kind == kind) return target;
  if (target->kind != XT_NODE_OBJECT) return NULL;
  xt_node **slot = kind == XT_NODE_DICT ? &target->object->dict : &target->object->list;
  if (!*slot) *slot = make(m, kind);
  return *slot;
}

static xt_status fill(machine *m, xt_node *target, size_t first, xt_node_kind kind) {
  size_t count = m->top - first;
  if (kind == XT_NODE_DICT && count % 2) return corrupt(m, "odd number of dict keys and values");
  xt_node *list = items_of(m, target, kind);
  if (!list)
    return corrupt(m, kind == XT_NODE_DICT  ? "items added to a value that is not a dict"
                      : kind == XT_NODE_SET ? "items added to a value that is not a set"
                                            : "items added to a value that is not a list");
  for (size_t i = first; i < m->top; i++)
    if (!xt_node_append(m->arena, list, m->stack[i])) return no_memory(m);
  return XT_STATUS_ok;
}

static xt_status fill_marked(machine *m, xt_node_kind kind) {
  size_t first = 0;
  xt_node *target = NULL;
  xt_status status = find_mark(m, &first);
  if (status == XT_STATUS_ok) status = target_below(m, first, &target);
  if (status == XT_STATUS_ok) status = fill(m, target, first, kind);
  if (status == XT_STATUS_ok) m->top = first - 1;
  return status;
}

static xt_status fill_top(machine *m, xt_node_kind kind, size_t count) {
  if (m->top < count + 1) return corrupt(m, "stack underflow");
  for (size_t i = m->top - count - 1; i < m->top; i++)
    if (m->stack[i] == &mark_node) return corrupt(m, "stack underflow");
  xt_status status = fill(m, m->stack[m->top - count - 1], m->top - count, kind);
  if (status == XT_STATUS_ok) m->top -= count;
  return status;
}

static xt_status push_marked(machine *m, xt_node_kind kind) {
  size_t first = 0;
  xt_status status = find_mark(m, &first);
  if (status != XT_STATUS_ok) return status;
  if (kind == XT_NODE_DICT && (m->top - first) % 2) return corrupt(m, "odd number of dict keys and values");
  xt_node *node = NULL;
  status = push_items(m, kind, first);
  if (status == XT_STATUS_ok) status = pop(m, &node);
  if (status != XT_STATUS_ok) return status;
  m->top = first - 1;
  return push(m, node);
}

static xt_status push_tuple(machine *m, size_t count) {
  if (m->top < count) return corrupt(m, "stack underflow");
  for (size_t i = m->top - count; i < m->top; i++)
    if (m->stack[i] == &mark_node) return corrupt(m, "stack underflow");
  return push_items(m, XT_NODE_TUPLE, m->top - count);
}

static xt_status persistent(machine *m) {
  xt_node *id = NULL, *out = NULL;
  xt_status status = pop(m, &id);
  if (status == XT_STATUS_ok) status = xt_rebuild_persistent(m->rebuild, id, &out);
  return status == XT_STATUS_ok ? push(m, out) : status;
}

static xt_status persistent_line(machine *m) {
  const char *line;
  size_t size;
  xt_status status = take_line(m, &line, &size);
  if (status != XT_STATUS_ok) return status;
  status = push_new(m, XT_NODE_TEXT);
  if (status != XT_STATUS_ok) return status;
  top(m)->text.data = line, top(m)->text.size = size;
  return persistent(m);
}

static xt_status pop_mark(machine *m) {
  size_t first = 0;
  xt_status status = find_mark(m, &first);
  if (status == XT_STATUS_ok) m->top = first - 1;
  return status;
}

static xt_status frame(machine *m, uint64_t size) {
  if (m->in.short_ || size > xt_cursor_left(&m->in)) return truncated(m);
  m->frame_end = m->in.at + size;
  return XT_STATUS_ok;
}

static xt_status extension(machine *m, uint64_t code) {
  return xt_error_at(
      m->error, XT_STATUS_forbidden, m->rebuild->at,
      "the pickle uses copyreg extension code %" PRIu64 ", which only the program that wrote it can resolve", code);
}

/* ---- Opcodes ---- */

/* The opcodes of torch's weights_only unpickler. */
static bool in_strict(uint8_t opcode) {
  return opcode && strchr("\x80}]()\x81Rbtsaueq"
                          "rhjXKMJ\x8aGNQ\x88\x89\x85\x86\x87U\x8f"
                          "c",
                          opcode) != NULL;
}

static xt_status step(machine *m, uint8_t opcode) {
  xt_cursor *in = &m->in;
  xt_node *node;
  int64_t number;
  switch (opcode) {
  case 0x80: { /* PROTO */
    uint64_t protocol = xt_cursor_le(in, 1);
    return !in->short_ && protocol > 5
               ? xt_error_at(m->error, XT_STATUS_unsupported, m->rebuild->at,
                             "unsupported pickle protocol %" PRIu64 "; 0 to 5 are supported", protocol)
               : XT_STATUS_ok;
  }
  case 0x95: { /* FRAME */ uint64_t size = xt_cursor_le(in, 8); return frame(m, size);
  }
  case '(': return push(m, &mark_node);
  case '0': /* POP, also removes a mark */
    if (!m->top) return corrupt(m, "stack underflow");
    m->top--;
    return XT_STATUS_ok;
  case '1': return pop_mark(m);
  case '2':
    if (!(node = top(m)) || node == &mark_node) return corrupt(m, "stack underflow");
    return push(m, node);
  case 'N': return push(m, m->none);
  case 0x88: return push(m, m->yes);
  case 0x89: return push(m, m->no);
  case 'J': return push_int(m, (int32_t)xt_cursor_le(in, 4));
  case 'K': return push_int(m, (int64_t)xt_cursor_le(in, 1));
  case 'M': return push_int(m, (int64_t)xt_cursor_le(in, 2));
  case 0x8a: return push_long(m, xt_cursor_le(in, 1));
  case 0x8b: return push_long(m, xt_cursor_le(in, 4));
  case 'G': return push_float(m);
  case 'I': return push_decimal(m, true);
  case 'L': return push_decimal(m, false);
  case 'F': return push_decimal_float(m);
  case 'S': return push_line_text(m, false);
  case 'V': return push_line_text(m, true);
  case 'T': return push_string(m, xt_cursor_le(in, 4));
  case 'U': return push_string(m, xt_cursor_le(in, 1));
  case 'X': return push_text(m, XT_NODE_TEXT, xt_cursor_le(in, 4));
  case 0x8c: return push_text(m, XT_NODE_TEXT, xt_cursor_le(in, 1));
  case 0x8d: return push_text(m, XT_NODE_TEXT, xt_cursor_le(in, 8));
  case 'B': return push_text(m, XT_NODE_BYTES, xt_cursor_le(in, 4));
  case 'C': return push_text(m, XT_NODE_BYTES, xt_cursor_le(in, 1));
  case 0x8e: return push_text(m, XT_NODE_BYTES, xt_cursor_le(in, 8));
  case 0x96: return push_text(m, XT_NODE_BYTEARRAY, xt_cursor_le(in, 8));
  case ']': return push_new(m, XT_NODE_LIST);
  case '}': return push_new(m, XT_NODE_DICT);
  case 0x8f: return push_new(m, XT_NODE_SET);
  case ')': return push(m, m->empty);
  case 'l': return push_marked(m, XT_NODE_LIST);
  case 'd': return push_marked(m, XT_NODE_DICT);
  case 't': return push_marked(m, XT_NODE_TUPLE);
  case 0x91: return push_marked(m, XT_NODE_FROZENSET);
  case 0x85: return push_tuple(m, 1);
  case 0x86: return push_tuple(m, 2);
  case 0x87: return push_tuple(m, 3);
  case 'a': return fill_top(m, XT_NODE_LIST, 1);
  case 'e': return fill_marked(m, XT_NODE_LIST);
  case 's': return fill_top(m, XT_NODE_DICT, 2);
  case 'u': return fill_marked(m, XT_NODE_DICT);
  case 0x90: return fill_marked(m, XT_NODE_SET);
  case 'c': return global_lines(m);
  case 0x93: return stack_global(m);
  case 'R': return reduce(m, false);
  case 0x81: return reduce(m, true);
  case 0x92: return new_with_keywords(m);
  case 'i': return instance(m, false);
  case 'o': return instance(m, true);
  case 'b': return build(m);
  case 'q': return memo_put(m, xt_cursor_le(in, 1));
  case 'r': return memo_put(m, xt_cursor_le(in, 4));
  case 0x94: return memo_put(m, m->memo_count);
  case 'h': return memo_get(m, xt_cursor_le(in, 1));
  case 'j': return memo_get(m, xt_cursor_le(in, 4));
  case 'p':
  case 'g': {
    xt_status status = take_decimal(m, &number, NULL);
    if (status != XT_STATUS_ok) return status;
    if (number < 0) return corrupt(m, "negative memo index");
    return opcode == 'p' ? memo_put(m, (uint64_t)number) : memo_get(m, (uint64_t)number);
  }
  case 'Q': return persistent(m);
  case 'P': return persistent_line(m);
  case 0x82: return extension(m, xt_cursor_le(in, 1));
  case 0x83: return extension(m, xt_cursor_le(in, 2));
  case 0x84: return extension(m, xt_cursor_le(in, 4));
  case 0x97:
  case 0x98:
    return xt_error_at(m->error, XT_STATUS_unsupported, m->rebuild->at,
                       "the pickle keeps its data in out-of-band buffers, which are not in the file; save it without "
                       "buffer_callback");
  default:
    return xt_error_at(m->error, XT_STATUS_corrupt, m->rebuild->at, "invalid pickle: unknown opcode 0x%02x", opcode);
  }
}

static xt_status run(machine *m, xt_node **root) {
  for (;;) {
    m->rebuild->at = (int64_t)m->in.at;
    const uint8_t *opcode = xt_cursor_take(&m->in, 1);
    if (!opcode)
      return xt_error_at(m->error, XT_STATUS_truncated, m->rebuild->at,
                         "truncated pickle: it has no STOP opcode; the file may be incomplete");
    if (*opcode == '.') {
      xt_status status = pop(m, root);
      return status == XT_STATUS_ok && m->top ? corrupt(m, "values left on the stack after STOP") : status;
    }
    if (m->rebuild->strict && !in_strict(*opcode))
      return xt_error_at(
          m->error, XT_STATUS_forbidden, m->rebuild->at,
          "strict: torch's weights_only unpickler does not support opcode 0x%02x; load it without strict: true",
          *opcode);
    xt_status status = step(m, *opcode);
    if (status != XT_STATUS_ok) return status;
    if (m->in.short_) return truncated(m);
    if (m->frame_end && *opcode != 0x95) {
      if (m->in.at > m->frame_end) return corrupt(m, "opcode crosses the end of its frame");
      if (m->in.at == m->frame_end) m->frame_end = 0;
    }
  }
}

xt_status xt_unpickle(const uint8_t *data, size_t size, xt_rebuild *rebuild, size_t *used, xt_node **root) {
  machine m = {.in = {data, size, 0, false}, .rebuild = rebuild, .arena = rebuild->arena, .error = rebuild->error};
  if (!rebuild->nested) rebuild->nested_bytes_left = size;
  /* An honest pickle needs several bytes per object; one that creates more objects is refused. */
  m.max_nodes = size / 4 > 1000000 ? size / 4 : 1000000;
  m.none = xt_node_new(m.arena, XT_NODE_NONE);
  m.yes = xt_node_new(m.arena, XT_NODE_BOOL);
  m.no = xt_node_new(m.arena, XT_NODE_BOOL);
  m.empty = xt_node_new(m.arena, XT_NODE_TUPLE);
  xt_status status = m.none && m.yes && m.no && m.empty ? XT_STATUS_ok : no_memory(&m);
  if (status == XT_STATUS_ok) {
    m.yes->boolean = true;
    status = run(&m, root);
  }
  *used = m.in.at;
  free(m.stack);
  free(m.memo);
  xt_table_free(&m.far);
  return status;
}
