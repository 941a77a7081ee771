/* The CRC-32 of a payload that is being written, computed in pieces. A piece is processed either by the writer, right
 * before it writes it, or by the background thread, a little ahead of the writer. Neither waits for the other. */
#ifndef XT_CHECKPOINT_CHECKSUM_H
#define XT_CHECKPOINT_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

enum { XT_CHECKSUM_PIECE = 256 << 10 }; /* small enough to be still in the cache when it is written */

typedef struct xt_checksum xt_checksum;

/* The owner of the payload. keep and drop count references to it; its bytes stay in place while there is one. */
typedef struct {
  void (*keep)(void *owner);
  void (*drop)(void *owner);
  void *owner;
} xt_owner;

/* Returns NULL without memory, and if this use of the background thread is turned off. */
xt_checksum *xt_checksum_new(const uint8_t *data, size_t size, xt_owner keeper);

/* Lets the background thread process the bytes before `limit`, a multiple of the piece size or the end. These bytes
 * must be about to be written: later ones may still change. */
void xt_checksum_allow(xt_checksum *sum, size_t limit);

/* Processes the bytes before `end`, a multiple of the piece size or the end, that are not processed yet. */
void xt_checksum_reach(xt_checksum *sum, size_t end);

/* Returns the CRC of the bytes processed so far. */
uint32_t xt_checksum_value(const xt_checksum *sum);

void xt_checksum_free(xt_checksum *sum);

#endif
