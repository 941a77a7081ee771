/* The CRC-32 of a payload that is being written. Whoever comes first to a piece of it counts it: the writer, right
 * before it writes it, or the idle thread, a little ahead of the writer. Neither waits for the other. */
#ifndef XT_CHECKPOINT_CHECKSUM_H
#define XT_CHECKPOINT_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

enum { XT_CHECKSUM_PIECE = 256 << 10 }; /* is read for its checksum and written while it is in the cache */

typedef struct xt_checksum xt_checksum;

/* Who keeps the payload's bytes where they are. */
typedef struct {
  void (*keep)(void *owner);
  void (*drop)(void *owner);
  void *owner;
} xt_owner;

/* NULL without memory for it. */
xt_checksum *xt_checksum_new(const uint8_t *data, size_t size, xt_owner keeper);

/* The bytes before `limit`, a whole number of pieces or all, are about to be written: the idle thread may count them.
 * It never goes further, since what is not written yet may still be changed. */
void xt_checksum_allow(xt_checksum *sum, size_t limit);

/* Counts the bytes before `end`, a whole number of pieces or all, as far as nobody did. */
void xt_checksum_reach(xt_checksum *sum, size_t end);

/* Of what was reached. */
uint32_t xt_checksum_value(const xt_checksum *sum);

void xt_checksum_free(xt_checksum *sum);

#endif
