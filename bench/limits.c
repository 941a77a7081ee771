/* The physical limits that load.exs and save.exs measure against.
 *
 *   limits FILE                   reads it into fresh huge pages and prints the milliseconds that took
 *   limits FILE BYTES [SECONDS]   writes so much memory to it in pieces of 1 MiB and prints the same
 *   limits -BYTES [SECONDS]       touches so much memory and gives it back: a virtual machine is slow to back what was
 * never used, and a process that follows one with small pages pays for making huge ones of them
 *
 * The first two say that they are ready, and begin when they are given a line. The last two rest before they touch
 * memory that they give back: a virtual machine hands freed memory to its host two to ten seconds later, which can
 * stop all its cores for tens of milliseconds. What they free themselves comes later than
 * what is measured, unless that takes two seconds.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static char *fresh(size_t size) {
  char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) exit(1);
  madvise(memory, size, MADV_HUGEPAGE);
  return memory;
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static void wait_for_go(void) {
  puts("ready");
  fflush(stdout);
  while (getchar() != '\n') {
  }
}

static char *touched(size_t size) {
  char *memory = fresh(size);
  for (size_t at = 0; at < size; at += 4096) memory[at] = 1;
  return memory;
}

static int write_loop(const char *path, size_t size, unsigned rest) {
  char *memory = touched(size);
  unlink(path);
  sleep(rest);
  munmap(touched(size + size / 2), size + size / 2);
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (fd < 0) return 1;
  wait_for_go();
  double start = now();
  for (size_t at = 0; at < size;) {
    ssize_t wrote = write(fd, memory + at, size - at < 1 << 20 ? size - at : 1 << 20);
    if (wrote <= 0) return 1;
    at += (size_t)wrote;
  }
  printf("%f\n", now() - start);
  return 0;
}

int main(int argc, char **argv) {
  struct stat file;
  if (argc < 2) return 2;
  if (argv[1][0] == '-') {
    if (argc > 2) sleep((unsigned)atoi(argv[2]));
    touched(strtoull(argv[1] + 1, NULL, 10));
    return 0;
  }
  if (argc > 2) return write_loop(argv[1], strtoull(argv[2], NULL, 10), argc > 3 ? (unsigned)atoi(argv[3]) : 0);
  int fd = open(argv[1], O_RDONLY);
  if (fd < 0 || fstat(fd, &file)) return 1;
  wait_for_go();
  double start = now();
  char *memory = fresh((size_t)file.st_size);
  for (off_t at = 0; at < file.st_size;) {
    ssize_t got = read(fd, memory + at, 8 << 20);
    if (got <= 0) return 1;
    at += got;
  }
  printf("%f\n", now() - start);
  return 0;
}
