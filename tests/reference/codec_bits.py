"""What the reference codecs share: bit strings, scales, exact values."""

import struct
from fractions import Fraction

import numpy as np

TILE = 32768


def f32(value):
    return struct.pack("<f", value)


def exact(v):
    return Fraction(float(v))


class Bits:
    """Numbers of any width, the least significant bit first."""

    def __init__(self, data=b""):
        self.data, self.at = data, 0
        self.out = []

    def take(self, n):
        value = 0
        for b in range(n):
            value |= (self.data[self.at // 8] >> self.at % 8 & 1) << b
            self.at += 1
        return value

    def put(self, value, n):
        self.out += [value >> b & 1 for b in range(n)]

    def to_byte(self):
        self.at = -(-self.at // 8) * 8

    def bytes(self):
        padded = self.out + [0] * (-len(self.out) % 8)
        return bytes(sum(bit << b for b, bit in enumerate(padded[i:i + 8])) for i in range(0, len(padded), 8))


def mean_magnitude(x):
    sums = [np.float64(0)] * 8
    for i, v in enumerate(x):
        sums[i % 8] = sums[i % 8] + np.float64(abs(v))
    total = ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]))
    return np.float32(total / np.float64(len(x))) if len(x) else np.float32(0)


def scale_for(largest, levels):
    scale = np.float32(largest / np.float32(levels))
    if levels * exact(scale) < exact(largest):
        scale = np.nextafter(scale, np.float32(np.inf))
    return scale


def take_float(bits):
    return exact(np.frombuffer(struct.pack("<I", bits.take(32)), "<f4")[0])
