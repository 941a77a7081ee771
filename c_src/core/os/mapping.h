/* Memory-mapped files that survive truncation.
 *
 * An access to a page that the file no longer has raises SIGBUS, which would end the VM. So our mappings are listed in
 * a table that a signal handler reads: it replaces the missing pages with zeros and marks the mapping as poisoned.
 * Callers check this after they have used the memory and report `:file_changed`. Other SIGBUS signals go to the handler
 * that was installed before.
 */
#ifndef XT_OS_MAPPING_H
#define XT_OS_MAPPING_H

#include "core/os/file.h"

/* Maps the whole file privately: writes to the memory do not change the file. The mapping has file->size bytes. */
xt_status xt_mapping_open(const xt_file *file, void **data, xt_error *error);
void xt_mapping_close(void *data, size_t size);

/* Makes all pages of a part of a mapping present, so that no access to them faults; reads them from the disk if they
 * are not in the page cache. Returns false if the file no longer has some of them. */
bool xt_mapping_populate(void *data, size_t size);

/* Returns whether the memory belongs to a mapping whose file was truncated. */
bool xt_mapping_poisoned(const void *data, size_t size);

#endif
