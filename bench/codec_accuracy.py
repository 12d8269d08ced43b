#!/usr/bin/python3
"""Accuracy and bytes of codecs on Fashion-MNIST, through the real upload path.

    codec_accuracy.py --bin build/release/bin [--rounds 100] [--seeds 3] [--split dirichlet|iid] SPEC[@POINTS[@TIMES]]...

An aggregator and 100 simulated clients, a tenth of them a round, one local epoch, batches of 10, learning rate 0.05,
the model mlp-fashion (784-96-10). Prints a Markdown table and, with --json FILE, the figures
codecs.<name>.<split>.accuracy and .times_smaller. Bytes are those of the encoded updates with their headers.
With @POINTS it fails where a codec's accuracy is more points below the first's, with @TIMES where it is less times
smaller. All codecs see the same splits, cohorts and orders of examples, by the seed.
"""

import argparse
import json
import pathlib
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile

ROOT = """
[node]
name = "global"
listen = "127.0.0.1:{port}"
[transport]
kind = "tcp"
listen = "127.0.0.1:0"
[limits]
fold_workers = 1
[run]
name = "accuracy"
rounds = {rounds}
seed = {seed}
model = "mlp-fashion"
startup_limit_s = 120
evaluate_every = {rounds}
max_failed_rounds = 100
[cohort]
minimum = 40
fraction = 0.1
[straggler]
deadline_s = 120
[compression]
codec = "{codec}"
{population}{downlink}[checkpoint]
directory = "{out}/checkpoints"
[training]
lr = 0.05
local_epochs = 1
batch_size = 10
"""
CLIENT = """
[client]
id = "client"
endpoints = ["127.0.0.1:{port}"]
[data]
dataset = "fashion-mnist"
split = "{split}"
{alpha}clients = 100
seed = {seed}
[model]
name = "mlp-fashion"
[log]
level = "warn"
"""


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def run(options, codec, seed):
    """The final accuracy in percent, the bytes of all updates, and what fp32 would have been."""
    out = pathlib.Path(tempfile.mkdtemp(prefix="codec_accuracy_"))
    port = free_port()
    values = {"port": port, "rounds": options.rounds, "seed": seed, "codec": codec, "out": out, "split": options.split,
              "alpha": "alpha = 0.3\n" if options.split == "dirichlet" else "",
              "population": "population_weight = 60000\n" if "ef21" in codec else "", "downlink": ""}
    if options.downlink != "none":
        values["downlink"] = f'downlink = "{options.downlink}"\ndownlink_steps = {options.downlink_steps}\n'
    (out / "root.toml").write_text(ROOT.format(**values))
    (out / "client.toml").write_text(CLIENT.format(**values))
    server = subprocess.Popen([f"{options.bin}/tributary", "serve", out / "root.toml", "--progress", "json"],
                              stdout=subprocess.PIPE, stderr=open(out / "root.log", "w"), text=True)
    clients = subprocess.Popen([f"{options.bin}/tributary-client", out / "client.toml", "--simulate", "100"],
                               stdout=subprocess.DEVNULL, stderr=open(out / "client.log", "w"))
    accuracy, up, dense, failed, down, saved = None, 0, 0, 0, 0, 0
    try:
        for line in server.stdout:
            report = json.loads(line)
            down += report["bytes"]["model_to_clients"]
            saved += report["bytes"].get("saved_to_clients", 0)
            if not report["committed"]:
                failed += 1
                continue
            up += report["bytes"]["updates_below"]
            dense += report["model_bytes"] * report["accepted"]
            accuracy = report.get("evaluation", {}).get("test_accuracy", accuracy)
    finally:
        for process in (clients, server):
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=30)
    if accuracy is None:
        sys.exit(f"{codec}, seed {seed}: no round was evaluated; logs are in {out}")
    shutil.rmtree(out)
    return 100 * accuracy, up, dense, failed, down, saved


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", default="build/release/bin")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--split", choices=["dirichlet", "iid"], default="dirichlet")
    parser.add_argument("--downlink", default="none", help="the codec of models on their way down")
    parser.add_argument("--downlink-steps", type=int, default=16, help="versions that a client may be behind")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("specs", nargs="+", metavar="SPEC[@POINTS[@TIMES]]")
    options = parser.parse_args()
    figures, base, failures = [], None, []
    more = (" down, times smaller |", "---|") if options.downlink != "none" else ("", "")
    print(f"| codec | accuracy, % | against the first | times smaller |{more[0]}\n|---|---|---|---|{more[1]}", flush=True)
    for wanted in options.specs:
        spec, *limits = wanted.split("@")
        runs = [run(options, spec, seed) for seed in range(1, options.seeds + 1)]
        mean = statistics.mean(r[0] for r in runs)
        spread = max(r[0] for r in runs) - min(r[0] for r in runs)
        smaller = sum(r[2] for r in runs) / sum(r[1] for r in runs)
        base = mean if base is None else base
        if limits and base - mean > float(limits[0]):
            failures.append(f"{spec}: {base - mean:.2f} points below the first, more than {limits[0]}")
        if len(limits) > 1 and smaller < float(limits[1]):
            failures.append(f"{spec}: {smaller:.1f} times smaller, less than {limits[1]}")
        lost = sum(r[3] for r in runs)
        down, saved = sum(r[4] for r in runs), sum(r[5] for r in runs)
        print(f"| `{spec}` | {mean:.2f} (spread {spread:.2f}{f', {lost} rounds failed' if lost else ''}) "
              f"| {mean - base:+.2f} | {smaller:.1f} |"
              + (f" {(down + saved) / down:.1f} ({down / 1e6:.1f} MB) |" if options.downlink != "none" else ""),
              flush=True)
        name = "codecs." + re.sub(r"[^a-z0-9]+", "_", spec.lower()).strip("_") + "." + options.split
        figures += [{"name": name + ".accuracy", "value": mean, "unit": "%"},
                    {"name": name + ".times_smaller", "value": smaller, "unit": ""}]
        if options.downlink != "none":
            figures.append({"name": name + ".down_times_smaller", "value": (down + saved) / down, "unit": ""})
    if options.json:
        options.json.write_text(json.dumps({"environment": {"rounds": options.rounds, "seeds": options.seeds},
                                            "figures": figures}, indent=1))
    if failures:
        sys.exit("\n".join(failures))


if __name__ == "__main__":
    main()
