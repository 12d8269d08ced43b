#!/usr/bin/env python3
"""The golden files of aggregation, written in Python from docs/wire-format.md alone.

    aggregation_golden.py --check DIR   fails where a file is not what this program would write
    aggregation_golden.py --write DIR   writes them

layout_hash.bin  SHA-256 of the layout below
update.bin       an update of it: fp32, bf16, fp16 and raw int64 segments
update_sums.bin  its sums with weight 3 on a grid of 30 fraction bits, int64 each
chunk_values.bin 1,300 sums: blocks of width 64, 0 and 37, the last block short
chunk.bin        their packed chunk
"""
import hashlib
import struct

from golden_files import main, segment

# (name, shape, dtype number, policy number)
LAYOUT = [("fc.weight", [3, 5], 1, 1), ("fc.bias", [3], 4, 1), ("h\u00e4lfte", [4], 3, 2),
          ("frozen", [2, 2], 2, 5), ("empty", [0], 1, 1), ("steps", [], 5, 3)]
WEIGHT = 3


def floats_of(tensor, count):
    """Values that every format here holds exactly: small multiples of 2^-5."""
    return [((tensor * 7 + i * 5) % 23 - 11) / 32 for i in range(count)]


def layout_hash():
    text = b"tributary layout 1\n" + struct.pack("<Q", len(LAYOUT))
    for name, shape, dtype, policy in LAYOUT:
        encoded = name.encode("utf-8")
        text += struct.pack("<Q", len(encoded)) + encoded + bytes([dtype, policy])
        text += struct.pack("<Q", len(shape)) + b"".join(struct.pack("<Q", d) for d in shape)
    return hashlib.sha256(text).digest()


def update():
    fp32 = b"".join(struct.pack("<f", x) for x in floats_of(0, 15))
    bf16 = b"".join(struct.pack("<f", x)[2:] for x in floats_of(1, 3))
    fp16 = b"".join(struct.pack("<e", x) for x in floats_of(2, 4))
    raw = struct.pack("<q", -41)
    return segment(0, 2, 15, fp32) + segment(1, 4, 3, bf16) + segment(2, 3, 4, fp16) + segment(5, 1, 1, raw)


def update_sums():
    unit = 1 << 30
    sums = [WEIGHT * int(x * unit) for x in floats_of(0, 15) + floats_of(1, 3)]
    sums += [int(x * unit) for x in floats_of(2, 4)]  # policy sum: unweighted
    sums += [-41]                                     # policy max
    return struct.pack(f"<{len(sums)}q", *sums)


def chunk_numbers():
    values = [0] * 1300
    for i in range(512):
        values[i] = ((i * 0x9E3779B97F4A7C15 + 0x1234567) & ((1 << 64) - 1)) - (1 << 63)
    values[0], values[511] = -(1 << 63), (1 << 63) - 1
    for i in range(1024, 1300):
        values[i] = (i * 0x5DEECE66D + 11) % (1 << 37) - (1 << 36)
    values[1024], values[1299] = -(1 << 36), (1 << 36) - 1
    return values


def width_of(block):
    width = 0
    for v in block:
        if v != 0:
            # Two's complement takes one bit more than the magnitude of v, or of -v - 1 below zero.
            width = max(width, 1 + (v if v >= 0 else -v - 1).bit_length())
    return width


def pack(values):
    blocks = [values[i:i + 512] for i in range(0, len(values), 512)]
    blocks = [b + [0] * (512 - len(b)) for b in blocks]
    out = bytes(width_of(b) for b in blocks)
    for block in blocks:
        width = width_of(block)
        lanes = []
        for lane in range(8):
            string = 0
            for row in range(64):
                string |= (block[row * 8 + lane] & ((1 << width) - 1)) << (row * width)
            lanes.append(string)
        for word in range(width):
            for string in lanes:
                out += struct.pack("<Q", string >> (64 * word) & ((1 << 64) - 1))
    return out


def files():
    numbers = chunk_numbers()
    return {"layout_hash.bin": layout_hash(), "update.bin": update(), "update_sums.bin": update_sums(),
            "chunk_values.bin": struct.pack(f"<{len(numbers)}q", *numbers), "chunk.bin": pack(numbers)}


if __name__ == "__main__":
    main(files())
