#!/usr/bin/python3
"""Counts the bytes of uploads on the wire: a TCP relay between clients and their aggregator that reads HTTP/2.

Every byte is passed on as it came. Towards the aggregator it reads the frames (RFC 9113, section 4.1: a header of nine
bytes, then the payload) and adds up, for each stream, all of its frames: HEADERS with their HPACK block, DATA with
gRPC's prefix of five bytes and the Protobuf message, RST_STREAM, WINDOW_UPDATE. A stream is an upload where its first
message is an UploadRequest whose header begins with the run's name. Frames of stream 0 are the connection's and counted
apart. TCP's and IP's own headers are not seen here. Works on plain connections only: TLS cannot be read.
"""

import selectors
import socket
import threading

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_HEADER = 9
GRPC_PREFIX = 5
DATA = 0
CONTINUATION = 9
HEADERS = 1


def varint(data, at):
    """(value, where it ends), or None where the bytes end first."""
    value = shift = 0
    while at < len(data):
        value |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return value, at
        shift += 7
    return None


def is_upload(body, run):
    """Whether a stream's first bytes are an UploadRequest of the run: field 1, a message whose field 1 is its name."""
    length = varint(body, GRPC_PREFIX + 1) if body[GRPC_PREFIX:GRPC_PREFIX + 1] == b"\x0a" else None
    return length is not None and body[length[1]:].startswith(b"\x0a" + bytes([len(run)]) + run)


class Frames:
    """The bytes of one connection towards the aggregator, as they come, by stream."""

    KEPT = 64  # bytes of a stream's body, enough for is_upload

    def __init__(self):
        self.pending = bytearray()
        self.preface = True
        self.skip = 0  # of the payload under way
        self.keep = None  # its stream, where its beginning is wanted
        self.bytes = {}  # by stream
        self.headers = {}  # of which HEADERS and CONTINUATION frames
        self.body = {}

    def feed(self, data):
        self.pending += data
        if self.preface:
            if len(self.pending) < len(PREFACE):
                return
            if not self.pending.startswith(PREFACE):
                raise ValueError(f"no HTTP/2: the connection begins with {bytes(self.pending[:24])!r}")
            del self.pending[:len(PREFACE)]
            self.preface = False
        while self.pending:
            if self.skip:
                part = self.pending[:self.skip]
                self.skip -= len(part)
                if self.keep is not None:
                    body = self.body.setdefault(self.keep, bytearray())
                    body += part[:self.KEPT - len(body)]
                del self.pending[:len(part)]
                continue
            if len(self.pending) < FRAME_HEADER:
                return
            length = int.from_bytes(self.pending[:3], "big")
            kind = self.pending[3]
            stream = int.from_bytes(self.pending[5:9], "big") & 0x7FFFFFFF
            del self.pending[:FRAME_HEADER]
            self.bytes[stream] = self.bytes.get(stream, 0) + FRAME_HEADER + length
            if kind in (HEADERS, CONTINUATION):
                self.headers[stream] = self.headers.get(stream, 0) + FRAME_HEADER + length
            self.skip = length
            wanted = kind == DATA and len(self.body.get(stream, b"")) < self.KEPT
            self.keep = stream if wanted else None


class UploadMeter:
    """Listens on a port of this host (`port`; 0: any that is free, then read it), passes all on to `target`, another of
    its ports, and counts. One thread."""

    def __init__(self, port, target, run):
        self.target = target
        self.run = run.encode()
        self.connections = []  # Frames, of closed ones too
        self.selector = selectors.DefaultSelector()
        self.listener = socket.create_server(("127.0.0.1", port), backlog=256)
        self.port = self.listener.getsockname()[1]
        self.selector.register(self.listener, selectors.EVENT_READ, None)
        self.wake, self.end = socket.socketpair()
        self.selector.register(self.end, selectors.EVENT_READ, None)
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def totals(self):
        """After close: the uploads' number, their bytes, those of HEADERS among them, and what else went up."""
        self.close()
        uploads = total = headers = everything = 0
        for frames in self.connections:
            everything += len(PREFACE) + sum(frames.bytes.values())
            for stream, body in frames.body.items():
                if is_upload(bytes(body), self.run):
                    uploads += 1
                    total += frames.bytes[stream]
                    headers += frames.headers.get(stream, 0)
        return {"uploads": uploads, "bytes": total, "headers": headers, "other": everything - total}

    def close(self):
        if self.thread.is_alive():
            self.wake.send(b"x")
            self.thread.join()

    def _accept(self):
        client, _ = self.listener.accept()
        try:
            server = socket.create_connection(("127.0.0.1", self.target))
        except OSError:  # not up yet: the client tries again
            client.close()
            return
        frames = Frames()
        self.connections.append(frames)
        for one, other, counted in ((client, server, frames), (server, client, None)):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.selector.register(one, selectors.EVENT_READ, (other, counted))

    def _pass_on(self, source, other, counted):
        try:
            data = source.recv(1 << 18)
            if data:
                other.sendall(data)  # waits for a slow reader: that is the backpressure there was before
        except OSError:
            data = b""
        if data:
            if counted is not None:
                counted.feed(data)
            return
        for end in (source, other):
            self.selector.unregister(end)
            end.close()

    def _serve(self):
        while True:
            for key, _ in self.selector.select():
                if key.fileobj is self.end:
                    for open_key in list(self.selector.get_map().values()):
                        open_key.fileobj.close()
                    self.selector.close()
                    return
                if key.fileobj is self.listener:
                    self._accept()
                elif key.fileobj.fileno() >= 0:  # not closed by one before it in this turn
                    self._pass_on(key.fileobj, *key.data)
