#!/usr/bin/python3
"""An independent implementation of the codecs' wire format, written from compression/README.md.

    codecs.py --check DIR   recomputes every golden file in DIR and compares; exit code 1 on a difference
    codecs.py --write DIR   writes them

What libzstd and liblz4 wrote (library_*) is not compared byte by byte, for other releases write other bytes: it is read
back, and --write writes it anew.

Floats are numpy's only where numpy is the independent authority (binary16 conversion, binary32 division);
sums and grid values are Python integers and fractions.
"""

import argparse
import pathlib
import struct
import sys
from fractions import Fraction

import numpy as np

from codec_forms import E2M1, E4M3, E5M2, Blocks, Eden
from codec_parts import PowerSgd, RandK, Sketch, TopK, Zeros
from codec_stages import Compressed, library_lz4, library_zstd, read_lz4, read_zstd, write_lz4, write_zstd

KEY, ROUND, TENSOR, FIRST = 0x0123456789ABCDEF, 11, 7, 3 * 32768 + (1 << 37)
SHARED_KEY = 0xFEDCBA9876543210
FRACTION_BITS, WEIGHT = 30, 1000003


def philox4x32(key, counter):
    """Philox4x32-10 (Salmon et al., SC'11): 64-bit key, four counter words -> four words."""
    k = [key & 0xFFFFFFFF, key >> 32]
    c = list(counter)
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & 0xFFFFFFFF, (p0 >> 32) ^ c[3] ^ k[1], p0 & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def check_philox():
    """The known answers of the Random123 distribution (kat_vectors)."""
    assert philox4x32(0, (0, 0, 0, 0)) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    ones = 0xFFFFFFFF
    assert philox4x32((1 << 64) - 1, (ones,) * 4) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    assert philox4x32(0x299F31D0A4093822, (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)) == [
        0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]


def random16(index):
    c = index // 8
    words = philox4x32(KEY, (c & 0xFFFFFFFF, c >> 32, TENSOR, ROUND))
    return struct.unpack("<8H", struct.pack("<4I", *words))[index % 8]


def encode_bf16(x):
    out = b""
    for v in x:
        low = struct.unpack("<I", struct.pack("<f", v))[0] >> 16
        # The two neighbours by magnitude, and which of them is nearer.
        below, above = (Fraction(float(decode_bf16(struct.pack("<H", h))[0])) for h in (low, low + 1))
        middle, exact = (below + above) / 2, Fraction(float(v))
        up = abs(exact) > abs(middle) or (exact == middle and low % 2 == 1)
        out += struct.pack("<H", low + up)
    return out


def decode_bf16(payload):
    return np.frombuffer(b"".join(b"\0\0" + payload[i:i + 2] for i in range(0, len(payload), 2)), "<f4")


def encode_int8(x, block, stochastic):
    out = b""
    for start in range(0, len(x), block):
        part = x[start:start + block]
        largest = np.max(np.abs(part))
        scale = np.float32(largest / np.float32(127))
        if 127 * Fraction(float(scale)) < Fraction(float(largest)):
            scale = np.nextafter(scale, np.float32(np.inf))
        out += struct.pack("<f", scale)
        for i, v in enumerate(part):
            if scale == 0:
                q = 0
            else:
                y = np.float32(v) / scale
                assert y.dtype == np.float32
                if stochastic:
                    t = round(Fraction(float(y)) * 65536)
                    q = (t + random16(FIRST + start + i)) // 65536
                else:
                    q = round(Fraction(float(y)))
            assert -127 <= q <= 127
            out += struct.pack("<b", q)
    return out


def values_int8(payload, n, block):
    values, at = [], 0
    for start in range(0, n, block):
        count = min(block, n - start)
        scale = Fraction(struct.unpack_from("<f", payload, at)[0])
        values += [scale * q for q in struct.unpack_from(f"<{count}b", payload, at + 4)]
        at += 4 + count
    assert at == len(payload)
    return values


def tile_key(key):
    """The key in the payload of a randk or eden segment."""
    tile = FIRST // 32768
    words = philox4x32(key, (tile & 0xFFFFFFFF, tile >> 32, TENSOR, ROUND))
    return words[0] | words[1] << 32


def forms():
    """File name -> codec, for the spec that golden_test.cc names."""
    def random(index):
        return random16(FIRST + index)

    mask, rotation = tile_key(SHARED_KEY), tile_key(KEY ^ 0x6E6F697461746F72)
    return {
        "int4_stochastic_128": Blocks("int", 128, 4, 7, random=random),
        "int4_nearest_16": Blocks("int", 16, 4, 7),
        "int2_stochastic_64": Blocks("int", 64, 2, 1, random=random),
        "sign_128": Blocks("sign", 128, 1),
        "sign_vote_6": Blocks("sign", 4096, 1, scale="shared", step=6),
        "fp8_e4m3_128": Blocks("fp8", 128, mini=E4M3),
        "fp8_e5m2_64": Blocks("fp8", 64, mini=E5M2),
        "mxfp8_e4m3": Blocks("mxfp8", 32, scale="e8m0", mini=E4M3, top=8),
        "mxfp8_e5m2": Blocks("mxfp8", 32, scale="e8m0", mini=E5M2, top=15),
        "mxfp4": Blocks("mxfp4", 32, 4, scale="e8m0", mini=E2M1, top=2),
        "mxint8": Blocks("mxint8", 32, 8, 127, scale="e8m0"),
        "hq_8_12": Blocks("hq", 4096, 8, 127, scale="shared", step=12, random=random),
        "hq_4_8_nearest": Blocks("hq", 4096, 4, 7, scale="shared", step=8),
        "topk_fp32": TopK(60, "fp32"),
        "topk_fp16": TopK(300, "fp16"),
        "topk_int8": TopK(6, "int8"),
        "topk_ternary": TopK(30, "ternary"),
        "randk_fp32_10": RandK(10, "fp32", True, philox4x32, mask),
        "randk_fp16_50_unscaled": RandK(50, "fp16", False, philox4x32, mask),
        "eden_1": Eden(1, 1024, philox4x32, rotation),
        "eden_2_64": Eden(2, 64, philox4x32, rotation),
        "eden_3": Eden(3, 256, philox4x32, rotation),
        "eden_4": Eden(4, 1024, philox4x32, rotation),
        "powersgd_2": PowerSgd(2, power_word),
        "powersgd_5": PowerSgd(5, power_word),
    }


def power_word(k, j):
    """Of the numbers that a powersgd encoder begins with."""
    key = KEY ^ 0x7265776F70 ^ k << 48
    return philox4x32(key, (j // 4, FIRST // 32768 & 0xFFFFFFFF, TENSOR, ROUND))[j % 4]


def long_forms():
    """Of the input three times over, but for its middle, which is zeros."""
    words = philox4x32(SHARED_KEY ^ 0x686374656B73, (0, 0, TENSOR, 0))
    key = (words[0] | words[1] << 32) + FIRST // 32768
    return {
        "long_topk_stream_vbyte": TopK(120, "ternary"),
        "long_sketch_5": Sketch(5, 6553 // 5, philox4x32, key),
        "long_sketch_1": Sketch(1, 32768 // 4, philox4x32, key),
        "long_zeros_int4": Zeros(Blocks("int", 64, 4, 7), 6, 64),
    }


class Plain:
    """fp32 and fp16, as an inner codec."""

    def __init__(self, dtype):
        self.dtype = dtype

    def encode(self, x):
        return x.astype(self.dtype).tobytes()

    def values(self, payload, n):
        numbers = np.frombuffer(payload, self.dtype)
        assert len(numbers) == n
        return [Fraction(float(v)) for v in numbers]


def compressed_forms():
    """Of the longer input."""
    int4 = Blocks("int", 64, 4, 7)
    return {
        "long_zstd_int4": Compressed(int4, 6, 64, write_zstd, read_zstd),
        "long_lz4_fp16": Compressed(Plain("<f2"), 3, 0, write_lz4, read_lz4),
        "long_zeros_lz4_int4": Compressed(Zeros(int4, 6, 64), 21, 0, write_lz4, read_lz4),
        "library_zstd_int4": Compressed(int4, 6, 64, lambda plain: library_zstd(plain, 1), read_zstd),
        "library_zstd19_fp32": Compressed(Plain("<f4"), 2, 0, lambda plain: library_zstd(plain, 19), read_zstd),
        "library_lz4_fp16": Compressed(Plain("<f2"), 3, 0, library_lz4, read_lz4),
    }


def long_input(x):
    """Runs of large ones far apart, for StreamVByte; three tiles of the golden input's length, the middle one zeros."""
    long = np.concatenate([x, np.zeros(3000, "<f4"), x])
    for start in (700, 1900, 3400):
        long[start:start + 40] = np.float32(5000)
    return long


def to_binary32(value):
    """A Fraction rounded once. The products here have at most 48 bits, so binary64 holds them exactly."""
    assert Fraction(float(value)) == value
    return np.float32(float(value))


def fold(values):
    sums = [WEIGHT * round(v * 2**FRACTION_BITS) for v in values]  # round() takes ties to even
    return struct.pack(f"<{len(sums)}Q", *(s % 2**64 for s in sums))  # sums are modulo 2^64


def inputs():
    """Zeros, ties of every format, subnormals, extremes, and bell-shaped deltas; 4 blocks and a short one."""
    tiny = [0.0, -0.0, 2.0**-149, -(2.0**-149), 2.0**-126, 2.0**-24, 2.0**-25, 3 * 2.0**-25, 2.0**-14 - 2.0**-26]
    ties = [1 + 2.0**-11, 1 + 3 * 2.0**-11, 1 + 2.0**-8, -1 - 3 * 2.0**-8, 2.0**-31, 3 * 2.0**-31, -5 * 2.0**-31]
    large = [4096.0, -4096.0, 4095.9998, 2.0, -2.0, 1.9999999, 0.5, 1e-3, -1e3, 3.14159274]
    first = tiny + ties + large
    first += [0.0] * (128 - len(first))
    halves = [127.0] + [k + 0.5 for k in range(-63, 64)]  # scale 1: ties of nearest rounding
    zeros = [0.0] * 128
    subnormal = [(-1) ** k * k * 2.0**-149 for k in range(128)]
    # Deltas by the reference generator itself, about normal with deviation 0.01.
    deltas = []
    for k in range(88):
        words = philox4x32(2024, (k, 0, 0, 0))
        deltas.append((sum(words) / 2**32 - 2) * 0.0173)
    x = np.array(first + halves + zeros + subnormal + deltas, "<f4")
    assert len(x) == 600
    return x


def golden(have):
    """Every file's content. `have`: the folder that library_* are taken from; None: they are written."""
    x = inputs()
    n = len(x)
    files = {"input.f32.bin": x.tobytes()}

    def add(name, payload, decoded, values):
        files[f"{name}.bin"] = payload
        files[f"{name}.decoded.bin"] = np.asarray(decoded, "<f4").tobytes()
        files[f"{name}.fold.bin"] = fold(values)

    half, bf16 = x.astype("<f2"), encode_bf16(x)
    for name, payload, decoded in (("fp32", x.tobytes(), x), ("fp16", half.tobytes(), half.astype("<f4")),
                                   ("bf16", bf16, decode_bf16(bf16))):
        add(name, payload, decoded, [Fraction(float(v)) for v in decoded])
    for name, block, stochastic in (("int8_stochastic_128", 128, True), ("int8_nearest_16", 16, False)):
        payload = encode_int8(x, block, stochastic)
        values = values_int8(payload, n, block)
        for start in range(0, n, block):  # what any encoding must keep to
            scale = max(abs(float(v)) for v in x[start:start + block]) / 127 * (1 + 2**-22) + 2**-149
            for v, w in zip(x[start:start + block], values[start:start + block]):
                assert abs(float(v) - float(w)) <= scale * (1 + 2**-16 if stochastic else 0.5 + 2**-16)
        add(name, payload, [to_binary32(v) for v in values], values)
    for name, codec in forms().items():
        payload = codec.encode(x)
        values = codec.values(payload, n)
        decoded = [np.float32(float(v)) for v in values] if "powersgd" in name else [to_binary32(v) for v in values]
        add(name, payload, decoded, values)
    x = long_input(x)
    files["long_input.f32.bin"] = x.tobytes()
    for name, codec in long_forms().items():
        payload = codec.encode(x)
        values = codec.values(payload, len(x))
        decoded = codec.decode(payload, len(x)) if "sketch" in name else [to_binary32(v) for v in values]
        add(name, payload, decoded, values)
    for name, codec in compressed_forms().items():
        theirs = have is not None and name.startswith("library")
        payload = (have / f"{name}.bin").read_bytes() if theirs else codec.encode(x)
        assert codec.plain(payload) == codec.inner.encode(x), name
        values = codec.values(payload, len(x))
        add(name, payload, [to_binary32(v) for v in values], values)
    # A tile too short for cells, of more elements than a whole one of this form has cells.
    sketch = Sketch(3, int(0.02 * 32768 / 3), philox4x32, long_forms()["long_sketch_1"].key)
    payload = sketch.encode(x[:1000])
    add("short_sketch_3", payload, sketch.decode(payload, 1000), sketch.values(payload, 1000))
    integers = [0, 1, -1, 2**40, -(2**40), 12345] + [k * k * k - 1000 * k for k in range(26)]
    files["int64.bin"] = struct.pack(f"<{len(integers)}q", *integers)
    files["int64.fold.bin"] = struct.pack(f"<{len(integers)}q", *(WEIGHT * v for v in integers))
    # tensor, codec, version, parameter, payload_bytes, first, count
    files["segment_header.bin"] = struct.pack("<IHHIIQQ", TENSOR, 5, 1, 128, 620, FIRST, 600)
    return files


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--check", metavar="DIR", type=pathlib.Path)
    mode.add_argument("--write", metavar="DIR", type=pathlib.Path)
    arguments = parser.parse_args()
    check_philox()
    files = golden(arguments.check)
    bad = 0
    for name, content in files.items():
        if arguments.write:
            (arguments.write / name).write_bytes(content)
        elif (arguments.check / name).read_bytes() != content:
            print(f"{name}: differs from the reference")
            bad += 1
    if arguments.check:
        extra = {p.name for p in arguments.check.iterdir()} - set(files)
        if extra:
            print(f"unknown golden files: {sorted(extra)}")
            bad += 1
    print(f"{len(files)} files, {bad} differ")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
