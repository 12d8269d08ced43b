#!/usr/bin/env python3
"""Writes the fixtures of this folder from the wire format's description alone, without Tributary's code.

hello_v1.bin    the hello of a control socket, version 1
reply_v1.bin    the acceptor's answer to it
chunk_v1.bin    the header of a chunk of 9 bytes ("123456789"), and the chunk
control_v1.bin  a grant, then a cancellation with a text
lanes_v1.bin    the hellos of the two data sockets of hello_v1.bin's link
shm_v1.bin      the hello of a link through shared memory, and the word that comes with the memory's descriptor
roce_v1.bin     the hello of a RoCE link's control socket, its endpoint, and "connected"
"""
import os
import struct


def crc32c(data, crc=0):
    """Bit by bit, as in RFC 3720 (reflected polynomial 0x82f63b78)."""
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


assert crc32c(b"123456789") == 0xE3069283  # the check value of the CRC catalogue


def varint(n):
    out = b""
    while n >= 0x80:
        out += bytes([n & 0x7F | 0x80])
        n >>= 7
    return out + bytes([n])


def number(field, n):
    return varint(field << 3) + varint(n)


def text(field, data):
    return varint(field << 3 | 2) + varint(len(data)) + data


def prefixed(message):
    return b"TRIBLINK" + struct.pack("<Q", len(message)) + message


def hello(slots, epoch, name, application):
    return (
        number(1, 1) + text(2, bytes(range(16))) + number(4, 2) + number(5, 1052672)
        + number(6, slots) + number(7, epoch) + number(8, 1000) + text(9, name)
        + text(10, application)
    )


def lane(socket):
    return number(1, 1) + text(2, bytes(range(16))) + number(3, socket)


def chunk():
    payload = b"123456789"
    head = struct.pack("<4sIQQQQQI", b"TRBC", len(payload), 5, 7, 3, 2**64 - 1, 2**40,
                       crc32c(payload))
    return head + struct.pack("<I", crc32c(head)) + payload


def control(kind, a, b, words=b""):
    head = struct.pack("<4sHHQQ", b"TRBM", kind, len(words), a, b)
    return head + struct.pack("<I", crc32c(head + words)) + words


def endpoint():
    """Two queue pairs and two slots; GID ::ffff:10.0.0.5. Repeated numbers are packed."""
    gid = bytes(10) + b"\xff\xff" + bytes([10, 0, 0, 5])
    return (
        text(1, gid) + number(4, 1024) + text(5, varint(17) + varint(300)) + text(6, varint(1) + varint(0xFFFFFF))
        + text(7, struct.pack("<QQ", 0x7F0000001000, 0x7F0000103000)) + text(8, struct.pack("<II", 0xABC, 0xABC))
        + number(9, 8)
    )


def shm():
    return prefixed(hello(8, 0x0123456789ABCDEF, b"rack0", b"\x00\xffhi")) + b"TRIBSHM1memory\0\0"


def roce():
    named = hello(8, 0x0123456789ABCDEF, b"rack0", b"\x00\xffhi") + text(11, b"roce")
    return prefixed(named) + prefixed(text(3, endpoint())) + prefixed(number(4, 1))


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    files = {
        "hello_v1.bin": prefixed(hello(8, 0x0123456789ABCDEF, b"rack0", b"\x00\xffhi")),
        "reply_v1.bin": prefixed(number(1, 1) + text(4, hello(16, 99, b"global", b"ok"))),
        "chunk_v1.bin": chunk(),
        "control_v1.bin": control(2, 0x0123456789ABCDEF, 12) + control(5, 0, 0, b"because"),
        "lanes_v1.bin": prefixed(lane(1)) + prefixed(lane(2)),
        "shm_v1.bin": shm(),
        "roce_v1.bin": roce(),
    }
    for name, data in files.items():
        with open(os.path.join(here, name), "wb") as out:
            out.write(data)


if __name__ == "__main__":
    main()
