"""The stages zstd and lz4: another codec's payload as one frame of RFC 8878 or one LZ4 block; written from those texts.

Reading is whole: what libzstd and liblz4 write is read here without them. Writing is the plainest that is allowed, and
so exercises what the libraries themselves seldom write.
"""

import ctypes
import struct

from codec_bits import Bits

MAGIC = b"\x28\xB5\x2F\xFD"


class Backwards:
    """A bit string that is read from its end, where a 1 marks the first bit before it. Zeros precede its beginning."""

    def __init__(self, data):
        self.number = int.from_bytes(data, "little")
        assert data and data[-1] != 0
        self.left = self.number.bit_length() - 1

    def peek(self, n):
        at = self.left - n
        return (self.number >> at if at >= 0 else self.number << -at) & ((1 << n) - 1)

    def take(self, n):
        value = self.peek(n)
        self.left -= n
        return value


class Fse:
    """A decoding table of a tabled asymmetric numeral system (section 4.1)."""

    def __init__(self, log, counts):
        self.log, size = log, 1 << log
        self.symbols, high = [None] * size, size
        for symbol, count in enumerate(counts):
            if count == -1:
                high -= 1
                self.symbols[high] = symbol
        at = 0
        for symbol, count in enumerate(counts):
            for _ in range(max(count, 0)):
                self.symbols[at] = symbol
                at = (at + (size >> 1) + (size >> 3) + 3) % size
                while at >= high:
                    at = (at + (size >> 1) + (size >> 3) + 3) % size
        assert at == 0 and None not in self.symbols
        following = [abs(count) for count in counts]
        self.steps = []
        for symbol in self.symbols:
            width = log - (following[symbol].bit_length() - 1)
            self.steps.append((width, (following[symbol] << width) - size))
            following[symbol] += 1

    def next(self, state, bits):
        width, base = self.steps[state]
        return base + bits.take(width)


class OneSymbol:
    """The table of mode RLE: the same symbol always, of no bits."""

    def __init__(self, symbol):
        self.log, self.symbols = 0, [symbol]

    def next(self, state, bits):
        return 0


def read_fse(data, at):
    """A table's description: (the table, where it ends)."""
    bits = Bits(data)
    bits.at = 8 * at
    log, counts = bits.take(4) + 5, []
    left = 1 << log
    while left > 0:
        width = (left + 1).bit_length()
        short = (1 << width) - 2 - left  # this many numbers take a bit less
        value = bits.take(width - 1)
        if value >= short and bits.take(1):
            value += (1 << (width - 1)) - short
        counts.append(value - 1)
        left -= abs(value - 1)
        while value == 1:  # none of this symbol: how many more have none
            more = bits.take(2)
            counts += [0] * more
            value = 1 if more == 3 else 0
    assert left == 0
    bits.to_byte()
    return Fse(log, counts), bits.at // 8


def read_weights(data):
    """Huffman weights between two states that take turns."""
    table, at = read_fse(data, 0)
    bits, weights = Backwards(data[at:]), []
    states = [bits.take(table.log), bits.take(table.log)]
    while True:
        weights.append(table.symbols[states[0]])
        states[0] = table.next(states[0], bits)
        states.reverse()
        if bits.left < 0:
            return weights + [table.symbols[states[0]]]


def read_huffman(data, at):
    """A tree: (its longest code, symbol and length for each number of so many bits; where the description ends)."""
    head, at = data[at], at + 1
    if head < 128:
        weights, at = read_weights(data[at:at + head]), at + head
    else:
        count = head - 127
        weights = [data[at + i // 2] >> 4 * (1 - i % 2) & 15 for i in range(count)]
        at += (count + 1) // 2
    total = sum(1 << w >> 1 for w in weights)
    longest = total.bit_length()
    last = (1 << longest) - total
    assert last & (last - 1) == 0
    weights.append(last.bit_length())
    table = []
    for weight in range(1, longest + 1):
        for symbol, w in enumerate(weights):
            if w == weight:
                table += [(symbol, longest + 1 - weight)] * (1 << weight >> 1)
    assert len(table) == 1 << longest
    return (longest, table), at


def huffman_stream(tree, data, count):
    (longest, table), bits, out = tree, Backwards(data), bytearray()
    for _ in range(count):
        symbol, length = table[bits.peek(longest)]
        bits.take(length)
        out.append(symbol)
    assert bits.left == 0
    return out


def sequence_codes(direct, first, base, widths):
    """Baselines and numbers of extra bits, of the codes after `direct` ones without."""
    codes = [(first + i, 0) for i in range(direct)]
    for width in widths:
        codes.append((base, width))
        base += 1 << width
    return codes


LITERALS = sequence_codes(16, 0, 16, [1, 1, 1, 1, 2, 2, 3, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16])
MATCHES = sequence_codes(32, 3, 35, [1, 1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16])
PREDEFINED = {
    "literals": (6, [4, 3] + [2] * 11 + [1] * 3 + [2] * 9 + [3, 2] + [1] * 5 + [-1] * 4),
    "offsets": (5, [1] * 6 + [2] * 3 + [1] * 15 + [-1] * 5),
    "matches": (6, [1, 4, 3] + [2] * 6 + [1] * 37 + [-1] * 7),
}


class Frame:
    """Reads one zstd frame; `out` is what it holds."""

    def __init__(self, data):
        self.data, self.out = data, bytearray()
        self.tree, self.tables, self.recent = None, {}, [1, 4, 8]
        at, size = self.head()
        last = 0
        while not last:
            head = int.from_bytes(data[at:at + 3], "little")
            last, kind, length, at = head & 1, head >> 1 & 3, head >> 3, at + 3
            if kind == 1:
                self.out += data[at:at + 1] * length
                at += 1
                continue
            assert kind in (0, 2)
            block, at = data[at:at + length], at + length
            self.out += block if kind == 0 else b""
            if kind == 2:
                self.compressed(block)
        assert at == len(data) and size in (None, len(self.out))

    def head(self):
        """Where the blocks begin, and the size that the frame says."""
        data = self.data
        assert data[:4] == MAGIC
        flags = data[4]
        single, checksum, dictionary, width = flags >> 5 & 1, flags >> 2 & 1, flags & 3, flags >> 6
        assert not checksum and not dictionary and flags & 8 == 0
        at = 5 if single else 6
        length = (single, 2, 4, 8)[width]
        size = int.from_bytes(data[at:at + length], "little") + (256 if width == 1 else 0)
        return at + length, size if length else None

    def compressed(self, block):
        literals, at = self.literals(block)
        count, at = self.count(block, at)
        if not count:
            self.out += literals
            return
        modes, at = block[at], at + 1
        assert modes & 3 == 0
        for name, shift in (("literals", 6), ("offsets", 4), ("matches", 2)):
            at = self.table(name, modes >> shift & 3, block, at)
        self.sequences(count, literals, Backwards(block[at:]))

    def literals(self, block):
        kind, form = block[0] & 3, block[0] >> 2 & 3
        if kind < 2:
            length = (1, 2, 1, 3)[form]
            size = int.from_bytes(block[:length], "little") >> (4 if form & 1 else 3)
            if kind == 1:
                return block[length:length + 1] * size, length + 1
            return block[length:length + size], length + size
        at, width = (3, 3, 4, 5)[form], (10, 10, 14, 18)[form]
        head = int.from_bytes(block[:at], "little") >> 4
        size, coded = head & ((1 << width) - 1), head >> width
        end = at + coded
        if kind == 2:
            self.tree, at = read_huffman(block, at)
        if form == 0:
            return huffman_stream(self.tree, block[at:end], size), end
        ends, at, part = struct.unpack_from("<3H", block, at), at + 6, (size + 3) // 4
        out = bytearray()
        for length in ends:
            out += huffman_stream(self.tree, block[at:at + length], part)
            at += length
        return out + huffman_stream(self.tree, block[at:end], size - 3 * part), end

    @staticmethod
    def count(block, at):
        first = block[at]
        if first < 128:
            return first, at + 1
        if first < 255:
            return (first - 128 << 8) + block[at + 1], at + 2
        return int.from_bytes(block[at + 1:at + 3], "little") + 0x7F00, at + 3

    def table(self, name, mode, block, at):
        if mode == 0:
            self.tables[name] = Fse(*PREDEFINED[name])
        elif mode == 1:
            self.tables[name], at = OneSymbol(block[at]), at + 1
        elif mode == 2:
            self.tables[name], at = read_fse(block, at)
        return at  # 3: the one before

    def sequences(self, count, literals, bits):
        order = ("literals", "offsets", "matches")
        states = {name: bits.take(self.tables[name].log) for name in order}
        used = 0
        for i in range(count):
            code = {name: self.tables[name].symbols[states[name]] for name in order}
            value = (1 << code["offsets"]) + bits.take(code["offsets"])
            base, width = MATCHES[code["matches"]]
            match = base + bits.take(width)
            base, width = LITERALS[code["literals"]]
            before = base + bits.take(width)
            if i + 1 < count:
                for name in ("literals", "matches", "offsets"):
                    states[name] = self.tables[name].next(states[name], bits)
            self.out += literals[used:used + before]
            used += before
            copy(self.out, self.offset(value, before), match)
        assert bits.left == 0
        self.out += literals[used:]

    def offset(self, value, literals):
        """Large ones are told, small ones say which of the last three; the newest is kept first."""
        which = value - 1 + (literals == 0)
        if value > 3:
            distance, which = value - 3, 2
        else:
            distance = self.recent[which] if which < 3 else self.recent[0] - 1
            which = min(which, 2)
        del self.recent[which]
        self.recent.insert(0, distance)
        return distance


def copy(out, distance, length):
    assert 0 < distance <= len(out)
    for _ in range(length):
        out.append(out[-distance])


def read_zstd(data):
    return bytes(Frame(data).out)


def write_zstd(plain):
    """A frame without a compressed block: runs of one byte as RLE blocks, all else raw, and at the end an empty one."""
    out = MAGIC + bytes([0xA0]) + struct.pack("<I", len(plain))  # one segment; its size takes four bytes

    def block(kind, length, content):
        return (kind << 1 | length << 3).to_bytes(3, "little") + content

    start = at = 0
    while at < len(plain):
        end = at
        while end < len(plain) and plain[end] == plain[at]:
            end += 1
        if end - at >= 8:
            out += block(0, at - start, plain[start:at]) if at > start else b""
            out += block(1, end - at, plain[at:at + 1])
            start = end
        at = end
    out += block(0, len(plain) - start, plain[start:]) if start < len(plain) else b""
    return out + (1).to_bytes(3, "little")


def read_lz4(data):
    out, at = bytearray(), 0

    def length(nibble):
        nonlocal at
        total = nibble
        while nibble == 15:
            total += data[at]
            at += 1
            if data[at - 1] != 255:
                break
        return total

    while True:
        token, at = data[at], at + 1
        literals = length(token >> 4)
        out += data[at:at + literals]
        at += literals
        if at == len(data):
            assert token & 15 == 0
            return bytes(out)
        distance, at = data[at] | data[at + 1] << 8, at + 2
        copy(out, distance, 4 + length(token & 15))


def write_lz4(plain):
    """Matches wherever the last four bytes of that hash stand, the nearest; the block's end as the format wants it."""
    out, seen, start, at = b"", {}, 0, 0

    def more(n):
        return b"\xFF" * ((n - 15) // 255) + bytes([(n - 15) % 255]) if n >= 15 else b""

    while at < len(plain) - 12:  # no match begins within the last twelve bytes, or reaches the last five
        found = seen.get(plain[at:at + 4])
        seen[plain[at:at + 4]] = at
        if found is None or at - found > 65535:
            at += 1
            continue
        end = at + 4
        while end < len(plain) - 5 and plain[end] == plain[found + end - at]:
            end += 1
        literals, match = at - start, end - at - 4
        out += bytes([min(literals, 15) << 4 | min(match, 15)]) + more(literals) + plain[start:at]
        out += struct.pack("<H", at - found) + more(match)
        start = at = end
    literals = len(plain) - start
    return out + bytes([min(literals, 15) << 4]) + more(literals) + plain[start:]


def library_zstd(plain, level):
    """What libzstd writes, to be read without it."""
    library = ctypes.CDLL("libzstd.so.1")
    library.ZSTD_compress.restype = ctypes.c_size_t
    room = ctypes.create_string_buffer(2 * len(plain) + 1024)
    size = library.ZSTD_compress(room, ctypes.c_size_t(len(room)), plain, ctypes.c_size_t(len(plain)), level)
    return room.raw[:size]


def library_lz4(plain):
    room = ctypes.create_string_buffer(2 * len(plain) + 1024)
    size = ctypes.CDLL("liblz4.so.1").LZ4_compress_default(plain, room, len(plain), len(room))
    return room.raw[:size]


class Compressed:
    """`inner`'s payload behind a stage's head; `number` and `parameter` are the inner codec's."""

    def __init__(self, inner, number, parameter, write, read):
        self.inner, self.number, self.parameter, self.write, self.read = inner, number, parameter, write, read

    def encode(self, x):
        plain = self.inner.encode(x)
        return struct.pack("<HHII", self.number, 0, self.parameter, len(plain)) + self.write(plain)

    def plain(self, payload):
        number, zero, parameter, length = struct.unpack_from("<HHII", payload)
        assert (number, zero, parameter) == (self.number, 0, self.parameter)
        plain = self.read(payload[12:])
        assert len(plain) == length
        return plain

    def values(self, payload, n):
        return self.inner.values(self.plain(payload), n)
