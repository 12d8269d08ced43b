#!/usr/bin/env python3
"""Three rounds of SCAFFOLD, of FedDyn, of FedNova and of HierFAVG in float64, from the papers' algorithms alone.

    client_algorithms.py --check FILE   fails where the file is not what this program would write
    client_algorithms.py --write FILE   writes it

SCAFFOLD: Karimireddy et al., ICML 2020, algorithm 1 with option II for the control variates.
FedDyn: Acar et al., ICLR 2021, algorithm 1, its local problem solved as far as STEPS steps go.
FedNova: Wang et al., NeurIPS 2020, equation 7 with momentum SGD, where each client does another number of steps.
HierFAVG: Liu et al., ICC 2020, algorithm 1, with kappa_2 edge rounds between two of the cloud's.
All averages are weighted by examples, as the objectives are. The clients are multinomial logistic
regressions on a few made-up images; client 1 is away in round 2
(HierFAVG: in the second of all edge rounds).
"""
import json
import pathlib
import sys

import numpy as np

PIXELS, CLASSES = 784, 10
EXAMPLES = [12, 7, 5]
ROUNDS, STEPS, RATE = 3, 5, 0.1
ALPHA = 0.1
EVERY = 61  # which elements are written: every 61st
PRESENT = [[0, 1, 2], [0, 2], [0, 1, 2]]


def data(client):
    i = np.arange(EXAMPLES[client])
    labels = (i * 3 + client * 4) % 10
    p = np.arange(PIXELS)
    pixels = (p[None, :] * 31 + labels[:, None] * 57 + i[:, None] * 11 + client * 101) % 256
    return pixels / 255.0 / 4.0, np.eye(CLASSES)[labels]


def base():
    i = np.arange(PIXELS * CLASSES + CLASSES)
    return ((i * 13) % 29 - 14) / 256.0


def gradient(w, x, y):
    scores = x @ w[: PIXELS * CLASSES].reshape(CLASSES, PIXELS).T + w[PIXELS * CLASSES:]
    e = np.exp(scores - scores.max(axis=1, keepdims=True))
    error = (e / e.sum(axis=1, keepdims=True) - y) / len(x)
    return np.concatenate([(error.T @ x).ravel(), error.sum(axis=0)])


def momentum_norm(momentum, steps=STEPS):
    """How many gradients' worth so many steps move by: 1 + m + m^2 + ... for each."""
    return sum(sum(momentum ** k for k in range(steps - j)) for j in range(steps))


def written(values):
    return [round(v, 12) for v in values[::EVERY].tolist()]


def scaffold(momentum):
    x, c = base(), np.zeros_like(base())
    own = [np.zeros_like(c) for _ in EXAMPLES]
    everyone = sum(EXAMPLES)
    out = []
    for present in PRESENT:
        moved, changed = np.zeros_like(x), np.zeros_like(x)
        for k in present:
            images, labels = data(k)
            y, v = x.copy(), np.zeros_like(x)
            for _ in range(STEPS):
                v = momentum * v + gradient(y, images, labels) - own[k] + c
                y = y - RATE * v
            fresh = own[k] - c + (x - y) / (momentum_norm(momentum) * RATE)
            moved += EXAMPLES[k] * (y - x)
            changed += EXAMPLES[k] * (fresh - own[k])
            own[k] = fresh
        x = x + moved / sum(EXAMPLES[k] for k in present)
        c = c + changed / everyone
        out.append({"model": written(x), "variate": written(c)})
    return out


def feddyn():
    x, h = base(), np.zeros_like(base())
    own = [np.zeros_like(h) for _ in EXAMPLES]
    everyone = sum(EXAMPLES)
    out = []
    for present in PRESENT:
        thetas = {}
        for k in present:
            images, labels = data(k)
            theta = x.copy()
            for _ in range(STEPS):
                theta = theta - RATE * (gradient(theta, images, labels) - own[k] + ALPHA * (theta - x))
            own[k] = own[k] - ALPHA * (theta - x)
            thetas[k] = theta
        h = h - ALPHA * sum(EXAMPLES[k] * (thetas[k] - x) for k in present) / everyone
        weight = sum(EXAMPLES[k] for k in present)
        x = sum(EXAMPLES[k] * thetas[k] for k in present) / weight - h / ALPHA
        out.append({"model": written(x)})
    return out


NOVA_STEPS = [5, 2, 3]


def fednova(momentum):
    x = base()
    out = []
    for present in PRESENT:
        weight = sum(EXAMPLES[k] for k in present)
        direction, steps = np.zeros_like(x), 0.0
        for k in present:
            images, labels = data(k)
            y, v = x.copy(), np.zeros_like(x)
            for _ in range(NOVA_STEPS[k]):
                v = momentum * v + gradient(y, images, labels)
                y = y - RATE * v
            norm = momentum_norm(momentum, NOVA_STEPS[k])
            direction += EXAMPLES[k] / weight * (y - x) / norm
            steps += EXAMPLES[k] / weight * norm
        x = x + steps * direction
        out.append({"model": written(x)})
    return out


EDGES = [[0, 2], [1]]


def hierfavg(kappa):
    x = base()
    out = []
    for r in range(ROUNDS):
        total, weight = np.zeros_like(x), 0
        for members in EDGES:
            edge = x.copy()
            examples = sum(EXAMPLES[k] for k in members)  # who came in at least one edge round
            for j in range(kappa):
                present = [k for k in members if not (k == 1 and r * kappa + j + 1 == 2)]
                if not present:
                    continue
                ends = []
                for k in present:
                    images, labels = data(k)
                    w = edge.copy()
                    for _ in range(STEPS):
                        w = w - RATE * gradient(w, images, labels)
                    ends.append(EXAMPLES[k] * w)
                edge = sum(ends) / sum(EXAMPLES[k] for k in present)
            total += examples * edge
            weight += examples
        x = total / weight
        out.append({"model": written(x)})
    return out


def text():
    cases = [{"name": "scaffold", "momentum": 0.0, "rounds": scaffold(0.0)},
             {"name": "scaffold", "momentum": 0.5, "rounds": scaffold(0.5)},
             {"name": "feddyn", "momentum": 0.0, "rounds": feddyn()},
             {"name": "fednova", "momentum": 0.5, "rounds": fednova(0.5)},
             {"name": "hierfavg", "kappa": 2, "rounds": hierfavg(2)},
             {"name": "hierfavg", "kappa": 3, "rounds": hierfavg(3)}]
    return json.dumps(cases, separators=(",", ":")) + "\n"


def main():
    mode, path = sys.argv[1], pathlib.Path(sys.argv[2])
    if mode == "--write":
        path.write_text(text())
        return 0
    # Another numpy may differ in the last bits.
    for case, wanted in zip(json.loads(path.read_text()), json.loads(text()), strict=True):
        same = case["name"] == wanted["name"] and all(
            np.allclose(a[what], b[what], rtol=0, atol=1e-11)
            for a, b in zip(case["rounds"], wanted["rounds"], strict=True) for what in b)
        if not same:
            print(f"{path}: {wanted['name']} differs; write it again")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
