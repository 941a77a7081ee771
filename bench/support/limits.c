/* Plain loops over the same bytes: the limits that the benchmarks compare with.
 *
 *   limits FILE                   reads the file into fresh huge pages
 *   limits FILE BYTES [SECONDS]   writes that many bytes to the file in pieces of 1 MiB
 *   limits -BYTES [SECONDS]       touches that many bytes of memory and frees them
 *
 * The first two print "ready", start when they receive a line, and print the elapsed milliseconds. The last two sleep
 * for the given number of seconds first.
 *
 * Why memory is touched and freed before a measurement: a virtual machine is slow to back memory that was never used,
 * and a process that follows one with small pages pays for merging them into huge ones. Why they sleep: a virtual
 * machine returns freed memory to its host two to ten seconds later, which can stop all of its cores for tens of
 * milliseconds. The memory freed here is returned only after the measurement, unless that takes two seconds or more.
 */
#define _GNU_SOURCE
#include <fcntl.h>
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
  if (argv[1][0] == '-') {
    if (argc > 2) sleep((unsigned)atoi(argv[2]));
    map_and_touch(strtoull(argv[1] + 1, NULL, 10));
    return 0;
  }
  if (argc == 2) return read_loop(argv[1]);
  return write_loop(argv[1], strtoull(argv[2], NULL, 10), argc > 3 ? (unsigned)atoi(argv[3]) : 0);
}
