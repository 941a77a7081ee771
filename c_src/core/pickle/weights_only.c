#include "core/pickle/rebuild_internal.h"

/* What _get_allowed_globals() of torch 2.15 returns, besides the dtypes, which are not globals here any more
 * (xt_rebuild_global). test/fixtures/weights_only.json has it as torch prints it. */

static const char *const builtins[] = {"bytearray", "set", "complex", NULL};
static const char *const codecs[] = {"encode", NULL};
static const char *const collections[] = {"OrderedDict", "Counter", NULL};
static const char *const torch[] = {"Size",
                                    "Tensor",
                                    "device",
                                    "per_tensor_affine",
                                    "per_channel_affine",
                                    "per_tensor_symmetric",
                                    "per_channel_symmetric",
                                    "per_channel_affine_float_qparams",
                                    NULL};
/* Dtypes that no tensor of a file has: they are inert here. */
static const char *const dtypes[] = {"bcomplex32", "int1",  "int2",  "int3",  "int4",  "int5",  "int6",  "int7",
                                     "uint1",      "uint2", "uint3", "uint4", "uint5", "uint6", "uint7", NULL};
static const char *const storages[] = {"BFloat16Storage",
                                       "BoolStorage",
                                       "ByteStorage",
                                       "CharStorage",
                                       "ComplexDoubleStorage",
                                       "ComplexFloatStorage",
                                       "DoubleStorage",
                                       "FloatStorage",
                                       "HalfStorage",
                                       "IntStorage",
                                       "LongStorage",
                                       "ShortStorage",
                                       NULL};
static const char *const quantized_storages[] = {"QInt32Storage",   "QInt8Storage",  "QUInt2x4Storage",
                                                 "QUInt4x2Storage", "QUInt8Storage", NULL};
static const char *const generic_storages[] = {"TypedStorage", "UntypedStorage", NULL};
static const char *const tensors[] = {"BFloat16Tensor", "ByteTensor", "CharTensor", "DoubleTensor", "FloatTensor",
                                      "HalfTensor",     "IntTensor",  "LongTensor", "ShortTensor",  NULL};
static const char *const dense_tensors[] = {"BoolTensor", NULL}; /* besides those above */
static const char *const parameters[] = {"Parameter", NULL};
static const char *const serialization[] = {"_get_layout", NULL};
static const char *const subclasses[] = {"_rebuild_from_type_v2", NULL};
static const char *const rebuilds[] = {"_rebuild_parameter",
                                       "_rebuild_parameter_with_state",
                                       "_rebuild_qtensor",
                                       "_rebuild_tensor",
                                       "_rebuild_tensor_v2",
                                       "_rebuild_tensor_v3",
                                       "_rebuild_sparse_tensor",
                                       "_rebuild_meta_tensor_no_storage",
                                       "_rebuild_wrapper_subclass",
                                       "_rebuild_device_tensor_from_numpy",
                                       "_rebuild_device_tensor_from_cpu_tensor",
                                       NULL};

static const struct {
  const char *module;
  const char *const *names;
} allowed[] = {
    {"torch._utils", rebuilds},
    {"torch", storages},
    {"collections", collections},
    {"torch", torch},
    {"torch", quantized_storages},
    {"torch", tensors},
    {"torch", dense_tensors},
    {"torch", dtypes},
    {"torch.cuda", storages},
    {"torch.cuda", tensors},
    {"torch.cuda", dense_tensors},
    {"torch.sparse", tensors},
    {"torch.cuda.sparse", tensors},
    {"torch.storage", generic_storages},
    {"torch._tensor", subclasses},
    {"torch.nn.parameter", parameters},
    {"torch.serialization", serialization},
    {"builtins", builtins},
    {"__builtin__", builtins},
    {"_codecs", codecs},
};

bool xt_rebuild_weights_only(const xt_node *global) {
  for (size_t i = 0; i < sizeof allowed / sizeof *allowed; i++)
    if (xt_text_equals(global->global.module, global->global.module_size, allowed[i].module) &&
        xt_rebuild_in_list(global->global.name, global->global.name_size, allowed[i].names))
      return true;
  return false;
}
