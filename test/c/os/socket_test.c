/* Receives from sockets that another thread of the VM would own. */
#include "core/os/socket.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"

static int here, there;

static void connect_both(void) {
  int pair[2];
  CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
  here = pair[0], there = pair[1];
}

static void receives_what_has_arrived(void) {
  char bytes[8] = {0};
  connect_both();
  CHECK(xt_socket_receive(here, bytes, sizeof bytes) == 0); /* nothing yet: does not wait */
  CHECK(write(there, "abcdef", 6) == 6);
  CHECK(xt_socket_receive(here, bytes, 4) == 4 && !memcmp(bytes, "abcd", 4));
  CHECK(xt_socket_receive(here, bytes, sizeof bytes) == 2 && !memcmp(bytes, "ef", 2));
  close(there);
  CHECK(xt_socket_receive(here, bytes, sizeof bytes) == 0); /* the end */
  close(here);
  CHECK(xt_socket_receive(here, bytes, sizeof bytes) == 0); /* no socket */
}

static void a_duplicate_outlives_the_original(void) {
  char byte;
  connect_both();
  int copy = xt_socket_duplicate(here);
  CHECK(copy >= 0 && copy != here);
  close(here);
  CHECK(xt_socket_duplicate(here) == -1);
  CHECK(write(there, "x", 1) == 1 && xt_socket_receive(copy, &byte, 1) == 1 && byte == 'x');
  xt_socket_close(copy);
  close(there);
}

int main(void) { return RUN_TESTS("socket", receives_what_has_arrived, a_duplicate_outlives_the_original); }
