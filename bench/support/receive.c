/* Receives a file from a web server on this machine into new memory, in ranges, with several threads:
 *
 *     receive PORT PATH SIZE THREADS
 *
 * Prints the milliseconds. It is the limit for a program that keeps what it receives. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { RANGE = 8 << 20, MAX_THREADS = 16 };

static const char *path;
static int port;
static size_t size, threads;
static char *memory;

static void fail(const char *what) {
  perror(what);
  exit(1);
}

static int connected(void) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address)) fail("connect");
  return fd;
}

static void receive_head(int fd) {
  char last[4] = {0};
  while (memcmp(last, "\r\n\r\n", 4)) {
    memmove(last, last + 1, 3);
    if (recv(fd, last + 3, 1, 0) != 1) fail("recv");
  }
}

static void *receive_ranges(void *first) {
  char request[1024];
  int fd = connected();
  for (size_t at = (size_t)first * RANGE; at < size; at += threads * RANGE) {
    size_t end = at + RANGE < size ? at + RANGE : size;
    int length = snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nhost: localhost\r\nrange: bytes=%zu-%zu\r\n\r\n",
                          path, at, end - 1);
    if (write(fd, request, (size_t)length) != length) fail("write");
    receive_head(fd);
    for (size_t got = at; got < end;) {
      ssize_t n = recv(fd, memory + got, end - got, 0);
      if (n <= 0) fail("recv");
      got += (size_t)n;
    }
  }
  close(fd);
  return NULL;
}

int main(int argc, char **argv) {
  struct timespec start, end;
  pthread_t ids[MAX_THREADS];
  if (argc != 5) return 2;
  port = atoi(argv[1]);
  path = argv[2];
  size = strtoull(argv[3], NULL, 10);
  threads = strtoull(argv[4], NULL, 10);
  if (threads > MAX_THREADS) return 2;
  memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) fail("mmap");
  clock_gettime(CLOCK_MONOTONIC, &start);
  for (size_t i = 0; i < threads; i++)
    if (pthread_create(&ids[i], NULL, receive_ranges, (void *)i)) fail("pthread_create");
  for (size_t i = 0; i < threads; i++) pthread_join(ids[i], NULL);
  clock_gettime(CLOCK_MONOTONIC, &end);
  printf("%.3f\n", (double)(end.tv_sec - start.tv_sec) * 1e3 + (double)(end.tv_nsec - start.tv_nsec) / 1e6);
  return 0;
}
