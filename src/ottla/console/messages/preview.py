"""Keys and values as text for a page: cut to a length, and never decoded beyond a size.

`auto` shows JSON, text, an Avro value with a registry's frame, or hexadecimal digits, whatever the bytes are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from ottla.client.values.parse import parse_value_format
from ottla.client.values.value_formats import ValueFormat

#: Characters in a list, and on the page of a record.
LIST_CHARACTERS, PAGE_CHARACTERS = 300, 200_000
#: Larger values are not decoded: they are shown as text or hexadecimal digits, up to the limit.
DECODED_BYTES_MAX = 2 * 2**20
HEX_LINE, HEX_BYTES_MAX = 16, 16 * 1024
#: Nodes and depth of a tree of JSON.
NODES_MAX, DEPTH_MAX, LEAF_CHARACTERS = 2_000, 30, 2_000
AVRO_FRAME = 5


class Shown(msgspec.Struct, frozen=True):
    """A key or value as text. `kind`: null, empty, json, text, hex, or the name of the format; `problem`: why it is not in that format."""

    kind: str
    text: str
    size: int
    is_cut: bool = False
    problem: str = ""


class PreviewNode(msgspec.Struct):
    """A part of a JSON value. `kind`: object, array, string, number, boolean, null; `omitted`: children that are not shown."""

    name: str
    kind: str
    text: str = ""
    children: list[PreviewNode] = []
    omitted: int = 0


class Formats:
    """The formats of a topic's keys or values, by name, made once."""

    def __init__(self, default: str, registry: str | None) -> None:
        self._default = default
        self._registry = registry
        self._by_name: dict[str, ValueFormat] = {}

    def chosen(self, name: str) -> ValueFormat | None:
        """The format of this name; None for `auto` without a default. Raises: ValueError, OSError, ImportError."""
        if name == "auto":
            name = self._default
        return self._named(name) if name else None

    def framed(self) -> ValueFormat | None:
        """Avro by the registry, if there is one."""
        return self._named("avro") if self._registry else None

    def _named(self, name: str) -> ValueFormat:
        if name not in self._by_name:
            self._by_name[name] = parse_value_format(name, "the format", registry=self._registry)
        return self._by_name[name]

    def show(self, data: bytes | None, name: str = "auto", characters: int = LIST_CHARACTERS) -> Shown:
        """The bytes as text."""
        if data is None:
            return Shown("null", "", 0)
        if not data:
            return Shown("empty", "", 0)
        try:
            form = self.chosen(name)
            if form is None and data[0] == 0 and len(data) > AVRO_FRAME:
                form = self.framed()
        except (ValueError, OSError, ImportError) as error:
            return guess(data, characters, str(error))
        if form is None or len(data) > DECODED_BYTES_MAX:
            return guess(data, characters, "" if form is None else "too large to be decoded here")
        try:
            text = form.show(data).decode("utf-8", "replace")
        except (ValueError, OSError) as error:
            return guess(data, characters, "" if name == "auto" and not self._default else str(error))
        return Shown(form.name, text[:characters], len(data), len(text) > characters)


def guess(data: bytes, characters: int, problem: str = "") -> Shown:
    """The bytes as JSON or text if they are that, else as hexadecimal digits."""
    # A character has at most four bytes; a cut one at the end is dropped.
    head = data if len(data) <= characters else data[: characters * 4]
    try:
        text = head.decode()
    except UnicodeDecodeError as error:
        text = head[: error.start].decode() if len(head) < len(data) and error.start >= len(head) - 3 else ""
    if text and is_printable(text):
        kind = "json" if text.lstrip()[:1] in ("{", "[") and is_json(data) else "text"
        return Shown(kind, text[:characters], len(data), len(text) > characters or len(head) < len(data), problem)
    most = characters // 2
    return Shown("hex", data[:most].hex(" "), len(data), len(data) > most, problem)


def is_printable(text: str) -> bool:
    """Whether a text has no control characters but white space."""
    return all(letter.isprintable() or letter in "\n\r\t" for letter in text)


def is_json(data: bytes) -> bool:
    """Whether the bytes are JSON; not looked at if they are large."""
    if len(data) > DECODED_BYTES_MAX:
        return False
    try:
        msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return True


def tree(data: bytes | None, decode: Callable[[bytes], Any]) -> PreviewNode | None:
    """The value as a tree; None if it is no object or array, or too large."""
    if data is None or len(data) > DECODED_BYTES_MAX:
        return None
    try:
        value = decode(data)
        if isinstance(value, msgspec.Raw):
            value = msgspec.json.decode(value)
    except (ValueError, OSError, RecursionError, UnicodeDecodeError):
        return None
    if not isinstance(value, dict | list):
        return None
    return _node("", value, [NODES_MAX], 0)


def _node(name: str, value: Any, left: list[int], depth: int) -> PreviewNode:
    left[0] -= 1
    if isinstance(value, dict | list):
        items = list(value.items()) if isinstance(value, dict) else [(str(index), one) for index, one in enumerate(value)]
        made = PreviewNode(name, "object" if isinstance(value, dict) else "array", f"{len(items)}", [])
        for index, (key, one) in enumerate(items):
            if left[0] <= 0 or depth >= DEPTH_MAX:
                made.omitted = len(items) - index
                break
            made.children.append(_node(str(key), one, left, depth + 1))
        return made
    if value is None:
        return PreviewNode(name, "null", "null")
    if isinstance(value, bool):
        return PreviewNode(name, "boolean", str(value).lower())
    if isinstance(value, int | float):
        return PreviewNode(name, "number", str(value))
    text = str(value)
    return PreviewNode(name, "string", text[:LEAF_CHARACTERS] + ("…" if len(text) > LEAF_CHARACTERS else ""))


def hex_lines(data: bytes) -> list[tuple[str, str, str]]:
    """(position, hexadecimal digits, characters) of each 16 bytes, up to a limit."""
    lines = []
    for at in range(0, min(len(data), HEX_BYTES_MAX), HEX_LINE):
        part = data[at : at + HEX_LINE]
        lines.append((f"{at:08x}", part.hex(" "), "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)))
    return lines
