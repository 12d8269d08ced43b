#!/usr/bin/env python3
"""Golden messages and a golden checkpoint, written in Python from proto/tributary/v1 and docs/wire-format.md alone.

    message_golden.py --check DIR   DIR is tests/golden; fails where a file is not what this program would write
    message_golden.py --write DIR   writes them

messages/upload.bin           an UploadRequest: a whole update, aggregation/update.bin being its segments
messages/partial_header.bin   the PartialSumHeader of a partial sum of one chunk, aggregation/chunk.bin
messages/partial_trailer.bin  its PartialSumTrailer
checkpoint/run-1/             the checkpoint of round 3, with its MANIFEST
"""
import hashlib
import json
import struct

from aggregation_golden import LAYOUT, chunk_numbers, floats_of, layout_hash, pack, update
from golden_files import main

DTYPE_NAMES = {1: "F32", 2: "F64", 3: "F16", 4: "BF16", 5: "I64"}
DTYPE_BYTES = {1: 4, 2: 8, 3: 2, 4: 2, 5: 8}


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


# ---- Protobuf's encoding: fields in rising order, what is 0 or empty left out

def varint(n):
    out = b""
    while n > 0x7F:
        out += bytes([n & 0x7F | 0x80])
        n >>= 7
    return out + bytes([n])


def zigzag(n):
    return n << 1 if n >= 0 else -n * 2 - 1


def message(*fields):
    """Of (number, value): an int is a varint, a float a double, a str or bytes has its length before it."""
    assert [n for n, _ in fields] == sorted(n for n, _ in fields)
    out = b""
    for number, value in fields:
        if isinstance(value, int):
            out += varint(number << 3) + varint(value)
        elif isinstance(value, float):
            out += varint(number << 3 | 1) + struct.pack("<d", value)
        else:
            data = value.encode() if isinstance(value, str) else value
            out += varint(number << 3 | 2) + varint(len(data)) + data
    return out


# ---- An upload, a partial sum

def upload():
    segments = update()
    header = message((1, "run-1"), (2, 3), (3, "client-7"), (4, 1_700_000_000_000_000), (5, 2), (6, layout_hash()),
                     (7, zigzag(3)), (8, len(segments)),
                     (9, message((1, "loss"), (2, 0.75), (3, 3))))
    trailer = message((1, len(segments)), (2, crc32c(segments)))
    return message((1, header), (2, segments), (3, trailer))


def partial_header():
    chunk = pack(chunk_numbers())
    return message((1, "run-1"), (2, 3), (3, "rack-1"), (4, 1_700_000_000_000_001), (5, layout_hash()), (6, 2),
                   (7, 40), (8, "client-7"), (8, "client-9"),
                   (9, message((1, "loss"), (2, zigzag(-5 << 30)), (3, 40))),
                   (10, 1), (11, len(chunk)), (12, message((1, "non_finite"), (2, 2))), (13, 1), (14, 4321), (15, 2),
                   (32, 1))


def partial_trailer():
    chunk = pack(chunk_numbers())
    return message((1, hashlib.sha256(struct.pack("<II", len(chunk), crc32c(chunk))).digest()))


# ---- A checkpoint

def elements(shape):
    count = 1
    for dimension in shape:
        count *= dimension
    return count


def model_bytes():
    """The tensors' bytes in layout order; values that every float type holds exactly."""
    out = b""
    for tensor, (_, shape, dtype, _) in enumerate(LAYOUT):
        values = floats_of(tensor, elements(shape))
        if dtype == 4:
            out += b"".join(struct.pack("<f", x)[2:] for x in values)
        elif dtype == 5:
            out += struct.pack("<q", -(1 << 40)) * len(values)
        else:
            out += struct.pack(f"<{len(values)}{ {1: 'f', 2: 'd', 3: 'e'}[dtype] }", *values)
    return out


def safetensors():
    header, at = {"__metadata__": {"round": "3", "run": "run-1"}}, 0
    for name, shape, dtype, _ in LAYOUT:
        end = at + elements(shape) * DTYPE_BYTES[dtype]
        header[name] = {"dtype": DTYPE_NAMES[dtype], "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + model_bytes()


def tensor_message(name, shape, dtype, policy):
    fields = [(1, name)]
    if shape:
        fields.append((2, b"".join(varint(d) for d in shape)))  # repeated numbers are packed
    return message(*fields, (3, dtype), (4, policy))


def state():
    layout = message(*[(1, tensor_message(*tensor)) for tensor in LAYOUT])
    grid = message((1, 30), (2, 4096.0), (3, 1 << 20), (4, 16))
    spec = message((1, "run-1"), (2, 3), (3, 1), (4, 42), (5, 2), (6, hashlib.sha256(b"base").digest()),
                   (7, layout_hash()), (8, grid), (9, "int8(block=128)"), (10, 1.0), (11, 600_000), (12, 2), (14, 0.75),
                   (15, 1024), (16, message((1, "lr"), (2, 0.05))))
    return message((1, "run-1"), (2, 3), (3, 3), (4, 42), (5, layout), (6, spec),
                   (7, hashlib.sha256(model_bytes()).digest()), (8, "client-9"), (8, "rack-1"), (9, "client-7"),
                   (9, "client-9"), (10, 1), (11, message((1, "m"), (2, b"\x00\xff\x01"))), (12, 1),
                   (41, message((1, "rack-1"), (2, 2))))


def manifest():
    entry = message((1, 3), (2, "00000003"), (3, hashlib.sha256(safetensors()).digest()),
                    (4, hashlib.sha256(state()).digest()))
    return message((1, 1), (2, entry))


def files():
    return {"messages/upload.bin": upload(), "messages/partial_header.bin": partial_header(),
            "messages/partial_trailer.bin": partial_trailer(), "checkpoint/run-1/MANIFEST": manifest(),
            "checkpoint/run-1/00000003/model.safetensors": safetensors(), "checkpoint/run-1/00000003/state.pb": state()}


if __name__ == "__main__":
    main(files())
