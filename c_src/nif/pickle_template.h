/* A pickle with a gap for every storage. While the term is walked, the storage of a tensor is not known yet, because
 * tensors that share memory share a storage. The gaps are filled once all tensors are known.
 *
 * This way the term is walked only once, and each tensor is visited only once: a save of many small tensors spends most
 * of its time waiting for memory. */
#ifndef XT_NIF_PICKLE_TEMPLATE_H
#define XT_NIF_PICKLE_TEMPLATE_H

#include "core/pickle/pickler.h"
#include "nif/save_tensors.h"

typedef struct {
  size_t at;   /* offset in the pickle */
  size_t view; /* index in xt_save_tensors.views */
  bool untyped;
} xt_pickle_gap;

typedef struct {
  xt_pickler pickle;
  xt_pickle_gap *gaps;
  size_t count, room;
} xt_pickle_template;

/* Adds a gap for (…, key, location, numel) of the storage of a view and for the offset in it. The numel of an untyped
 * storage counts bytes. */
void xt_pickle_template_gap(xt_pickle_template *t, size_t view, bool untyped);

/* Writes the whole pickle. With `views`, persistent ids have a view, as in legacy files. */
xt_status xt_pickle_template_fill(const xt_pickle_template *t, const xt_save_tensors *tensors, bool views,
                                  xt_pickler *out, xt_error *error);

void xt_pickle_template_free(xt_pickle_template *t);

#endif
