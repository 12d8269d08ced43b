#!/usr/bin/python3
"""Accuracy and bytes of codecs on Fashion-MNIST, through the real upload path.

    codec_accuracy.py [--bin DIR] [--rounds 100] [--seeds 3] [--split dirichlet|iid] SPEC[@POINTS[@TIMES]]...
    codec_accuracy.py --all [--downlinks] [--seeds 1] [--split dirichlet|iid] [--results DIR]

An aggregator and 100 simulated clients, a tenth of them a round, one local epoch, batches of 10, learning rate 0.05,
the model mlp-fashion (784-96-10). Prints a Markdown table and, with --json FILE, the figures
codecs.<name>.<split>.accuracy and .times_smaller.

"Times smaller" is the model's bytes for each update that was accepted, over the bytes of all uploads on the wire,
counted on the TCP connections: segments with their headers, the upload's header and trailer, gRPC's prefixes, HTTP/2's
frames and headers (bench/upload_meter.py; not TCP's and IP's headers). Uploads that were sent twice or came too late
count.
With @POINTS it fails where a codec's accuracy is more points below the first's, with @TIMES where it is less times
smaller. All codecs see the same splits, cohorts and orders of examples, by the seed. With --results a run is kept in a
file of that folder, and one that is there is not run again: long tables can be made bit by bit.
"""

import argparse
import hashlib
import json
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

from upload_meter import UploadMeter

RUN = "accuracy"
# The tables of all codecs in docs/codecs.md: up, and down.
ALL = [
    "fp32", "fp16", "bf16", "int8", "int8 | zstd", "int4", "int4(rounding=nearest) | ef", "int2", "fp8", "mxfp8",
    "mxfp4", "mxint8", "eden(bits=1)", "eden(bits=2)", "eden(bits=4)", "sign", "sign; small = sign",
    "sign(mode=vote, step=2^-10)", "hq(bits=8, step=auto)", "hq(bits=4, step=auto)", "randk(0.1)",
    "randk(0.1, scaled=no)", "powersgd(rank=2)", "powersgd(rank=4)", "sketch(0.2, recover=0.004)",
    "sketch(0.2, recover=0.02)", "sketch(0.5, recover=0.0124)", "sketch(0.5, recover=0.05)", "topk(0.01)",
    "topk(0.01, values=fp16)", "topk(0.01, values=int8)", "topk(0.01, values=ternary)",
    "topk(0.01, values=ternary) | zstd", "topk(0.01, values=int8, warmup=20, from=0.25)",
    "topk(0.01, values=int8) | ef(momentum=0.9)", "topk(0.05, values=int8) | ef21", "int4 | ef21",
    "topk(0.01, values=ternary, across=model) | ef(decay=0.9)",
    "topk(0.15, values=ternary, across=model, gain=1.3) | ef(decay=0.9)",
    "topk(0.0072, values=ternary, across=model, gain=1.5) | dct(28x28) | ef(decay=0.9)",
]
DOWN = [
    "none", "fp32", "fp16", "bf16", "int8", "int4", "int2(rounding=nearest)", "fp8", "mxfp8", "mxfp4", "mxint8",
    "eden(bits=1)", "eden(bits=2)", "sign; small = sign", "randk(0.1, scaled=no)",
    "topk(0.02, values=int8); small = topk(0.1, values=int8)",
    "topk(0.05, values=ternary); small = topk(0.1, values=ternary)",
]

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
name = "{run}"
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


def root_text(codec, downlink="none", downlink_steps=16, port=7070, rounds=100, seed=1, out="."):
    """The aggregator's config file."""
    down = "" if downlink == "none" else f'downlink = "{downlink}"\ndownlink_steps = {downlink_steps}\n'
    return ROOT.format(port=port, run=RUN, rounds=rounds, seed=seed, codec=codec, out=out, downlink=down,
                       population="population_weight = 60000\n" if "ef21" in codec else "")


def run(options, codec, seed):
    """What a run came to: the final accuracy in percent, and bytes."""
    out = pathlib.Path(tempfile.mkdtemp(prefix="codec_accuracy_"))
    port = free_port()
    meter = UploadMeter(0, port, RUN)
    (out / "root.toml").write_text(root_text(codec, options.downlink, options.downlink_steps, port, options.rounds,
                                             seed, out))
    (out / "client.toml").write_text(CLIENT.format(port=meter.port, split=options.split, seed=seed,
                                                   alpha="alpha = 0.3\n" if options.split == "dirichlet" else ""))
    server = subprocess.Popen([f"{options.bin}/tributary", "serve", out / "root.toml", "--progress", "json"],
                              stdout=subprocess.PIPE, stderr=open(out / "root.log", "w"), text=True)
    clients = subprocess.Popen([f"{options.bin}/tributary-client", out / "client.toml", "--simulate", "100"],
                               stdout=subprocess.DEVNULL, stderr=open(out / "client.log", "w"))
    accuracy, sums = None, {"segments": 0, "dense": 0, "accepted": 0, "failed": 0, "down": 0, "saved": 0}
    try:
        for line in server.stdout:
            report = json.loads(line)
            sums["down"] += report["bytes"]["model_to_clients"]
            sums["saved"] += report["bytes"].get("saved_to_clients", 0)
            if not report["committed"]:
                sums["failed"] += 1
                continue
            sums["segments"] += report["bytes"]["updates_below"]
            sums["accepted"] += report["accepted"]
            sums["dense"] += report["model_bytes"] * report["accepted"]
            accuracy = report.get("evaluation", {}).get("test_accuracy", accuracy)
    finally:
        for process in (clients, server):
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=30)
    up = meter.totals()
    if accuracy is None:
        sys.exit(f"{codec}, seed {seed}: no round was evaluated; logs are in {out}")
    # What was accepted went over the wire, and framing is no more than a few hundred bytes an upload.
    most = 1.01 * sums["segments"] * up["uploads"] / max(1, sums["accepted"]) + 1000 * up["uploads"]
    if up["uploads"] < sums["accepted"] or not sums["segments"] < up["bytes"] < most:
        sys.exit(f"{codec}, seed {seed}: {up['bytes']} bytes of {up['uploads']} uploads were seen on the wire, but "
                 f"{sums['accepted']} with {sums['segments']} bytes of segments were accepted; logs are in {out}")
    shutil.rmtree(out)
    return sums | {"accuracy": 100 * accuracy, "up": up["bytes"], "uploads": up["uploads"], "headers": up["headers"],
                   "other": up["other"]}


def kept_run(options, codec, seed):
    """run, or what it came to before."""
    if options.results is None:
        return run(options, codec, seed)
    key = json.dumps([codec, seed, options.rounds, options.split, options.downlink, options.downlink_steps])
    path = options.results / (hashlib.sha256(key.encode()).hexdigest()[:16] + ".json")
    if path.exists():
        return json.loads(path.read_text())["result"]
    result = run(options, codec, seed)
    options.results.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"run": json.loads(key), "result": result}, indent=1))
    return result


def figure_name(spec, split):
    return "codecs." + re.sub(r"[^a-z0-9]+", "_", spec.lower()).strip("_") + "." + split


def limits_missed(spec, limits, behind, smaller):
    missed = []
    if limits and behind > float(limits[0]):
        missed.append(f"{spec}: {behind:.2f} points below the first, more than {limits[0]}")
    if len(limits) > 1 and smaller < float(limits[1]):
        missed.append(f"{spec}: {smaller:.1f} times smaller, less than {limits[1]}")
    return missed


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", default="build/release/bin")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--split", choices=["dirichlet", "iid"], default="dirichlet")
    parser.add_argument("--downlink", default="none", help="the codec of models on their way down")
    parser.add_argument("--downlink-steps", type=int, default=16, help="versions that a client may be behind")
    parser.add_argument("--all", action="store_true", help="all codecs; with --downlinks, those of the way down")
    parser.add_argument("--downlinks", action="store_true", help="each SPEC is a downlink's, updates go up in fp32")
    parser.add_argument("--results", type=pathlib.Path, help="folder of results that are kept")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("specs", nargs="*", metavar="SPEC[@POINTS[@TIMES]]")
    options = parser.parse_args()
    if options.all == bool(options.specs):
        parser.error("give codecs, or --all")
    if options.all:
        options.specs = DOWN if options.downlinks else ALL
    return options


def main():
    options = parse_arguments()
    figures, base, failures = [], None, []
    show_down = options.downlinks or options.downlink != "none"
    print("| codec | accuracy, % | against the first | bytes of an upload on the wire | times smaller |"
          + (" down, MB | times smaller than whole models |" if show_down else ""))
    print("|---|---|---|---|---|" + ("---|---|" if show_down else ""), flush=True)
    for wanted in options.specs:
        spec, *limits = wanted.split("@")
        if options.downlinks:
            options.downlink = spec
        runs = [kept_run(options, "fp32" if options.downlinks else spec, seed) for seed in range(1, options.seeds + 1)]
        total = {key: sum(r[key] for r in runs) for key in runs[0]}
        mean = total["accuracy"] / len(runs)
        spread = max(r["accuracy"] for r in runs) - min(r["accuracy"] for r in runs)
        smaller = total["dense"] / total["up"]
        down_smaller = (total["down"] + total["saved"]) / total["down"]
        base = mean if base is None else base
        failures += limits_missed(spec, limits, base - mean, smaller)
        notes = [f"spread {spread:.2f}"] if len(runs) > 1 else []
        notes += [f"{total['failed']} rounds failed"] if total["failed"] else []
        shown = spec.replace("|", "\\|")
        print(f"| `{shown}` | {mean:.2f}{' (' + ', '.join(notes) + ')' if notes else ''} | {mean - base:+.2f} "
              f"| {total['up'] / total['uploads']:,.0f} | {smaller:.1f} |"
              + (f" {total['down'] / 1e6:.1f} | {down_smaller:.1f} |" if show_down else ""), flush=True)
        name = figure_name(spec, options.split)
        figures += [{"name": name + ".accuracy", "value": mean, "unit": "%"},
                    {"name": name + ".times_smaller", "value": smaller, "unit": ""}]
        if show_down:
            figures.append({"name": name + ".down_times_smaller", "value": down_smaller, "unit": ""})
    if options.json:
        options.json.write_text(json.dumps({"environment": {"rounds": options.rounds, "seeds": options.seeds},
                                            "figures": figures}, indent=1))
    if failures:
        sys.exit("\n".join(failures))


if __name__ == "__main__":
    main()
