#include "core/os/socket.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { WAIT_MS = 2 };

int xt_socket_duplicate(int fd) { return fcntl(fd, F_DUPFD_CLOEXEC, 0); }

void xt_socket_close(int fd) { close(fd); }

static ssize_t receive_now(int fd, void *to, size_t size) {
  ssize_t got;
  do got = recv(fd, to, size, MSG_DONTWAIT);
  while (got < 0 && errno == EINTR);
  return got;
}

size_t xt_socket_receive(int fd, void *to, size_t size) {
  struct pollfd wanted = {.fd = fd, .events = POLLIN};
  ssize_t got = receive_now(fd, to, size);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) && poll(&wanted, 1, WAIT_MS) > 0)
    got = receive_now(fd, to, size);
  return got > 0 ? (size_t)got : 0;
}
