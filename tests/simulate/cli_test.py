#!/usr/bin/env python3
"""`tributary simulate FILE`: quantiles of round times per policy and transport, what each rests on beside it, and
the same again for the same seed.

    cli_test.py PROGRAM SOURCES            a small file
    cli_test.py PROGRAM SOURCES --large    100,000 clients in 100 racks for 100 rounds: within 60 s of one core and 4 GiB
"""
import json
import pathlib
import re
import resource
import subprocess
import sys
import tempfile

SMALL = """[simulate]
rounds = 6
policies = ["wait", "adaptive", "counted", "carry", "fedbuff"]
transports = ["tcp", "roce"]
[clients]
count = 60
slow_share = 0.1
dropout = 0.05
pareto_alpha = 2
diurnal_amplitude = 0.3
[racks]
count = 3
[async]
buffer = 10
"""


def run(program, *arguments):
    done = subprocess.run([program, "simulate", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def small(program):
    folder = pathlib.Path(tempfile.mkdtemp(prefix="tributary-simulate-"))
    file, figures = folder / "s.toml", folder / "s.json"
    file.write_text(SMALL)
    text = run(program, str(file), "--json", str(figures))
    header = text.splitlines()[0].split()
    assert header[:10] == ["policy", "link", "p50", "s", "p90", "s", "p99", "s", "max", "s"], header
    for policy in ["wait", "adaptive", "counted", "carry", "fedbuff"]:
        for transport, model in [("tcp", "200 ms time-out"), ("roce", "receiver credit")]:
            row = re.search(rf"^{policy} +{transport} +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+) .*$", text, re.M)
            assert row, (policy, transport, text)
            quantiles = [float(q) for q in row.groups()]
            assert 0 < quantiles[0] and quantiles == sorted(quantiles), quantiles
            assert "simulated" in row[0] and model in row[0], row[0]
    for assumed in ["60 clients behind 3 racks", "log-normal", "Pareto(2)", "10 % of the clients", "5 % die",
                    "availability falls by 30 %", "1024 KiB of buffer at a port"]:
        assert assumed in text, assumed
    told = {f["name"]: f for f in json.loads(figures.read_text())["figures"]}
    for quantile in ["p50_s", "p90_s", "p99_s"]:
        assert told[f"simulate.wait.tcp.{quantile}"]["value"] > 0
        assert "simulated" in told[f"simulate.wait.tcp.{quantile}"]["note"]
    measured = re.compile(r"^simulated .*measured.*$", re.M)  # the one line that is not of the seed alone
    assert measured.search(text)
    assert measured.sub("", run(program, str(file))) == measured.sub("", text)
    file.write_text(SMALL.replace("[simulate]", "[simulate]\nseed = 2"))
    assert measured.sub("", run(program, str(file))) != measured.sub("", text)
    bad = subprocess.run([program, "simulate", str(folder / "none.toml")], capture_output=True, text=True, check=False)
    assert bad.returncode == 2 and "none.toml" in bad.stderr, bad
    for path in [file, figures]:
        path.unlink()
    folder.rmdir()


def large(program, sources):
    text = run(program, str(sources / "tests/simulate/large.toml"))
    print(text)
    assert re.search(r"^adaptive +roce ", text, re.M)
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds, mib = spent.ru_utime + spent.ru_stime, spent.ru_maxrss / 1024
    print(f"{seconds:.1f} s of one core, {mib:.0f} MiB")
    assert seconds < 60, seconds
    assert mib < 4096, mib


def main():
    if "--large" in sys.argv[3:]:
        large(sys.argv[1], pathlib.Path(sys.argv[2]))
    else:
        small(sys.argv[1])


if __name__ == "__main__":
    main()
