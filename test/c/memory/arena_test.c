#include "core/memory/arena.h"

#include <stdint.h>
#include <string.h>

#include "check.h"

static void memory_is_zeroed_and_aligned(void) {
  xt_arena arena = {0};
  for (size_t size = 0; size < 20000; size += 37) {
    char *piece = xt_arena_alloc(&arena, 1, size);
    CHECK(piece && (uintptr_t)piece % _Alignof(uint64_t) == 0);
    for (size_t i = 0; i < size; i++) CHECK(piece[i] == 0);
    memset(piece, 1, size);
  }
  xt_arena_free(&arena);
}

/* Large chunks are reused by the next arena and have to be cleared again. */
static void large_chunks_are_zeroed_again(void) {
  enum { PIECE = 100 << 10 };
  for (int round = 0; round < 3; round++) {
    xt_arena arena = {0};
    for (int i = 0; i < 60; i++) {
      char *piece = xt_arena_alloc(&arena, 1, PIECE);
      CHECK(piece);
      for (size_t k = 0; k < PIECE; k++) CHECK(piece[k] == 0);
      memset(piece, 0xff, PIECE);
    }
    xt_arena_free(&arena);
  }
}

static void texts_are_copied_and_terminated(void) {
  xt_arena arena = {0};
  CHECK(!strcmp(xt_arena_text(&arena, "hello", 4), "hell"));
  CHECK(!strcmp(xt_arena_text(&arena, "", 0), ""));
  xt_arena_free(&arena);
}

static void refuses_sizes_that_overflow(void) {
  xt_allowance allowance = {.limit = UINT64_MAX};
  xt_arena arena = {.allowance = &allowance};
  CHECK(!xt_arena_alloc(&arena, SIZE_MAX / 2, 3) && !xt_arena_text(&arena, "", SIZE_MAX));
  CHECK(!allowance.exceeded && !allowance.used);
  xt_arena_free(&arena);
}

static void takes_its_chunks_from_the_allowance(void) {
  xt_allowance allowance = {.limit = 20000};
  xt_arena arena = {.allowance = &allowance};
  size_t pieces = 0;
  while (xt_arena_alloc(&arena, 1, 1000)) {
    CHECK(allowance.used > 1000 * pieces && allowance.used <= allowance.limit && !allowance.exceeded);
    pieces++;
  }
  CHECK(allowance.exceeded && pieces >= 4);
  CHECK(!xt_arena_alloc(&arena, 1, 20000));
  xt_arena_free(&arena);
  CHECK(!allowance.used);
}

static void can_be_freed_twice(void) {
  xt_arena arena = {0};
  CHECK(xt_arena_alloc(&arena, 3, 1000));
  xt_arena_free(&arena);
  CHECK(!arena.chunks);
  xt_arena_free(&arena);
}

int main(void) {
  return RUN_TESTS("arena", memory_is_zeroed_and_aligned, large_chunks_are_zeroed_again,
                   texts_are_copied_and_terminated, refuses_sizes_that_overflow, takes_its_chunks_from_the_allowance,
                   can_be_freed_twice);
}
