"""The codecs that write every element: blocks of a scale and codes, and EDEN; written from docs/wire-format.md.

Each class has encode(x) -> bytes and values(payload, n) -> Fractions. Arithmetic that the page says is binary32 or
binary64 is numpy's, the rest is Fractions.
"""

import struct
from fractions import Fraction

import numpy as np

from codec_bits import Bits, exact, f32, mean_magnitude, scale_for, take_float


def mini_float(code, exponent_bits, mantissa_bits, bias):
    """The value of a small float's magnitude code."""
    exponent, mantissa = code >> mantissa_bits, code & ((1 << mantissa_bits) - 1)
    unit = Fraction(2) ** ((exponent or 1) - bias - mantissa_bits)
    return (mantissa + ((1 << mantissa_bits) if exponent else 0)) * unit


class Mini:
    def __init__(self, bits, exponent_bits, mantissa_bits, bias, top):
        self.bits = bits
        self.magnitudes = [mini_float(c, exponent_bits, mantissa_bits, bias) for c in range(top + 1)]

    def code(self, y):
        """The nearest, ties to the even code; beyond the largest, the largest."""
        magnitude = abs(exact(y))
        best = min(range(len(self.magnitudes)), key=lambda c: (abs(self.magnitudes[c] - magnitude), c % 2))
        return best | (int(np.signbit(y)) << (self.bits - 1))

    def value(self, code):
        magnitude = self.magnitudes[code & ((1 << (self.bits - 1)) - 1)]
        return -magnitude if code >> (self.bits - 1) else magnitude


E4M3 = Mini(8, 4, 3, 7, 0x7E)
E5M2 = Mini(8, 5, 2, 15, 0x7B)
E2M1 = Mini(4, 2, 1, 1, 7)


class Blocks:
    """int4, int2, sign, fp8, mxfp8, mxfp4, mxint8, hq."""

    def __init__(self, kind, block, bits=8, levels=0, scale="f32", mini=None, step=0, top=0, random=None):
        self.kind, self.block, self.bits, self.levels = kind, block, bits, levels
        self.scale, self.mini, self.step, self.top, self.random = scale, mini, step, top, random

    def encode(self, x):
        out = b""
        for start in range(0, len(x), self.block):
            part = x[start:start + self.block]
            head, scale = self.head(part)
            bits = Bits()
            for i, v in enumerate(part):
                bits.put(self.code(v, scale, start + i) & ((1 << self.bits) - 1), self.bits)
            out += head + bits.bytes()
        return out

    def head(self, part):
        if self.scale == "shared":
            return b"", np.float32(2.0 ** -self.step)
        largest = np.max(np.abs(part))
        if self.kind == "sign":
            scale = mean_magnitude(part)
            return f32(scale), scale
        if self.scale == "f32":
            scale = scale_for(largest, self.levels if not self.mini else int(self.mini.magnitudes[-1]))
            return f32(scale), scale
        e = 0
        if largest > 0:
            e = min(254, max(0, int(np.frexp(np.float64(largest))[1]) - 1 - self.top + 127))
        unit = 2.0 ** (e - 127) / (64 if self.kind == "mxint8" else 1)
        return bytes([e]), np.float32(unit)

    def code(self, v, scale, index):
        if self.kind == "sign":
            return 1 if v < 0 and scale > 0 else 0
        if scale == 0:
            return 0
        y = np.float32(v) / scale
        if self.mini:
            return self.mini.code(y)
        if self.scale != "f32":
            y = min(max(y, np.float32(-self.levels)), np.float32(self.levels))
        if self.random:
            return (round(exact(y) * 65536) + self.random(index)) // 65536
        return round(exact(y))

    def values(self, payload, n):
        bits, values, scale = Bits(payload), [], Fraction(1, 2**self.step)
        for i in range(n):
            if i % self.block == 0:
                bits.to_byte()
                if self.scale == "f32":
                    scale = take_float(bits)
                elif self.scale == "e8m0":
                    scale = Fraction(2) ** (bits.take(8) - 127)
            code = bits.take(self.bits)
            if self.kind == "sign":
                values.append(-scale if code else scale)
            elif self.mini:
                values.append(scale * self.mini.value(code))
            else:
                signed = code - (1 << self.bits) if code >> (self.bits - 1) else code
                values.append(scale * signed / (64 if self.kind == "mxint8" else 1))
        bits.to_byte()
        assert bits.at == 8 * len(payload)
        return values


class Eden:
    LEVELS = {1: [1], 2: [38, 127], 3: [14, 44, 78, 125], 4: [6, 18, 30, 43, 58, 74, 95, 126]}
    UNITS = {1: 1.2533141, 2: 84, 3: 58, 4: 46}

    def __init__(self, bits, block, philox, key):
        self.bits, self.block, self.philox, self.key = bits, block, philox, key

    def signs(self, key, first, size):
        def sign(i):
            return -1 if self.philox(key, (i // 128, 0, 0, 0))[i % 128 // 32] >> i % 32 & 1 else 1
        return np.array([sign(first + i) for i in range(size)])

    @staticmethod
    def hadamard(v):
        v, h = v.copy(), len(v) // 2
        while h:
            pairs = v.reshape(-1, 2, h)
            a, b = pairs[:, 0].copy(), pairs[:, 1].copy()
            pairs[:, 0], pairs[:, 1] = a + b, a - b
            h //= 2
        return v

    @staticmethod
    def dot(a, b):
        sums = [np.float64(0)] * 8
        for i, (p, q) in enumerate(zip(a, b)):
            sums[i % 8] = sums[i % 8] + np.float64(p) * np.float64(q)
        return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]))

    def level(self, code):
        half = 1 << (self.bits - 1)
        return -self.LEVELS[self.bits][code % half] if code >= half else self.LEVELS[self.bits][code]

    def blocks(self, n):
        for start in range(0, n, self.block):
            length = min(self.block, n - start)
            yield start, length, length if length == self.block else max(16, 1 << (length - 1).bit_length())

    def encode(self, x):
        out, half = struct.pack("<Q", self.key), 1 << (self.bits - 1)
        limits = [np.float32(a + b) / np.float32(2) for a, b in zip(self.LEVELS[self.bits], self.LEVELS[self.bits][1:])]
        for start, length, size in self.blocks(len(x)):
            part = x[start:start + length]
            squares = self.dot(part, part)
            if squares < 2.0**-200:
                out += bytes(4 + size * self.bits // 8)
                continue
            z = np.zeros(size, np.float32)
            z[:length] = part * self.signs(self.key, start, size)[:length].astype(np.float32)
            z = self.hadamard(z)
            assert z.dtype == np.float32
            factor = np.float32(np.float64(np.float32(self.UNITS[self.bits])) / np.sqrt(squares))
            y = z * factor
            codes = [sum(abs(v) > l for l in limits) + (half if v < 0 else 0) for v in y]
            scale = np.float32(squares / self.dot(z, [self.level(c) for c in codes]))
            packed, high = Bits(), Bits()
            for c in codes:
                packed.put(int(c) & 3 if self.bits == 3 else int(c), min(self.bits, 2) if self.bits == 3 else self.bits)
                if self.bits == 3:
                    high.put(int(c) >> 2, 1)
            out += f32(scale) + packed.bytes() + high.bytes()
        return out

    def values(self, payload, n):
        values, bits = [], Bits(payload)
        key = bits.take(64)
        for start, length, size in self.blocks(n):
            scale = take_float(bits)
            codes = [bits.take(2 if self.bits == 3 else self.bits) for _ in range(size)]
            if self.bits == 3:
                codes = [c | bits.take(1) << 2 for c in codes]
            integers = self.hadamard(np.array([self.level(c) for c in codes])) * self.signs(key, start, size)
            values += [scale * int(i) for i in integers[:length]]
        assert bits.at == 8 * len(payload)
        return values
