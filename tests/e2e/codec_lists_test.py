#!/usr/bin/python3
"""What bench/codec_accuracy.py runs for its tables is what an aggregator's config takes, up and down.

    codec_lists_test.py TRIBUTARY
"""

import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))

from codec_accuracy import ALL, DOWN, root_text  # noqa: E402


def check(tributary, texts):
    """What `tributary check` says of these files, all in one call: its exit status and its words."""
    with tempfile.TemporaryDirectory(prefix="codec_lists_") as folder:
        paths = []
        for number, text in enumerate(texts):
            paths.append(pathlib.Path(folder) / f"{number}.toml")
            paths[-1].write_text(text)
        done = subprocess.run([tributary, "check", *paths], capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout + done.stderr


def check_table(tributary):
    """`tributary codecs` has a row for every codec and stage that is run, and one for each number once."""
    done = subprocess.run([tributary, "codecs"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    header, *lines = done.stdout.splitlines()
    assert header.split()[:3] == ["codec", "id", "linear"], header
    rows = {row[0]: row[1:] for row in map(str.split, lines) if len(row) > 3 and row[1].isdigit()}
    assert sorted(int(row[0]) for row in rows.values()) == list(range(1, 22)), rows
    stages = {re.sub(r"\(.*", "", stage.strip()) for spec in ALL for stage in spec.split(";")[0].split("|")}
    missing = stages - set(rows) - {"ef", "ef21", "dct"}
    assert not missing, missing
    # What docs/codecs.md calls sums without decoding.
    linear = {name for name, row in rows.items() if row[1] == "yes"}
    assert linear == {"int64", "randk", "hq", "sketch"}, linear


def main():
    tributary = sys.argv[1]
    assert len(set(ALL)) == len(ALL) and len(set(DOWN)) == len(DOWN), "a codec is listed twice"
    texts = [root_text(codec) for codec in ALL] + [root_text("fp32", down) for down in DOWN]
    status, said = check(tributary, texts)
    assert status == 0, said
    # The check is one: what only updates can use is refused on the way down, and so is what is no codec.
    for refused in (root_text("fp32", "hq(bits=8, step=2^-12)"), root_text("int9")):
        status, said = check(tributary, [refused])
        assert status != 0 and "[compression]" in said, said
    check_table(tributary)
    print(f"{len(ALL)} codecs up and {len(DOWN)} down are accepted")


if __name__ == "__main__":
    main()
