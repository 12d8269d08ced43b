#!/usr/bin/env python3
"""Three rounds of each server optimizer in float64, from the papers' algorithms alone.

    server_optimizers.py --check FILE   fails where the file is not what this program would write
    server_optimizers.py --write FILE   writes it

FedAvgM: Hsu, Qi, Brown, "Measuring the Effects of Non-Identical Data Distribution", 2019.
FedAdagrad, FedAdam, FedYogi: Reddi et al., "Adaptive Federated Optimization", 2021, algorithm 2,
with v of round 0 at tau^2.
"""
import json
import pathlib
import sys

import numpy as np

ELEMENTS = 96
WEIGHTS = [3, 5, 9]
ROUNDS = 3


def base():
    i = np.arange(ELEMENTS)
    return ((i * 11) % 37 - 18) / 16.0


def delta(round_number, client):
    """Multiples of 1/64, which a grid of 30 bits holds exactly; zero in places."""
    i = np.arange(ELEMENTS)
    return ((i * 7 + client * 13 + round_number * 29) % 61 - 30) / 64.0


def mean(round_number):
    total = sum(w * delta(round_number, c) for c, w in enumerate(WEIGHTS))
    return total / sum(WEIGHTS)


def rate(spec, r):
    value = spec["rate"]
    kind = spec.get("kind", "constant")
    if kind == "step":
        for _ in range((r - 1) // spec["rounds"]):
            value *= spec["factor"]
    elif kind == "exponential":
        for _ in range(r - 1):
            value *= spec["factor"]
    elif kind == "cosine":
        x = min((r - 1) / (spec["rounds"] - 1), 1)
        low = spec["factor"] * value
        value = low + (value - low) * (1 + np.cos(np.pi * x)) / 2
    if spec.get("warmup", 0) > 0:
        value *= min(1, r / spec["warmup"])
    return value


def run(spec):
    x = base()
    m = np.zeros(ELEMENTS)
    v = np.full(ELEMENTS, spec["tau"] ** 2)
    models = []
    for r in range(1, ROUNDS + 1):
        d = mean(r)
        lr = rate(spec, r)
        name = spec["name"]
        if name == "fedavg":
            x = x + lr * d
        elif name == "fedavgm":
            m = spec["momentum"] * m + d
            x = x + lr * m
        else:
            m = spec["beta1"] * m + (1 - spec["beta1"]) * d
            if name == "fedadagrad":
                v = v + d ** 2
            elif name == "fedadam":
                v = spec["beta2"] * v + (1 - spec["beta2"]) * d ** 2
            elif name == "fedyogi":
                v = v - (1 - spec["beta2"]) * d ** 2 * np.sign(v - d ** 2)
            x = x + lr * m / (np.sqrt(v) + spec["tau"])
        models.append(x.tolist())
    return models


SPECS = [dict(momentum=0.9, beta1=0.9, beta2=0.99, tau=1e-3) | s for s in [
    dict(name="fedavg", rate=1.0),
    dict(name="fedavg", rate=0.5, kind="step", rounds=2, factor=0.25),
    dict(name="fedavgm", rate=1.0),
    dict(name="fedavgm", rate=0.7, momentum=0.5, kind="exponential", factor=0.8),
    dict(name="fedadagrad", rate=0.1),
    dict(name="fedadagrad", rate=0.1, beta1=0.0, tau=0.1, warmup=4),
    dict(name="fedadam", rate=0.1),
    dict(name="fedadam", rate=0.3, beta1=0.8, beta2=0.9, kind="cosine", rounds=3, factor=0.1),
    dict(name="fedyogi", rate=0.1),
    dict(name="fedyogi", rate=0.2, beta2=0.5, tau=0.5, kind="cosine", rounds=10, factor=0.0, warmup=2),
]]


# FedNova (Wang et al., 2020), momentum SGD at the clients: each did so many steps.
NOVA_STEPS = [4, 10, 7]
NOVA_MOMENTUM = 0.9


def nova_norm(steps, momentum):
    """||a||_1: step j of tau is worth (1 - momentum^(tau - j)) / (1 - momentum)."""
    return sum((1 - momentum ** (steps - j)) / (1 - momentum) for j in range(steps))


def run_nova():
    x = base()
    share = np.array(WEIGHTS) / sum(WEIGHTS)
    norms = np.array([nova_norm(t, NOVA_MOMENTUM) for t in NOVA_STEPS])
    models = []
    for r in range(1, ROUNDS + 1):
        direction = sum(share[c] * delta(r, c) / norms[c] for c in range(len(WEIGHTS)))
        x = x + float(share @ norms) * direction
        models.append(x.tolist())
    return models


def text():
    cases = [{"spec": spec, "models": run(spec)} for spec in SPECS]
    cases.append({"spec": {"name": "fednova", "steps": NOVA_STEPS, "momentum": NOVA_MOMENTUM}, "models": run_nova()})
    return json.dumps(cases, indent=None, separators=(",", ":")) + "\n"


def main():
    mode, path = sys.argv[1], pathlib.Path(sys.argv[2])
    if mode == "--write":
        path.write_text(text())
        return 0
    # Another numpy may differ in the last bits.
    stored = json.loads(path.read_text())
    for case, wanted in zip(stored, json.loads(text()), strict=True):
        if case["spec"] != wanted["spec"] or not np.allclose(case["models"], wanted["models"], rtol=1e-13, atol=1e-13):
            print(f"{path}: {wanted['spec']} differs; write it again")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
