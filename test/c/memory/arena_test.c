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

/* Also of a chunk that was used before, only what is asked for is cleared. */
static void uncleared_memory_is_not_written_to(void) {
  enum { PIECE = 1 << 20 };
  xt_arena arena = {0};
  char *first = xt_arena_alloc_uncleared(&arena, PIECE);
  CHECK(first && (uintptr_t)first % _Alignof(uint64_t) == 0);
  memset(first, 0xff, PIECE);
  char *text = xt_arena_text(&arena, "text", 4), *zeros = xt_arena_alloc(&arena, 1, PIECE / 2);
  CHECK(!strcmp(text, "text"));
  for (size_t i = 0; i < PIECE / 2; i++) CHECK(zeros[i] == 0);
  for (size_t i = 0; i < PIECE; i++) CHECK(first[i] == (char)0xff);
  CHECK(!xt_arena_alloc_uncleared(&arena, SIZE_MAX));
  xt_arena_free(&arena);
}

/* What is expected comes from one chunk. */
static void expected_memory_is_together(void) {
  xt_arena arena = {.expected = 300000};
  char *first = xt_arena_alloc(&arena, 1, 100000), *second = xt_arena_alloc(&arena, 1, 200000);
  CHECK(second == first + 100000);
  CHECK(xt_arena_alloc(&arena, 1, 3 << 20));
  xt_arena_free(&arena);
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

/* The memory of a freed arena is kept for the next one, and freed if there is none. Whether an address is mapped would
 * not tell: others may map it again. */
static void kept_chunks_are_freed(void) {
  enum { SIZE = 32 << 20, STEP_US = 10000, MAX_STEPS = 2000 };
  xt_arena arena = {0};
  char *first = xt_arena_alloc(&arena, 1, SIZE);
  CHECK(first);
  xt_arena_free(&arena);
  CHECK(xt_arena_kept_bytes() >= SIZE);
  CHECK(xt_arena_alloc(&arena, 1, SIZE) == first);
  CHECK(xt_arena_kept_bytes() < SIZE);
  xt_arena_free(&arena);
  CHECK(xt_arena_kept_bytes() >= SIZE);
  int steps = 0;
  while (steps < MAX_STEPS && xt_arena_kept_bytes()) steps++, usleep(STEP_US);
  CHECK(steps < MAX_STEPS);
}

/* A chunk that nobody takes is freed, also while others are used. */
static void unused_chunks_are_freed(void) {
  enum { SIZE = 32 << 20, SMALL = 100 << 10, STEP_US = 10000, MAX_STEPS = 2000 };
  xt_arena large = {0};
  CHECK(xt_arena_alloc(&large, 1, SIZE));
  xt_arena_free(&large);
  CHECK(xt_arena_kept_bytes() >= SIZE);
  int steps = 0;
  for (; steps < MAX_STEPS && xt_arena_kept_bytes() >= SIZE; steps++) {
    xt_arena small = {0};
    CHECK(xt_arena_alloc(&small, 1, SMALL));
    xt_arena_free(&small);
    usleep(STEP_US);
  }
  CHECK(steps < MAX_STEPS && xt_arena_kept_bytes() >= SMALL);
}

/* Chunks of odd sizes, which nobody asks for again, do not pile up. */
static void few_chunks_are_kept(void) {
  enum { COUNT = 100, LEAST = 64 << 10, MAX_CHUNKS = 32 };
  for (size_t i = 0; i < COUNT; i++) {
    xt_arena arena = {0};
    CHECK(xt_arena_alloc(&arena, 1, LEAST + 8 * i));
    xt_arena_free(&arena);
  }
  CHECK(xt_arena_kept_bytes() < (MAX_CHUNKS + 1) * (LEAST + 8 * COUNT + 100));
}

/* An arena that is larger than what may be kept does not displace what is. */
static void kept_chunks_are_bounded(void) {
  enum { SIZE = 20 << 20, MAX = 48 << 20 };
  xt_arena arenas[4] = {{0}};
  for (int i = 0; i < 4; i++) CHECK(xt_arena_alloc(&arenas[i], 1, SIZE));
  for (int i = 0; i < 4; i++) {
    xt_arena_free(&arenas[i]);
    CHECK(xt_arena_kept_bytes() >= SIZE && xt_arena_kept_bytes() <= MAX);
  }
  size_t before = xt_arena_kept_bytes();
  CHECK(xt_arena_alloc(&arenas[0], 1, MAX));
  xt_arena_free(&arenas[0]);
  CHECK(xt_arena_kept_bytes() == before);
}

int main(void) {
  return RUN_TESTS("arena", memory_is_zeroed_and_aligned, large_chunks_are_zeroed_again,
                   uncleared_memory_is_not_written_to, expected_memory_is_together, texts_are_copied_and_terminated,
                   refuses_sizes_that_overflow, takes_its_chunks_from_the_allowance, can_be_freed_twice,
                   kept_chunks_are_bounded, unused_chunks_are_freed, kept_chunks_are_freed, few_chunks_are_kept);
}
