#include "core/memory/frozen.h"

#include <stdatomic.h>

#include "core/os/thread.h"

/* Three treaps ordered by (start, node address). Each node has the largest end of its subtree, so that a lookup walks
 * down a single path. The lock is held only for such walks. It makes the check of a writer and its registration one
 * step: of a freeze and a write at the same time, one sees the other. */
enum { FROZEN, WRITTEN, LENT, KINDS };
static xt_frozen *roots[KINDS];
static atomic_size_t counts[KINDS]; /* for lookups without the lock */
static xt_mutex lock = XT_MUTEX_INIT;
static uint32_t seed = 2463534242u;

static uint32_t next_priority(void) { /* xorshift; the priorities need not be secret */
  seed ^= seed << 13;
  seed ^= seed >> 17;
  return seed ^= seed << 5;
}

static bool before(const xt_frozen *a, const xt_frozen *b) {
  return a->start != b->start ? a->start < b->start : (uintptr_t)a < (uintptr_t)b;
}

static void update(xt_frozen *node) {
  node->last = node->end;
  if (node->left && node->left->last > node->last) node->last = node->left->last;
  if (node->right && node->right->last > node->last) node->last = node->right->last;
}

/* Splits a tree into the nodes before the pivot and the rest. The recursion is as deep as the treap: logarithmic. */
static void split(xt_frozen *tree, const xt_frozen *pivot, xt_frozen **left, xt_frozen **right) {
  if (!tree) {
    *left = *right = NULL;
  } else if (before(tree, pivot)) {
    split(tree->right, pivot, &tree->right, right);
    *left = tree;
    update(tree);
  } else {
    split(tree->left, pivot, left, &tree->left);
    *right = tree;
    update(tree);
  }
}

static xt_frozen *merge(xt_frozen *left, xt_frozen *right) {
  if (!left || !right) return left ? left : right;
  if (left->priority > right->priority) {
    left->right = merge(left->right, right);
    update(left);
    return left;
  }
  right->left = merge(left, right->left);
  update(right);
  return right;
}

static xt_frozen *insert(xt_frozen *tree, xt_frozen *node) {
  if (!tree || node->priority > tree->priority) {
    split(tree, node, &node->left, &node->right);
    update(node);
    return node;
  }
  if (before(node, tree)) tree->left = insert(tree->left, node);
  else tree->right = insert(tree->right, node);
  update(tree);
  return tree;
}

static xt_frozen *erase(xt_frozen *tree, xt_frozen *node) {
  if (tree == node) return merge(tree->left, tree->right);
  if (before(node, tree)) tree->left = erase(tree->left, node);
  else tree->right = erase(tree->right, node);
  update(tree);
  return tree;
}

/* The lock must be held. */
static void add(xt_frozen *node, uint32_t kind) {
  node->kind = kind;
  node->priority = next_priority();
  roots[kind] = insert(roots[kind], node);
  atomic_fetch_add(&counts[kind], 1);
}

/* The lock must be held. */
static bool find(uint32_t kind, uintptr_t start, uintptr_t end) {
  const xt_frozen *node = roots[kind];
  while (node) {
    if (node->start < end && node->end > start) return true;
    /* if nothing overlaps on the left although a range there ends after `start`, nothing on the right does */
    node = node->left && node->left->last > start ? node->left : node->right;
  }
  return false;
}

static bool overlaps(uint32_t kind, const void *data, size_t size) {
  if (!size || !atomic_load(&counts[kind])) return false;
  xt_mutex_lock(&lock);
  bool found = find(kind, (uintptr_t)data, (uintptr_t)data + size);
  xt_mutex_unlock(&lock);
  return found;
}

void xt_frozen_add(xt_frozen *node, const void *data, size_t size) {
  *node = (xt_frozen){.start = (uintptr_t)data, .end = (uintptr_t)data + size};
  if (!size) return;
  xt_mutex_lock(&lock);
  add(node, FROZEN);
  xt_mutex_unlock(&lock);
}

bool xt_frozen_write(xt_frozen *node, const void *data, size_t size, bool lent) {
  *node = (xt_frozen){.start = (uintptr_t)data, .end = (uintptr_t)data + size};
  if (!size) return true;
  xt_mutex_lock(&lock);
  bool frozen = find(FROZEN, node->start, node->end);
  if (!frozen) add(node, lent ? LENT : WRITTEN);
  xt_mutex_unlock(&lock);
  if (frozen) *node = (xt_frozen){0};
  return !frozen;
}

void xt_frozen_remove(xt_frozen *node) {
  if (node->start == node->end) return;
  xt_mutex_lock(&lock);
  roots[node->kind] = erase(roots[node->kind], node);
  atomic_fetch_sub(&counts[node->kind], 1);
  xt_mutex_unlock(&lock);
  *node = (xt_frozen){0};
}

xt_writers xt_frozen_writers(const void *data, size_t size) {
  if (overlaps(LENT, data, size)) return XT_WRITERS_LENT;
  return overlaps(WRITTEN, data, size) ? XT_WRITERS_CALL : XT_WRITERS_NONE;
}
