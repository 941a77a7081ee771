#include "core/os/cpu.h"

#include <unistd.h>

int xt_cpu_count(void) {
  long count = sysconf(_SC_NPROCESSORS_ONLN);
  return count < 1 ? 1 : (int)count;
}
