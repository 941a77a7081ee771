/* Reads of a local file by several threads: the calling thread and helpers, which end before the call returns.
 *
 * One thread can neither saturate memory nor keep a disk busy. If the file is cached, there is a reader for each CPU,
 * and they share the copying and the page faults of fresh memory. If it is not, there are more, because they wait for
 * the disk most of the time. Each of these has runs of pieces and its own open file, because the system reads ahead
 * best of one who reads long ranges from the beginning to the end.
 *
 * Pieces are taken in file order. If one fails, those after it stop and those before it go on, so the error is the one
 * that a single thread would have found. */
#ifndef XT_CHECKPOINT_READERS_H
#define XT_CHECKPOINT_READERS_H

#include "core/checkpoint/record_reader.h"

enum { XT_READ_PIECE = 4 << 20 }; /* bytes that a reader takes at a time */

/* A piece of work. What the fields mean is up to the functions below. */
typedef struct {
  size_t item, count;
  uint64_t at, size;
} xt_read_job;

typedef struct {
  /* Takes the next piece. Called by one thread at a time, with its reader. Returns false if there is none, or with
   * *status set. */
  bool (*take)(void *context, const xt_record_reader *reader, xt_read_job *job, xt_status *status, xt_error *error);
  /* Works on a piece, with the reader of the thread. */
  xt_status (*run)(void *context, const xt_record_reader *reader, const xt_read_job *job, xt_error *error);
  void *context;
} xt_read_work;

/* Plans to read `bytes` between two offsets of the file: sets *count to the number of readers, at least 1, and in the
 * reader how many pieces are taken at a time, whether the bytes have to be read from the disk and whether they are
 * dropped from the cache. Files in memory have several readers only if their bytes are copied or checked. */
void xt_readers_plan(xt_record_reader *reader, uint64_t from, uint64_t to, uint64_t bytes, unsigned *count);

/* Runs `take` and `run` on `count` threads until there is no piece left or one has failed. */
xt_status xt_readers_run(const xt_record_reader *reader, unsigned count, const xt_read_work *work, xt_error *error);

/* Returns the size of the next piece of `left` bytes that are read to this address. Pieces end between huge pages, so
 * that two threads do not fault the same page in. */
size_t xt_readers_piece(const uint8_t *to, uint64_t left);

/* Reads one piece on this thread and adds it to *crc, unless that is NULL. */
xt_status xt_readers_read(const xt_record_reader *reader, uint64_t offset, uint8_t *to, size_t size, uint32_t *crc,
                          xt_error *error);

/* Reads bytes with as many readers as are useful. Sets *crc to their CRC, unless it is NULL. */
xt_status xt_readers_fetch(const xt_record_reader *reader, uint64_t offset, uint8_t *to, size_t size, uint32_t *crc,
                           xt_error *error);

/* Makes all pages of a mapped file present, with as many readers as are useful. */
xt_status xt_readers_populate(const xt_record_reader *reader, xt_region *mapping, xt_error *error);

#endif
