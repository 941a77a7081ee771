/* Pickles that must be refused, and how. Most are written in protocol 0, which is text: Vtext, I1, ( … t for a tuple.
 */
#include "core/pickle/unpickle.h"

#include <string.h>

#include "check.h"
#include "failing.h"
#include "node_text.h"

#define STORAGE_OF(class, key, location, numel) \
  "(Vstorage\nctorch\n" class "Storage\nV" key "\nV" location "\nI" numel "\ntQ"
#define STORAGE STORAGE_OF("Float", "0", "cpu", "4")
#define REBUILD(name, args) "ctorch._utils\n_rebuild_" name "\n(" args "tR"
#define SIZES "(I4\nt(I1\nt"
#define TENSOR REBUILD("tensor_v2", STORAGE "I0\n" SIZES "I00\nN")
#define TENSOR_OF(class, key, numel) \
  REBUILD("tensor_v2", STORAGE_OF(class, key, "cpu", numel) "I0\n(I" numel "\nt(I1\ntI00\nN")
#define DTYPE(code) "cnumpy\ndtype\n(V" code "\ntR"
#define ARRAY(shape, data) "cnumpy.core.multiarray\n_reconstruct\n(tR(I1\n" shape DTYPE("f4") "I00\n" data "tb"
#define LAYOUT(name) "ctorch.serialization\n_get_layout\n(V" name "\ntR"
#define QUANTIZED(parameters) REBUILD("qtensor", STORAGE_OF("QInt8", "q", "cpu", "4") "I0\n" SIZES parameters)
#define TIMES_8(text) text text text text text text text text
#define TIMES_64(text) TIMES_8(TIMES_8(text))
#define BIG "9223372036854775807"
#define P(text) text, sizeof text - 1
#define NO_ID "not a storage tuple"

typedef struct {
  const char *pickle;
  size_t size;
  xt_status status;
  const char *message;
  bool strict;
  xt_persistent_ids ids;
} refusal;

#define C XT_STATUS_corrupt
static const refusal refusals[] = {
    /* the machine */
    {P(""), XT_STATUS_truncated, "no STOP", 0, 0},
    {P("."), C, "stack underflow", 0, 0},
    {P("NN."), C, "1 values left", 0, 0},
    {P("\377."), C, "unknown opcode 0xff", 0, 0},
    {P("\200\7."), XT_STATUS_unsupported, "protocol 7", 0, 0},
    {P("0"), C, "stack underflow", 0, 0},
    {P("1"), C, "no mark", 0, 0},
    {P("2"), C, "stack underflow", 0, 0},
    {P("(2"), C, "stack underflow", 0, 0},
    {P("t."), C, "no mark", 0, 0},
    {P("a"), C, "stack underflow", 0, 0},
    {P("NNa"), C, "items added to a value that is not a list", 0, 0},
    {P("NNNs"), C, "not a dict", 0, 0},
    {P("(NNe"), C, "no container below the mark", 0, 0},
    {P("](Nu"), C, "key without a value", 0, 0},
    {P("p0\n"), C, "stack underflow", 0, 0},
    {P("g7\n"), C, "memo entry 7 was never stored", 0, 0},
    {P("Np-1\n"), C, "negative memo index", 0, 0},
    {P("Ng-1\n"), C, "negative memo index", 0, 0},
    {P("Np9999999999999999999\n"), C, "memo index is too large", 0, 0},
    {P("Ng9999999999999999999\n"), C, "memo index is too large", 0, 0},
    {P("\225\377\0\0\0\0\0\0\0N."), XT_STATUS_truncated, "FRAME", 0, 0},
    {P("\225\2\0\0\0\0\0\0\0X\0\0\0\0."), C, "crosses the end of the frame", 0, 0},
    {P("\202\1."), XT_STATUS_forbidden, "copyreg extension code 1", 0, 0},
    {P("\227."), XT_STATUS_unsupported, "out-of-band", 0, 0},
    /* numbers and texts */
    {P("Ix\n."), C, "invalid decimal integer", 0, 0},
    {P("I\n."), C, "without digits", 0, 0},
    {P("L-L\n."), C, "without digits", 0, 0},
    {P("F1.5x\n."), C, "invalid decimal float", 0, 0},
    {P("F\n."), C, "invalid decimal float", 0, 0},
    {P("I12"), XT_STATUS_truncated, "INT", 0, 0},
    {P("S'a\n."), C, "quotes", 0, 0},
    {P("S'\\x1'\n."), C, "invalid escape", 0, 0},
    {P("V\\u12\n."), C, "invalid escape", 0, 0},
    {P("X\1\0\0\0\377."), C, "not valid UTF-8", 0, 0},
    {P("c\377\na\n."), C, "not valid UTF-8", 0, 0},
    {P("NN\223."), C, "not a string", 0, 0},
    /* calls */
    {P("ca\nb\nNR."), C, "arguments are not a tuple", 0, 0},
    {P("ca\nb\n(tN\222."), C, "keyword arguments are not a dict", 0, 0},
    {P("ca\nb\nN(d\222."), C, "arguments are not a tuple", 0, 0},
    {P("\222."), C, "stack underflow", 0, 0},
    {P("(o"), C, "no class above the mark", 0, 0},
    {P("Nb"), C, "stack underflow", 0, 0},
    {P("NNb"), C, "state set on a value that cannot have one", 0, 0},
    {P("ctorch._tensor\n_rebuild_from_type_v2\n(ctorch._tensor\n_rebuild_from_type_v2\nca\nb\n(tNtR."), C,
     "calls itself", 0, 0},
    {P("ctorch._tensor\n_rebuild_from_type_v2\n(ctorch._utils\n_rebuild_tensor_v2\nca\nb\n(tNtR."), C,
     "without a storage", 0, 0},
    {P("ccollections\nOrderedDict\n((lI1\natR."), C, "not a pair", 0, 0},
    {P("c_codecs\nencode\n(V\\u0100\nVlatin1\ntR."), C, "above 255", 0, 0},
    /* strict */
    {P("cos\nsystem\n."), XT_STATUS_forbidden, "os.system", true, 0},
    {P("cposix\nsystem\n."), XT_STATUS_forbidden, "posix.system", true, 0},
    {P("I1\n."), XT_STATUS_forbidden, "opcode 0x49", true, 0},
    {P("\377."), XT_STATUS_forbidden, "unknown", true, 0},
    {P("(X\7\0\0\0storagectorch.storage\nUntypedStorage\nX\1\0\0\0"
       "0X\3\0\0\0cpuK\4tQ."),
     XT_STATUS_forbidden, "untyped", true, XT_IDS_LEGACY},
    /* storages */
    {P("NQ."), C, "not a storage tuple", 0, 0},
    {P("Px\n."), C, "not a storage tuple", 0, 0},
    {P("NQ."), C, "refers to storages outside", 0, XT_IDS_NONE},
    /* persistent ids as texts: the first one is complete */
    {P("P('storage', <class 'torch.FloatStorage'>, '0', 'cpu', 4)\nN."), C, "1 values left", 0, 0},
    {P("P\n."), C, NO_ID, 0, 0},
    {P("P(\n."), C, NO_ID, 0, 0},
    {P("P(x)\n."), C, NO_ID, 0, 0},
    {P("P('storage'\n."), C, NO_ID, 0, 0},
    {P("P('storage', \n."), C, NO_ID, 0, 0},
    {P("P('storage', 1)\n."), C, NO_ID, 0, 0},
    {P("P('storage)\n."), C, NO_ID, 0, 0},
    {P("P('stor\\age')\n."), C, NO_ID, 0, 0},
    {P("P('storage', <class 'torch.FloatStorage'>, '0', 'cpu', 4) \n."), C, NO_ID, 0, 0},
    {P("P('storage', <class 'torch.FloatStorage'>, '0', 'cpu', 4x)\n."), C, NO_ID, 0, 0},
    {P("P('storage', <class 'torch.FloatStorage'>, '0', 'cpu', -4)\n."), C, NO_ID, 0, 0},
    {P("P('storage', <class 'torch.FloatStorage'>, '0', 'cpu', 1234567890123456789)\n."), C, NO_ID, 0, 0},
    {P("P('storage', <class torch.FloatStorage>, '0', 'cpu', 4)\n."), C, NO_ID, 0, 0},
    {P("P('storage', <class 'torch.FloatStorage', '0', 'cpu', 4)\n."), C, NO_ID, 0, 0},
    {P("P('storage', <type 'torch.FloatStorage'>, '0', 'cpu', 4)\n."), C, NO_ID, 0, 0},
    {P("P('storage', <class 'FloatStorage'>, '0', 'cpu', 4)\n."), C, NO_ID, 0, 0},
    {P("P('storage', <class 'torch.NoStorage'>, '0', 'cpu', 4)\n."), C, "unknown storage class", 0, 0},
    {P("P('storage', <class 'torch.FloatStorage'>, None, 'cpu', 4)\n."), C, "wrong type", 0, 0},
    {P("P('storage', <class 'torch.FloatStorage'>, Nothing, 'cpu', 4)\n."), C, NO_ID, 0, 0},
    {P("P('storage', <class 'torch.FloatStorage'>, '0', 'cpu', 4, (1, (2, 3)))\n."), C, NO_ID, 0, 0},
    {P("P('storage', <class 'torch.FloatStorage'>, '0', 'cpu', 4, ('v', 2, 9))\n."), C, "view extends past", 0,
     XT_IDS_LEGACY},
    {P("P\377\n."), C, "not valid UTF-8", 0, 0},
    {P("Vx\nQ."), C, "not the key of a tensor", 0, XT_IDS_LABELS},
    {P("NQ."), C, "not the key of a tensor", 0, XT_IDS_LABELS},
    {P(STORAGE_OF("No", "0", "cpu", "1") "."), C, "unknown storage class", 0, 0},
    {P("(Vstorage\nctorch\nFloatStorage\nI0\nVcpu\nI4\ntQ."), C, "wrong type", 0, 0},
    {P(STORAGE_OF("Float", TIMES_64("12345"), "cpu", "1") "."), C, "longer than 256", 0, 0},
    {P(STORAGE_OF("Float", "0", TIMES_64("12345"), "1") "."), C, "longer than 256", 0, 0},
    {P(STORAGE_OF("Float", "0", "cpu", "-1") "."), C, "negative or too large", 0, 0},
    {P(STORAGE_OF("Float", "0", "cpu", BIG) "."), C, "negative or too large", 0, 0},
    {P("(" STORAGE STORAGE_OF("Float", "0", "cpu", "5") "t."), C, "used with two sizes", 0, 0},
    {P("(Vstorage\nctorch\nFloatStorage\nV0\nVcpu\nI4\n(Vv\nI2\nI3\nttQ."), C, "view extends past its storage 0", 0,
     XT_IDS_LEGACY},
    {P("(Vstorage\nctorch\nFloatStorage\nV0\nVcpu\nI4\nI0\ntQ."), C, "view extends past its storage 0", 0,
     XT_IDS_LEGACY},
    /* tensors */
    {P(REBUILD("tensor_v2", "") "."), C, "without a storage", 0, 0},
    {P(REBUILD("tensor_v2", STORAGE "I-1\n" SIZES) "."), C, "valid offset", 0, 0},
    {P(REBUILD("tensor_v3", STORAGE "I0\n" SIZES "I00\nNN") "."), C, "without a dtype", 0, 0},
    {P(REBUILD("tensor_v2", STORAGE "I0\nNN") "."), C, "size is not a tuple", 0, 0},
    {P(REBUILD("tensor_v2", STORAGE "I0\n(I4\ntN") "."), C, "stride is not a tuple", 0, 0},
    {P(REBUILD("tensor_v2", STORAGE "I0\n(I4\nt(t") "."), C, "1 sizes but 0 strides", 0, 0},
    {P(REBUILD("tensor_v2", STORAGE "I0\n(I-4\nt(I1\nt") "."), C, "non-negative", 0, 0},
    {P(REBUILD("tensor_v2", STORAGE "I0\n(Vx\nt(I1\nt") "."), C, "non-negative", 0, 0},
    {P(REBUILD("tensor_v2", STORAGE "I0\n" SIZES "I7\n") "."), C, "requires_grad", 0, 0},
    {P(REBUILD("tensor_v2", STORAGE "I1\n" SIZES) "."), C, "past the end of its storage", 0, 0},
    {P(REBUILD("tensor_v2", STORAGE "I0\n(I4\nt(I2\nt") "."), C, "past the end of its storage", 0, 0},
    {P(REBUILD("tensor_v2", STORAGE "I0\n(I4\nt(I" BIG "\nt") "."), C, "overflows", 0, 0},
    {P(REBUILD("tensor_v2", STORAGE "I0\n(I" BIG "\nt(I0\nt") "."), C, "overflows", 0, 0},
    {P(REBUILD("tensor_v2", STORAGE "I0\n(I" BIG "\nI" BIG "\nt(I0\nI0\nt") "."), C, "overflows", 0, 0},
    {P(REBUILD("tensor_v2", STORAGE "I0\n(I1000000000\nt(I0\nt") "."), XT_STATUS_limit, "tensor_bytes", 0, 0},
    {P(REBUILD("tensor_v2", STORAGE "I0\n" SIZES "I00\nN(Vconj\nVx\nd") "."), C, "conj bit", 0, 0},
    {P(REBUILD("tensor_v2", STORAGE "I0\n" SIZES "I00\nN(Vneg\nVx\nd") "."), C, "neg bit", 0, 0},
    {P(REBUILD("tensor_v2", "(Vstorage\nctorch\nFloatStorage\nV0\nVcpu\nI4\n(Vv\nI1\nI3\nttQI" BIG "\n" SIZES) "."), C,
     "offset overflows", 0, XT_IDS_LEGACY},
    {P(REBUILD("meta_tensor_no_storage", "N") "."), C, "without a dtype", 0, 0},
    {P(REBUILD("meta_tensor_no_storage", "ctorch\nfloat32\n(I4\nt(t") "."), C, "1 sizes but 0 strides", 0, 0},
    {P(REBUILD("meta_tensor_no_storage", "ctorch\nfloat32\nNN") "."), C, "size is not a tuple", 0, 0},
    {P(REBUILD("meta_tensor_no_storage", "ctorch\nfloat32\n" SIZES "Vx\n") "."), C, "requires_grad", 0, 0},
    {P(REBUILD("parameter", TENSOR "Vx\n") "."), C, "requires_grad", 0, 0},
    {P(REBUILD("device_tensor_from_numpy", TENSOR "ctorch\nfloat32\nNVx\n") "."), C, "requires_grad", 0, 0},
    /* parts */
    {P(REBUILD("sparse_tensor", LAYOUT("torch.sparse_coo") "(NNNt") "."), C, "not a strided tensor", 0, 0},
    {P(REBUILD("sparse_tensor", LAYOUT("torch.sparse_coo") "(" TENSOR TENSOR "(I4\ntt") "."), C,
     "have the dtype float32", 0, 0},
    {P(REBUILD("sparse_tensor", LAYOUT("torch.sparse_coo") "(" TENSOR_OF("Long", "1", "4") TENSOR "Nt") "."), C,
     "size is not a tuple", 0, 0},
    {P(REBUILD("sparse_tensor",
               LAYOUT("torch.sparse_coo") "(" TENSOR_OF("Long", "1", "4") TENSOR "(I" BIG "\nI4\ntt") "."),
     C, "overflows", 0, 0},
    {P(QUANTIZED("") "."), C, "without quantizer parameters", 0, 0},
    {P(QUANTIZED("(ctorch\nper_tensor_affine\nVx\nI0\nt") "."), C, "not a number", 0, 0},
    {P(QUANTIZED("(ctorch\nper_tensor_affine\nF1.0\nVx\nt") "."), C, "not a number", 0, 0},
    {P(QUANTIZED("(ctorch\nper_tensor_affine\nI1\nI0\ntVx\n") "."), C, "requires_grad", 0, 0},
    {P(QUANTIZED("(ctorch\nper_channel_affine\nNNI0\nt") "."), C, "invalid per-channel", 0, 0},
    {P(QUANTIZED("(ctorch\nper_channel_affine\n" TENSOR TENSOR "I0\nt") "."), C, "must be floats", 0, 0},
    {P(QUANTIZED("(ctorch\nper_channel_affine\n" TENSOR_OF("Float", "1", "3") TENSOR_OF("Long", "2", "3") "I0\nt") "."),
     C, "differs from the size of its axis", 0, 0},
    {P(REBUILD("qtensor", "NI0\n" SIZES "(ctorch\nper_tensor_affine\nF1.0\nI0\nt") "."), C, "without a storage", 0, 0},
    /* NumPy */
    {P(ARRAY("(I1\nt", "S'123'\n") "."), C, "does not fit its 3 bytes", 0, 0},
    {P(ARRAY("(I-1\nt", "S'1234'\n") "."), C, "non-negative", 0, 0},
    {P(ARRAY("(I" BIG "\nI2\nt", "S'1234'\n") "."), C, "overflows 64 bits", 0, 0},
    {P(ARRAY("(" TIMES_64("I1\n") "I1\nt", "S'1234'\n") "."), C, "65 dimensions", 0, 0},
    {P("cnumpy.core.multiarray\nscalar\n(" DTYPE("f4") "S'123'\ntR."), C, "NumPy scalar of 3 bytes", 0, 0},
    /* limits */
    {P(REBUILD("tensor_v2", STORAGE "I0\n(" TIMES_64("I1\n") "I1\nt(t") "."), C, "tensor of 65 dimensions", 0, 0},
};
#undef C

typedef struct {
  xt_arena arena;
  xt_storages storages;
  xt_rebuild rebuild;
  xt_error error;
  xt_node *root;
  xt_status status;
} result;

static void read_pickle(result *r, const char *pickle, size_t size, bool strict, xt_persistent_ids ids) {
  size_t used;
  *r = (result){.root = NULL};
  r->storages = (xt_storages){.arena = &r->arena, .max_tensor_bytes = 1 << 30};
  r->rebuild =
      (xt_rebuild){.arena = &r->arena, .strict = strict, .ids = ids, .storages = &r->storages, .error = &r->error};
  r->status = xt_unpickle((const uint8_t *)pickle, size, &r->rebuild, &used, &r->root);
}

static void free_result(result *r) {
  xt_rebuild_free(&r->rebuild);
  xt_storages_free(&r->storages);
  xt_arena_free(&r->arena);
}

static void bad_pickles_are_refused(void) {
  int wrong = 0;
  for (size_t i = 0; i < COUNT_OF(refusals); i++) {
    const refusal *bad = &refusals[i];
    result r;
    read_pickle(&r, bad->pickle, bad->size, bad->strict, bad->ids);
    if (r.status != bad->status || !strstr(r.error.message, bad->message)) {
      fprintf(stderr, "%s: expected %d \"%s\", got %d \"%s\"\n", bad->pickle, (int)bad->status, bad->message,
              (int)r.status, r.error.message);
      wrong++;
    }
    free_result(&r);
  }
  CHECK(!wrong);
}

static void reads(const char *pickle, const char *text) {
  result r;
  read_pickle(&r, pickle, strlen(pickle), false, XT_IDS_RECORDS);
  if (r.status != XT_STATUS_ok) fprintf(stderr, "%s: %s\n", pickle, r.error.message);
  CHECK(r.status == XT_STATUS_ok && node_reads(r.root, text));
  free_result(&r);
}

/* Forms that the fixtures do not have. What has no meaning stays an inert object. */
static const char *const readable[][2] = {
    {TENSOR ".", "tensor(float32, size (4), stride (1), storage 0 + 0)"},
    {REBUILD("tensor", STORAGE "I1\n(I3\nt(I1\nt") ".", "tensor(float32, size (3), stride (1), storage 0 + 1)"},
    {REBUILD("parameter", TENSOR "I01\n") ".",
     "tensor(float32, size (4), stride (1), storage 0 + 0, requires_grad, parameter)"},
    {REBUILD("device_tensor_from_numpy", TENSOR "ctorch\nfloat32\nVcpu\nI01\n") ".",
     "tensor(float32, size (4), stride (1), storage 0 + 0, requires_grad)"},
    {REBUILD("device_tensor_from_numpy", "NN") ".",
     "<call torch._utils._rebuild_device_tensor_from_numpy args (None, None)>"},
    {"ccopy_reg\n__newobj__\n(ca\nb\nI1\ntR.", "<new a.b args (1)>"},
    {"ca\nb\n(I1\nt(Vk\nI2\nd\222.", "<new a.b args (1) dict {'k': 2}>"},
    {"ccollections\nOrderedDict\n((l(I1\nI2\ntatR.", "{1: 2}"},
    {"ccollections\nCounter\n((Va\nI1\ndtR.", "{'a': 1}"},
    {"(I1\nca\nb\no.", "<new 1 args (a.b)>"},
    {"(I1\nica\nb\n.", "<new ca.b args (1)>"},
    {"Np5000\n0g5000\n.", "None"},
    {"cbuiltins\ncomplex\n(F1.5\nI2\ntR.", "complex(1.5, 2)"},
    {"ctorch\ndevice\n(Vcuda\nI1\ntR.", "device(cuda, 1)"},
    {"cbuiltins\nbytearray\n(tR.", "bytearray''"},
    {"ca\nb\n(tRI1\na.", "<call a.b args () list [1]>"},
    {"ctorch._tensor\n_rebuild_from_type_v2\n(ctorch._utils\n_rebuild_tensor_v2\nctorch\nTensor\n(" STORAGE "I0\n" SIZES
     "I00\nNtNtR.",
     "tensor(float32, size (4), stride (1), storage 0 + 0)"},
    {"ctorch._tensor\n_rebuild_from_type_v2\n(ca\nb\nctorch\nTensor\n(tNtR.",
     "subclass(<call a.b args ()>, torch.Tensor, None)"},
};

static void unusual_forms_are_read(void) {
  for (size_t i = 0; i < COUNT_OF(readable); i++) reads(readable[i][0], readable[i][1]);
}

/* The ids of protocol 0 are the texts of Python's str(). */
#define TEXT_ID(rest) "P('storage', <class 'torch.FloatStorage'>, '0', 'cuda:0', 4" rest ")\n"
static const char *const text_ids[][2] = {
    {TEXT_ID("") ".", "storage(0)"},
    {TEXT_ID(", None") ".", "storage(0)"},
    {TEXT_ID(", ('1', 1, 3)") ".", "storage(0)"},
    {REBUILD("tensor_v2", TEXT_ID(", None") "I0\n" SIZES "I00\nN") ".",
     "tensor(float32, size (4), stride (1), storage 0 + 0)"},
    {"P('module', <class 'a.b.Net'>, 'net.py', 'class Net')\n.", "a.b.Net"},
};

static void persistent_ids_as_texts_are_read(void) {
  for (size_t i = 0; i < COUNT_OF(text_ids); i++) {
    result r;
    read_pickle(&r, text_ids[i][0], strlen(text_ids[i][0]), false, XT_IDS_LEGACY);
    if (r.status != XT_STATUS_ok) fprintf(stderr, "%s: %s\n", text_ids[i][0], r.error.message);
    CHECK(r.status == XT_STATUS_ok && node_reads(r.root, text_ids[i][1]));
    if (r.storages.count)
      CHECK(r.storages.list[0].location_size == 6 && !memcmp(r.storages.list[0].location, "cuda:0", 6));
    if (r.root->kind == XT_NODE_STORAGE && i == 2) CHECK(r.root->storage.start == 1 && r.root->storage.count == 3);
    free_result(&r);
  }
  fail_arenas = true;
  for (size_t i = 0; i < COUNT_OF(text_ids); i++)
    for (fail_at = 0;; fail_at++) {
      result r;
      allocations = 0;
      read_pickle(&r, text_ids[i][0], strlen(text_ids[i][0]), false, XT_IDS_LEGACY);
      bool failed = allocations > fail_at;
      CHECK(r.status == (failed ? XT_STATUS_no_memory : XT_STATUS_ok));
      free_result(&r);
      if (!failed) break;
    }
  fail_at = -1;
  fail_arenas = false;
}

static void survives_every_failed_allocation(void) {
  fail_arenas = true;
  for (size_t i = 0; i < COUNT_OF(readable); i++)
    for (fail_at = 0;; fail_at++) {
      result r;
      allocations = 0;
      read_pickle(&r, readable[i][0], strlen(readable[i][0]), false, XT_IDS_RECORDS);
      bool failed = allocations > fail_at;
      CHECK(r.status == (failed ? XT_STATUS_no_memory : XT_STATUS_ok));
      free_result(&r);
      if (!failed) break;
    }
  fail_at = -1;
  fail_arenas = false;
}

int main(void) {
  return RUN_TESTS("unpickle", bad_pickles_are_refused, unusual_forms_are_read, persistent_ids_as_texts_are_read,
                   survives_every_failed_allocation);
}
