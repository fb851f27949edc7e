"""Numbers of variable length in Avro and Protocol Buffers: seven bits per byte, lowest first; the top bit means that more follow.

Kafka's own, of 32 bits, are read by generated code (``wire/codegen.py``).
"""

#: Seven bits of ten bytes.
SHIFT_MAX = 63


def read_varint(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """The number at a position, and the position behind it. Raises: EOFError if it is not complete, or has more than ten bytes."""
    found = shift = 0
    while True:
        if position >= len(data) or shift > SHIFT_MAX:
            raise EOFError("a number is not complete, or has more than 64 bits")
        byte = data[position]
        position += 1
        found |= (byte & 127) << shift
        if byte < 128:
            return found, position
        shift += 7
