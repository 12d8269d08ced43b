#!/usr/bin/python3
"""The random numbers that compilers of base/philox.h and compression/random.h must give, worked out from the papers and
docs/wire-format.md by themselves.

    random_vectors.py --check DIR | --write DIR      DIR/vectors.inc, which C++ and CUDA include
"""
from golden_files import main

MASK32, MASK64 = (1 << 32) - 1, (1 << 64) - 1
# Published with Random123 (kat_vectors, "philox4x32 10"): counter, key, result.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((MASK32,) * 4, (MASK32,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0),
     (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
]
KEYS = (0, 0x0123456789ABCDEF, MASK64)


def philox(key, counter):
    """Philox4x32-10 (Salmon et al., SC'11): four words of a 64-bit key and four counter words."""
    k = [key & MASK32, key >> 32]
    c = list(counter)
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & MASK32, (p0 >> 32) ^ c[3] ^ k[1], p0 & MASK32]
        k = [(k[0] + 0x9E3779B9) & MASK32, (k[1] + 0xBB67AE85) & MASK32]
    return c


def low64(words):
    return words[0] | words[1] << 32


def seeded_hash(seed, purpose, text):
    h = 0xCBF29CE484222325  # FNV-1a
    for byte in purpose.encode() + b"\0" + text.encode():
        h = ((h ^ byte) * 0x100000001B3) & MASK64
    return low64(philox(seed, (h & MASK32, h >> 32, 0, 0)))


def next64(key, stream):
    words = (w for c in range(1 << 32) for w in philox(key, (c & MASK32, c >> 32, stream & MASK32, stream >> 32)))
    while True:
        yield next(words) | next(words) << 32


def below(key, stream, n):
    """Lemire 2019."""
    for number in next64(key, stream):
        product = number * n
        if product & MASK64 >= 2**64 % n:
            yield product >> 64


def nth(numbers, n):
    return [next(numbers) for _ in range(n + 1)][n]


def rounding(key, round_, tensor, i):
    c = i // 8
    words = philox(key, (c & MASK32, c >> 32, tensor, round_))
    return b"".join(w.to_bytes(4, "little") for w in words)[i % 8 * 2:][:2]


def tile_key(key, round_, tensor, tile):
    return low64(philox(key, (tile & MASK32, tile >> 32, tensor, round_)))


def rows():
    for counter, (k0, k1), words in KNOWN:
        assert tuple(philox(k0 | k1 << 32, counter)) == words
        yield "PHILOX", (k0 | k1 << 32, *counter, *words)
    for seed in KEYS:
        for purpose, text in (("codec", "client-7"), ("mask", ""), ("cohort", "\u00e4")):
            yield "SEEDED_HASH", (seed, f'"{purpose}"', f'"{text}"', seeded_hash(seed, purpose, text))
    for key in KEYS:
        for stream in (0, 1 << 33 | 5):
            for n in (0, 1, 2, 9):
                yield "NEXT64", (key, stream, n, nth(next64(key, stream), n))
            yield "UNIFORM53", (key, stream, 3, nth(next64(key, stream), 3) >> 11)  # times 2^-53
            for most in (1, 6, 10**12, (1 << 63) + 1):  # of the last nearly half are drawn again
                yield "BELOW", (key, stream, most, 7, nth(below(key, stream, most), 7))
        # Either side of where a counter's first word is full.
        for i in (*range(9), 8 * MASK32 + 7, 8 << 32, MASK64):
            yield "ROUNDING", (key, 11, MASK32, i, int.from_bytes(rounding(key, 11, MASK32, i), "little"))
        for tile in (0, 1, MASK32, 1 << 32):
            yield "TILE_KEY", (key, 0x80000001, 7, tile, tile_key(key, 0x80000001, 7, tile))


def text(value):
    return value if isinstance(value, str) else f"0x{value:X}" if value > 9 else str(value)


lines = ["// Written by tests/reference/random_vectors.py: arguments, then the result."]
lines += [f"{name}({', '.join(map(text, values))})" for name, values in rows()]
main({"vectors.inc": "".join(line + "\n" for line in lines).encode()})
