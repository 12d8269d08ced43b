#!/usr/bin/env python3
"""clang-tidy over the files given, but not over those that passed already: what passed is kept in
PASSED under a hash of all that the verdict depends on, so that a second run looks at what changed.
    tests/lint/tidy.py DATABASE_FOLDER PASSED FILE..."""

import collections
import concurrent.futures
import functools
import hashlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

ROOT = str(pathlib.Path(__file__).resolve().parents[2]) + "/"
# A line that is only a comment changes no verdict, unless it silences a check.
COMMENT = re.compile(rb"^[ \t]*//(?!.*NOLINT).*\n", re.MULTILINE)


def without_root(text):
    """So that two clones agree, wherever they lie."""
    return text.replace(ROOT, "")


@functools.lru_cache(maxsize=None)
def digest(path):
    content = pathlib.Path(path).read_bytes()
    if path.startswith(ROOT):
        content = COMMENT.sub(b"", content)
    return hashlib.sha256(content).hexdigest()


def dependencies(entry):
    """The files that a compilation reads. The sources themselves, not their preprocessed text: some
    checks look at macros' definitions, includes and comments, of which that keeps nothing."""
    command = shlex.split(entry["command"])
    output = command.index("-o")
    del command[output:output + 2]
    rule = subprocess.run([*command, "-M"], cwd=entry["directory"], check=True,
                          capture_output=True, text=True).stdout
    words = rule.replace("\\\n", " ").split(":", 1)[1].split()
    return sorted({os.path.normpath(os.path.join(entry["directory"], word)) for word in words})


def key(entries):
    """None where there is no telling: the file is then looked at, and not remembered."""
    if not entries:
        return None
    parts = [digest(ROOT + ".clang-tidy"), version()]
    try:
        for entry in entries:
            parts.append(without_root(entry["command"]))
            parts += [f"{without_root(path)} {digest(path)}" for path in dependencies(entry)]
    except (subprocess.CalledProcessError, OSError):
        return None
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@functools.lru_cache(maxsize=None)
def version():
    return subprocess.run(["clang-tidy", "--version"], check=True, capture_output=True,
                          text=True).stdout


def tidy(database, passed, file, entries):
    """Whether the file passes, whether it was looked at, and what there is to say of it."""
    name = key(entries)
    if name and (passed / name).exists():
        return True, False, ""
    run = subprocess.run(["clang-tidy", "-p", database, "--quiet", file], stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, text=True)
    if run.returncode == 0 and name:
        (passed / name).write_text(file + "\n")
    said = re.sub(r"^\d+ warnings?( and \d+ errors?)? generated\.\n", "", run.stdout, flags=re.M)
    return run.returncode == 0, True, said


def main(database, passed, *files):
    passed = pathlib.Path(passed)
    passed.mkdir(parents=True, exist_ok=True)
    entries = collections.defaultdict(list)
    for entry in json.loads((pathlib.Path(database) / "compile_commands.json").read_text()):
        entries[entry["file"]].append(entry)
    failed, looked = [], 0
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        results = pool.map(lambda f: tidy(database, passed, f, entries[os.path.abspath(f)]), files)
        for file, (passes, was_looked_at, said) in zip(files, results):
            print(said, end="", flush=True)
            looked += was_looked_at
            if not passes:
                failed.append(file)
    print(f"clang-tidy: {len(files)} files, {len(files) - looked} of them passed before as they are")
    for file in failed:
        print(f"clang-tidy: FAILED {file}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
