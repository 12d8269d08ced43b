#!/usr/bin/python3
"""Writes the fuzz targets' first corpus: make_corpus.py GOLDEN_DIR CORPUS_DIR.

It is the golden files in the targets' form, and what fuzzing has found: the files in found/ here.
"""

import hashlib
import pathlib
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "reference"))
from aggregation_golden import pack  # noqa: E402
from golden_files import segment  # noqa: E402
from message_golden import crc32c, message  # noqa: E402

# Golden file -> codec number and parameter, as in docs/wire-format.md.
FORMS = {
    "fp32": (2, 0), "fp16": (3, 0), "bf16": (4, 0), "int8_stochastic_128": (5, 128), "int8_nearest_16": (5, 16),
    "int4_stochastic_128": (6, 128), "int4_nearest_16": (6, 16), "int2_stochastic_64": (7, 64), "sign_128": (8, 128),
    "sign_vote_6": (8, 0x80000006), "topk_fp32": (9, 0), "topk_fp16": (9, 1), "topk_int8": (9, 2),
    "topk_ternary": (9, 3), "fp8_e4m3_128": (10, 128), "fp8_e5m2_64": (10, 64 | 1 << 16), "mxfp8_e4m3": (11, 0),
    "mxfp8_e5m2": (11, 1), "mxfp4": (12, 0), "mxint8": (13, 0), "randk_fp32_10": (14, 10),
    "randk_fp16_50_unscaled": (14, 50 | 1 << 16 | 1 << 31), "eden_1": (15, 1024 | 1 << 16),
    "eden_2_64": (15, 64 | 2 << 16), "eden_3": (15, 256 | 3 << 16), "eden_4": (15, 1024 | 4 << 16),
    "hq_8_12": (16, 8 | 12 << 8), "hq_4_8_nearest": (16, 4 | 8 << 8), "powersgd_2": (19, 2), "powersgd_5": (19, 5)}
# Those of the longer input, of 4,200 elements.
LONG = {"long_topk_stream_vbyte": (9, 3), "long_sketch_5": (20, 1310 << 4 | 5), "long_sketch_1": (20, 8192 << 4 | 1),
        "long_zeros_int4": (21, 0), "long_zstd_int4": (17, 0), "long_lz4_fp16": (18, 0), "long_zeros_lz4_int4": (18, 0),
        "library_zstd_int4": (17, 0), "library_zstd19_fp32": (17, 0), "library_lz4_fp16": (18, 0)}


# ---- What links bring a parent: partial sums of a layout of 131,072 + 1,308 elements (partial_fuzz.cc)

def record(stream, index, header_chunks, chunks, payload, flags=0):
    return struct.pack("<BIBBBH", flags, stream, index, header_chunks, chunks, len(payload)) + payload


def partial_chunks(salt):
    """Two packed chunks: of one block that is not zero, and of floats, sums, maxima and values of the first."""
    first = [0] * 131072
    for i in range(512):
        first[5120 + i] = (i * 7 + salt) % 31 - 15
    last = [(i * 37 + salt) % 2001 - 1000 for i in range(1308)]
    return [pack(first), pack(last)]


def partial(round_number, salt=0, contributors=("client-7", "client-9"), begins=0, header_chunks=1, data=None,
            stops=None, damaged=False):
    """A partial sum's records: its data begins with chunk `begins`, and stops before chunk `stops`."""
    packed = partial_chunks(salt)
    header = message((1, "run-1"), (2, round_number), (3, "rack-1"), (4, 1), (5, bytes(32)),
                     (6, round_number - 1), (7, 40), *[(8, name) for name in contributors],
                     (10, len(packed)), (11, sum(map(len, packed))))
    step = -(-len(header) // header_chunks)
    stream, all_chunks = 2 * round_number + 1, header_chunks + len(packed) + 1
    out = b"".join(record(stream, i, header_chunks, all_chunks, header[i * step:(i + 1) * step])
                   for i in range(header_chunks))
    for i, chunk in enumerate(packed[:stops]):
        if i >= begins:
            out += record(stream, header_chunks + i, header_chunks, all_chunks, chunk)
    if stops is None:
        digest = hashlib.sha256(b"".join(struct.pack("<II", len(c), crc32c(c)) for c in packed)).digest()
        trailer = message((1, digest[::-1] if damaged else digest))
        out += record(stream, header_chunks + 2, header_chunks, all_chunks, trailer)
    return out


def ends(records, last):
    """The link ends behind the last of these records, whose payload has so many bytes."""
    at = len(records) - last - 10
    return records[:at] + bytes([records[at] | 2]) + records[at + 1:]


def partials():
    first_chunk, last_chunk = map(len, partial_chunks(0))
    broken = partial(3, stops=1)
    return {
        "whole": partial(3),
        "two_rounds": partial(3) + partial(4, salt=5, contributors=("client-1",)),
        "second_is_first": partial(3) + partial(3, salt=9, contributors=("a",)),
        "header_in_pieces": partial(3, header_chunks=3),
        "left_off": broken + partial(3),
        "left_off_for_another": broken + partial(4, salt=2),
        "goes_on": ends(broken, first_chunk) + partial(3, begins=1),
        "begins_again": ends(broken, first_chunk) + partial(3),
        "goes_on_to_the_trailer": ends(partial(3, stops=2), last_chunk) + partial(3, begins=2),
        "wrong_digest": partial(3, damaged=True) + partial(3),
        "a_gap": partial(3, begins=1),
        "digest_by_the_target": partial(3, stops=2) + record(7, 3, 1, 4, b"", flags=1),
        "nobody_contributed": partial(3, contributors=()) + partial(3),
    }


def main():
    golden, corpus = map(pathlib.Path, sys.argv[1:])
    for folder in ("codec", "update", "chunk", "partial", "delta", "link"):
        (corpus / folder).mkdir(parents=True, exist_ok=True)
        for found in (pathlib.Path(__file__).parent / "found" / folder).glob("*"):
            (corpus / folder / f"found_{found.name}").write_bytes(found.read_bytes())
    zeros = segment(0, 7, 33000, bytes(33000 // 128 * 36 + 4 + (33000 % 128 * 2 + 7) // 8), parameter=128)
    ints = segment(1, 1, 3, struct.pack("<3q", 1, -2, 3))
    for name, (codec, parameter) in FORMS.items():
        payload = (golden / "codecs" / f"{name}.bin").read_bytes()
        for cut in (0, 11):
            (corpus / "codec" / f"{name}.{cut}").write_bytes(
                struct.pack("<HHII", codec, cut, parameter, 600) + payload)
        (corpus / "update" / name).write_bytes(zeros + ints + segment(2, codec, 600, payload, parameter))
        (corpus / "delta" / name).write_bytes(zeros + segment(2, codec, 600, payload, parameter)
                                              + segment(3, codec, 600, payload, parameter))
    (corpus / "delta" / "plain").write_bytes(
        segment(1, 0, 3, struct.pack("<3q", 1, -2, 3)) + segment(3, 0, 600, bytes(1200)))
    for path in sorted((golden / "link").glob("*.bin")):
        (corpus / "link" / path.stem).write_bytes(path.read_bytes())
    strangers = {"http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
                 "tls": bytes.fromhex("1603010200010001fc0303") + b"r" * 64,
                 "giant": b"TRIBLINK" + struct.pack("<Q", 1 << 63), "empty": b"TRIBLINK" + bytes(8)}
    for name, words in strangers.items():
        (corpus / "link" / name).write_bytes(words)
    for name, (codec, parameter) in LONG.items():
        payload = (golden / "codecs" / f"{name}.bin").read_bytes()
        for cut in (0, 11):
            (corpus / "codec" / f"{name}.{cut}").write_bytes(
                struct.pack("<HHII", codec, cut, parameter, 4200) + payload)
    # Zeros within zstd and lz4's place, stages within stages: refused, and near what is not.
    inner = struct.pack("<HHII", 2, 0, 0, 300) + b"\1" + bytes(4 * 256)
    (corpus / "codec" / "zeros_fp32").write_bytes(struct.pack("<HHII", 21, 0, 0, 300) + inner)
    widths = bytes([3, 0, 64])
    (corpus / "chunk" / "small").write_bytes(widths + bytes(range(192)) + bytes(64 * 64))
    (corpus / "chunk" / "zeros").write_bytes(bytes(3))
    (corpus / "chunk" / "of_all_widths").write_bytes(pack([(i * i * 977 - 60000) % 4093 for i in range(1503)]))
    for name, records in partials().items():
        (corpus / "partial" / name).write_bytes(records)


if __name__ == "__main__":
    main()
