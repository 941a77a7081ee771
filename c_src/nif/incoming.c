/* Binaries that arrive in pieces, from a socket of the VM or from Elixir.
 *
 * The memory is our own: the system provides it in huge pages, and dirty schedulers write to it. gen_tcp receives into
 * memory of the VM, on a normal scheduler, which also waits for each new page.
 *
 * The VM waits for bytes (gen_tcp:recv); incoming_receive receives what else has arrived. */
#include "core/os/socket.h"

#include <string.h>

#include "nif/busy.h"
#include "nif/frozen_binary.h"
#include "nif/table.h"
#include "nif/term.h"

enum { MAX_RECEIVE = 1 << 20 }; /* between checks whether the caller is alive */

/* A binary that is being received. */
typedef struct {
  xt_busy busy;
  xt_region *region; /* NULL once it is a binary */
  size_t received;
} incoming;

static void destroy_incoming(ErlNifEnv *env, void *object) {
  incoming *in = object;
  (void)env;
  xt_region_drop_later(in->region);
}

const ErlNifResourceTypeInit xt_incoming_callbacks = {.dtor = destroy_incoming};

static bool get_incoming(ErlNifEnv *env, ERL_NIF_TERM term, incoming **out) {
  return enif_get_resource(env, term, xt_incoming_type, (void **)out);
}

/* incoming_begin(size) :: {:ok, incoming, bytes} | {:error, e} */
ERL_NIF_TERM xt_nif_incoming_begin(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  ErlNifUInt64 size;
  xt_error error;
  (void)argc;
  if (!enif_get_uint64(env, argv[0], &size) || !size) return enif_make_badarg(env);
  xt_region *region = xt_region_new(size, 0);
  if (!region) return xt_make_result(env, xt_region_refused(&error), xt_am_nil, &error);
  incoming *in = enif_alloc_resource(xt_incoming_type, sizeof *in);
  *in = (incoming){.region = region};
  ERL_NIF_TERM term = enif_make_resource(env, in);
  enif_release_resource(in);
  return xt_make_ok(env, term);
}

/* Receives what has arrived. If the caller is alive after the descriptor was duplicated, its socket was open before. */
static void receive_arrived(ErlNifEnv *env, incoming *in, int socket) {
  int fd = xt_socket_duplicate(socket);
  while (fd >= 0 && in->received < in->region->size && enif_is_current_process_alive(env)) {
    size_t missing = in->region->size - in->received;
    size_t got = xt_socket_receive(fd, in->region->data + in->received, missing < MAX_RECEIVE ? missing : MAX_RECEIVE);
    if (!got) break;
    in->received += got;
  }
  if (fd >= 0) xt_socket_close(fd);
}

/* Appends the bytes, then what has arrived. */
static ERL_NIF_TERM append(ErlNifEnv *env, incoming *in, int socket, const ErlNifBinary *bytes) {
  if (!in->region || bytes->size > in->region->size - in->received) return enif_make_badarg(env);
  memcpy(in->region->data + in->received, bytes->data, bytes->size);
  in->received += bytes->size;
  receive_arrived(env, in, socket);
  return xt_make_ok(env, enif_make_uint64(env, in->region->size - in->received));
}

/* incoming_receive(incoming, descriptor | -1, bytes) :: {:ok, missing, 0} | {:error, e} */
ERL_NIF_TERM xt_nif_incoming_receive(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  incoming *in;
  ErlNifBinary bytes;
  xt_error error;
  int socket;
  (void)argc;
  if (!get_incoming(env, argv[0], &in) || !enif_get_int(env, argv[1], &socket) ||
      !enif_inspect_binary(env, argv[2], &bytes))
    return enif_make_badarg(env);
  if (xt_busy_enter(&in->busy, "receiving these bytes", &error) != XT_STATUS_ok) return xt_make_error(env, &error);
  ERL_NIF_TERM result = append(env, in, socket, &bytes);
  xt_busy_leave(&in->busy);
  return result;
}

/* incoming_finish(incoming) :: {:ok, binary, 0} | {:error, e}     what was received so far */
ERL_NIF_TERM xt_nif_incoming_finish(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  incoming *in;
  xt_error error;
  (void)argc;
  if (!get_incoming(env, argv[0], &in)) return enif_make_badarg(env);
  if (xt_busy_enter(&in->busy, "receiving these bytes", &error) != XT_STATUS_ok) return xt_make_error(env, &error);
  xt_region *region = in->region;
  in->region = NULL;
  xt_busy_leave(&in->busy);
  return region ? xt_make_ok(env, xt_make_region_binary(env, region, region->data, in->received))
                : enif_make_badarg(env);
}
