#include "nif/frozen_binary.h"

#include "core/os/clock.h"
#include "nif/pin.h"
#include "nif/table.h"
#include "nif/term.h"

/* How long a call waits for the end of another call that writes to the memory. */
enum { WAIT_MS = 1000 };

/* The resource of a binary. */
typedef struct {
  void *owner;
  void (*release)(void *owner);
  xt_frozen frozen;
} binary_resource;

static void destroy_binary(ErlNifEnv *env, void *object) {
  binary_resource *resource = object;
  (void)env;
  xt_frozen_remove(&resource->frozen);
  if (resource->owner) resource->release(resource->owner);
}

const ErlNifResourceTypeInit xt_frozen_binary_callbacks = {.dtor = destroy_binary};

/* Returns whether nothing writes to the memory, which is frozen: nothing can begin to write either. Waits for calls
 * that are writing, except on a normal scheduler. A writer waits for nobody, so there is no deadlock. */
static bool is_still(const void *data, size_t size) {
  bool may_wait = enif_thread_type() != ERL_NIF_THR_NORMAL_SCHEDULER;
  xt_writers writers = xt_frozen_writers(data, size);
  for (int ms = 0; may_wait && writers == XT_WRITERS_CALL && ms < WAIT_MS; ms++) {
    xt_clock_sleep_us(1000);
    writers = xt_frozen_writers(data, size);
  }
  return writers == XT_WRITERS_NONE;
}

bool xt_make_still_binary(ErlNifEnv *env, const void *data, size_t size, void *owner, void (*release)(void *owner),
                          ERL_NIF_TERM *out) {
  binary_resource *resource = enif_alloc_resource(xt_frozen_binary_type, sizeof *resource);
  *resource = (binary_resource){.owner = owner, .release = release};
  xt_frozen_add(&resource->frozen, data, size);
  bool still = is_still(data, size);
  if (still) {
    *out = enif_make_resource_binary(env, resource, data, size);
  } else {
    resource->owner = NULL;              /* the caller keeps it */
    xt_frozen_remove(&resource->frozen); /* here, because the destructor may run later */
  }
  enif_release_resource(resource);
  return still;
}

ERL_NIF_TERM xt_make_frozen_binary(ErlNifEnv *env, const void *data, size_t size, void *owner,
                                   void (*release)(void *owner)) {
  ERL_NIF_TERM binary;
  if (xt_make_still_binary(env, data, size, owner, release, &binary)) return binary;
  binary = xt_make_text(env, data, size);
  release(owner);
  return binary;
}

static void release_region(void *region) { xt_region_drop_later(region); }

ERL_NIF_TERM xt_make_region_binary(ErlNifEnv *env, xt_region *region, const void *data, size_t size) {
  return xt_make_frozen_binary(env, data, size, region, release_region);
}

static void release_pin(xt_region *self) { xt_pin_release(self->owner); }

xt_region *xt_region_from_binary(ERL_NIF_TERM term) {
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
