/* Mutates the pickle of an input by opcodes: inserts, replaces, removes, repeats and moves opcodes with complete
 * arguments, so that most results get past the first error. Mixed with libFuzzer's own mutations of bytes. */
#ifndef XT_FUZZ_MUTATE_PICKLE_H
#define XT_FUZZ_MUTATE_PICKLE_H

#include "core/pickle/opcodes.h"
#include "fuzz.h"

enum { PICKLE_AT = 4, MAX_OPCODES = 4096 }; /* the pickle begins after the options */

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);

/* Names that rebuild knows, and some that it does not. */
static const char *const globals[] = {"torch._utils\n_rebuild_tensor_v2\n",
                                      "torch._utils\n_rebuild_tensor_v3\n",
                                      "torch._utils\n_rebuild_tensor\n",
                                      "torch._utils\n_rebuild_parameter\n",
                                      "torch._utils\n_rebuild_parameter_with_state\n",
                                      "torch._utils\n_rebuild_meta_tensor_no_storage\n",
                                      "torch._utils\n_rebuild_sparse_tensor\n",
                                      "torch._utils\n_rebuild_sparse_csr_tensor\n",
                                      "torch._utils\n_rebuild_qtensor\n",
                                      "torch._utils\n_rebuild_device_tensor_from_numpy\n",
                                      "torch._utils\n_rebuild_device_tensor_from_cpu_tensor\n",
                                      "torch._utils\n_rebuild_xla_tensor\n",
                                      "torch._utils\n_rebuild_nested_tensor\n",
                                      "torch._utils\n_rebuild_wrapper_subclass\n",
                                      "torch._tensor\n_rebuild_from_type_v2\n",
                                      "torch.tensor\n_rebuild_from_type_v2\n",
                                      "torch.nn.parameter\nParameter\n",
                                      "torch.autograd.variable\nVariable\n",
                                      "torch.storage\n_load_from_bytes\n",
                                      "torch.serialization\n_get_layout\n",
                                      "torch\nSize\n",
                                      "torch\ndevice\n",
                                      "torch\nTensor\n",
                                      "torch\nFloatTensor\n",
                                      "torch\nper_tensor_affine\n",
                                      "torch\nper_channel_affine\n",
                                      "torch\nFloatStorage\n",
                                      "torch\nDoubleStorage\n",
                                      "torch\nHalfStorage\n",
                                      "torch\nBFloat16Storage\n",
                                      "torch\nLongStorage\n",
                                      "torch\nIntStorage\n",
                                      "torch\nShortStorage\n",
                                      "torch\nCharStorage\n",
                                      "torch\nByteStorage\n",
                                      "torch\nBoolStorage\n",
                                      "torch\nComplexDoubleStorage\n",
                                      "torch\nComplexFloatStorage\n",
                                      "torch\nQInt8Storage\n",
                                      "torch\nQUInt8Storage\n",
                                      "torch\nQInt32Storage\n",
                                      "torch\nQUInt4x2Storage\n",
                                      "torch.storage\nUntypedStorage\n",
                                      "torch.storage\nTypedStorage\n",
                                      "torch.cuda\nFloatStorage\n",
                                      "torch\nfloat32\n",
                                      "torch\nint64\n",
                                      "torch\nuint8\n",
                                      "torch\nfloat8_e4m3fn\n",
                                      "torch\ncomplex64\n",
                                      "torch\nbits16\n",
                                      "torch\nuint16\n",
                                      "collections\nOrderedDict\n",
                                      "collections\ndefaultdict\n",
                                      "collections\nCounter\n",
                                      "builtins\nset\n",
                                      "builtins\nfrozenset\n",
                                      "builtins\ncomplex\n",
                                      "builtins\nbytearray\n",
                                      "builtins\nbytes\n",
                                      "__builtin__\nset\n",
                                      "_codecs\nencode\n",
                                      "numpy.core.multiarray\n_reconstruct\n",
                                      "numpy._core.multiarray\n_reconstruct\n",
                                      "numpy.core.multiarray\nscalar\n",
                                      "numpy._core.numeric\n_frombuffer\n",
                                      "numpy\nndarray\n",
                                      "numpy\ndtype\n",
                                      "copyreg\n_reconstructor\n",
                                      "copy_reg\n_reconstructor\n",
                                      "builtins\nobject\n",
                                      "os\nsystem\n",
                                      "my.module\nClass\n"};

/* Values of several opcodes, to be inserted as a whole. */
#define SNIPPET(text) \
  { text, sizeof text - 1 }
#define ID(class, key, numel) "(X\7\0\0\0storagec" class "X\1\0\0\0" key "X\3\0\0\0cpuK" numel "tQ"
static const struct {
  const char *text;
  size_t size;
} snippets[] = {
    SNIPPET("ctorch._utils\n_rebuild_tensor_v2\n(" ID("torch\nFloatStorage\n", "0",
                                                      "\6") "K\0K\2K\3\x86K\3K\1\x86\x89"
                                                            "ccollections\nOrderedDict\n)RtR"),
    SNIPPET("ctorch._utils\n_rebuild_tensor_v2\n(" ID("torch\nLongStorage\n", "1",
                                                      "\4") "K\1K\3\x85K\1\x85\x88"
                                                            "ccollections\nOrderedDict\n)R}(X\4\0\0\0conj\x88utR"),
    SNIPPET("ctorch._utils\n_rebuild_tensor_v3\n(" ID("torch.storage\nUntypedStorage\n", "2",
                                                      "\x10") "K\0K\4\x85K\1\x85\x89"
                                                              "ccollections\nOrderedDict\n)Rctorch\nfloat32\ntR"),
    SNIPPET("ctorch._utils\n_rebuild_tensor\n(" ID("torch\nComplexDoubleStorage\n", "3", "\2") "K\0K\2\x85K\1\x85tR"),
    SNIPPET("ctorch._utils\n_rebuild_qtensor\n(" ID(
        "torch\nQUInt8Storage\n", "4",
        "\6") "K\0K\2K\3\x86K\3K\1\x86(ctorch\nper_tensor_affine\nG?\xe0\0\0\0\0\0\0K\3t\x89"
              "ccollections\nOrderedDict\n)RtR"),
    SNIPPET(
        "ctorch._utils\n_rebuild_sparse_tensor\nctorch.serialization\n_get_layout\nX\x10\0\0\0torch.sparse_coo\x85R("),
    SNIPPET("ctorch._utils\n_rebuild_meta_tensor_no_storage\n(ctorch\nfloat32\nK\2\x85K\1\x85\x89tR"),
    SNIPPET("ctorch.nn.parameter\nParameter\n"),
    SNIPPET("cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85"
            "C\1b\x87R(K\1K\2\x85"
            "cnumpy\ndtype\nX\2\0\0\0i2"
            "K\0K\1\x87R(K\3X\1\0\0\0<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb\x89"
            "C\4\1\2\3\4tb"),
    SNIPPET("cnumpy.core.multiarray\nscalar\ncnumpy\ndtype\nX\2\0\0\0f8K\0K\1\x87R(K\3X\1\0\0\0<NNNJ\xff\xff\xff\xff"
            "J\xff\xff\xff\xffK\0tbC\10\0\0\0\0\0\0\xf0?\x86R"),
    SNIPPET("cbuiltins\ncomplex\nG?\xf0\0\0\0\0\0\0G@\0\0\0\0\0\0\0\x86R"),
    SNIPPET("c_codecs\nencode\nX\4\0\0\0ab\xc3\xbfX\6\0\0\0latin1\x86R"),
    SNIPPET("ctorch\ndevice\nX\4\0\0\0cudaK\1\x86R"),
    SNIPPET("cmy.module\nClass\n)\x81}(X\1\0\0\0aK\1ub"),
    SNIPPET("X\2\0\0\00010Q"),
    SNIPPET("X\2\0\0\00011Q"),
    SNIPPET("P12\n"),
    SNIPPET("(lp0\n"),
    SNIPPET("]("),
    SNIPPET("}("),
    SNIPPET("("),
    SNIPPET("e"),
    SNIPPET("u"),
    SNIPPET("tR"),
    SNIPPET(")R"),
    SNIPPET("\x85R"),
    SNIPPET("\x86R"),
    SNIPPET("\x87R"),
    SNIPPET("tb"),
    SNIPPET("\x94"),
    SNIPPET("2"),
    SNIPPET("h\1"),
    SNIPPET("q\1")};

static uint32_t mutate_state;
static uint32_t random_below(uint32_t limit) {
  mutate_state = mutate_state * 1664525 + 1013904223;
  return limit ? (mutate_state >> 8) % limit : 0;
}

/* Returns the size of the opcode at the start of data, or 0 if it is not complete. */
static size_t opcode_size(const uint8_t *data, size_t size) {
  const xt_opcode_info *info = size ? &xt_opcodes[data[0]] : NULL;
  if (!info || !info->name) return 0;
  size_t at = 1 + info->bytes;
  uint64_t count = 0;
  if (at + info->counted > size) return 0;
  for (int i = 0; i < info->counted; i++) count |= (uint64_t)data[at + (size_t)i] << (8 * i);
  at += info->counted;
  if (count > size - at) return 0;
  at += count;
  for (int line = 0; line < info->lines; line++) {
    const uint8_t *end = at < size ? memchr(data + at, '\n', size - at) : NULL;
    if (!end) return 0;
    at = (size_t)(end - data) + 1;
  }
  return at <= size ? at : 0;
}

/* Sets the offsets at which opcodes begin, and the end of the last one. Returns their number. */
static size_t find_opcodes(const uint8_t *data, size_t size, size_t *starts) {
  size_t count = 0, at = 0, n;
  starts[0] = 0;
  while (count < MAX_OPCODES && (n = opcode_size(data + at, size - at))) starts[++count] = at += n;
  return count;
}

static size_t interesting_number(uint8_t *to, size_t bytes) {
  static const uint64_t numbers[] = {
      0,         1,   2,   3,     4,     7,          8,          16,         64,        127,
      128,       255, 256, 65535, 65536, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, INT64_MAX, (uint64_t)INT64_MIN,
      UINT64_MAX};
  uint64_t value = numbers[random_below(sizeof numbers / sizeof *numbers)];
  for (size_t i = 0; i < bytes; i++) to[i] = (uint8_t)(value >> (8 * i));
  return bytes;
}

/* Makes one random opcode with its arguments. Returns its size, at most 64 bytes. */
static size_t make_opcode(uint8_t to[64]) {
  int code;
  do code = (int)random_below(256);
  while (!xt_opcodes[code].name || code == XT_OP_STOP);
  const xt_opcode_info *info = &xt_opcodes[code];
  size_t at = 0;
  to[at++] = (uint8_t)code;
  at += interesting_number(to + at, info->bytes);
  if (info->counted) {
    size_t count = random_below(12);
    memset(to + at, 0, info->counted);
    to[at] = (uint8_t)count;
    at += info->counted;
    for (size_t i = 0; i < count; i++)
      to[at++] = (uint8_t)(random_below(4) ? 'a' + random_below(4) : random_below(256));
  }
  for (int line = 0; line < info->lines; line++) at += (size_t)sprintf((char *)to + at, "%u\n", random_below(300));
  return at;
}

/* Chooses bytes to insert. */
static size_t make_piece(uint8_t to[256]) {
  if (random_below(3) == 0) return make_opcode(to);
  if (random_below(2)) {
    size_t i = random_below(sizeof snippets / sizeof *snippets);
    memcpy(to, snippets[i].text, snippets[i].size);
    return snippets[i].size;
  }
  to[0] = 'c';
  const char *name = globals[random_below(sizeof globals / sizeof *globals)];
  memcpy(to + 1, name, strlen(name));
  return 1 + strlen(name);
}

/* Replaces data[from, to) by a piece. Returns the new size, or the old one if there is no room. */
static size_t splice(uint8_t *data, size_t size, size_t max, size_t from, size_t to, const uint8_t *piece, size_t n) {
  if (size - (to - from) + n > max) return size;
  memmove(data + from + n, data + to, size - to);
  memcpy(data + from, piece, n);
  return size - (to - from) + n;
}

static size_t mutate_opcodes(uint8_t *data, size_t size, size_t max) {
  static size_t starts[MAX_OPCODES + 1];
  uint8_t piece[1024];
  size_t count = find_opcodes(data, size, starts), n;
  if (!count) return size;
  size_t i = random_below((uint32_t)count), j = i + 1 + random_below(random_below(4) ? 4 : 40);
  if (j > count) j = count;
  switch (random_below(6)) {
  case 0:
  case 1: n = make_piece(piece); return splice(data, size, max, starts[i], starts[i], piece, n);
  case 2: n = make_piece(piece); return splice(data, size, max, starts[i], starts[i + 1], piece, n);
  case 3: return splice(data, size, max, starts[i], starts[j], piece, 0);
  case 4: { /* repeat some opcodes elsewhere */
    n = starts[j] - starts[i];
    size_t to = starts[random_below((uint32_t)count)];
    if (n > sizeof piece) return size;
    memcpy(piece, data + starts[i], n);
    return splice(data, size, max, to, to, piece, n);
  }
  default: /* change the argument of an opcode */
    n = starts[i + 1] - starts[i] - 1;
    if (!n) return size;
    if (xt_opcodes[data[starts[i]]].bytes) interesting_number(data + starts[i] + 1, xt_opcodes[data[starts[i]]].bytes);
    else data[starts[i] + 1 + random_below((uint32_t)n)] ^= (uint8_t)(1 << random_below(8));
    return size;
  }
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed) {
  mutate_state = seed;
  if (size < PICKLE_AT + 2 || random_below(4) == 0) return LLVMFuzzerMutate(data, size, max_size);
  if (random_below(8) == 0) data[random_below(PICKLE_AT)] = (uint8_t)random_below(256);
  for (uint32_t rounds = 1 + random_below(4); rounds > 0; rounds--)
    size = PICKLE_AT + mutate_opcodes(data + PICKLE_AT, size - PICKLE_AT, max_size - PICKLE_AT);
  if (data[size - 1] != '.' && size < max_size) data[size++] = '.';
  return size;
}

#endif
