/* Mapped files that survive being truncated.
 *
 * Touching a page that its file no longer has raises SIGBUS, which ends the VM. So our maps are in a table that a
 * signal handler looks through: it puts zeros in the place of the missing pages and marks the map as poisoned. Whoever
 * used the memory asks afterwards and reports `:file_changed`. Signals from elsewhere go to the handler that was there
 * before.
 */
#ifndef XT_OS_MAPPING_H
#define XT_OS_MAPPING_H

#include "core/memory/region.h"
#include "core/os/file.h"

/* The whole file, private: writes do not reach it. */
xt_status xt_mapping_open(const xt_file *file, xt_region **out, xt_error *error);

/* Is the memory part of a map whose file lost pages under it? */
bool xt_mapping_poisoned(const void *data, size_t size);

#endif
