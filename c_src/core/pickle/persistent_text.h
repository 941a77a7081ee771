/* Persistent ids as text. With protocol 0, Python writes the text of the tuple that torch gives it:
 *
 *   ('storage', <class 'torch.FloatStorage'>, '0', 'cpu', 3)
 *
 * torch itself cannot read such a file. */
#ifndef XT_PICKLE_PERSISTENT_TEXT_H
#define XT_PICKLE_PERSISTENT_TEXT_H

#include "core/pickle/rebuild.h"

/* Parses the text. *tuple is NULL if it has another form. Strings point into the text. Returns ok or no_memory. */
xt_status xt_persistent_text_parse(xt_arena *arena, const char *text, size_t size, xt_node **tuple);

#endif
