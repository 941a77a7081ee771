/* Globals, calls, states and persistent ids. Nothing is imported or called: rebuild.h gives some of them a meaning, the
 * others become inert nodes. */
#include <inttypes.h>

#include "core/base/utf8.h"
#include "core/pickle/persistent_text.h"
#include "core/pickle/unpickle_internal.h"

/* ---- Globals ---- */

static xt_status push_global(xt_unpickler *u, const char *module, size_t module_size, const char *name,
                             size_t name_size) {
  if (module_size > UINT32_MAX || name_size > UINT32_MAX)
    return xt_unpickler_corrupt(u, "module or name is longer than 4 GiB");
  xt_status status = xt_unpickler_push_new(u, XT_NODE_GLOBAL);
  if (status != XT_STATUS_ok) return status;
  xt_node *node = xt_unpickler_top(u);
  node->global.module = module, node->global.module_size = (uint32_t)module_size;
  node->global.name = name, node->global.name_size = (uint32_t)name_size;
  return xt_rebuild_global(u->rebuild, node);
}

static bool is_utf8(const char *text, size_t size) {
  return xt_utf8_check((const uint8_t *)text, size) == XT_UTF8_VALID;
}

xt_status xt_unpickler_global(xt_unpickler *u) {
  const char *module, *name;
  size_t module_size, name_size;
  xt_status status = xt_unpickler_take_line(u, &module, &module_size);
  if (status == XT_STATUS_ok) status = xt_unpickler_take_line(u, &name, &name_size);
  if (status != XT_STATUS_ok) return status;
  if (!is_utf8(module, module_size) || !is_utf8(name, name_size))
    return xt_unpickler_corrupt(u, "module or name is not valid UTF-8");
  return push_global(u, module, module_size, name, name_size);
}

xt_status xt_unpickler_stack_global(xt_unpickler *u) {
  xt_node *name = NULL, *module = NULL;
  xt_status status = xt_unpickler_pop(u, &name);
  if (status == XT_STATUS_ok) status = xt_unpickler_pop(u, &module);
  if (status != XT_STATUS_ok) return status;
  if (name->kind != XT_NODE_TEXT || module->kind != XT_NODE_TEXT)
    return xt_unpickler_corrupt(u, "module or name is not a string");
  return push_global(u, module->text.data, module->text.size, name->text.data, name->text.size);
}

xt_status xt_unpickler_extension(xt_unpickler *u, uint64_t code) {
  return xt_error_at(u->error, XT_STATUS_forbidden, u->rebuild->at,
                     "the pickle uses copyreg extension code %" PRIu64
                     ", which only the program that wrote it can resolve; save the object without copyreg extensions",
                     code);
}

/* ---- Calls ---- */

static xt_status call(xt_unpickler *u, xt_node *callable, xt_node *args, bool is_new) {
  xt_node *out = NULL;
  if (args->kind != XT_NODE_TUPLE) return xt_unpickler_corrupt(u, "arguments are not a tuple");
  /* copyreg.__newobj__(class, *args) does the same as NEWOBJ */
  if (args->list.count &&
      (xt_node_is_global(callable, "copyreg", "__newobj__") || xt_node_is_global(callable, "copy_reg", "__newobj__"))) {
    xt_node *rest = xt_node_new(u->arena, XT_NODE_TUPLE);
    if (!rest) return xt_unpickler_no_memory(u);
    for (size_t i = 1; i < args->list.count; i++)
      if (!xt_node_append(u->arena, rest, args->list.items[i])) return xt_unpickler_no_memory(u);
    callable = args->list.items[0];
    args = rest;
    is_new = true;
  }
  xt_status status = xt_rebuild_reduce(u->rebuild, callable, args, &out);
  if (status != XT_STATUS_ok) return status;
  if (out) return xt_unpickler_push(u, out);
  status = xt_unpickler_push_new(u, XT_NODE_OBJECT);
  if (status != XT_STATUS_ok) return status;
  xt_node *object = xt_unpickler_top(u);
  object->object->callable = callable;
  object->object->args = args;
  object->object->is_new = is_new;
  return status;
}

xt_status xt_unpickler_reduce(xt_unpickler *u, bool is_new) {
  xt_node *args = NULL, *callable = NULL;
  xt_status status = xt_unpickler_pop(u, &args);
  if (status == XT_STATUS_ok) status = xt_unpickler_pop(u, &callable);
  return status == XT_STATUS_ok ? call(u, callable, args, is_new) : status;
}

xt_status xt_unpickler_new_with_keywords(xt_unpickler *u) {
  xt_node *keywords = NULL;
  xt_status status = xt_unpickler_pop(u, &keywords);
  if (status != XT_STATUS_ok) return status;
  if (keywords->kind != XT_NODE_DICT) return xt_unpickler_corrupt(u, "keyword arguments are not a dict");
  status = xt_unpickler_reduce(u, true);
  if (status != XT_STATUS_ok) return status;
  xt_node *object = xt_unpickler_top(u);
  if (keywords->list.count && object->kind == XT_NODE_OBJECT) object->object->dict = keywords;
  return status;
}

/* The arguments of INST and OBJ are above a mark. The class of INST follows the opcode, that of OBJ is the first value
 * above the mark. */
xt_status xt_unpickler_instance(xt_unpickler *u, bool class_on_stack) {
  size_t first = 0;
  xt_node *callable = NULL, *args = NULL;
  xt_status status = xt_unpickler_find_mark(u, &first);
  if (status != XT_STATUS_ok) return status;
  if (!class_on_stack) {
    status = xt_unpickler_global(u);
    if (status == XT_STATUS_ok) status = xt_unpickler_pop(u, &callable);
  } else if (first == u->top) {
    return xt_unpickler_corrupt(u, "no class above the mark");
  } else {
    callable = u->stack[first];
    memmove(&u->stack[first], &u->stack[first + 1], (u->top - first - 1) * sizeof *u->stack);
    u->top--;
  }
  if (status == XT_STATUS_ok) status = xt_unpickler_push_items(u, XT_NODE_TUPLE, first);
  if (status == XT_STATUS_ok) status = xt_unpickler_pop(u, &args);
  if (status != XT_STATUS_ok) return status;
  u->top = first - 1;
  return call(u, callable, args, true);
}

/* ---- States ---- */

xt_status xt_unpickler_build(xt_unpickler *u) {
  xt_node *state = NULL;
  xt_status status = xt_unpickler_pop(u, &state);
  if (status != XT_STATUS_ok) return status;
  xt_node *target = xt_unpickler_top(u);
  if (!target || target == &u->mark) return xt_unpickler_corrupt(u, "stack underflow");
  bool done;
  status = xt_rebuild_build(u->rebuild, target, state, &done);
  if (status != XT_STATUS_ok || done) return status;
  if (target->kind == XT_NODE_OBJECT) {
    target->object->state = state;
    return status;
  }
  /* The _metadata of a state dict and other attributes of an OrderedDict are dropped: a map cannot hold them. */
  if (target->kind == XT_NODE_DICT) return status;
  return xt_unpickler_corrupt(u, "state set on a value that cannot have one");
}

/* ---- Persistent ids ---- */

xt_status xt_unpickler_persistent(xt_unpickler *u) {
  xt_node *id = NULL, *out = NULL;
  xt_status status = xt_unpickler_pop(u, &id);
  if (status == XT_STATUS_ok) status = xt_rebuild_persistent(u->rebuild, id, &out);
  return status == XT_STATUS_ok ? xt_unpickler_push(u, out) : status;
}

xt_status xt_unpickler_persistent_line(xt_unpickler *u) {
  const char *line;
  size_t size;
  xt_status status = xt_unpickler_take_line(u, &line, &size);
  if (status != XT_STATUS_ok) return status;
  if (!is_utf8(line, size)) return xt_unpickler_corrupt(u, "persistent id is not valid UTF-8");
  xt_node *tuple = NULL;
  if (u->rebuild->ids != XT_IDS_LABELS) status = xt_persistent_text_parse(u->arena, line, size, &tuple);
  if (status != XT_STATUS_ok) return xt_unpickler_no_memory(u);
  status = tuple ? xt_unpickler_push(u, tuple) : xt_unpickler_push_bytes(u, XT_NODE_TEXT, line, size);
  return status == XT_STATUS_ok ? xt_unpickler_persistent(u) : status;
}
