#!/usr/bin/env python3
"""An independent reader and writer of safetensors files, and of Philox's initial weights, for tests.

  safetensors_check.py read FILE            print the file's content as canonical JSON, after checking its form
  safetensors_check.py write FILE           write the fixed file that safetensors_test.cc expects
  safetensors_check.py weights FILE SEED    check that every F32 tensor holds the weights that SEED draws

Plain struct, json, hashlib and numpy: no code is shared with the program under test.
"""
import hashlib
import json
import math
import struct
import sys

import numpy as np

SIZES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "U8": 1, "BOOL": 1}


def parse(path):
    with open(path, "rb") as f:
        raw = f.read()
    (length,) = struct.unpack("<Q", raw[:8])
    assert (8 + length) % 8 == 0, "the data is not aligned to 8 bytes"
    pairs = json.loads(raw[8:8 + length].decode("utf-8"), object_pairs_hook=list)
    names = [name for name, _ in pairs]
    assert len(set(names)) == len(names), "a name stands twice"
    metadata, tensors, at = {}, [], 0
    for name, value in pairs:
        if name == "__metadata__":
            metadata = dict(value)
            continue
        entry = dict(value)
        begin, end = entry["data_offsets"]
        assert begin == at, f"{name} begins at {begin}, not {at}"
        assert end - begin == math.prod(entry["shape"]) * SIZES[entry["dtype"]], name
        tensors.append((name, entry["dtype"], entry["shape"], raw[8 + length + begin:8 + length + end]))
        at = end
    assert 8 + length + at == len(raw), "bytes are left at the end"
    return metadata, tensors


def read(path):
    metadata, tensors = parse(path)
    rows = [[name, dtype, shape, hashlib.sha256(data).hexdigest()] for name, dtype, shape, data in tensors]
    print(json.dumps({"metadata": metadata, "tensors": rows}, sort_keys=True))


def write(path):
    tensors = [
        ("zeta", "F32", np.array([[1.5, -2.25, 0.1]], dtype="<f4")),
        ("alpha", "I64", np.array(-7, dtype="<i8")),
        ("empty b", "F16", np.zeros((0, 3), dtype="<f2")),
        ("empty a", "U8", np.zeros((0,), dtype="u1")),
        ("naïve", "F16", np.array([0.5, -65504.0], dtype="<f2")),
        ("flag", "BOOL", np.array([True, False, True])),
    ]
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, dtype, array in tensors:
        header[name] = {"dtype": dtype, "shape": list(array.shape),
                        "data_offsets": [len(data), len(data) + array.nbytes]}
        data += array.tobytes()
    text = json.dumps(header, indent=1, ensure_ascii=True).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def philox(key, counters):
    """Philox4x32-10 of Salmon et al. (SC'11) for counters (n, 0, 0): n arrays of uint64, four words out."""
    mask = np.uint64(0xFFFFFFFF)
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    zero = np.zeros_like(counters)
    c0, c1, c2, c3 = counters & mask, counters >> np.uint64(32), zero, zero
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0, c1, c2, c3 = ((p1 >> np.uint64(32)) ^ c1 ^ np.uint64(k0), p1 & mask,
                          (p0 >> np.uint64(32)) ^ c3 ^ np.uint64(k1), p0 & mask)
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0, c1, c2, c3


def seeded_hash(seed, purpose, text):
    h = 0xCBF29CE484222325
    for byte in purpose.encode() + b"\0" + text.encode():
        h = ((h ^ byte) * 0x100000001B3) % 2**64
    word0, word1, _, _ = (int(w[0]) for w in philox(seed, np.array([h], dtype=np.uint64)))
    return word0 | word1 << 32


def drawn(seed, name, n, bound):
    a, b, c, d = philox(seeded_hash(seed, "init", name), np.arange((n + 1) // 2, dtype=np.uint64))
    words = np.stack([a | b << np.uint64(32), c | d << np.uint64(32)], axis=1).reshape(-1)[:n]
    u = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return ((2 * u - 1) * bound).astype(np.float32)


def bound_of(name, shapes):
    """torch's bounds, from the weights' shapes: see the header models/builtin.h."""
    shape = shapes[name]
    conv_without_bias = len(shape) == 4 and name.replace(".weight", ".bias") not in shapes
    if conv_without_bias:  # He, fan out
        return math.sqrt(6 / (shape[0] * shape[2] * shape[3]))
    weight = shapes[name.replace(".bias", ".weight")]
    return 1 / math.sqrt(math.prod(weight[1:]))  # LeCun, fan in


def weights(path, seed):
    _, tensors = parse(path)
    shapes = {name: shape for name, _, shape, _ in tensors}
    checked = 0
    for name, dtype, shape, data in tensors:
        layer = name.rsplit(".", 1)[0]
        n = math.prod(shape)
        if dtype == "I64":
            expected = np.zeros(n, dtype="<i8")
        elif layer + ".running_mean" in shapes:  # BatchNorm
            one = name.endswith((".weight", ".running_var"))
            expected = np.full(n, 1 if one else 0, dtype="<f4")
        else:
            expected = drawn(seed, name, n, bound_of(name, shapes))
        assert expected.tobytes() == data, f"{name} differs"
        checked += n
    print(checked)


if __name__ == "__main__":
    command, path = sys.argv[1:3]
    if command == "weights":
        weights(path, int(sys.argv[3]))
    else:
        {"read": read, "write": write}[command](path)
