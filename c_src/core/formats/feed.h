/* Feeds a push parser (checkpoint/push.h) with the bytes of a stream:
 *
 *   xt_push_begin → xt_push_feed (a chunk) … until XT_PUSH_DONE → xt_push_free
 */
#ifndef XT_FORMATS_FEED_H
#define XT_FORMATS_FEED_H

#include "core/checkpoint/push.h"

/* The checkpoint must have been initialized by xt_push_begin_checkpoint. */
void xt_push_begin(xt_push *p, xt_checkpoint *checkpoint, uint64_t spool_bytes);

/* Initializes a checkpoint of unknown size. */
void xt_push_begin_checkpoint(xt_checkpoint *c, const xt_limits *limits, bool strict, bool verify);

/* Processes a chunk up to the next event and sets *used to the number of bytes that were used. After an error with
 * `collect` set, the rest of the chunk may be fed again. After any other error, the stream cannot be continued. */
xt_status xt_push_feed(xt_push *p, const uint8_t *data, size_t size, size_t *used, xt_push_event *event,
                       xt_error *error);

/* Returns a lower bound of the number of bytes that are still missing. */
uint64_t xt_push_missing(const xt_push *p);

/* Called if the stream has ended before XT_PUSH_DONE. Always returns an error, which describes the position. */
xt_status xt_push_end(xt_push *p, xt_error *error);

/* Must be called before the checkpoint is freed. */
void xt_push_free(xt_push *p);

#endif
