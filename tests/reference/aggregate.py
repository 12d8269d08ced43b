#!/usr/bin/env python3
"""Aggregates recorded updates in Python integers: an independent reference for the exact accumulator.

Written from docs/wire-format.md, sharing no code with the C++ side. Usage:

    aggregate.py FOLDER

FOLDER holds round.json (grid, layout, updates: id, weight, file), the updates' files (segments, back to
back), sums.bin (the sums to check, int64 each), and hash.bin (the layout hash to check). Exits 0 when every
sum is equal to the bit and the means agree with numpy's float64 within 1e-7; says what differs otherwise.
"""
import hashlib
import json
import pathlib
import struct
import sys

import numpy

TILE = 32768
DTYPES = {"F32": 1, "F64": 2, "F16": 3, "BF16": 4, "I64": 5, "I32": 6, "U8": 7, "BOOL": 8}
POLICIES = {"mean": 1, "sum": 2, "max": 3, "first": 4, "skip": 5}
FLOATS = ("F32", "F64", "F16", "BF16")
RAW, FP32, FP16, BF16, INT8 = 1, 2, 3, 4, 5


def round_half_even(mantissa, exponent):
    """rne(mantissa * 2**exponent), in integers."""
    if exponent >= 0:
        return mantissa << exponent
    drop = -exponent
    floor = mantissa >> drop  # towards minus infinity
    rest = mantissa - (floor << drop)
    half = 1 << (drop - 1)
    if rest > half or (rest == half and floor & 1):
        floor += 1
    return floor


def split_float(bits, mantissa_bits, exponent_bits):
    """A finite IEEE number's bits as (mantissa, exponent): the value is mantissa * 2**exponent."""
    bias = (1 << (exponent_bits - 1)) - 1
    fraction = bits & ((1 << mantissa_bits) - 1)
    exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1)
    assert exponent != (1 << exponent_bits) - 1, "not finite"
    if exponent == 0:
        exponent = 1
    else:
        fraction |= 1 << mantissa_bits
    negative = bits >> (mantissa_bits + exponent_bits) & 1
    return (-fraction if negative else fraction), exponent - bias - mantissa_bits


def decode_exact(codec, parameter, payload, count):
    """The payload's values as (mantissa, exponent) pairs."""
    if codec == RAW:
        return [(v, 0) for v in struct.unpack(f"<{count}q", payload)]
    if codec == FP32:
        return [split_float(b, 23, 8) for b in struct.unpack(f"<{count}I", payload)]
    if codec == FP16:
        return [split_float(b, 10, 5) for b in struct.unpack(f"<{count}H", payload)]
    if codec == BF16:
        return [split_float(b, 7, 8) for b in struct.unpack(f"<{count}H", payload)]
    assert codec == INT8, f"unknown codec {codec}"
    values = []
    at = 0
    while count > 0:
        n = min(parameter, count)
        mantissa, exponent = split_float(struct.unpack_from("<I", payload, at)[0], 23, 8)
        values += [(mantissa * v, exponent) for v in struct.unpack_from(f"<{n}b", payload, at + 4)]
        at += 4 + n
        count -= n
    assert at == len(payload), "the payload is too long"
    return values


def read_segments(data):
    at = 0
    while at < len(data):
        tensor, codec, version, parameter, size, first, count = struct.unpack_from("<IHHIIQQ", data, at)
        assert version == 1 and first % TILE == 0
        at += 32
        yield tensor, codec, parameter, first, count, data[at:at + size]
        at += size
    assert at == len(data), "the update is cut short"


def read_update(path, layout, fraction_bits):
    """Per tensor: grid integers, and the values in float64."""
    integers = [[] for _ in layout]
    doubles = [[] for _ in layout]
    for tensor, codec, parameter, first, count, payload in read_segments(path.read_bytes()):
        is_float = layout[tensor]["dtype"] in FLOATS
        assert is_float == (codec != RAW) and first == len(integers[tensor])
        scale = fraction_bits if is_float else 0
        exact = decode_exact(codec, parameter, payload, count)
        integers[tensor] += [round_half_even(m, e + scale) for m, e in exact]
        doubles[tensor].append(numpy.array([m for m, _ in exact], numpy.float64) *
                               numpy.exp2([float(e) for _, e in exact]))
    return integers, [numpy.concatenate(d) if d else numpy.zeros(0) for d in doubles]


def layout_hash(layout):
    text = b"tributary layout 1\n" + struct.pack("<Q", len(layout))
    for tensor in layout:
        name = tensor["name"].encode()
        text += struct.pack("<Q", len(name)) + name
        text += bytes([DTYPES[tensor["dtype"]], POLICIES[tensor["policy"]]])
        text += struct.pack(f"<{len(tensor['shape']) + 1}Q", len(tensor["shape"]), *tensor["shape"])
    return hashlib.sha256(text).digest()


def combine(policy, total, values, weight, owner, update_id):
    """(new total, new owner) of one tensor after one more update."""
    if policy == "mean":
        return (([weight * v for v in values] if total is None else
                 [t + weight * v for t, v in zip(total, values)]), owner)
    if total is None:
        return values, update_id
    if policy == "sum":
        return [t + v for t, v in zip(total, values)], owner
    if policy == "max":
        return [max(t, v) for t, v in zip(total, values)], owner
    assert policy == "first"
    return (values, update_id) if update_id < owner else (total, owner)


def main():
    folder = pathlib.Path(sys.argv[1])
    spec = json.loads((folder / "round.json").read_text())
    layout = spec["tensors"]
    f = spec["fraction_bits"]
    if layout_hash(layout) != (folder / "hash.bin").read_bytes():
        sys.exit("the layout hash differs")

    totals = [None] * len(layout)
    owners = [None] * len(layout)
    float_sums = [0.0] * len(layout)
    weight = 0
    for update in spec["updates"]:
        integers, doubles = read_update(folder / update["file"], layout, f)
        weight += update["weight"]
        for t, tensor in enumerate(layout):
            if tensor["policy"] == "skip":
                assert not integers[t]
                continue
            totals[t], owners[t] = combine(tensor["policy"], totals[t], integers[t], update["weight"],
                                           owners[t], update["id"].encode())
            float_sums[t] = float_sums[t] + update["weight"] * doubles[t]

    sums = numpy.frombuffer((folder / "sums.bin").read_bytes(), "<i8")
    at = 0
    for t, tensor in enumerate(layout):
        if tensor["policy"] == "skip":
            continue
        expected = totals[t]
        got = sums[at:at + len(expected)].tolist()
        at += len(expected)
        if got != expected:
            i = next(i for i, (a, b) in enumerate(zip(got, expected)) if a != b)
            sys.exit(f"{tensor['name']}[{i}]: the sum is {got[i]}, the reference says {expected[i]}")
        if tensor["policy"] == "mean" and tensor["dtype"] in FLOATS and expected:
            mean = numpy.array(got, numpy.float64) / weight * 2.0 ** -f
            reference = float_sums[t] / weight
            error = numpy.linalg.norm(mean - reference) / numpy.linalg.norm(reference)
            if not error <= 1e-7:
                sys.exit(f"{tensor['name']}: the mean is off numpy's float64 by {error}, more than 1e-7")
    if at != len(sums):
        sys.exit(f"there are {len(sums)} sums, the layout has {at}")
    print(f"{at} sums of {len(spec['updates'])} updates are equal to the bit")


if __name__ == "__main__":
    main()
