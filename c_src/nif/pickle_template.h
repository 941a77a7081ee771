/* A pickle with a gap for every storage: what a tensor is, is known when the term is walked, but not where it lies in
 * the file, since tensors over the same memory share a storage. The gaps are filled when all tensors are listed.
 *
 * So the term is walked once, and each tensor is looked at once: most of what a save of many small tensors takes is
 * waiting for memory. */
#ifndef XT_NIF_PICKLE_TEMPLATE_H
#define XT_NIF_PICKLE_TEMPLATE_H

#include "core/pickle/pickler.h"
#include "nif/save_tensors.h"

typedef struct {
  size_t at;   /* in the pickle */
  size_t view; /* of the list of tensors */
  bool untyped;
} xt_pickle_gap;

typedef struct {
  xt_pickler pickle;
  xt_pickle_gap *gaps;
  size_t count, room;
} xt_pickle_template;

/* Here goes what is known of the view later: (…, key, location, numel) and its offset in there. An untyped storage
 * counts bytes. */
void xt_pickle_template_gap(xt_pickle_template *t, size_t view, bool untyped);

/* The whole pickle. `views`: persistent ids have a view, as legacy files do. */
xt_status xt_pickle_template_fill(const xt_pickle_template *t, const xt_save_tensors *tensors, bool views,
                                  xt_pickler *out, xt_error *error);

void xt_pickle_template_free(xt_pickle_template *t);

#endif
