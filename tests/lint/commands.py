#!/usr/bin/env python3
"""docs/operations.md, "Commands", against what the programs say of themselves: every verb and option, and none besides.

usage: commands.py OPERATIONS_MD PROGRAM...
"""
import pathlib
import re
import subprocess
import sys


def told(argv):
    """The command's options, and its verbs, by its --help."""
    text = subprocess.run([*argv, "--help"], capture_output=True, text=True, check=True).stdout
    verbs = re.findall(r"^ {2}([a-z][\w-]*)\s", text.split("Subcommands:")[1], re.M) if "Subcommands:" in text else []
    options = set(re.findall(r"^\s+(?:-\w,\s*)?(--[\w-]+)", text, re.M)) - {"--help"}
    return options, verbs


def commands(argv, name):
    """Name -> options of each command of this program that has no verbs below it."""
    options, verbs = told(argv)
    if not verbs:
        return {name: options}
    out = {}
    for verb in verbs:
        out.update(commands([*argv, verb], f"{name} {verb}"))
    return out


def documented(text):
    """Name -> options by the table's rows: `tributary verb ARGUMENTS` in the first cell, options in the others."""
    rows = re.findall(r"^\| `(tributary[^`]*)` \|(.*)$", text.split("## Commands")[1].split("\n## ")[0], re.M)
    name = lambda cell: " ".join(word for word in cell.split() if re.fullmatch(r"[a-z][a-z-]*", word))
    return {name(cell): set(re.findall(r"(--[a-z][\w-]*)", rest)) for cell, rest in rows}


def main():
    document, programs = sys.argv[1], sys.argv[2:]
    there = {}
    for program in programs:
        there.update(commands([program], pathlib.Path(program).name))
    rows = documented(pathlib.Path(document).read_text())
    built = {pathlib.Path(program).name for program in programs}
    wrong = [f"{command} has no row" for command in there if command not in rows]
    wrong += [f"{command} has a row and does not exist" for command in rows
              if command not in there and command.split()[0] in built]
    for command in there.keys() & rows.keys():
        wrong += [f"{command} {option} is not in its row" for option in sorted(there[command] - rows[command])]
        wrong += [f"{command} does not know {option}, which is in its row" for option in sorted(rows[command] - there[command])]
    if wrong or len(there) < len(programs):
        sys.exit("\n".join(f"{document}: {one}" for one in wrong) or "no commands were found")
    print(f"{len(there)} commands are in {document} with all their options")


if __name__ == "__main__":
    main()
