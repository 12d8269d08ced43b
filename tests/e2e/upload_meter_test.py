#!/usr/bin/python3
"""bench/upload_meter.py counts what a hand-made connection has, however it is cut, and passes every byte on."""

import pathlib
import socket
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))

from upload_meter import PREFACE, Frames, UploadMeter  # noqa: E402


def frame(kind, stream, payload):
    return len(payload).to_bytes(3, "big") + bytes([kind, 0]) + stream.to_bytes(4, "big") + payload


def message(body):
    return b"\0" + len(body).to_bytes(4, "big") + body


HEADER = b"\x0a\x03run" + b"\x10\x07"  # UploadHeader: run (field 1) "run", round (field 2) 7
UPLOAD = message(b"\x0a" + bytes([len(HEADER)]) + HEADER + b"\x12\x04abcd")
DOWNLOAD = message(b"\x0a\x03run" + b"\x12\x01c")  # DownloadRequest: run, id
OTHER = message(b"\x0a\x09" + b"\x0a\x05other" + b"\x10\x07")  # another run's upload
CONNECTION = (PREFACE + frame(4, 0, b"")        # SETTINGS
              + frame(1, 1, b"h" * 21)          # HEADERS
              + frame(0, 1, UPLOAD[:9])         # DATA, cut within the message
              + frame(1, 3, b"h" * 11) + frame(0, 3, DOWNLOAD)
              + frame(9, 1, b"h" * 2)           # CONTINUATION
              + frame(8, 3, b"wwww")            # WINDOW_UPDATE
              + frame(0, 1, UPLOAD[9:])
              + frame(1, 5, b"h") + frame(0, 5, OTHER))
# Stream 1: four frames with their headers of nine bytes.
UPLOAD_BYTES = 4 * 9 + 21 + 2 + len(UPLOAD)
HEADERS_BYTES = 2 * 9 + 21 + 2


def totals(frames):
    meter = UploadMeter(0, 1, "run")
    meter.connections = frames
    return meter.totals()


def check_counts():
    for step in (1, 2, 7, 64, len(CONNECTION)):
        frames = Frames()
        for at in range(0, len(CONNECTION), step):
            frames.feed(CONNECTION[at:at + step])
        assert totals([frames]) == {"uploads": 1, "bytes": UPLOAD_BYTES, "headers": HEADERS_BYTES,
                                    "other": len(CONNECTION) - UPLOAD_BYTES}, step
    frames = Frames()
    try:
        frames.feed(b"GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n")
    except ValueError as error:
        assert "no HTTP/2" in str(error)
    else:
        raise AssertionError("HTTP/1.1 was taken for HTTP/2")


def check_relay():
    server = socket.create_server(("127.0.0.1", 0))
    server.settimeout(30)
    meter = UploadMeter(0, server.getsockname()[1], "run")
    received = bytearray()

    def answer():
        connection, _ = server.accept()
        connection.settimeout(30)
        while len(received) < len(CONNECTION):
            received.extend(connection.recv(1000))
        connection.sendall(b"x" * 300_000)
        connection.close()

    thread = threading.Thread(target=answer)
    thread.start()
    with socket.create_connection(("127.0.0.1", meter.port), timeout=30) as client:
        client.sendall(CONNECTION)
        got = 0
        while part := client.recv(65536):
            got += len(part)
    thread.join()
    server.close()
    assert bytes(received) == CONNECTION
    assert got == 300_000, got
    assert meter.totals()["bytes"] == UPLOAD_BYTES


if __name__ == "__main__":
    check_counts()
    check_relay()
    print("uploads are counted as by hand, and passed on")
