"""Builder of Python source for decoders and encoders, and the functions that the generated code calls.

`decoding` and `encoding` write one function per message class and version. Each line has a label, the path of its field. When a function
raises, `Compiled.where` finds the field by the line number in the traceback, so errors name the field without a cost for valid messages.

    length of a string, count of an array:    flexible versions      others
        null                                  0                      -1
        n bytes or elements                   n + 1, as a varint     n, as int16 (strings) or int32
    varint: seven bits per byte, lowest first; the top bit means that more follow; five bytes at most
"""

from __future__ import annotations

import linecache
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NamedTuple, NoReturn

from ottla.wire.declare import FieldNotInVersion, MalformedMessage

#: Kafka's own limit: the maximum of an int16 length, which applies to varint lengths too.
STRING_BYTES_MAX = 32767
VARINT_MAX = 2**31 - 1
#: Arrays of numbers up to this length use a precompiled `Struct`.
READY_MADE = 17


class Part(NamedTuple):
    """A field in a range of bytes that is read or written at once: its label, and its end relative to the start of the range."""

    end: int
    label: str


class Source:
    """The lines of one function, the names it uses, and the label of each line."""

    def __init__(self, header: str) -> None:
        self.lines = [header]
        self.labels: list[str | list[Part]] = [""]
        self.names: dict[str, Any] = {}
        self._constants: dict[Any, str] = {}
        self._depth = 1
        self._made = 0

    def line(self, text: str, label: str | list[Part] = "") -> None:
        """Add a line at the current depth."""
        self.lines.append("    " * self._depth + text)
        self.labels.append(label)

    @contextmanager
    def block(self, header: str, label: str = "") -> Iterator[None]:
        """Add a line that opens a block; lines added inside are indented."""
        self.line(header, label)
        self._depth += 1
        yield
        self._depth -= 1

    def fresh(self, prefix: str) -> str:
        """Return a name that is unique in the function."""
        self._made += 1
        return f"{prefix}{self._made}"

    def constant(self, prefix: str, key: Any, make: Callable[[], Any]) -> str:
        """Return the name of a global; equal keys return equal names."""
        if (prefix, key) not in self._constants:
            name = self._constants[prefix, key] = f"{prefix}_{len(self._constants)}"
            self.names[name] = make()
        return self._constants[prefix, key]

    def default(self, value: Any) -> str:
        """Return an expression for a field's default."""
        if value is None or isinstance(value, bool | int | float | str):
            return repr(value)
        if value == []:
            return "[]"
        return self.constant("default", repr(value), lambda: value)


class Compiled:
    """A compiled function with the labels of its lines."""

    def __init__(self, name: str, source: Source) -> None:
        text = "\n".join(source.lines) + "\n"
        filename = f"<{name}>"
        namespace = {**RUNTIME, **source.names}
        exec(compile(text, filename, "exec"), namespace)
        # Makes debuggers and tracebacks show the lines, although no file has them.
        linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
        self.run: Callable[..., Any] = namespace["run"]
        self._labels = source.labels

    def where(self, traceback: TracebackType | None) -> tuple[str, int]:
        """Return the field of an error, and the position in the buffer."""
        while traceback is not None and traceback.tb_frame.f_code is not self.run.__code__:
            traceback = traceback.tb_next
        if traceback is None:
            return "", 0
        values = traceback.tb_frame.f_locals
        label = self._labels[traceback.tb_lineno - 1]
        position = values.get("p", 0)
        if isinstance(label, list):
            left = values.get("end", 0) - position
            label = next((part.label for part in label if part.end > left), label[-1].label)
        return label.format_map(values), position


def long_uvarint(b: memoryview | bytes, p: int) -> tuple[int, int]:
    """Read a varint of any length: its value and the position after it."""
    value = 0
    for shift in (0, 7, 14, 21, 28):
        byte = b[p]
        p += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > VARINT_MAX:
                raise MalformedMessage(f"varint {value} is too large")
            return value, p
    raise MalformedMessage("varint is longer than five bytes")


def uvarint(value: int) -> bytes:
    """Write a varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def string_length(value: int) -> bytes:
    """Write the length of a compact string, one more than its bytes. Raises FieldNotInVersion above Kafka's limit."""
    if value > STRING_BYTES_MAX + 1:
        raise FieldNotInVersion(f"a string of {value - 1} bytes is longer than {STRING_BYTES_MAX}")
    return uvarint(value)


def tag_header(b: memoryview | bytes, p: int, last: int, end: int) -> tuple[int, int, int]:
    """Read one tag: its number, the start of its value and the end. Tags must ascend without duplicates."""
    tag, p = long_uvarint(b, p)
    size, p = long_uvarint(b, p)
    if tag <= last:
        raise MalformedMessage(f"tag {tag} follows tag {last}")
    if size > end - p:
        raise MalformedMessage(f"tag {tag} has {size} bytes, {end - p} are left")
    return tag, p, p + size


def skip_tags(b: memoryview | bytes, p: int, end: int, count: int) -> int:
    """Skip `count` tagged fields that this version does not know; returns the position after them."""
    last = -1
    for _ in range(count):
        last, _, p = tag_header(b, p, last, end)
    return p


def tag_count(b: memoryview | bytes, p: int, end: int, count: int, left: int) -> tuple[int, int]:
    """Read the number of tagged fields, of which `count` is the first byte, already read; each takes at least two bytes."""
    if count > 0x7F:
        count, p = long_uvarint(b, p - 1)
    if count * 2 > end - p:
        raise MalformedMessage(f"{count} tagged fields take at least {count * 2} bytes, {end - p} are left")
    if count > left:
        raise MalformedMessage("more elements than a message may have")
    return count, p


def refuse_length(length: int, left: int) -> NoReturn:
    """Raise an error about the length of a string or of bytes."""
    if length == -1:
        raise MalformedMessage("null where a value is required")
    if length < 0:
        raise MalformedMessage(f"length {length}")
    if length > left:
        raise MalformedMessage(f"length {length}, {left} bytes are left")
    raise MalformedMessage(f"a string of {length} bytes is longer than {STRING_BYTES_MAX}")


def refuse_count(count: int, element_bytes_min: int, left: int) -> NoReturn:
    """Raise an error about the count of an array."""
    if count == -1:
        raise MalformedMessage("null where an array is required")
    if count < 0:
        raise MalformedMessage(f"count {count}")
    if count * element_bytes_min > left:
        raise MalformedMessage(f"{count} elements take at least {count * element_bytes_min} bytes, {left} are left")
    raise MalformedMessage("more elements than a message may have")


def refuse_tag_end(position: int, end: int) -> NoReturn:
    """Raise an error: a tagged field did not end at the end of its size."""
    raise MalformedMessage(f"the tagged field ends {position - end:+d} bytes from where its size puts the end")


def refuse_rest(left: int) -> NoReturn:
    """Raise an error: bytes remain after the message."""
    raise MalformedMessage(f"{left} bytes follow the end of the message")


def refuse_value(label: str, version: int) -> NoReturn:
    """Raise an error: a value cannot be sent in this version."""
    raise FieldNotInVersion(f"version {version} cannot carry the value of {label}")


def refuse_uuid(size: int) -> NoReturn:
    """Raise an error: a uuid does not have 16 bytes."""
    raise FieldNotInVersion(f"a uuid has 16 bytes, not {size}")


#: Names that generated functions use.
RUNTIME: dict[str, Any] = {
    "long_uvarint": long_uvarint,
    "uvarint": uvarint,
    "string_length": string_length,
    "tag_header": tag_header,
    "skip_tags": skip_tags,
    "tag_count": tag_count,
    "refuse_length": refuse_length,
    "refuse_count": refuse_count,
    "refuse_tag_end": refuse_tag_end,
    "refuse_rest": refuse_rest,
    "refuse_value": refuse_value,
    "refuse_uuid": refuse_uuid,
    "ONE_BYTE": tuple(bytes([value]) for value in range(128)),
    "pack": struct.pack,
    "unpack_from": struct.unpack_from,
}
