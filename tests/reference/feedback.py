#!/usr/bin/env python3
"""Error feedback in float64, from the papers' recursions alone: what clients send, and EF21's model at the root.

    feedback.py --check FILE   fails where the file is not what this program would write
    feedback.py --write FILE   writes it

Momentum correction, masking and warm-up: Lin et al., "Deep Gradient Compression", ICLR 2018. EF21: Richtarik,
Sokolov, Fatkhullin, 2021; with partial participation: Fatkhullin et al., 2021, algorithm 4. Ternary values: Sattler
et al., 2019.
"""
import json
import pathlib
import sys

import numpy as np

ROUNDS = 6
SIZES = {"a": 512, "b": 24, "c": 160}
LOST = {3, 5}  # rounds in which the client's update does not count

WEIGHTS = [3, 5, 9, 7]
POPULATION = 32  # more than the four: clients that never came
PARTS = [[0, 1], [1, 2, 3], [0, 3], [2], [0, 1, 2, 3], [1, 3]]
LOST_AT_ROOT = {(3, 3), (5, 0)}  # (round, client)


def delta(name, round_number, client=0):
    """Multiples of 1/1024 with many ties; tensors differ in size of value."""
    i = np.arange(SIZES[name])
    scale = {"a": 1.0, "b": 4.0, "c": 0.5}[name]
    return scale * ((i * i * 3 + i * 7 + client * 13 + round_number * 29 + ord(name)) % 61 - 30) / 1024.0


def largest(x, k):
    """Indices of the k largest magnitudes, of equal ones the first; never of a zero."""
    order = np.argsort(-np.abs(x), kind="stable")[:k]
    return order[x[order] != 0]


def kept(x, k):
    out = np.zeros_like(x)
    chosen = largest(x, k)
    out[chosen] = x[chosen]
    return out


def density(fraction, warmup, start, r):
    return fraction if r > warmup else fraction * (start / fraction) ** ((warmup + 1 - r) / warmup)


def one_tensor(fraction, decay=1.0, momentum=0.0, ef21=False):
    n = SIZES["a"]
    e, u, g = np.zeros(n), np.zeros(n), np.zeros(n)
    sent = []
    for r in range(1, ROUNDS + 1):
        d = delta("a", r)
        if ef21:
            c = kept(d - g, round(fraction * n))
            after = (e, u, g + c)
        else:
            moved = momentum * u + d
            x = moved + decay * e
            c = kept(x, round(fraction * n))
            after = (x - c, np.where(c != 0, 0, moved), g)
        sent.append({"a": c})
        if r not in LOST:
            e, u, g = after
    return sent


def whole_model(fraction, ternary=False, gain=1.0, decay=1.0, warmup=0, start=0.25):
    names = list(SIZES)
    cuts = np.cumsum([SIZES[n] for n in names])[:-1]
    e = np.zeros(sum(SIZES.values()))
    sent = []
    for r in range(1, ROUNDS + 1):
        x = np.concatenate([delta(n, r) for n in names]) + decay * e
        k = round(density(fraction, warmup, start, r) * len(x))
        parts = np.split(kept(x, k), cuts)
        if ternary:  # a magnitude a tensor
            parts = [np.sign(p) * gain * np.abs(p[p != 0]).mean() if p.any() else p for p in parts]
        c = np.concatenate(parts)
        sent.append(dict(zip(names, parts)))
        if r not in LOST:
            e = x - c
    return sent


def root(momentum, fraction=0.1):
    """Tensor a by EF21, tensor b as it is: the models after each round."""
    n = SIZES["a"]
    a, b = np.zeros(n), np.zeros(SIZES["b"])
    ma, mb = np.zeros(n), np.zeros(SIZES["b"])
    g = [np.zeros(n) for _ in WEIGHTS]
    models = []
    for r in range(1, ROUNDS + 1):
        counted = [c for c in PARTS[r - 1] if (r, c) not in LOST_AT_ROOT]
        for c in counted:
            g[c] = g[c] + kept(delta("a", r, c) - g[c], round(fraction * n))
        mean_a = sum(w * e for w, e in zip(WEIGHTS, g)) / POPULATION
        mean_b = sum(WEIGHTS[c] * delta("b", r, c) for c in counted) / sum(WEIGHTS[c] for c in counted)
        ma, mb = momentum * ma + mean_a, momentum * mb + mean_b
        a, b = a + ma, b + mb
        models.append({"a": a.tolist(), "b": b.tolist()})
    return models


def sparse(sent):
    return [{n: {str(i): float(x[i]) for i in np.flatnonzero(x)} for n, x in r.items()} for r in sent]


def text():
    only_a = "fp32; a = "
    clients = {
        only_a + "topk(0.1) | ef(decay=0.5)": one_tensor(0.1, decay=0.5),
        only_a + "topk(0.1) | ef(momentum=0.5)": one_tensor(0.1, momentum=0.5),
        only_a + "topk(0.1) | ef(decay=0.75, momentum=0.5) | zstd": one_tensor(0.1, decay=0.75, momentum=0.5),
        only_a + "topk(0.1) | ef21": one_tensor(0.1, ef21=True),
        "topk(0.05, across=model)": whole_model(0.05),
        "topk(0.05, values=ternary, across=model, gain=1.5) | ef(decay=0.5)":
            whole_model(0.05, ternary=True, gain=1.5, decay=0.5),
        "topk(0.02, across=model, warmup=4, from=0.4) | ef(decay=0.5)":
            whole_model(0.02, decay=0.5, warmup=4, start=0.4),
    }
    out = {
        "lost": sorted(LOST),
        "clients": [{"spec": spec, "sent": sparse(sent)} for spec, sent in clients.items()],
        "root": {"spec": only_a + "topk(0.1) | ef21", "weights": WEIGHTS, "population": POPULATION, "parts": PARTS,
                 "lost": sorted(list(x) for x in LOST_AT_ROOT),
                 "models": [{"momentum": m, "after": root(m)} for m in (0.0, 0.5)]},
    }
    return json.dumps(out, separators=(",", ":")) + "\n"


def same(x, y):
    if isinstance(x, dict):
        return x.keys() == y.keys() and all(same(x[k], y[k]) for k in x)
    if isinstance(x, list):
        return len(x) == len(y) and all(same(p, q) for p, q in zip(x, y))
    return x == y or (isinstance(x, float) and abs(x - y) <= 1e-13)


def main():
    mode, path = sys.argv[1], pathlib.Path(sys.argv[2])
    if mode == "--write":
        path.write_text(text())
    elif not same(json.loads(path.read_text()), json.loads(text())):
        print(f"{path} is not what this program would write; write it again")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
