#!/usr/bin/python3
"""An independent reading of client/trainer/split.h: the parts that split_test.cc expects.

    splits.py --check FILE   fails where the file is not what this program would write
    splits.py --write FILE   writes it

Philox4x32-10, FNV-1a and Lemire's bounded numbers are written from their papers; logarithms and
exponentials are Python's own (the C library's), so equal parts also show that the trainer's
portable ones do not matter to the result.
"""
import json
import math
import pathlib
import sys

MASK32, MASK64 = (1 << 32) - 1, (1 << 64) - 1


def philox(key, counter):
    k0, k1 = key & MASK32, key >> 32
    c = list(counter)
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k0, p1 & MASK32, (p0 >> 32) ^ c[3] ^ k1, p0 & MASK32]
        k0, k1 = (k0 + 0x9E3779B9) & MASK32, (k1 + 0xBB67AE85) & MASK32
    return c


def seeded_hash(seed, purpose, text):
    h = 0xCBF29CE484222325
    for byte in purpose.encode() + b"\0" + text.encode():
        h = ((h ^ byte) * 0x100000001B3) & MASK64
    c = philox(seed, [h & MASK32, h >> 32, 0, 0])
    return c[0] | c[1] << 32


class Stream:
    def __init__(self, key, stream=0):
        self.words = self._words(key, stream)

    @staticmethod
    def _words(key, stream):
        counter = 0
        while True:
            yield from philox(key, [counter & MASK32, counter >> 32, stream & MASK32, stream >> 32])
            counter += 1

    def next64(self):
        low = next(self.words)
        return low | next(self.words) << 32

    def uniform(self):
        return (self.next64() >> 11) * 2.0**-53

    def below(self, n):
        while True:
            m = self.next64() * n
            if m & MASK64 >= (2**64 - n) % n:
                return m >> 64

    def shuffle(self, items):
        for i in range(len(items), 1, -1):
            j = self.below(i)
            items[i - 1], items[j] = items[j], items[i - 1]

    def open_uniform(self):
        return self.uniform() + 2.0**-54

    def normal(self):
        while True:
            u, v = 2 * self.uniform() - 1, 2 * self.uniform() - 1
            s = u * u + v * v
            if 0 < s < 1:
                return u * math.sqrt(-2 * math.log(s) / s)

    def log_gamma_variate(self, shape):
        if shape < 1:
            g = self.log_gamma_variate(shape + 1)
            return g + math.log(self.open_uniform()) / shape
        d = shape - 1 / 3
        c = 1 / math.sqrt(9 * d)
        while True:
            x = self.normal()
            if 1 + c * x <= 0:
                continue
            v = (1 + c * x) ** 3
            if math.log(self.open_uniform()) < 0.5 * x * x + d - d * v + d * math.log(v):
                return math.log(d) + math.log(v)


def cut(items, n):
    return [items[i * len(items) // n:(i + 1) * len(items) // n] for i in range(n)]


def iid(count, clients, seed, use="iid"):
    order = list(range(count))
    Stream(seeded_hash(seed, "split", use)).shuffle(order)
    return cut(order, clients)


def shards(labels, clients, each, seed):
    runs = cut(sorted(range(len(labels)), key=lambda i: labels[i]), clients * each)
    order = list(range(len(runs)))
    Stream(seeded_hash(seed, "split", "shards")).shuffle(order)
    return [sum((runs[r] for r in order[c * each:(c + 1) * each]), []) for c in range(clients)]


def dirichlet(labels, clients, alpha, seed):
    parts = [[] for _ in range(clients)]
    for label in sorted(set(labels)):
        random = Stream(seeded_hash(seed, "split", "dirichlet"), label)
        logs = [random.log_gamma_variate(alpha) for _ in range(clients)]
        weights = [math.exp(v - max(logs)) for v in logs]
        units = [round(w / sum(weights) * 2**20) for w in weights]
        members = [i for i, l in enumerate(labels) if l == label]
        counts = [len(members) * u // sum(units) for u in units]
        by_rest = sorted(range(clients), key=lambda c: -(len(members) * units[c] % sum(units)))
        for c in by_rest[:len(members) - sum(counts)]:
            counts[c] += 1
        random.shuffle(members)
        for c in range(clients):
            parts[c] += members[:counts[c]]
            members = members[counts[c]:]
    for part in parts:
        if not part:
            largest = max(parts, key=len)
            part.append(max(largest))
            largest.remove(max(largest))
    return parts


def text():
    labels = [i * 7 % 3 for i in range(30)]
    cases = [("iid", iid(10, 3, 42)), ("test", iid(10, 4, 42, "test")), ("shards", shards(labels[:12], 3, 2, 42)),
             ("dirichlet 0.5", dirichlet(labels, 4, 0.5, 42)), ("dirichlet 3", dirichlet(labels, 4, 3, 42)),
             ("dirichlet 0.01", dirichlet(labels, 6, 0.01, 42))]
    lines = [json.dumps(name) + ": " + json.dumps([sorted(part) for part in parts]) for name, parts in cases]
    return "{" + ",\n ".join(lines) + "}\n"


def main():
    mode, path = sys.argv[1], pathlib.Path(sys.argv[2])
    if mode == "--write":
        path.write_text(text())
    elif path.read_text() != text():
        print(f"{path} is not what this program would write; write it again")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
