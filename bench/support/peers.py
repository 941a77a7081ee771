# Answers the questions of peers.exs with Python's torch and safetensors. Each line of standard input is a question and a
# path; the answer is the time in milliseconds, or "none" if this Python cannot answer it.
import gc
import sys
import time

import torch

try:
    import safetensors
    import safetensors.torch
except ImportError:
    safetensors = None

state = {}  # what is saved


def load(path, **options):
    try:
        return torch.load(path, weights_only=True, **options)
    except TypeError:  # before 1.13 and 2.1
        return torch.load(path)


def middle(names):
    return sorted(names)[len(names) // 2]


def pt_open(path):
    return {name: (t.dtype, t.shape) for name, t in load(path, mmap=True).items()}


def pt_one(path):
    tensors = load(path, mmap=True)
    return tensors[middle(tensors)].clone()


def pt_load(path):
    return load(path)


def pt_save(path):
    torch.save(state["pt"], path)


def st_open(path):
    with safetensors.safe_open(path, "pt") as f:
        return {name: (f.get_slice(name).get_dtype(), f.get_slice(name).get_shape()) for name in f.keys()}


def st_one(path):
    with safetensors.safe_open(path, "pt") as f:
        return f.get_tensor(middle(f.keys()))


def st_load(path):
    return safetensors.torch.load_file(path)


def st_save(path):
    safetensors.torch.save_file(state["st"], path)


print(torch.__version__, safetensors.__version__ if safetensors else "none", flush=True)
for line in sys.stdin:
    question, path = line.split()
    if question == "keep":  # for a save
        state["pt"] = load(path)
        state["st"] = dict(state["pt"])
        print("kept", flush=True)
    elif question.startswith("st_") and not safetensors:
        print("none", flush=True)
    else:
        gc.collect()
        started = time.perf_counter()
        result = globals()[question](path)
        print((time.perf_counter() - started) * 1000, flush=True)
        del result
