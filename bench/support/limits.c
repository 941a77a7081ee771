/* Plain loops over the same bytes: the limits that the benchmarks compare with.
 *
 *   limits FILE                   reads the file into fresh huge pages
 *   limits -r THREADS FILE        the same with several threads, in pieces of 4 MiB
 *   limits FILE BYTES [SECONDS]   writes that many bytes to the file in pieces of 1 MiB
 *   limits -BYTES [SECONDS]       touches that many bytes of memory and frees them
 *   limits -d FILE                drops the file from the page cache, and all others if it may
 *
 * The first three print "ready", start when they receive a line, and print the elapsed milliseconds. SECONDS
 * are slept first.
 *
 * Why memory is touched and freed before a measurement: a virtual machine is slow to back memory that was never used,
 * and a process that follows one with small pages pays for merging them into huge ones. Why they sleep: a virtual
 * machine returns freed memory to its host two to ten seconds later, which can stop all of its cores for tens of
 * milliseconds. The memory freed here is returned only after the measurement, unless that takes two seconds or more.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static char *map_huge_pages(size_t size) {
  char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) exit(1);
  madvise(memory, size, MADV_HUGEPAGE);
  return memory;
}

static char *map_and_touch(size_t size) {
  char *memory = map_huge_pages(size);
  for (size_t at = 0; at < size; at += 4096) memory[at] = 1;
  return memory;
}

static double milliseconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static void wait_for_start(void) {
  puts("ready");
  fflush(stdout);
  while (getchar() != '\n') {
  }
}

static int read_loop(const char *path) {
  struct stat file;
  int fd = open(path, O_RDONLY);
  if (fd < 0 || fstat(fd, &file)) return 1;
  wait_for_start();
  double start = milliseconds();
  char *memory = map_huge_pages((size_t)file.st_size);
  for (off_t at = 0; at < file.st_size;) {
    ssize_t got = read(fd, memory + at, 8 << 20);
    if (got <= 0) return 1;
    at += got;
  }
  printf("%f\n", milliseconds() - start);
  return 0;
}

static struct {
  int fd;
  char *memory;
  size_t size;
  atomic_size_t next;
} shared;

static void *read_pieces(void *unused) {
  enum { PIECE = 4 << 20 };
  for (size_t at; (at = atomic_fetch_add(&shared.next, PIECE)) < shared.size;) {
    size_t end = shared.size - at < PIECE ? shared.size : at + PIECE;
    while (at < end) {
      ssize_t got = pread(shared.fd, shared.memory + at, end - at, (off_t)at);
      if (got <= 0) exit(1);
      at += (size_t)got;
    }
  }
  return unused;
}

static int read_by_threads(int threads, const char *path) {
  pthread_t others[256];
  struct stat file;
  shared.fd = open(path, O_RDONLY);
  if (shared.fd < 0 || fstat(shared.fd, &file) || threads < 1 || threads > 256) return 1;
  wait_for_start();
  double start = milliseconds();
  shared.size = (size_t)file.st_size;
  shared.memory = map_huge_pages(shared.size + (2 << 20));
  shared.memory += (2 << 20) - (size_t)shared.memory % (2 << 20);
  for (int i = 1; i < threads; i++)
    if (pthread_create(&others[i], NULL, read_pieces, NULL)) return 1;
  read_pieces(NULL);
  for (int i = 1; i < threads; i++) pthread_join(others[i], NULL);
  printf("%f\n", milliseconds() - start);
  return 0;
}

/* Only pages that were written to the disk can be dropped. Writing to drop_caches needs root. */
static int drop(const char *path) {
  int fd = open(path, O_RDONLY), all = open("/proc/sys/vm/drop_caches", O_WRONLY);
  if (fd < 0 || fsync(fd) || posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED)) return 1;
  return all >= 0 && write(all, "1", 1) != 1;
}

static int write_loop(const char *path, size_t size, unsigned seconds) {
  char *memory = map_and_touch(size);
  unlink(path);
  sleep(seconds);
  munmap(map_and_touch(size + size / 2), size + size / 2);
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (fd < 0) return 1;
  wait_for_start();
  double start = milliseconds();
  for (size_t at = 0; at < size;) {
    ssize_t written = write(fd, memory + at, size - at < 1 << 20 ? size - at : 1 << 20);
    if (written <= 0) return 1;
    at += (size_t)written;
  }
  printf("%f\n", milliseconds() - start);
  return 0;
}

int main(int argc, char **argv) {
  if (argc < 2) return 2;
  if (argc == 4 && argv[1][0] == '-' && argv[1][1] == 'r') return read_by_threads(atoi(argv[2]), argv[3]);
  if (argc == 3 && argv[1][0] == '-' && argv[1][1] == 'd') return drop(argv[2]);
  if (argv[1][0] == '-') {
    if (argc > 2) sleep((unsigned)atoi(argv[2]));
    map_and_touch(strtoull(argv[1] + 1, NULL, 10));
    return 0;
  }
  if (argc == 2) return read_loop(argv[1]);
  return write_loop(argv[1], strtoull(argv[2], NULL, 10), argc > 3 ? (unsigned)atoi(argv[3]) : 0);
}
