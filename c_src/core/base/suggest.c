#include "core/base/suggest.h"

#include <string.h>

static size_t min_of(size_t a, size_t b) { return a < b ? a : b; }

size_t xt_suggest_distance(const char *a, const char *b) {
  size_t na = strnlen(a, XT_SUGGEST_MAX), nb = strnlen(b, XT_SUGGEST_MAX);
  size_t rows[3][XT_SUGGEST_MAX + 1];
  size_t *two_up = rows[0], *up = rows[1], *row = rows[2];

  for (size_t j = 0; j <= nb; j++) row[j] = j;
  for (size_t i = 1; i <= na; i++) {
    size_t *spare = two_up;
    two_up = up, up = row, row = spare;
    row[0] = i;
    for (size_t j = 1; j <= nb; j++) {
      row[j] = min_of(min_of(up[j], row[j - 1]) + 1, up[j - 1] + (a[i - 1] != b[j - 1]));
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = min_of(row[j], two_up[j - 2] + 1);
    }
  }
  return row[nb];
}
