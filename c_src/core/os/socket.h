/* Sockets that the VM has opened. The VM waits for their bytes; these functions receive what has arrived. */
#ifndef XT_OS_SOCKET_H
#define XT_OS_SOCKET_H

#include <stddef.h>

/* Returns another descriptor of the socket, which stays valid if the VM closes its own. Returns -1 if there is none. */
int xt_socket_duplicate(int fd);
void xt_socket_close(int fd);

/* Receives up to `size` bytes. Waits a moment, but not longer, for the first of them. Returns 0 if none has arrived, or
 * if the connection has ended or failed: the next function of the VM that receives from the socket says which. */
size_t xt_socket_receive(int fd, void *to, size_t size);

#endif
