#!/usr/bin/python3
"""An independent implementation of the model delta, written from docs/wire-format.md.

    model_delta.py --check DIR   recomputes every golden file in DIR and compares; exit code 1 on a difference
    model_delta.py --write DIR   writes them

base.bin and target.bin are two models of one layout, delta.bin the step between them, result.bin what taking it from
base leads to. Codecs are those of codec_parts.py; sums are numpy's binary64, roundings to 16 bits are Fractions.
"""

import importlib.util
import pathlib
import struct
from fractions import Fraction

import numpy as np

from codec_parts import TopK
from golden_files import main, segment
# The folder's codecs.py, whose name is one of Python's own.
SPEC = importlib.util.spec_from_file_location("reference_codecs", pathlib.Path(__file__).with_name("codecs.py"))
REFERENCE = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(REFERENCE)

PLAIN, INT8, TOPK, FP16 = 0, 5, 9, 3


def bf16_value(code):
    f, = struct.unpack("<f", struct.pack("<I", code << 16))
    return Fraction(f) if np.isfinite(f) else None


def to_bf16(value):
    near = struct.unpack("<I", struct.pack("<f", float(value)))[0] >> 16
    codes = [c for c in range(max(0, near - 2), min(0xFFFF, near + 2) + 1) if bf16_value(c) is not None]
    return min(codes, key=lambda c: (abs(bf16_value(c) - value), c % 2))


def noise(n, salt):
    """Numbers in [-1, 1) that any language makes alike."""
    return [((i * 2654435761 + salt * 40503 + 12345) % 65536 - 32768) / 32768 for i in range(n)]


def models():
    """Tensor by tensor: name, dtype, base, target; as numpy arrays, bf16 as its patterns."""
    out = []
    for name, n, salt in (("int8", 130, 1), ("topk", 300, 2), ("same", 6, 3), ("plain", 5, 4)):
        base = np.array(noise(n, salt), "<f4")
        target = base.copy() if name == "same" else base + np.array(noise(n, salt + 10), "<f4") * np.float32(0.01)
        out.append((name, "f4", base, target.astype("<f4")))
    half = np.array(noise(7, 5), "<f2")
    out.append(("half", "f2", half, (half + np.array(noise(7, 15), "<f2") * np.float16(0.05)).astype("<f2")))
    double = np.array(noise(9, 6), "<f8") / 3
    out.append(("double", "f8", double, double + np.array(noise(9, 16), "<f8") / 7))
    brain = np.array([to_bf16(Fraction(v)) for v in noise(33, 7)], "<u2")
    moved = [to_bf16(bf16_value(int(b)) + Fraction(v) / 20) for b, v in zip(brain, noise(33, 17))]
    out.append(("brain", "bf16", brain, np.array(moved, "<u2")))
    out.append(("count", "i8", np.array([5, -1, 1 << 40], "<i8"), np.array([6, -1, -(1 << 50)], "<i8")))
    out.append(("skip", "f4", np.array([1, 2], "<f4"), np.array([1, 2], "<f4")))
    return out


def numbers(dtype, tensor):
    """As binary64, which holds every element."""
    if dtype == "bf16":
        return np.array([float(bf16_value(int(c))) for c in tensor])
    return tensor.astype("f8")


def delta_and_result():
    delta, result = b"", b""
    for index, (name, dtype, base, target) in enumerate(models()):
        n, b, t = len(base), numbers(dtype, base), numbers(dtype, target)
        difference = (t - b).astype("<f4")
        values = None
        if name == "int8":
            payload = REFERENCE.encode_int8(difference, 16, False)
            delta += segment(index, INT8, n, payload, parameter=16)
            values = REFERENCE.values_int8(payload, n, 16)
        elif name in ("topk", "brain"):
            codec = TopK(6 if name == "topk" else 3, "int8")
            payload = codec.encode(difference)
            delta += segment(index, TOPK, n, payload, parameter=2)
            values = codec.values(payload, n)
        elif name in ("half", "double"):
            payload = difference.astype("<f2").tobytes()
            delta += segment(index, FP16, n, payload)
            values = [Fraction(float(v)) for v in np.frombuffer(payload, "<f2")]
        elif base.tobytes() != target.tobytes():
            delta += segment(index, PLAIN, n, target.tobytes())
        if values is None:
            result += target.tobytes()
            continue
        # A value is rounded to binary32, added in binary64, and the sum rounded once to the dtype.
        sums = b + np.array([np.float32(float(v)) for v in values], "<f4").astype("f8")
        if dtype == "bf16":
            result += struct.pack(f"<{n}H", *(to_bf16(Fraction(float(s))) for s in sums))
        else:
            result += sums.astype("<" + dtype).tobytes()
    return delta, result


def files():
    delta, result = delta_and_result()
    return {"base.bin": b"".join(base.tobytes() for _, _, base, _ in models()),
            "target.bin": b"".join(target.tobytes() for _, _, _, target in models()),
            "delta.bin": delta, "result.bin": result}


if __name__ == "__main__":
    main(files())
