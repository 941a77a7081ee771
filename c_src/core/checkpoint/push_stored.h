/* The allowance of a stream that was unpacked before it was fed (xt_push_set_stored). It follows from the bytes that
 * the stream had before, and the buffer of the parser is part of it. The functions do nothing for other streams. */
#ifndef XT_CHECKPOINT_PUSH_STORED_H
#define XT_CHECKPOINT_PUSH_STORED_H

#include "core/checkpoint/push.h"

/* Sets the allowance, less the bytes that a buffer takes. */
void xt_push_stored_limit(xt_push *p, size_t buffer);

/* Returns whether the allowance permits a buffer of this size. */
bool xt_push_stored_fits(xt_push *p, size_t buffer);

/* Checks how many bytes were neither kept nor data of storages: to unpack them takes time. */
xt_status xt_push_stored_check(xt_push *p, xt_error *error);

xt_status xt_push_stored_exceeded(xt_push *p, xt_error *error);

#endif
