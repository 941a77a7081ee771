#!/usr/bin/env python3
"""Makes the first inputs of the fuzz targets from test/fixtures, and a dictionary from the sources.

usage: seeds.py DIRECTORY     makes DIRECTORY/<target>/… for each target, and DIRECTORY/dictionary

Inputs that fuzzing has found since are in test/c/fuzz/corpus.
"""

import io
import pathlib
import pickletools
import re
import sys
import tarfile
import zipfile

ZIP, ZIP_DEFLATED, TORCHSCRIPT, LEGACY, STREAM, TAR, PLAIN = range(7)  # the formats of pickle.c
out = pathlib.Path(sys.argv[1])
root = pathlib.Path(__file__).resolve().parents[3]
fixtures = root / "test" / "fixtures"
core = root / "c_src" / "core"


def put(target, name, data):
    (out / target).mkdir(parents=True, exist_ok=True)
    (out / target / name).write_bytes(data)


def pickles(data, count):
    """The first pickles of a file, as bytes."""
    stream, ends = io.BytesIO(data), [0]
    for _ in range(count):
        for _ in pickletools.genops(stream):
            pass
        ends.append(stream.tell())
    return [data[a:b] for a, b in zip(ends, ends[1:])]


def members(path, data):
    """The pickles of a checkpoint, each with the format that it was found in."""
    if zipfile.is_zipfile(path):
        archive = zipfile.ZipFile(path)
        for name in archive.namelist():
            if name.endswith("data.pkl"):
                yield ZIP, archive.read(name)
            if name.endswith("constants.pkl"):
                yield TORCHSCRIPT, archive.read(name)
    elif path.suffix == ".pkl":
        yield PLAIN, data
    elif path.suffix == ".stream":
        listed, object = pickles(data, 2)
        yield STREAM, object
        put("directory", f"{path.parent.name}.{path.name}.list", bytes([3, 0, 1]) + listed)
    elif tarfile.is_tarfile(path):
        archive = tarfile.open(path)
        yield TAR, archive.extractfile("pickle").read()
        put("directory", "tar.storages", bytes([5, 0, 1]) + archive.extractfile("storages").read())
        put("directory", "tar.tensors", bytes([6, 0, 1]) + archive.extractfile("tensors").read())
    elif data[:2] == b"\x80\x02":
        _, _, system, object, keys = pickles(data, 5)
        yield LEGACY, object
        put("directory", f"{path.parent.name}.{path.name}.keys", bytes([2, 0, 1]) + keys)
        put("directory", f"{path.parent.name}.{path.name}.sys_info", bytes([7, 0, 1]) + system)


for path in sorted(fixtures.rglob("*")):
    if not path.is_file() or path.suffix in (".py", ".cpp") or path.suffix == ".json" and path.stat().st_size > 400:
        continue
    data = path.read_bytes()
    name = f"{path.parent.name}.{path.name}"
    put("checkpoint", name, data)
    # The sizes of the pieces, the options, the file, and bytes that follow it (see push.c).
    put("push", name + ".7", b"\7\2" + data + b"PKPKPK")
    put("push", name + ".255", b"\xff\0" + data + b"PKPKPK")
    if path.suffix == ".safetensors":
        size = int.from_bytes(data[:8], "little")
        put("directory", name, bytes([1, 0, 1]) + data[8 : 8 + size])
    if path.suffix == ".npy":
        put("directory", name, bytes([9, 0, 1]) + data[10 : 10 + int.from_bytes(data[8:10], "little")])
    for format, pickle in members(path, data):
        put("pickle", f"{name}.{format}", bytes([format, 2, 129, 0]) + pickle)
        if format == ZIP:
            put("pickle", f"{name}.deflated", bytes([ZIP_DEFLATED, 0, 3, 0]) + pickle)
            put("pickle", f"{name}.as_stream", bytes([STREAM, 0, 200, 0]) + pickle)

# Edits of a zip file and of a tar file: where, which field, how, the value (see directory.c).
put("directory", "zip", bytes([0, 0, 1]))
for part in range(6):
    for field in range(14):
        put("directory", f"zip.{part}.{field}", bytes([0, field % 2, 1, part, 1, field, 1, 1]))
put("directory", "safetensors.fields", bytes([8, 0, 1, 5] + [2, 3, 0, 0, 0, 0] * 5))
# Texts of arrays, alone and in .npz files: stored and deflated, sizes before and after, a long length.
for i, (descr, order, shape) in enumerate([("'<f4'", "False", "(2, 3)"), ("'>i8'", "True", "(3, 2, 1)"), ("'|u1'", "False", "()"),
                                           ("'|b1'", "False", "(0, 5)"), ("'<c16'", "True", "(1,)"), ("'<f2'", "False", "(7,)"),
                                           ("'|O'", "False", "(2,)"), ("[('a', '<i4'), ('b', '|S3')]", "False", "(2,)")]):
    text = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
    for options in (0, 16, 20, 24, 28, 32, 48):
        put("directory", f"npy.{i}.{options}", bytes([9, options, 1]) + (b"\1" if options & 16 else b"") + text)
for field in range(0, 160, 7):
    put("directory", f"tar.{field}", bytes([4, 0, 1, field, 0, 48 + field % 8]))
for seed in range(24):
    put("save", f"{seed}", bytes((seed * 37 + i * i * 11 + i) % 256 for i in range(20 + 12 * seed)))
for format in range(3):  # a tree with a long text, then a tensor
    put("save", f"long.{format}", bytes([format, 0, 0, 2, 11, 255, 21, 2, 0, 3, 3, 0, 1, 99, 77]))

# A rank-2 view of each dtype in each kind of file: columns, rows, strided rows (see view.c).
for dtype in range(34):
    for kind in range(4):
        part, all = 8 | dtype % 8, 240 | dtype % 16
        put("view", f"{dtype}.{kind}", bytes([kind, part, dtype, 2, 0, 7, 1, 4, 5, 255, dtype, 9, 1, 0, 5, 0, 9, 1]))
        put("view", f"{dtype}.{kind}.all", bytes([kind, all, dtype, 2, 2, 200, 40, 0, 3, 2, 9, 0, 0, 0, 0, 99]))

# The dictionary: the names and signatures in the sources (all literals without spaces), the dtypes, and the opcodes
# with an argument of zeros.
words = {b"data_offsets", b"little_endian", b"type_sizes", b"'descr': ", b"'fortran_order': ", b"'shape': (", b"'<f4'",
         b"'>c16'", b"\x93NUMPY\x01\0v\0", b"\x93NUMPY\x02\0v\0\0\0", b"9223372036854775807", b"18446744073709551616"}
for source in [*core.glob("pickle/rebuild*.[ch]"), *core.glob("formats/*.c"), core / "base" / "dtypes.def"]:
    for literal in re.findall(r'"((?:[^"\\\n]|\\.)*)"', source.read_text()):
        if not re.search(r"[ %]|\.h$", literal):
            words.add(literal.encode().decode("unicode_escape").encode("latin1"))
for name, storage in re.findall(r'^XT_DTYPE\((\w+).*?"(\w*)"', (core / "base" / "dtypes.def").read_text(), re.M):
    words.add(b"ctorch\n" + name.encode() + b"\n")
    words.add(b"ctorch\n" + storage.encode() + b"Storage\n")
opcode = r"^XT_OPCODE\(\w+, +('.'|0x\w\w), *(\d), *(\d), *(\d)"
for byte, size, counted, lines in re.findall(opcode, (core / "pickle" / "opcodes.def").read_text(), re.M):
    code = ord(byte[1]) if byte[0] == "'" else int(byte, 16)
    words.add(bytes([code]) + bytes(int(size)) + bytes(int(counted)) + b"0\n" * int(lines))
with open(out / "dictionary", "w") as dictionary:
    for word in sorted(words):
        if 0 < len(word) <= 48:
            dictionary.write('"' + "".join(f"\\x{byte:02x}" for byte in word) + '"\n')
