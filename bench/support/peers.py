# Answers the questions of peers.exs with Python's packages. The first line of the output has the name and version of each
# package that was found. Each line of standard input is a peer, a question and a path; the answer is the time in
# milliseconds and the memory that it took at most, in KiB, or "none" if the peer cannot answer it.
import gc
import importlib
import re
import sys
import time

import torch

PACKAGES = {"torch": "torch", "safetensors": "safetensors.torch", "runai": "runai_model_streamer", "fast": "fastsafetensors"}
found = {}
for name, module in PACKAGES.items():
    try:
        importlib.import_module(module)
        package = importlib.import_module(module.split(".")[0])
        found[name] = getattr(package, "__version__", "")
    except Exception:  # fastsafetensors raises others without a GPU
        pass

state = {}  # what is saved
close_later = []  # what a package does not free on its own


def load(path, **options):
    try:
        return torch.load(path, weights_only=True, **options)
    except TypeError:  # before 1.13 and 2.1
        return torch.load(path)


def middle(names):
    return sorted(names)[len(names) // 2]


def torch_pt_open(path):
    return {name: (t.dtype, t.shape) for name, t in load(path, mmap=True).items()}


def torch_pt_one(path):
    tensors = load(path, mmap=True)
    return tensors[middle(tensors)].clone()


def torch_pt_load(path):
    return load(path)


torch_legacy_load = torch_pt_load


def torch_pt_save(path):
    torch.save(state["torch"], path)


def torch_stream_save(path):
    from torch.distributed._serialization import _streaming_save

    with open(path, "wb") as file:
        _streaming_save(state["torch"], file)


def safetensors_st_open(path):
    from safetensors import safe_open

    with safe_open(path, "pt") as f:
        return {name: (f.get_slice(name).get_dtype(), f.get_slice(name).get_shape()) for name in f.keys()}


def safetensors_st_one(path):
    from safetensors import safe_open

    with safe_open(path, "pt") as f:
        return f.get_tensor(middle(f.keys()))


def safetensors_st_map(path):
    return sys.modules["safetensors.torch"].load_file(path)


def safetensors_st_save(path):
    sys.modules["safetensors.torch"].save_file(state["safetensors"], path)


def runai_st_load(path):
    with sys.modules["runai_model_streamer"].SafetensorsStreamer() as streamer:
        streamer.stream_file(path)
        return {name: tensor for name, tensor in streamer.get_tensors()}


def fast_st_load(path):
    fast = sys.modules["fastsafetensors"]
    loader = fast.SafeTensorsFileLoader(fast.SingleGroup(), "cpu", nogds=True)
    loader.add_filenames({0: [path]})
    buffers = loader.copy_files_to_device()
    close_later.extend([buffers, loader])
    return buffers


def memory_kib(field):
    with open("/proc/self/status") as status:
        return int(re.search(field + r":\s+(\d+) kB", status.read()).group(1))


def reset_peak():
    try:
        with open("/proc/self/clear_refs", "w") as peak:
            peak.write("5")
    except OSError:
        pass


print(*("%s=%s" % item for item in found.items()), flush=True)
for line in sys.stdin:
    peer, question, path = line.split()
    answer = globals().get(peer + "_" + question)
    if question == "keep":  # for a save
        state[peer] = dict(load(path))
        print("kept", flush=True)
    elif peer not in found or not answer:
        print("none", flush=True)
    else:
        gc.collect()
        reset_peak()
        before = memory_kib("VmRSS")
        started = time.perf_counter()
        result = answer(path)
        ms = (time.perf_counter() - started) * 1000
        print(ms, max(memory_kib("VmHWM") - before, 0), flush=True)
        del result
        while close_later:
            close_later.pop(0).close()
