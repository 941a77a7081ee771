/* Push parser of plain pickles. */
#include "core/formats/plain_pickle.h"

xt_status xt_plain_pickle_push(xt_push *p, xt_error *error) {
  xt_status status;
  size_t size;
  p->spooling = true;
  return xt_push_scan_pickle(p, &size, &status, error) ? xt_push_open_spool(p, size, error) : status;
}
