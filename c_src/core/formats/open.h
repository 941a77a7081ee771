/* Opens a checkpoint by steps: the first bytes determine the format, whose own function does the rest. */
#ifndef XT_FORMATS_OPEN_H
#define XT_FORMATS_OPEN_H

#include "core/checkpoint/checkpoint.h"

/* Uses the bytes of the last need and sets the next one. The checkpoint is open when need->size is 0. */
xt_status xt_open_step(xt_checkpoint *c, xt_need *need, xt_error *error);

#endif
