#include "core/checkpoint/push_stored.h"

#include <inttypes.h>

#include "core/checkpoint/opening.h"

void xt_push_set_stored(xt_push *p, uint64_t bytes) {
  p->unpacked = true;
  p->stored = bytes;
}

void xt_push_stored_limit(xt_push *p, size_t buffer) {
  xt_allowance *a = &p->checkpoint->allowance;
  if (!p->unpacked || !p->checkpoint->opening) return;
  xt_opening_set_present(p->checkpoint->opening, p->stored);
  a->limit -= buffer < a->limit ? buffer : a->limit;
}

bool xt_push_stored_fits(xt_push *p, size_t buffer) {
  xt_push_stored_limit(p, 0);
  return xt_allowance_fits(&p->checkpoint->allowance, buffer);
}

xt_status xt_push_stored_check(xt_push *p, xt_error *error) {
  xt_push_stored_limit(p, 0);
  if (!p->unpacked || p->at - p->received <= p->checkpoint->allowance.limit) return XT_STATUS_ok;
  return xt_push_stored_exceeded(p, error);
}

xt_status xt_push_stored_exceeded(xt_push *p, xt_error *error) {
  xt_push_stored_limit(p, 0);
  return xt_error_at(error, XT_STATUS_limit, (int64_t)p->at,
                     "%" PRIu64 " bytes of gzip data become more than %" PRIu64
                     " bytes besides tensors, which is too much for their size; if you trust them, raise the limit "
                     "with limits: [memory: n]",
                     p->stored, p->checkpoint->allowance.limit);
}
