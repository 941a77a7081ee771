"""Compares pairs of files as Python objects.

Reads lines "first|second|weights_only" from stdin. Loads both files, the second one with weights_only if that is "true",
and prints the first difference of each pair. Pairs whose first file this torch cannot load are skipped.
"""
import collections
import ctypes
import math
import sys
import warnings

warnings.filterwarnings("ignore")
import torch

try:
    import numpy
except ImportError:
    numpy = None


def load(path, weights_only):
    if path.endswith((".stream", ".streaming")):
        from torch.distributed._serialization import _streaming_load
        with open(path, "rb") as f:
            return _streaming_load(f, weights_only=False)
    if path.endswith(".pkl"):
        import pickle
        with open(path, "rb") as f:
            return pickle.load(f)
    if path.endswith(".safetensors"):
        from safetensors.torch import load_file
        return load_file(path)
    try:
        return torch.load(path, weights_only=weights_only)
    except TypeError:
        return torch.load(path)


def elements(tensor):
    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous().clone()
    size = tensor.numel() * tensor.element_size()
    return ctypes.string_at(tensor.data_ptr(), size) if size else b""


def tensor_difference(a, b):
    became_tensor = isinstance(a, torch.nn.Parameter) and type(b) is torch.Tensor
    if type(a) is not type(b) and not became_tensor:
        return "type %s, %s" % (type(a), type(b))
    if getattr(a, "is_nested", False):
        return next((d for x, y in zip(a.unbind(), b.unbind()) for d in [difference(x, y)] if d), None)
    for name in ("dtype", "shape", "layout", "requires_grad"):
        if getattr(a, name) != getattr(b, name):
            return "%s %s, %s" % (name, getattr(a, name), getattr(b, name))
    if a.device.type == "meta":
        return None if b.device.type == "meta" and a.stride() == b.stride() else "meta tensor"
    if a.layout != torch.strided:
        return None if torch.equal(a.to_dense(), b.to_dense()) else "sparse values"
    if a.is_quantized:
        equal = (a.qscheme() == b.qscheme() and torch.equal(a.int_repr(), b.int_repr())
                 and torch.equal(a.dequantize(), b.dequantize()))
        return None if equal else "quantized values"
    # A conjugated or negated tensor is saved with its bit resolved, and then has other strides.
    lazy = a.is_conj() or (hasattr(a, "is_neg") and a.is_neg())
    if not lazy and a.numel() and a.stride() != b.stride():
        return "strides %s, %s" % (a.stride(), b.stride())
    return None if elements(a) == elements(b) else "values"


def items_difference(pairs, path):
    for key, x, y in pairs:
        found = difference(x, y, "%s[%r]" % (path, key))
        if found:
            return found
    return None


def difference(a, b, path=""):
    """The first difference of two objects as text, or None."""
    if numpy is not None and isinstance(a, numpy.ndarray):
        if a.dtype.kind in "OU":
            return None if a.tolist() == b.tolist() else "%s: array" % path
        a = torch.from_numpy(numpy.array(a, dtype=a.dtype.newbyteorder("="), order="K"))
    if isinstance(a, torch.Tensor):
        found = tensor_difference(a, b)
        return found and "%s: %s" % (path, found)
    if isinstance(a, collections.abc.Mapping):
        if set(map(repr, a)) != set(map(repr, b)):
            return "%s: keys %s, %s" % (path, list(a), list(b))
        return items_difference(((key, a[key], b[key]) for key in a), path)
    if isinstance(a, (list, tuple)):
        if len(a) != len(b) or isinstance(a, list) != isinstance(b, list):
            return "%s: length or type" % path
        return items_difference(zip(range(len(a)), a, b), path)
    if isinstance(a, torch.nn.Module):
        return difference(a.state_dict(), b.state_dict(), path + ".state_dict()")
    if isinstance(a, float) and math.isnan(a):
        return None if isinstance(b, float) and math.isnan(b) else "%s: %r, %r" % (path, a, b)
    return None if bool(a == b) else "%s: %r, %r" % (path, a, b)


compared = differences = 0
for line in sys.stdin:
    first, second, weights_only = line.rstrip("\n").split("|")
    try:
        original = load(first, False)
    except Exception:
        continue
    compared += 1
    try:
        found = difference(original, load(second, weights_only == "true"))
    except Exception as e:
        found = "%s: %s" % (type(e).__name__, str(e)[:300])
    if found:
        differences += 1
        print(first, "->", second, found)
print("compared: %d differences: %d" % (compared, differences))
