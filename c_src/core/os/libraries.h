/* Shared libraries: loading one, and listing those that are loaded. */
#ifndef XT_OS_LIBRARIES_H
#define XT_OS_LIBRARIES_H

#include <stdbool.h>

/* Loads a shared library. Its symbols are not visible to other libraries. Returns NULL on failure, with the reason in
 * *reason, which is valid until the next call of this thread. */
void *xt_libraries_open(const char *path, const char **reason);

/* Returns the address of a symbol, or NULL if the library does not have it. */
void *xt_libraries_symbol(void *library, const char *name);

/* Keeps the library that contains the address loaded until the process ends, even if it is closed. On Linux the linker
 * flag `-z nodelete` does this. */
void xt_libraries_pin(const void *address);

/* Calls `visit` with the path of every library that is loaded into this process. */
void xt_libraries_each(void (*visit)(void *context, const char *path), void *context);

/* Returns whether a library that was linked with the file `linked` uses `other` if that is loaded already. It does if
 * `other` is the same file, or a copy of it with the same name: a release contains copies. If there is no file `linked`
 * on this machine, the name decides, by which the loader would find `other`. */
bool xt_libraries_shares(const char *linked, const char *other);

#endif
