"""The codecs that write a part of a tensor: chosen elements, factors, sketches, blocks that are not zero; written from
docs/wire-format.md.

Each class has encode(x) -> bytes and values(payload, n) -> Fractions. Arithmetic that the page says is binary32 or
binary64 is numpy's, the rest is Fractions.
"""

import struct
from fractions import Fraction

import numpy as np

from codec_bits import TILE, Bits, exact, f32, mean_magnitude, scale_for, take_float


class TopK:
    def __init__(self, k, values):
        self.k, self.kind = k, values

    def encode(self, x):
        # The k largest, the earlier one of equals; no zeros.
        order = sorted(range(len(x)), key=lambda i: (-abs(float(x[i])), i))[:self.k]
        kept = sorted(i for i in order if x[i] != 0)
        out, scale = b"", None
        if self.kind == "ternary":
            scale = mean_magnitude(x[kept])
        elif self.kind == "int8":
            scale = scale_for(max([np.float32(0)] + [abs(x[i]) for i in kept]), 127)
        if scale is not None:
            out += f32(scale)
        for start in range(0, len(x), TILE):
            length = min(TILE, len(x) - start)
            here = [i - start for i in kept if start <= i < start + length]
            out += self.tile(here, length, [x[start + i] for i in here], scale)
        return out

    def tile(self, places, length, values, scale):
        if not places:
            return struct.pack("<I", 0)
        tag, index = 15, Bits()
        for i in range(length):
            index.put(int(i in set(places)), 1)
        best = index.bytes()
        gaps = [b - a - 1 for a, b in zip([-1] + places, places)]
        for rice in range(15):
            unary, rest = Bits(), Bits()
            for gap in gaps:
                unary.put(1 << (gap >> rice), (gap >> rice) + 1)
                rest.put(gap & ((1 << rice) - 1), rice)
            coded = unary.bytes() + rest.bytes()
            if len(coded) < len(best):
                best, tag = coded, rice
        # StreamVByte: two bits a gap, then 0, 1 or 2 bytes each (gaps here are below 2^15).
        lengths, data = Bits(), b""
        for gap in gaps:
            size = 0 if gap == 0 else 1 if gap < 256 else 2
            lengths.put(size, 2)
            data += gap.to_bytes(size, "little")
        size = len(best)
        if len(lengths.bytes() + data) < size:
            best, tag = lengths.bytes() + data, 0
            size = len(best) + 4096
        out = struct.pack("<I", len(places) - 1 | size << 15 | tag << 28) + best
        signs = Bits()
        for v in values:
            if self.kind == "fp32":
                out += f32(v)
            elif self.kind == "fp16":
                out += np.float16(v).tobytes()
            elif self.kind == "int8":
                out += struct.pack("<b", round(exact(np.float32(v) / scale)))
            else:
                signs.put(int(v < 0), 1)
        return out + signs.bytes()

    def values(self, payload, n):
        values, bits = [Fraction(0)] * n, Bits(payload)
        scale = take_float(bits) if self.kind in ("int8", "ternary") else None
        for start in range(0, n, TILE):
            word = bits.take(32)
            if word == 0:
                continue
            for place in self.places(bits, word, min(TILE, n - start)):
                if self.kind == "fp32":
                    v = take_float(bits)
                elif self.kind == "fp16":
                    v = exact(np.frombuffer(struct.pack("<H", bits.take(16)), "<f2")[0])
                elif self.kind == "int8":
                    v = scale * struct.unpack("<b", bytes([bits.take(8)]))[0]
                else:
                    v = -scale if bits.take(1) else scale
                values[start + place] = v
            bits.to_byte()
        assert bits.at == 8 * len(payload)
        return values

    @staticmethod
    def places(bits, word, length):
        count, size, tag = (word & 0x7FFF) + 1, word >> 15 & 0x1FFF, word >> 28
        begin = bits.at
        if tag == 0 and size > 4096:
            size -= 4096
            lengths = [(0, 1, 2, 4)[bits.take(2)] for _ in range(count)]
            bits.to_byte()
            places, at = [], -1
            for length in lengths:
                at += 1 + bits.take(8 * length)
                places.append(at)
        elif tag == 15:
            places = [i for i in range(length) if bits.take(1)]
        else:
            quotients = []
            for _ in range(count):
                q = 0
                while bits.take(1) == 0:
                    q += 1
                quotients.append(q)
            bits.to_byte()
            places, at = [], -1
            for q in quotients:
                at += 1 + (q << tag | bits.take(tag))
                places.append(at)
        bits.to_byte()
        assert bits.at == begin + 8 * size and len(places) == count
        return places


class RandK:
    """`philox(key, counter)` gives the four words."""

    def __init__(self, stride, values, scaled, philox, key):
        self.stride, self.kind, self.scaled, self.philox, self.key = stride, values, scaled, philox, key

    def places(self, key, n):
        for tile in range(-(-n // TILE)):
            length = min(TILE, n - tile * TILE)
            for j in range(-(-length // self.stride)):
                place = j * self.stride + (self.philox(key, (j // 4, tile, 0, 0))[j % 4] * self.stride >> 32)
                yield tile * TILE + place if place < length else None

    def encode(self, x):
        out = struct.pack("<Q", self.key)
        for place in self.places(self.key, len(x)):
            v = np.float32(0) if place is None else x[place]
            out += f32(v) if self.kind == "fp32" else np.float16(v).tobytes()
        return out

    def values(self, payload, n):
        values = [Fraction(0)] * n
        numbers = np.frombuffer(payload[8:], "<f4" if self.kind == "fp32" else "<f2")
        key, = struct.unpack_from("<Q", payload)
        for place, v in zip(self.places(key, n), numbers, strict=True):
            if place is not None:
                values[place] = exact(v) * (self.stride if self.scaled else 1)
        return values


def dot(a, b):
    """Eight binary64 sums, of the places that are the same modulo 8, added in pairs."""
    sums = [np.float64(0)] * 8
    for i, (p, q) in enumerate(zip(a, b)):
        sums[i % 8] = sums[i % 8] + np.float64(p) * np.float64(q)
    return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]))


class PowerSgd:
    """`philox_at(k, j)`: word j of the numbers for column k of the first Q."""

    def __init__(self, rank, word):
        self.rank, self.word = rank, word

    def encode(self, x):
        columns = int(np.ceil(np.sqrt(np.float64(len(x)))))
        rows = [x[i:i + columns] for i in range(0, len(x), columns)]
        p = []
        for k in range(self.rank):
            start = [np.float32((((self.word(k, j) ^ 0x80000000) - 0x80000000) >> 8) * 2.0**-23) for j in range(columns)]
            p.append(np.array([dot(row, start) for row in rows], np.float64))
        for k in range(self.rank):
            before = np.sqrt(dot(p[k], p[k]))
            for l in range(k):
                part = dot(p[k], p[l])
                p[k] = p[k] - part * p[l]
            norm = np.sqrt(dot(p[k], p[k]))
            dependent = not norm > 1e-6 * before or norm < 2.0**-140
            p[k] = np.zeros_like(p[k]) if dependent else p[k] / norm
        p = [column.astype(np.float32) for column in p]
        out = struct.pack("<II", columns, 0)
        for i in range(len(rows)):
            out += b"".join(f32(p[k][i]) for k in range(self.rank))
        for k in range(self.rank):
            sums = np.zeros(columns, np.float64)
            for i, row in enumerate(rows):
                sums[:len(row)] = sums[:len(row)] + row.astype(np.float64) * np.float64(p[k][i])
            out += sums.astype("<f4").tobytes()
        return out

    def values(self, payload, n):
        columns, skip = struct.unpack_from("<II", payload)
        rows = -(-(skip + n) // columns)
        numbers = np.frombuffer(payload[8:], "<f4").astype(np.float64)
        p, q = numbers[:rows * self.rank].reshape(rows, -1), numbers[rows * self.rank:].reshape(self.rank, columns)
        values = []
        for i in range(skip, skip + n):
            total = p[i // columns, 0] * q[0, i % columns]
            for k in range(1, self.rank):
                total = total + p[i // columns, k] * q[k, i % columns]
            values.append(exact(total))
        return values


class Sketch:
    """`philox(key, counter)` gives the four words. values() are the cells, in the places that they are summed in."""

    def __init__(self, rows, columns, philox, key):
        self.rows, self.columns, self.philox, self.key = rows, columns, philox, key

    def tiles(self, n):
        for tile in range(-(-n // TILE)):
            length = min(TILE, n - tile * TILE)
            yield tile, length, self.columns * length // TILE if length >= 1024 else 0

    def places(self, key, i, columns):
        words = self.philox(key, (i, 0, 0, 0))
        number = words[0] | words[1] << 32 | words[2] << 64 | words[3] << 96
        for row in range(self.rows):
            bits = number >> 25 * row & 0x1FFFFFF
            yield row * columns + (bits % 2**24) * columns // 2**24, -1 if bits >> 24 else 1

    def encode(self, x):
        out = struct.pack("<Q", self.key)
        for tile, length, columns in self.tiles(len(x)):
            part = x[tile * TILE:tile * TILE + length]
            if not columns:
                out += part.astype("<f4").tobytes()
                continue
            cells = np.zeros(self.rows * columns, np.float64)
            for i, v in enumerate(part):
                for cell, sign in self.places(self.key + tile, i, columns):
                    cells[cell] = cells[cell] + sign * np.float64(v)
            out += cells.astype("<f4").tobytes()
        return out

    def values(self, payload, n):
        values, at = [], 8
        for _, length, columns in self.tiles(n):
            count = self.rows * columns if columns else length
            values += [exact(v) for v in np.frombuffer(payload, "<f4", count, at)]
            values += [Fraction(0)] * (length - count)
            at += 4 * count
        assert at == len(payload)
        return values

    def decode(self, payload, n):
        """The estimates: medians."""
        key, = struct.unpack_from("<Q", payload)
        estimates, at = [], 8
        for tile, length, columns in self.tiles(n):
            cells = np.frombuffer(payload, "<f4", self.rows * columns if columns else length, at)
            at += 4 * len(cells)
            for i in range(length):
                if columns:
                    estimates.append(np.median([sign * cells[c] for c, sign in self.places(key + tile, i, columns)]))
                else:
                    estimates.append(cells[i])
        return np.array(estimates, "<f4")


class Zeros:
    """Blocks of 256 that are not all zero, behind a bitmap; `number` and `parameter` are the inner codec's."""

    def __init__(self, inner, number, parameter):
        self.inner, self.number, self.parameter = inner, number, parameter

    def encode(self, x):
        present, within = Bits(), []
        for start in range(0, len(x), 256):
            block = x[start:start + 256]
            present.put(int(np.any(block != 0)), 1)
            if np.any(block != 0):
                within.append(block)
        head = struct.pack("<HHII", self.number, 0, self.parameter, len(x))
        return head + present.bytes() + self.inner.encode(np.concatenate(within))

    def values(self, payload, n):
        assert struct.unpack_from("<HHII", payload) == (self.number, 0, self.parameter, n)
        bits = Bits(payload[12:])
        places = [i for start in range(0, n, 256) if bits.take(1) for i in range(start, min(start + 256, n))]
        bits.to_byte()
        values = [Fraction(0)] * n
        for place, v in zip(places, self.inner.values(payload[12 + bits.at // 8:], len(places)), strict=True):
            values[place] = v
        return values
