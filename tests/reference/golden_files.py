"""What the references that keep golden files share: segments as docs/wire-format.md lays them out, and --check or --write."""
import pathlib
import struct
import sys


def segment(tensor, codec, count, payload, parameter=0, first=0):
    return struct.pack("<IHHIIQQ", tensor, codec, 1, parameter, len(payload), first, count) + payload


def main(files):
    """`files` is what this program would write: names below the folder to bytes."""
    mode, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    for name, data in files.items():
        path = folder / name
        if mode == "--write":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        elif path.read_bytes() != data:
            sys.exit(f"{path} is not what the format's text says")
    print(f"{len(files)} golden files {'written' if mode == '--write' else 'are as the text says'}")
