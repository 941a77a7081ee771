#include "nif/region_binary.h"

#include "nif/pin.h"
#include "nif/table.h"

/* What a binary over a region keeps. */
typedef struct {
  xt_region *region;
  xt_frozen frozen;
} region_view;

static void region_destroyed(ErlNifEnv *env, void *object) {
  region_view *view = object;
  (void)env;
  xt_frozen_remove(&view->frozen);
  xt_region_drop_later(view->region);
}

const ErlNifResourceTypeInit xt_region_binary_callbacks = {.dtor = region_destroyed};

ERL_NIF_TERM xt_make_region_binary(ErlNifEnv *env, xt_region *region, const void *data, size_t size) {
  region_view *view = enif_alloc_resource(xt_region_binary_type, sizeof *view);
  view->region = region;
  xt_frozen_add(&view->frozen, data, size);
  ERL_NIF_TERM binary = enif_make_resource_binary(env, view, data, size);
  enif_release_resource(view);
  return binary;
}

static void release_pin(xt_region *self) { xt_pin_release(self->owner); }

xt_region *xt_pin_binary(ERL_NIF_TERM term) {
  ErlNifBinary binary;
  ERL_NIF_TERM copy;
  xt_pin *pin = xt_pin_new();
  if (pin && xt_pin_term(pin, term, &copy) && enif_inspect_binary(pin->env, copy, &binary)) {
    xt_region *region = xt_region_foreign(binary.data, binary.size, pin, release_pin);
    if (region) {
      xt_frozen_add(&pin->frozen, binary.data, binary.size);
      return region;
    }
  }
  if (pin) xt_pin_release(pin);
  return NULL;
}
